"""Linear programs as LLVM IR text that needs no further optimisation: phi loops, explicit vectors, typed accesses.

On a CPU a kernel is `void name(ptr table, i64 begin, i64 end)` (docs/architecture.md, section 3). On a GPU it takes one
pointer a buffer and one i64 a variable, a PARALLEL range is the workgroup's number and THREAD ranges are the lane's.

Nothing is assumed about slots not overlapping: saying so gained nothing measurable (the accesses are in final order).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import RenderError
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import ELEMENTWISE, AxisKind, Op
from gradlet.render.llvmalu import Alu
from gradlet.render.llvmcast import bitcast, cast
from gradlet.render.llvmdot import Pair, Sums, dot, dot16, dot_chain, is_zero, joined_dots, largest_byte
from gradlet.render.llvmfacts import (
    accumulators,
    address_offsets,
    are_positive,
    gate_of,
    is_inside,
    is_number,
    known_integer,
    lane_strides,
)
from gradlet.render.llvmlookup import lookup
from gradlet.render.llvmnarrow import MASKED_BITS, is_narrow, narrow_load
from gradlet.render.llvmtext import (
    Value,
    Writer,
    constant,
    integer,
    lane_constants,
    lanes_of,
    memory_type,
    register_type,
    suffix,
    vector_type,
)
from gradlet.target.target import Target

_GPU_INDEX: Final = {
    "nvptx": {"workgroup": "llvm.nvvm.read.ptx.sreg.ctaid.x", "thread": "llvm.nvvm.read.ptx.sreg.tid.x"},
    "amdgpu": {"workgroup": "llvm.amdgcn.workgroup.id.x", "thread": "llvm.amdgcn.workitem.id.x"},
}
# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_CONST: Final = Op.CONST
_INDEX: Final = Op.INDEX
_RANGE: Final = Op.RANGE
_ACC: Final = Op.ACC
_UPDATE: Final = Op.UPDATE
_END: Final = Op.END
_LOCAL: Final = Op.LOCAL
_DOT: Final = Op.DOT
_DOT16: Final = Op.DOT16
_BITCAST: Final = Op.BITCAST
_CAST: Final = Op.CAST
_EXTRACT: Final = Op.EXTRACT
_IDIV: Final = Op.IDIV
_LOAD: Final = Op.LOAD
_LOOKUP: Final = Op.LOOKUP
_MAX: Final = Op.MAX
_MIN: Final = Op.MIN
_MOD: Final = Op.MOD
_PARAM: Final = Op.PARAM
_PREFETCH: Final = Op.PREFETCH
_REDUCE_LANES: Final = Op.REDUCE_LANES
_SHL: Final = Op.SHL
_SHR: Final = Op.SHR
_SHUFFLE: Final = Op.SHUFFLE
_SINK: Final = Op.SINK
_SPECIAL: Final = Op.SPECIAL
_STORE: Final = Op.STORE
_VARIABLE: Final = Op.VARIABLE
_VECTORIZE: Final = Op.VECTORIZE
_WHERE: Final = Op.WHERE
# Element-wise ops that are written in ways of their own.
_OF_A_KIND: Final = frozenset({
    _DOT, _DOT16, _CAST, _BITCAST, _WHERE, _IDIV, _MOD, _SHL, _SHR, _MAX, _MIN,
})  # fmt: skip
LOCAL_ALIGN: Final = 64  # bytes; a line of the cache, and the widest vector
CPU_ARGUMENTS: Final = "ptr noalias readonly %table, i64 %begin, i64 %end"
_GPU_CONVENTION: Final = {"nvptx": "ptx_kernel", "amdgpu": "amdgpu_kernel"}


def render(program: LinearProgram, target: Target) -> str:
    """LLVM IR of one kernel.

    Raises:
        RenderError: an operation that the target lacks, or nodes out of order.
    """
    function = kernel_function(program, target, program.name)
    return module_text(target, [*function.lines, ""], [attributes_line(program, target)], [function])


@dataclass(frozen=True)
class Function:
    """A function of a module: its text, the declarations it needs, how many loops it has numbered."""

    lines: list[str]
    declarations: dict[str, str]
    loops: int


def kernel_function(
    program: LinearProgram,
    target: Target,
    name: str,
    linkage: str = "",
    attributes: int = 0,
    loops_before: int = 0,
    words: Sequence[int] = (),
) -> Function:
    """One kernel as a function of a module.

    Args:
        program: the kernel.
        target: the machine.
        name: of the function.
        linkage: word of LLVM with a space after it, as `internal `.
        attributes: number of the module's attribute group.
        loops_before: loops of the module that stand before this function.
        words: where in the table each word of a CPU kernel stands; one after another if there are none.

    Raises:
        RenderError: an operation that the target lacks, or nodes out of order.
    """
    kernel = _Kernel(program, target, loops_before, words)
    kernel.render()
    kernel.handlers.clear()  # they hold the kernel, which would stay until Python looks for cycles
    lines = [kernel.head(name, linkage, attributes), *kernel.writer.lines, "}"]
    return Function(lines, kernel.writer.declarations, kernel.loop_count - loops_before)


def module_text(target: Target, body: list[str], attributes: list[str], functions: list[Function]) -> str:
    """A module: `body` is its globals and functions; the functions are given again for what they need below."""
    lines = [f'target triple = "{target.triple}"', "", *body]
    lines += sorted({text for function in functions for text in function.declarations.values()})
    lines += ["", *attributes]
    loops = sum(function.loops for function in functions)
    if loops or any("metadata !0" in line for line in body):
        lines.append('!0 = !{!"llvm.loop.unroll.disable"}')
        lines += [f"!{i} = distinct !{{!{i}, !0}}" for i in range(1, loops + 1)]
    return "\n".join(lines) + "\n"


def attributes_line(program: LinearProgram, target: Target, number: int = 0, more: str = "") -> str:
    """The attribute group of a kernel's function."""
    bits, threads = target.vector_bits, program.threads
    known = {
        "nvptx": f'"nvvm.maxntid"="{threads}"',
        "amdgpu": f'"amdgpu-flat-work-group-size"="1,{threads}"',
    }
    vectors = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    return f"attributes #{number} = {{ {more}nounwind {known[target.name] if target.kind == 'gpu' else vectors} }}"


