"""Kernels and launches as portable C11 on one thread: lanes in loops, memory by memcpy, the bits of the CPU's code.

A kernel is `void name(unsigned char *const *t, const int64_t *v, unsigned char *w)`: addresses by slot, values of
variables, and working memory of `work_bytes` for arrays of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp
from gradlet.graph.program import AnyProgram, LaunchProgram, LinearProgram
from gradlet.ops.op import COMPARE, Op
from gradlet.render import carith, cbasics
from gradlet.render.cstyle import CKernel, offset
from gradlet.render.llvmfacts import is_number
from gradlet.target.target import Target

ALIGN: Final = 64
_EXTREMES: Final = {Op.MAX: "max", Op.MIN: "min"}
_BODY: Final = "unsigned char *const *t, const int64_t *v, unsigned char *w, int64_t begin, int64_t end"


@dataclass
class CKernels:
    """Functions in C.

    Attributes:
        lines: the functions, those that are called first.
        formats: narrow floats whose conversions they call.
        work: bytes of working memory.
    """

    lines: list[str]
    formats: dict[DType, None]
    work: int


def render(program: AnyProgram, target: Target, name: str) -> CKernels:
    """A kernel or a launch as a function of this name.

    Raises:
        RenderError: an operation that C on a CPU lacks.
    """
    if isinstance(program, LinearProgram):
        found = _body(program, target, f"{name}_body", 0)
        call = f"{name}_body(t, v, w, 0, {program.grid});"
        found.lines += [f"static void {name}({_BODY.rpartition(', int64_t begin')[0]}) {{", f"  {call}", "}", ""]
        return found
    return _launch(program, target, name)


def _body(program: LinearProgram, target: Target, name: str, before: int) -> CKernels:
    """One kernel; `before`: bytes of the working memory that others have."""
    kernel = _Kernel(program, target, before)
    body = kernel.body()
    formats = {dtype: None for dtype in kernel.functions.used.values() if dtype is not None}
    lines = [f"static void {name}({_BODY}) {{", *kernel.head(), *body, "}", ""]
    return CKernels(lines, formats, kernel.work)


def _launch(program: LaunchProgram, target: Target, name: str) -> CKernels:
    """All stages, one after another: the segments of each, block by block where it is a region."""
    places: list[int] = []
    end = 0
    for size in program.scratch:
        places.append(end)
        end += -(-size // ALIGN) * ALIGN
    bodies = [_body(body, target, f"{name}_{n}", end) for n, body in enumerate(program.programs)]
    lines = [line for body in bodies for line in body.lines]
    lines.append(f"static void {name}(unsigned char *const *t, const int64_t *v, unsigned char *w) {{")
    for stage, works in zip(program.stages, program.work, strict=True):
        for segment, work in zip(stage, works, strict=True):
            lines.append("  {")
            for number, use in enumerate(segment):
                slots = [f"t[{s}]" if s >= 0 else f"w + {places[-1 - s]}" for s in use.slots]
                values = [f"v[{variable}]" for variable in use.variables]
                lines.append(f"    unsigned char *const t{number}[] = {{{', '.join(slots) or 'w'}}};")
                lines.append(f"    const int64_t v{number}[] = {{{', '.join(values) or '0'}}};")
            calls = [f"{name}_{use.body}(t{n}, v{n}, w, %s);" for n, use in enumerate(segment)]
            if len(segment) == 1:
                lines.append(f"    {calls[0] % f'0, {work.blocks}'}")
            else:
                lines.append(f"    for (int64_t b = 0; b < {work.blocks}; ++b) {{")
                lines += [f"      {call % 'b, b + 1'}" for call in calls]
                lines.append("    }")
            lines.append("  }")
    lines += ["  (void)t, (void)v, (void)w;", "}", ""]
    formats = {dtype: None for body in bodies for dtype in body.formats}
    return CKernels(lines, formats, max([end, *[body.work for body in bodies]]))


class _Kernel(CKernel):
    """One kernel. A vector is an array, and what is done to its lanes is a loop over them."""

    def __init__(self, program: LinearProgram, target: Target, before: int) -> None:
        super().__init__(program, target)
        self.arrays: dict[tuple[str, ...], str] = {}  # lanes that lie in one array, in order
        self.handlers[Op.LOOKUP] = self._lookup
        self.work = before
        self.locals: dict[UOp, int] = {}
        for local in dict.fromkeys(n for n in program.uops if n.op is Op.LOCAL):
            self.locals[local] = self.work
            self.work += -(-local.arg.size * local.dtype.itemsize // ALIGN) * ALIGN

    def head(self) -> list[str]:
        """What stands at the beginning of the function."""
        program = self.program
        lines = [f"  unsigned char *const p{p.arg.slot} = t[{p.arg.slot}];" for p in program.params]
        for number, variable in enumerate(program.variables):
            kind = self.register_type(variable.dtype)
            lines.append(f"  const {kind} n{number} = ({kind})v[{number}];")
        lines += [f"  unsigned char *const local{n.arg.number} = w + {place};" for n, place in self.locals.items()]
        return [*lines, "  (void)t, (void)v, (void)w, (void)begin, (void)end;"]

    # loops
    def _parallel(self, node: UOp) -> None:
        kind, name = self.register_type(node.dtype), self.name("i")
        low, high = "begin", "end"
        if node.src[0].op is not Op.CONST:  # parts are of the largest size that the range may have
            count = self.value(node.src[0])[0]
            low, high = [f"{bound} * (int64_t){count} / {self.program.grid}" for bound in (low, high)]
        stop = self.declare(node.dtype, f"({kind})({high})", "stop")
        self.line(f"for ({kind} {name} = ({kind})({low}); {name} < {stop}; ++{name}) {{")
        self.depth += 1
        self.values[node] = (name,)

    def _end(self, node: UOp) -> None:
        self.depth -= 1
        self.line("}")

    # arrays
    def array(self, dtype: DType, count: int, prefix: str = "v") -> tuple[str, tuple[str, ...]]:
        """A new array: its name and its lanes."""
        name = self.name(prefix)
        self.line(f"{self.register_type(dtype)} {name}[{count}];")
        lanes = tuple([f"{name}[{lane}]" for lane in range(count)])
        self.arrays[lanes] = name
        return name, lanes

    def lane(self, dtype: DType, lanes: tuple[str, ...]) -> str:
        """A text that is lane `l` of a vector inside a loop over `l`."""
        if all(text == lanes[0] for text in lanes):
            return lanes[0]
        name = self.arrays.get(lanes)
        if name is None:
            name = self.name("v")
            self.line(f"const {self.register_type(dtype)} {name}[{len(lanes)}] = {{{', '.join(lanes)}}};")
        return f"{name}[l]"

    def loop(self, count: int, text: str) -> None:
        """A statement for every lane."""
        self.line(f"for (int l = 0; l < {count}; ++l) {text}")

    def _begin(self, node: UOp) -> None:
        count = node.dtype.count
        if count == 1:
            super()._begin(node)
            return
        start = self.lane(node.dtype, self._lanes(node.src[0], count))
        name, lanes = self.array(node.dtype, count, "acc")
        self.loop(count, f"{name}[l] = {start};")
        self.values[node] = lanes
        self.changing.update(lanes)

    def _update(self, node: UOp) -> None:
        acc, value = node.src
        lanes = self.value(acc)
        if acc.dtype.count == 1:
            super()._update(node)
        elif (new := self._lanes(value, acc.dtype.count)) != lanes:
            self.loop(acc.dtype.count, f"{self.arrays[lanes]}[l] = {self.lane(acc.dtype, new)};")

    # arithmetic
    def _element_wise(self, node: UOp) -> None:
        count = node.dtype.count
        operands = [self._lanes(s, count) for s in node.src]
        if count == 1 or all(len(set(lanes)) == 1 for lanes in operands):
            text = self._expression(node, [lanes[0] for lanes in operands])
            self.values[node] = (self.declare(node.dtype, text),) * count
            return
        args = [self.lane(s.dtype, lanes) for s, lanes in zip(node.src, operands, strict=True)]
        name, lanes = self.array(node.dtype, count)
        self.loop(count, f"{name}[l] = {self._expression(node, args)};")
        self.values[node] = lanes

    def _expression(self, node: UOp, args: Sequence[str]) -> str:
        """An op on one lane. Which of two equal zeros, and which NaN, is as in the CPU's own code (`llvmalu`)."""
        op, dtype = node.op, node.src[0].dtype.scalar
        if op not in _EXTREMES or not dtype.is_float:
            return carith.expression(node, args, self.functions, self.index_type)
        first, second = args
        never_nan = next((i for i, s in enumerate(node.src) if is_number(s)), None)
        if node.src[0].op is Op.ACC:
            first, second, never_nan = second, first, None
        elif never_nan == 1:
            first, second = second, first
        return self._extreme(op, dtype, first, second)

    def _extreme(self, op: Op, dtype: DType, first: str, second: str) -> str:
        if dtype is dtypes.float64:
            return f"{_EXTREMES[op]}_double({first}, {second})"
        if not carith.is_bits(dtype):
            return f"{_EXTREMES[op]}_float({first}, {second})"
        wide = [carith.widen(text, dtype, self.functions) for text in (first, second)]
        return carith.narrow(f"{_EXTREMES[op]}_float({wide[0]}, {wide[1]})", dtype, self.functions)

    def combine(self, op: Op, dtype: DType, first: str, second: str) -> str:
        scalar = dtype.scalar
        if op in _EXTREMES and scalar.is_float:
            return self._extreme(op, scalar, first, second)
        return super().combine(op, dtype, first, second)

    def _reduce_lanes(self, node: UOp) -> None:
        dtype = node.dtype.scalar
        if not carith.is_bits(dtype) or node.arg.op in COMPARE:
            super()._reduce_lanes(node)
            return
        lanes = [
            carith.widen(text, dtype, self.functions) for text in self._lanes(node.src[0], node.src[0].dtype.count)
        ]
        lanes = [self.declare(dtypes.float32, text) for text in lanes]
        while len(lanes) > 1:
            half = len(lanes) // 2
            pairs = [self.combine(node.arg.op, dtypes.float32, a, b) for a, b in zip(lanes[:half], lanes[half:])]
            lanes = [*[self.declare(dtypes.float32, text) for text in pairs], *lanes[2 * half :]]
        self.values[node] = (self.declare(dtype, carith.narrow(lanes[0], dtype, self.functions)),)

    def _lookup(self, node: UOp) -> None:
        table = self._lanes(node.src[0], node.src[0].dtype.count)
        index = self._lanes(node.src[1], node.dtype.count)
        held = self.arrays.get(table)
        if held is None:
            held = self.name("v")
            self.line(f"const {self.register_type(node.dtype)} {held}[{len(table)}] = {{{', '.join(table)}}};")
        place = self.lane(node.src[1].dtype, index)
        name, lanes = self.array(node.dtype, node.dtype.count)
        self.loop(node.dtype.count, f"{name}[l] = {held}[(unsigned int){place} % {len(table)}u];")
        self.values[node] = lanes if node.dtype.count > 1 else (f"{name}[0]",)

    # memory
    def _load(self, node: UOp) -> None:
        index, count, dtype = node.src[0], node.dtype.count, node.dtype.scalar
        param, place = self.value(index.src[0])[0], self._place(index)
        gates = self._gates(index, count)
        other = self._lanes(node.src[1], count) if len(node.src) > 1 else (carith.literal(0, dtype),) * count
        if count == 1:
            text = self._element(dtype, param, place)
            self.values[node] = (self.declare(dtype, f"{gates[0]} ? {text} : {other[0]}" if gates else text),)
            return
        gate = self.lane(dtypes.bool, gates) if gates else ""
        rest = self.lane(dtype, other) if gates else ""
        name, lanes = self.array(dtype, count)
        if gates:
            self.loop(count, f"{name}[l] = {gate} ? {self._element(dtype, param, offset(place, 0) + ' + l')} : {rest};")
        elif dtype.is_bool:
            self.loop(count, f"{name}[l] = {self._element(dtype, param, f'{place} + l')};")
        else:
            self.line(f"memcpy({name}, {param} + {dtype.itemsize} * (long long)({place}), {count * dtype.itemsize});")
        self.values[node] = lanes

    def _element(self, dtype: DType, param: str, place: str) -> str:
        return carith.from_memory(dtype, f"load_{cbasics.accessor(dtype)}({param}, {place})")

    def _store(self, node: UOp) -> None:
        index, source = node.src
        dtype, count = source.dtype.scalar, source.dtype.count
        param, place = self.value(index.src[0])[0], self._place(index)
        gates = self._gates(index, count)
        lanes = self._lanes(source, count)
        store = f"store_{cbasics.accessor(dtype)}"
        if count == 1:
            before = f"if ({gates[0]}) " if gates else ""
            self.line(f"{before}{store}({param}, {place}, {carith.to_memory(dtype, lanes[0])});")
            return
        if not gates and not dtype.is_bool and lanes in self.arrays:
            nbytes = count * dtype.itemsize
            self.line(f"memcpy({param} + {dtype.itemsize} * (long long)({place}), {self.arrays[lanes]}, {nbytes});")
            return
        before = f"if ({self.lane(dtypes.bool, gates)}) " if gates else ""
        value = carith.to_memory(dtype, self.lane(dtype, lanes))
        self.loop(count, f"{before}{store}({param}, {place} + l, {value});")
