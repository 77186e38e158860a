"""Linear programs as C: loops, typed variables, vectors lane by lane. A language of the family adds its own words.

Every node becomes a variable that is written once, in the order of the program; accumulators are variables that are
assigned. A vector is as many scalars, except where memory is accessed: as many elements at once as are certainly
aligned. Floats of 8 and 16 bits are carried as their bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from gradlet.base.dtype import DType
from gradlet.base.errors import RenderError
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import ELEMENTWISE, AxisKind, Op
from gradlet.optimize.analysis import divisor
from gradlet.render import carith
from gradlet.render.carith import Functions, literal, storage_type
from gradlet.target.target import Target

INT32: Final = (-(2**31), 2**31 - 1)
INDENT: Final = "  "


class CKernel:
    """State of rendering one program; subclasses say what their language has of its own."""

    def __init__(self, program: LinearProgram, target: Target) -> None:
        self.program, self.target = program, target
        self.functions = Functions()
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[UOp, tuple[str, ...]] = {}
        self.changing: set[str] = set()  # variables that are assigned later
        self.count = 0
        self.index_type = "int" if _fits(program) else "long long"
        self.initialised_at = early_accumulators(program.uops)
        self.handlers: dict[Op, Callable[[UOp], None]] = {
            Op.CONST: self._nothing, Op.PARAM: self._param, Op.VARIABLE: self._variable, Op.SINK: self._nothing,
            Op.LOCAL: self._local, Op.SPECIAL: self._special, Op.RANGE: self._range, Op.END: self._end,
            Op.ACC: self._acc, Op.UPDATE: self._update, Op.INDEX: self._nothing, Op.LOAD: self._load,
            Op.STORE: self._store, Op.VECTORIZE: self._vectorize, Op.EXTRACT: self._extract,
            Op.REDUCE_LANES: self._reduce_lanes, Op.SHUFFLE: self._shuffle, Op.PREFETCH: self._prefetch,
            Op.ACROSS: self._across, Op.BARRIER: self._barrier,
            Op.BOX: self._nothing, Op.RING: self._ring, Op.TURN: self._turn, Op.PASS_ON: self._pass_on,
            Op.COPY_BOX: self._copy_box, Op.STORE_BOX: self._store_box,
            Op.WGMMA: self._wgmma, Op.COPY_ASYNC: self._copy_async, Op.COMMIT: self._commit, Op.WAIT: self._wait,
        }  # fmt: skip

    def body(self) -> list[str]:
        """The lines inside the function.

        Raises:
            RenderError: an operation that the language lacks, or nodes out of order.
        """
        for node in self.program.uops:
            if node.op in ELEMENTWISE:
                self._element_wise(node)
                continue
            handler = self.handlers.get(node.op)
            if handler is None:
                raise RenderError(f"{node.op.name} does not occur in a program of {self.target.name}")
            handler(node)
        if self.depth != 1:
            raise RenderError(f"kernel {self.program.name}: {self.depth - 1} loops have no END")
        return self.lines

    # what a language adds
    def register_type(self, dtype: DType) -> str:
        """The type of one lane in a variable."""
        return self.index_type if dtype.kind == "x" else carith.register_type(dtype)

    def _param(self, node: UOp) -> None:
        self.values[node] = (f"p{node.arg.slot}",)

    def _variable(self, node: UOp) -> None:
        self.values[node] = (f"n{self.program.variables.index(node)}",)

    def _local(self, node: UOp) -> None:
        self.values[node] = (f"local{node.arg.number}",)

    def _special(self, node: UOp) -> None:
        raise RenderError(f"SPECIAL {node.arg.name} has no meaning on {self.target.name}")

    def _across(self, node: UOp) -> None:
        raise RenderError(f"lanes of {self.target.name} do not exchange registers")

    def _barrier(self, node: UOp) -> None:
        raise RenderError(f"{self.target.name} has no workgroups whose lanes wait for each other")

    def _copy_async(self, node: UOp) -> None:
        raise RenderError(f"{self.target.name} does not copy by itself")

    def _commit(self, node: UOp) -> None:
        raise RenderError(f"{self.target.name} does not copy by itself")

    def _wait(self, node: UOp) -> None:
        raise RenderError(f"{self.target.name} does not copy by itself")

    def _wgmma(self, node: UOp) -> None:
        raise RenderError(f"{self.target.name} has no matrix units")

    def _ring(self, node: UOp) -> None:
        raise RenderError(f"{self.target.name} has no copy engine")

    _turn = _pass_on = _copy_box = _store_box = _ring

    def _role(self, node: UOp) -> None:
        raise RenderError(f"{self.target.name} has no lanes")

    _walk = _role

    def _parallel(self, node: UOp) -> None:
        raise RenderError(f"a PARALLEL range has no meaning on {self.target.name}")

    def _guard_of_stores(self) -> str:
        """What has to hold for a store to memory, beside its own guard."""
        return ""

    # text
    def line(self, text: str) -> None:
        """One statement."""
        self.lines.append(INDENT * self.depth + text)

    def name(self, prefix: str) -> str:
        """A name that no other variable has."""
        self.count += 1
        return f"{prefix}{self.count - 1}"

    def declare(self, dtype: DType, text: str, prefix: str = "v") -> str:
        """A variable with this value."""
        name = self.name(prefix)
        self.line(f"const {self.register_type(dtype)} {name} = {text};")
        return name

    def value(self, node: UOp) -> tuple[str, ...]:
        """The variables or literals that hold a node's lanes."""
        found = self.values.get(node)
        if found is not None:
            return found
        if node.op is Op.CONST:
            return (literal(node.arg, node.dtype),) * node.dtype.count
        if node.op is Op.UPDATE:
            return self.value(node.src[0])
        raise RenderError(f"kernel {self.program.name} uses {node.op.name} before it is computed")

    def _lanes(self, node: UOp, count: int) -> tuple[str, ...]:
        found = self.value(node)
        return found * count if len(found) < count else found

    def _nothing(self, node: UOp) -> None:
        """Not an instruction, or written where it is used."""

    # loops
    def _range(self, node: UOp) -> None:
        for acc in self.initialised_at.get(node, ()):
            self._begin(acc)
        if node.arg.kind is AxisKind.PARALLEL:
            self._parallel(node)
            return
        if node.arg.kind in (AxisKind.ROLE, AxisKind.WALK):
            (self._role if node.arg.kind is AxisKind.ROLE else self._walk)(node)
            self.depth += 1
            return
        name = self.name("i")
        kind = self.register_type(node.dtype)
        stop = self.value(node.src[0])[0]
        self.line(f"for ({kind} {name} = 0; {name} < {stop}; ++{name}) {{")
        self.depth += 1
        self.values[node] = (name,)

    def _end(self, node: UOp) -> None:
        if node.src[0].arg.kind is AxisKind.PARALLEL:
            return
        self.depth -= 1
        self.line("}")

    def _begin(self, node: UOp) -> None:
        names = tuple([self.name("acc") for _ in range(node.dtype.count)])
        for name, start in zip(names, self._lanes(node.src[0], node.dtype.count)):
            self.line(f"{self.register_type(node.dtype)} {name} = {start};")
        self.values[node] = names
        self.changing.update(names)

    def _acc(self, node: UOp) -> None:
        if not any(node in found for found in self.initialised_at.values()):
            self._begin(node)

    def _update(self, node: UOp) -> None:
        acc, value = node.src
        for name, new in zip(self.value(acc), self._lanes(value, acc.dtype.count)):
            if name != new:
                self.line(f"{name} = {new};")

    # arithmetic
    def _element_wise(self, node: UOp) -> None:
        count = node.dtype.count
        operands = [self._lanes(s, count) for s in node.src]
        result: list[str] = []
        done: dict[tuple[str, ...], str] = {}
        for lane in range(count):
            args = tuple([operand[lane] for operand in operands])
            if args not in done:
                text = carith.expression(node, args, self.functions, self.index_type)
                done[args] = self.declare(node.dtype, text)
            result.append(done[args])
        self.values[node] = tuple(result)

    # lanes
    def _fixed(self, dtype: DType, texts: Sequence[str]) -> tuple[str, ...]:
        """The same values, in variables that nobody assigns."""
        return tuple([self.declare(dtype, t) if t in self.changing else t for t in texts])

    def _vectorize(self, node: UOp) -> None:
        lanes = [self.value(s)[0] for s in node.src]
        lanes = lanes * node.dtype.count if len(lanes) == 1 else lanes
        self.values[node] = self._fixed(node.dtype, lanes)

    def _extract(self, node: UOp) -> None:
        found = self.value(node.src[0])
        self.values[node] = self._fixed(node.dtype, [found[node.arg.lane] if len(found) > 1 else found[0]])

    def _shuffle(self, node: UOp) -> None:
        everything = [text for s in node.src for text in self._lanes(s, s.dtype.count)]
        self.values[node] = self._fixed(node.dtype, [everything[pick] for pick in node.arg.picks])

    def _prefetch(self, node: UOp) -> None:
        self.values[node] = self._fixed(node.dtype, self.value(node.src[0]))

    def _reduce_lanes(self, node: UOp) -> None:
        lanes = list(self._lanes(node.src[0], node.src[0].dtype.count))
        while len(lanes) > 1:
            half = len(lanes) // 2
            pairs = [self.combine(node.arg.op, node.dtype, a, b) for a, b in zip(lanes[:half], lanes[half : 2 * half])]
            lanes = [*[self.declare(node.dtype, text) for text in pairs], *lanes[2 * half :]]
        self.values[node] = self._fixed(node.dtype, lanes)

    def combine(self, op: Op, dtype: DType, first: str, second: str) -> str:
        """Two values combined by the op of a reduction."""
        return carith.binary(op, dtype.scalar, first, second, self.functions)

    # memory
    def _load(self, node: UOp) -> None:
        index, count = node.src[0], node.dtype.count
        param = self.value(index.src[0])[0]
        gates = self._gates(index, count)
        other = self._lanes(node.src[1], count) if len(node.src) > 1 else ()
        if count == 1 or (gates and len(set(gates)) > 1):
            place = self._place(index)
            pairs = zip(gates or ("",) * count, other or ("",) * count)
            ones = [self._load_one(node.dtype, param, offset(place, i), *pair) for i, pair in enumerate(pairs)]
            self.values[node] = tuple(ones)
            return
        result: list[str] = []
        width = self.access_width(index, count)
        place = self._place(index)
        for start in range(0, count, width):
            at = offset(place, start)
            gate = gates[0] if gates else ""
            rest = other[start : start + width]
            if width == 1:
                result.append(self._load_one(node.dtype, param, at, gate, rest[0] if rest else ""))
            else:
                result.extend(self._load_many(node.dtype.scalar, width, param, at, gate, rest))
        self.values[node] = tuple(result)

    def _place(self, index: UOp) -> str:
        return self.value(index.src[1])[0]

    def _gates(self, index: UOp, count: int) -> tuple[str, ...]:
        if len(index.src) < 3 or (index.src[2].op is Op.CONST and index.src[2].arg):
            return ()
        return self._lanes(index.src[2], count)

    def access_width(self, index: UOp, count: int) -> int:
        """How many elements from an address on are one access: those that certainly lie on a multiple of their size."""
        size = index.dtype.itemsize
        width = math.gcd(divisor(index.src[1]), count) or count
        width &= -width
        while width * size > max(size, self.target.access_bytes):
            width //= 2
        return width

    def _load_one(self, dtype: DType, param: str, place: str, gate: str, other: str) -> str:
        text = carith.from_memory(dtype.scalar, f"{param}[{place}]")
        return self.declare(dtype, f"{gate} ? {text} : {other}" if gate else text)

    def _load_many(
        self, dtype: DType, width: int, param: str, place: str, gate: str, other: Sequence[str]
    ) -> list[str]:  # fmt: skip
        kind, name = carith.vector_type(width * dtype.itemsize), self.name("w")
        address = f"*(const {kind}*)({param} + {place})"
        if not gate:
            self.line(f"const {kind} {name} = {address};")
        else:
            self.line(f"{kind} {name} = {carith.zero_vector(width * dtype.itemsize)};")
            self.line(f"if ({gate}) {name} = {address};")
        texts = [carith.from_vector(dtype, name, width, i) for i in range(width)]
        if gate:
            texts = [f"{gate} ? {t} : {o}" for t, o in zip(texts, other)]
        return [self.declare(dtype, text) for text in texts]

    def _store(self, node: UOp) -> None:
        index, source = node.src
        dtype = source.dtype
        param, place = self.value(index.src[0])[0], self._place(index)
        values = self.value(source) if dtype.count == 1 else self._lanes(source, dtype.count)
        gates = self._gates(index, dtype.count)
        more = self._guard_of_stores() if index.src[0].op is Op.PARAM else ""
        width = 1 if gates and len(set(gates)) > 1 else self.access_width(index, dtype.count)
        for start in range(0, dtype.count, width):
            conditions = [c for c in (more, gates[start] if gates else "") if c]
            before = f"if ({' && '.join(conditions)}) " if conditions else ""
            at = offset(place, start)
            if width == 1:
                text = carith.to_memory(dtype.scalar, values[start])
                self.line(f"{before}{param}[{at}] = {text};")
            else:
                kind = carith.vector_type(width * dtype.scalar.itemsize)
                text = carith.to_vector(dtype.scalar, values[start : start + width])
                self.line(f"{before}*({kind}*)({param} + {at}) = {text};")


def offset(place: str, distance: int) -> str:
    """The element so many after another."""
    if not distance:
        return place
    return str(int(place) + distance) if place.lstrip("-").isdigit() else f"{place} + {distance}"


def _fits(program: LinearProgram) -> bool:
    """Whether all index arithmetic of a program is done in 32 bits."""
    for node in program.uops:
        if node.dtype.kind == "x":
            low, high = bounds(node)
            if low < INT32[0] or high > INT32[1]:
                return False
    return True


def early_accumulators(uops: Sequence[UOp]) -> dict[UOp, list[UOp]]:
    """Accumulators that begin where a loop of theirs opens, because their node stands inside of it."""
    position = {node: i for i, node in enumerate(uops) if node.op in (Op.RANGE, Op.ACC)}
    found: dict[UOp, list[UOp]] = {}
    for acc in [n for n in position if n.op is Op.ACC]:
        loops = [r for r in acc.src[1:] if r in position]
        outermost = min(loops, key=position.__getitem__, default=None)
        if outermost is not None and position[outermost] < position[acc]:
            found.setdefault(outermost, []).append(acc)
    return found


def memory_type(dtype: DType) -> str:
    """The type of an element in memory."""
    return storage_type(dtype)