@dataclass
class _Loop:
    """An open loop, and the accumulators that its iterations hand on."""

    start: Value
    stop: Value
    before: str  # label of the block that enters the loop
    body: str
    after: str
    index: Value
    guarded: bool  # entered only after a test: it may run zero times
    index_hole: int
    carried: list[_Carried] = field(default_factory=list)


class _Carried(NamedTuple):
    """An accumulator on its way through a loop: its value before, its phi, and the line kept for that phi."""

    acc: UOp
    entry: Value
    phi: Value
    hole: int


class _Kernel:
    """State of rendering one program."""

    def __init__(
        self, program: LinearProgram, target: Target, loops_before: int = 0, words: Sequence[int] = ()
    ) -> None:
        self.program = program
        self.words = words
        self.target = target
        self.is_gpu = target.kind == "gpu"
        self.pointer = "ptr addrspace(1)" if self.is_gpu else "ptr"
        self.writer = Writer()
        self.alu = Alu(self.writer, target)
        self.values: dict[UOp, Value] = {}
        self.gates: dict[UOp, UOp | None] = {}  # INDEX -> its gate, None where always true
        self.offsets = address_offsets(program.uops)
        self.sums = Sums(program.uops, target)
        self.dots = joined_dots(program.uops, target)
        # (PARAM, element) -> address that neighbouring accesses share; one dict for every open loop.
        self.bases: list[dict[tuple[UOp, UOp], Value]] = [{}]
        self.current: dict[UOp, Value] = {}  # ACC -> the register that holds it now
        self.loops: dict[UOp, _Loop] = {}
        self.loop_count = loops_before
        self.streams = False
        self.carried, self.initialised_at = accumulators(program.uops)
        self.lane_stride = lane_strides(program.uops)
        self.handlers: dict[Op, Callable[[UOp], None]] = {
            _CONST: self._const, _PARAM: self._nothing, _VARIABLE: self._nothing, _SINK: self._nothing,
            _LOCAL: self._nothing,
            _SPECIAL: self._special, _RANGE: self._range, _END: self._end, _ACC: self._acc,
            _UPDATE: self._update, _INDEX: self._index, _LOAD: self._load, _STORE: self._store,
            _VECTORIZE: self._vectorize, _EXTRACT: self._extract, _REDUCE_LANES: self._reduce_lanes,
            _SHUFFLE: self._shuffle, _LOOKUP: self._lookup, _PREFETCH: self._prefetch,
        }  # fmt: skip

    def render(self) -> None:
        """Write the body of the function."""
        self._arguments()
        values, handlers = self.values, self.handlers
        elsewhere = self.offsets | {d for d in self.dots if not self.sums.has(d)} | self.sums.multiples.keys()
        for node in self.program.uops:
            if node in elsewhere:
                if node in self.sums.multiples:
                    values[node] = values[self.sums.multiples[node]]
                continue
            op = node.op
            if op in ELEMENTWISE:
                values[node] = self._element_wise(node)
                continue
            handler = handlers.get(op)
            if handler is None:
                raise RenderError(f"{node.op.name} does not occur in a linear program (kernel {self.program.name})")
            handler(node)
        if self.loops:
            raise RenderError(f"kernel {self.program.name}: {len(self.loops)} loops have no END")
        if self.streams and self.target.triple.startswith("x86_64"):
            # Streaming stores are not ordered with the others that tell who waits that this part is done.
            self.writer.call_void("llvm.x86.sse.sfence")
        self.writer.line("ret void")

    # the function around the body
    def _arguments(self) -> None:
        """Give every PARAM and VARIABLE a register."""
        if self.is_gpu:
            for param in self.program.params:
                self.values[param] = Value(f"%p{param.arg.slot}", self.pointer)
            for position, variable in enumerate(self.program.variables):
                self.values[variable] = self._word(Value(f"%n{position}", "i64"), variable.dtype)
            return
        for param in self.program.params:
            place = self._table_entry(param.arg.slot)
            self.values[param] = Value(f"%p{param.arg.slot}", "ptr")
            self.writer.line(f"%p{param.arg.slot} = load ptr, {place}, align 8")
        for position, variable in enumerate(self.program.variables):
            place = self._table_entry(len(self.program.params) + position)
            word = self.writer.emit("i64", f"load i64, {place}, align 8")
            self.values[variable] = self._word(word, variable.dtype)

        for local in dict.fromkeys([n for n in self.program.uops if n.op is _LOCAL]):
            text = f"alloca [{local.arg.size} x {memory_type(local.dtype, self.target)}], align {LOCAL_ALIGN}"
            self.values[local] = self.writer.emit("ptr", text, f"local{local.arg.number}_")

    def _table_entry(self, position: int) -> Value:
        table = Value("%table", "ptr")
        position = self.words[position] if self.words else position
        if position == 0:
            return table
        return self.writer.emit("ptr", f"getelementptr inbounds i64, {table}, i64 {position}")

    def _word(self, word: Value, dtype: DType) -> Value:
        """An i64 of the launch as the integer type a node has."""
        return cast(self.writer, self.target, word, dtypes.int64, dtype)

    def head(self, name: str, linkage: str, attributes: int) -> str:
        """The line that opens the function."""
        if self.is_gpu:
            pointers = [f"{self.pointer} %p{p.arg.slot}" for p in self.program.params]
            words = [f"i64 %n{i}" for i in range(len(self.program.variables))]
            kind, arguments = f"{_GPU_CONVENTION[self.target.name]} ", ", ".join(pointers + words)
        else:
            kind, arguments = "", CPU_ARGUMENTS
        return f"define {linkage}{kind}void @{name}({arguments}) #{attributes} {{"

    # operands
    def value(self, node: UOp) -> Value:
        """The register or constant that holds a node's value here."""
        found = self.values.get(node)
        if found is not None:
            return found
        if node.op is _ACC:
            found = self.current.get(node)
        elif node.op is _UPDATE:
            found = self.current.get(node.src[0])
        elif node.op is _CONST:
            found = self.values[node] = constant(node.arg, node.dtype, self.target)
        if found is None:
            raise RenderError(f"kernel {self.program.name} uses {node.op.name} before it is computed")
        return found

    def _const(self, node: UOp) -> None:
        """Constants are written where they are used."""

    def _nothing(self, node: UOp) -> None:
        """Not an instruction."""

    # loops
    def _range(self, node: UOp) -> None:
        for acc in self.initialised_at.get(node, ()):
            self.current[acc] = self.value(acc.src[0])
        kind = node.arg.kind
        if self.is_gpu and kind in (AxisKind.PARALLEL, AxisKind.THREAD):
            self.values[node] = self._gpu_range(node, kind)
            return
        type_text = register_type(node.dtype, self.target)
        start, stop = integer(0, type_text), self.value(node.src[0])
        if kind is AxisKind.PARALLEL:
            start, stop = [self._part_bound(Value(name, "i64"), node) for name in ("%begin", "%end")]
        bound = node.src[0]
        runs = kind is not AxisKind.PARALLEL and bound.op is _CONST and bound.arg > 0
        self._open(node, start, stop, guarded=not runs)

    def _part_bound(self, word: Value, node: UOp) -> Value:
        """Where a part of the PARALLEL range begins or ends; parts are of the largest size it may have."""
        if node.src[0].op is not _CONST:
            count = cast(self.writer, self.target, self.value(node.src[0]), node.dtype, dtypes.int64)
            grid = integer(self.program.grid, "i64")
            word = self.writer.binary("sdiv", self.writer.binary("mul", word, count), grid)
        return self._word(word, node.dtype)

    def _open(self, node: UOp, start: Value, stop: Value, guarded: bool) -> None:
        writer = self.writer
        number = node.arg.number
        body, after = writer.name(f"loop{number}_"), writer.name(f"after{number}_")
        before = writer.label
        if guarded:
            runs = writer.compare("icmp slt", start, stop)
            writer.line(f"br {runs}, label %{body}, label %{after}")
        else:
            writer.line(f"br label %{body}")
        writer.start(body)
        index = Value("%" + writer.name(f"i{number}_"), start.type)
        loop = _Loop(start, stop, before, body, after, index, guarded, writer.hole())
        for acc in self.carried.get(node, ()):
            entry = self.value(acc)
            phi = Value("%" + writer.name(f"acc{acc.arg.number}_"), entry.type)
            loop.carried.append(_Carried(acc, entry, phi, writer.hole()))
            self.current[acc] = phi
        self.values[node] = index
        self.loops[node] = loop
        self.bases.append({})

    def _end(self, node: UOp) -> None:
        range_node = node.src[0]
        if self.is_gpu and range_node.arg.kind in (AxisKind.PARALLEL, AxisKind.THREAD):
            return
        loop = self.loops.pop(range_node, None)
        if loop is None:
            raise RenderError(f"kernel {self.program.name}: END of a loop that is not open")
        self.bases.pop()
        writer = self.writer
        self.loop_count += 1
        following = writer.emit(loop.index.type, f"add nuw nsw {loop.index}, 1", "next")
        again = writer.compare("icmp slt", following, loop.stop)
        latch = writer.label
        writer.line(f"br {again}, label %{loop.body}, label %{loop.after}, !llvm.loop !{self.loop_count}")
        incoming = f"[ {loop.start.text}, %{loop.before} ], [ {following.text}, %{latch} ]"
        writer.fill(loop.index_hole, f"{loop.index.text} = phi {loop.index.type} {incoming}")
        handed_on = [
            f"[ {c.entry.text}, %{loop.before} ], [ {self.current[c.acc].text}, %{latch} ]" for c in loop.carried
        ]
        for carried, incoming in zip(loop.carried, handed_on):
            writer.fill(carried.hole, f"{carried.phi.text} = phi {carried.phi.type} {incoming}")
        writer.start(loop.after)
        if loop.guarded:
            for carried, incoming in zip(loop.carried, handed_on):
                kind = carried.phi.type
                self.current[carried.acc] = writer.emit(kind, f"phi {kind} {incoming}", f"acc{carried.acc.arg.number}_")

    def _acc(self, node: UOp) -> None:
        if node not in self.current:
            self.current[node] = self.value(node.src[0])

    def _update(self, node: UOp) -> None:
        self.current[node.src[0]] = self.value(node.src[1])

    # GPU indices
    def _special(self, node: UOp) -> None:
        if not self.is_gpu:
            raise RenderError(f"SPECIAL {node.arg.name} has no meaning on {self.target.name}")
        self.values[node] = self._gpu_index(node.arg.name, node.dtype)

    def _gpu_index(self, name: str, dtype: DType) -> Value:
        register = self.writer.call("i32", _GPU_INDEX[self.target.name][name])
        return cast(self.writer, self.target, register, dtypes.uint32, dtype)

    def _gpu_range(self, node: UOp, kind: AxisKind) -> Value:
        if kind is AxisKind.PARALLEL:
            return self._gpu_index("workgroup", node.dtype)
        lane = self._gpu_index("thread", node.dtype)
        stride, size = self.lane_stride[node]
        if stride > 1:
            lane = self.writer.binary("udiv", lane, integer(stride, lane.type))
        if stride * size < self.program.threads:
            lane = self.writer.binary("urem", lane, integer(size, lane.type))
        return lane

    # memory
    def _index(self, node: UOp) -> None:
        """The address. Neighbouring accesses share one address, from which each has a constant distance."""
        param, element = node.src[0], node.src[1]
        gate = gate_of(node) if not self.is_gpu else node.src[2] if len(node.src) > 2 else None
        if gate is not None and gate.op is _CONST and gate.arg:
            gate = None
        self.gates[node] = gate
        if element.dtype.count > 1:
            raise RenderError(f"kernel {self.program.name}: an INDEX must have a scalar element number")
        kind = memory_type(node.dtype.scalar, self.target)
        if gate is not None and gate.dtype.count == 1:
            # The access always happens, at element 0 where the gate is false: no branch, and no masked vector that lies
            # outside of the memory, which some processors are very slow to leave out.
            number = self._number_if(gate, element)
            address = self.writer.emit(self.pointer, f"getelementptr {kind}, {self.values[param]}, {number}", "a")
        elif element in self.offsets:
            base, distance = self._base(param, element.src[0], kind), self.value(element.src[1])
            address = self.writer.emit(self.pointer, f"getelementptr {kind}, {base}, {distance}", "a")
        else:
            address = self._base(param, element, kind)
        self.values[node] = address

    def _number(self, element: UOp) -> Value:
        if element not in self.offsets:
            return self.value(element)
        return self.writer.binary("add nsw", self.value(element.src[0]), self.value(element.src[1]))

    def _number_if(self, gate: UOp, element: UOp) -> Value:
        """An element number, 0 where a guard is false; that of several memories is made once."""
        for bases in reversed(self.bases):
            found = bases.get((gate, element))
            if found is not None:
                return found
        number = self.value(element)
        made = self.writer.select(self.value(gate), number, integer(0, number.type))
        self.bases[-1][gate, element] = made
        return made

    def _base(self, param: UOp, element: UOp, kind: str) -> Value:
        """The address of an element, which need not lie inside the buffer: only the accesses it is shared by do."""
        for bases in reversed(self.bases):
            found = bases.get((param, element))
            if found is not None:
                return found
        made = self.writer.emit(self.pointer, f"getelementptr {kind}, {self.values[param]}, {self.value(element)}", "a")
        self.bases[-1][param, element] = made
        return made

    def _load(self, node: UOp) -> None:
        self.sums.before_load(self.writer)
        address, dtype = node.src[0], node.dtype
        gate = self.gates.get(address)
        pointer = self.value(address)
        align = dtype.scalar.itemsize
        kind = memory_type(dtype, self.target)
        whole = dtype.count == 1 or (address.src[0].arg.size >= dtype.count and not self.is_gpu)
        if gate is None or (gate.dtype.count == 1 and whole):
            loaded = self.writer.emit(kind, f"load {kind}, {pointer}, align {align}")
            result = self._from_memory(loaded, dtype)
            if gate is not None:
                chosen = self.value(gate) if dtype.count == 1 else self._mask(address.src[2], dtype.count)
                result = self.writer.select(chosen, result, self._alternative(node))
            self.values[node] = result
            return
        mask = self._mask(gate, dtype.count)
        if is_narrow(dtype, address.src[0], self.target):
            element = self._number(address.src[1])
            loaded = narrow_load(self.writer, self.values[address.src[0]], element, node, kind)
            self.values[node] = self.writer.select(mask, self._from_memory(loaded, dtype), self._alternative(node))
            return
        other = self._to_memory(self._alternative(node), dtype)
        space = "p1" if self.is_gpu else "p0"
        name = f"llvm.masked.load.{suffix(kind)}.{space}"
        loaded = self.writer.call(kind, name, self._aligned(pointer, align), mask, other)
        self.values[node] = self._from_memory(loaded, dtype)

    def _alternative(self, node: UOp) -> Value:
        """What a gated load gives where the gate is false."""
        if len(node.src) > 1:
            other = self.value(node.src[1])
            count = node.dtype.count
            return self.writer.broadcast(other, count) if lanes_of(other.type) < count else other
        return constant(0, node.dtype, self.target)

    def _store(self, node: UOp) -> None:
        address, source = node.src
        dtype = source.dtype
        gate = self.gates.get(address)
        pointer = self.value(address)
        align = dtype.scalar.itemsize
        stored = self._to_memory(self.value(source), dtype)
        if gate is None and node.arg is not None and node.arg.stream and not self.is_gpu:
            self.streams = True
            align *= dtype.count  # what `stream` checked
            self.writer.line(f"store {stored}, {pointer}, align {align}, !nontemporal !{{i32 1}}")
        elif gate is None:
            self.writer.line(f"store {stored}, {pointer}, align {align}")
        elif gate.dtype.count == 1 and (dtype.count == 1 or not self.is_gpu):
            self._store_if(self.value(gate), f"store {stored}, {pointer}, align {align}")
        else:
            mask = self._mask(gate, dtype.count)
            space = "p1" if self.is_gpu else "p0"
            name = f"llvm.masked.store.{suffix(stored.type)}.{space}"
            if self.target.vector_bits >= MASKED_BITS or self.is_gpu:
                self.writer.call_void(name, stored, self._aligned(pointer, align), mask)
            else:
                self._store_whole_or_part(
                    mask, stored, f"{pointer}, align {align}", name, self._aligned(pointer, align)
                )

    def _store_whole_or_part(self, mask: Value, stored: Value, where: str, name: str, pointer: Value) -> None:
        """A store in some lanes takes many instructions here; mostly all lanes are meant."""
        writer, count = self.writer, lanes_of(mask.type)
        whole, part, after = writer.name("whole"), writer.name("part"), writer.name("stored")
        bits = writer.convert("bitcast", mask, f"i{count}")
        every = writer.compare("icmp eq", bits, integer(-1, bits.type))
        writer.line(f"br {every}, label %{whole}, label %{part}")
        writer.start(whole)
        writer.line(f"store {stored}, {where}")
        writer.line(f"br label %{after}")
        writer.start(part)
        writer.call_void(name, stored, pointer, mask)
        writer.line(f"br label %{after}")
        writer.start(after)

    def _store_if(self, gate: Value, text: str) -> None:
        writer = self.writer
        inside, after = writer.name("store"), writer.name("skip")
        writer.line(f"br {gate}, label %{inside}, label %{after}")
        writer.start(inside)
        writer.line(text)
        writer.line(f"br label %{after}")
        writer.start(after)

    def _mask(self, gate: UOp, count: int) -> Value:
        mask = self.value(gate)
        return self.writer.broadcast(mask, count) if lanes_of(mask.type) < count else mask

    def _aligned(self, pointer: Value, align: int) -> Value:
        """The pointer as an argument with its alignment, which masked accesses take from the call."""
        return Value(pointer.text, f"{pointer.type} align {align}")

    def _from_memory(self, loaded: Value, dtype: DType) -> Value:
        if not dtype.is_bool:
            return loaded
        return self.writer.compare("icmp ne", loaded, integer(0, loaded.type))

    def _to_memory(self, value: Value, dtype: DType) -> Value:
        if not dtype.is_bool:
            return value
        return self.writer.convert("zext", value, vector_type(lanes_of(value.type), "i8"))

    # arithmetic
    def _element_wise(self, node: UOp) -> Value:
        op = node.op
        if op not in _OF_A_KIND and (op is not _ADD or not self.dots):
            return self.alu.apply(op, node.src[0].dtype, [self.value(s) for s in node.src])
        if op is _DOT:
            return self.sums.go_on(self.writer, node, self.value) if self.sums.has(node) else self._dot(node, None)
        if op is _DOT16:
            words = self.value(node.src[0]), self.value(node.src[1])
            start = None if is_zero(node.src[2]) else self.value(node.src[2])
            self.sums.note_halves(node)
            return dot16(self.writer, self.target, *words, start)
        if op is _ADD and not self.dots.isdisjoint(node.src):
            first, second = node.src if node.src[0] in self.dots else node.src[::-1]
            return self._dot(first, second)
        args = [self.value(s) for s in node.src]
        operand = node.src[0].dtype
        if op is _CAST:
            return cast(self.writer, self.target, args[0], operand, node.dtype)
        if op is _BITCAST:
            return bitcast(self.writer, self.target, args[0], operand, node.dtype)
        if op is _WHERE:
            return self.writer.select(args[0], args[1], args[2])
        if op in (_IDIV, _MOD):
            known = known_integer(node.src[1])
            return self.alu.divide(op, operand.scalar, args[0], args[1], known, are_positive(node))
        if op in (_SHL, _SHR) and not is_inside(node.src[1], operand.scalar):
            return self.alu.shift(op, operand.scalar, args[0], args[1])
        if op in (_MAX, _MIN) and node.src[0].op is _ACC:
            # The first operand is the one tested for NaN: not the accumulator, on which the next iteration waits.
            args = [args[1], args[0]]
            return self.alu.apply(op, operand, args)
        never_nan = None
        if op in (_MAX, _MIN):
            never_nan = next((i for i, s in enumerate(node.src) if is_number(s)), None)
        return self.alu.apply(op, operand, args, never_nan)

    def _dot(self, node: UOp, more: UOp | None) -> Value:
        """A DOT with all those it goes on from, and `more` that is added."""
        chain, start = dot_chain(node)
        start = more if start is None else start
        pairs = [Pair(self.value(n.src[0]), self.value(n.src[1]), largest_byte(n.src[0])) for n in chain]
        return dot(self.writer, self.target, pairs, None if start is None else self.value(start))

    def _vectorize(self, node: UOp) -> None:
        src, dtype = node.src, node.dtype
        if all(s.op is _CONST for s in src):
            values = [s.arg for s in src] if len(src) == dtype.count else [src[0].arg] * dtype.count
            self.values[node] = lane_constants(values, dtype, self.target)
            return
        if src.count(src[0]) == len(src):
            self.values[node] = self.writer.broadcast(self.value(src[0]), dtype.count)
            return
        kind = register_type(dtype, self.target)
        result = Value("poison", kind)
        for lane, scalar in enumerate(src):
            result = self.writer.emit(kind, f"insertelement {result}, {self.value(scalar)}, i64 {lane}")
        self.values[node] = result

    def _extract(self, node: UOp) -> None:
        value = self.value(node.src[0])
        self.values[node] = value if lanes_of(value.type) == 1 else self.writer.extract(value, node.arg.lane)

    def _shuffle(self, node: UOp) -> None:
        first = self.value(node.src[0])
        second = self.value(node.src[1]) if len(node.src) > 1 else Value("poison", first.type)
        self.values[node] = self.writer.shuffle(first, second, node.arg.picks)

    def _lookup(self, node: UOp) -> None:
        self.values[node] = lookup(self.writer, self.target, self.value(node.src[0]), self.value(node.src[1]))

    def _prefetch(self, node: UOp) -> None:
        """The value as it is, and an instruction beside it. A GPU keeps many loads in flight as it is."""
        self.values[node] = self.value(node.src[0])
        if not self.is_gpu:
            kinds = (self.value(node.src[1]), integer(0, "i32"), integer(4 - node.arg.level, "i32"), integer(1, "i32"))
            self.writer.call_void("llvm.prefetch.p0", *kinds)

    def _reduce_lanes(self, node: UOp) -> None:
        self.values[node] = self.alu.reduce_lanes(node.arg.op, node.dtype, self.value(node.src[0]))
