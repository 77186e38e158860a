"""Kernels as CUDA C: workgroups are blocks, lanes are threads, arrays of a workgroup lie in shared memory.

A kernel is `name(pointers..., long long n0, ...)`. Its arrays lie one after another in the one dynamic block of shared
memory, of `shared_bytes`. PARALLEL ranges are digits of the block's number, the last one fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import RenderError
from gradlet.graph.loose import swallowed_powers
from gradlet.graph.node import UOp, mk
from gradlet.graph.program import AnyProgram, LinearProgram
from gradlet.ops.op import AxisKind, BoxArg, Op, WgmmaArg
from gradlet.optimize.analysis import is_fixed, range_size, size_bound
from gradlet.render.cstyle import INDENT, CKernel, memory_type
from gradlet.render.cudabasics import BASICS, DERIVED
from gradlet.render.cudafloats import format_functions
from gradlet.render.cudaproducts import PAIRS, place_of_register, tile_product, tile_product_name
from gradlet.render.cudarings import QUEUE, RING_BASICS, box_functions, ring_name, ring_position
from gradlet.render.cudaunits import UnitCall, UnitText, unit_name
from gradlet.target.matrixcore import FACTORS
from gradlet.target.target import Target

WARP: Final = 32
WARPGROUP: Final = 128
# Of a lane that copies, and of one that computes beside it, by groups of four warps that do.
REGISTERS: Final = {2: (40, 232), 3: (32, 160)}
MANY: Final = 160  # of units, in a lane, from which on two warpgroups get all there are
MANY_REGISTERS: Final = (24, 240)
PAIRED: Final = frozenset({"float16", "bfloat16"})  # two of them are made of float32 at once
ALIGN: Final = 128  # bytes, of arrays in shared memory
WHOLE: Final = 1024  # where pieces are exchanged by row


class Box(NamedTuple):
    """Memory that a kernel moves as boxes: the slot, its type, how it lies."""

    slot: int
    dtype: DType
    arg: BoxArg


def boxes_of(program: LinearProgram) -> list[Box]:
    """What a kernel takes tensor maps of, in the order of its parameters."""
    found = [Box(n.src[0].arg.slot, n.dtype, n.arg) for n in program.uops if n.op is Op.BOX]
    return list(dict.fromkeys(found))


class Basics(NamedTuple):
    """What all functions stand on: for all kernels, for units, for boxes with so many axes, for attention."""

    all: str = BASICS
    units: UnitText = UnitText()
    ring: str = RING_BASICS
    queue: str = QUEUE
    boxes: Callable[[int], str] = box_functions
    pairs: str = PAIRS
    products: Callable[[WgmmaArg, str], str] = tile_product


def render(program: AnyProgram, target: Target, basics: Basics = Basics()) -> str:
    """CUDA C of one kernel.

    Raises:
        RenderError: a launch of several kernels, or an operation that CUDA C lacks.
        ArgumentError: the schedule asks for more lanes or shared memory than a workgroup has.
    """
    if not isinstance(program, LinearProgram):
        raise RenderError(f"launch {program.name} holds several kernels; a GPU runs one kernel a launch")
    target.check_workgroup(program.name, program.threads, shared_bytes(program))
    kernel = _Kernel(program, target)
    body = kernel.body()
    formats = dict.fromkeys(dtype for dtype in kernel.functions.used.values() if dtype is not None)
    helpers = [format_functions(dtype) for dtype in formats]
    if (kernel.units or kernel.products) and target.matrix_units is not None:
        helpers += basics.units.functions(target.matrix_units, kernel.units)
    if kernel.boxes:
        ranks = dict.fromkeys(len(box.arg.sizes) for box in kernel.boxes)
        helpers += [basics.ring.strip(), *[basics.boxes(rank) for rank in ranks]]
    if kernel.takes_blocks:
        helpers.append(basics.queue.strip())
    if kernel.products:
        helpers += [basics.pairs.strip(), *[basics.products(*product) for product in kernel.products]]
    lines = [basics.all.strip(), DERIVED.strip(), *helpers, "", *kernel.head(), *body, "}", ""]
    return "\n".join(lines)


def shared_bytes(program: LinearProgram) -> int:
    """Bytes of shared memory that a block needs."""
    words: int = sum(16 * n.arg.buffers for n in program.uops if n.op is Op.RING)
    return _shared_layout(program)[1] + words + (16 if _takes_blocks(program) else 0)


def _takes_blocks(program: LinearProgram) -> bool:
    """Whether workgroups take blocks when they are done with one: of attention, whose blocks are long and short."""
    walks = [n for n in program.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.WALK]
    alone = any(n.op is Op.WGMMA and n.arg.alone for n in program.uops)
    return alone and bool(walks) and (range_size(walks[0]) or 0) > program.grid


def _shared_layout(program: LinearProgram) -> tuple[dict[UOp, int], int]:
    """Where every array begins, and where the last one ends."""
    places: dict[UOp, int] = {}
    end = 0
    align = WHOLE if any(n.op is Op.RING for n in program.uops) else ALIGN
    for local in dict.fromkeys(n for n in program.uops if n.op is Op.LOCAL and not n.arg.private):
        places[local] = end
        end += -(-local.arg.size * local.dtype.itemsize // align) * align
    return places, end


class _Kernel(CKernel):
    """One kernel in CUDA C."""

    def __init__(self, program: LinearProgram, target: Target) -> None:
        super().__init__(program, target)
        self.blocks = {n: size_bound(n) for n in program.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL}
        self.guard = self._lanes_that_store()
        self.places, self.end = _shared_layout(program)
        self.boxes = boxes_of(program)
        self.rings = [n for n in program.uops if n.op is Op.RING]
        self.under_way: list[str] = []  # products in arrays of their own that are not waited for
        self.under_way_outside: dict[UOp, list[str]] = {}  # of conditions that are open
        self.voted = "0.0f"  # a factor that lanes have looked at together last
        self.takes_blocks = _takes_blocks(program)
        self.weighs = any(n.op is Op.WGMMA and n.arg.registers for n in program.uops)
        self.swallowed = swallowed_powers(program.uops)
        self.units: dict[UnitCall, None] = {}
        self.products: dict[tuple[WgmmaArg, str], None] = {}
        roles = [int(n.src[0].arg) for n in program.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.ROLE]
        self.computing = max(roles, default=0)
        # A whole group of warps beside those that compute: registers change hands by such groups.
        self.hands_over = bool(roles) and program.threads - self.computing == WARPGROUP
        self.copying = False  # whether the role that is written begins copies
        self.summed: tuple[str, ...] = ()
        units = target.matrix_units if any(n.op is Op.WGMMA for n in program.uops) else None
        self.units_run_on = units is not None and units.run_on

    def head(self) -> list[str]:
        """The line that opens the function, and what stands before it."""
        program = self.program
        pointers = [f"{memory_type(p.dtype)}* p{p.arg.slot}" for p in program.params]
        words = [f"const long long n{i}" for i in range(len(program.variables))]
        maps = [f"const __grid_constant__ Map m{i}" for i in range(len(self.boxes))]
        # Registers change hands where it is known how many each lane begins with.
        bounds = f"__launch_bounds__({program.threads}{', 1' if self.hands_over else ''})"
        return [f'extern "C" __global__ void {bounds} {program.name}({", ".join(pointers + words + maps)}) {{']

    # indices
    def _special(self, node: UOp) -> None:
        register = {"thread": "threadIdx.x", "workgroup": "blockIdx.x"}[node.arg.name]
        self.values[node] = (self.declare(node.dtype, f"(int){register}", "t"),)

    def _parallel(self, node: UOp) -> None:
        sizes = list(self.blocks.items())
        position = list(self.blocks).index(node)
        text, stride = "blockIdx.x", 1
        for _, size in sizes[position + 1 :]:
            stride *= max(1, size)
        if stride > 1:
            text = f"{text} / {stride}u"
        if position > 0:
            text = f"{text} % {max(1, sizes[position][1])}u"
        name = self.declare(node.dtype, f"({self.register_type(node.dtype)})({text})", "block")
        self.values[node] = (name,)
        if not is_fixed(node):
            self.line(f"if ({name} >= {self.value(node.src[0])[0]}) return;")

    def _variable(self, node: UOp) -> None:
        super()._variable(node)
        kind = self.register_type(node.dtype)
        self.values[node] = (self.declare(node.dtype, f"({kind}){self.values[node][0]}", "n_"),)

    def _local(self, node: UOp) -> None:
        kind, name = memory_type(node.dtype), f"local{node.arg.number}"
        self.values[node] = (name,)
        if node.arg.private:
            pairs = _in_pairs(node)
            self.line(f"u32 {name}[{node.arg.size // 2}];" if pairs else f"{kind} {name}[{node.arg.size}];")
            return
        self.line(f"{kind}* const {name} = ({kind}*)(shared + {self.places[node]});")

    def access_width(self, index: UOp, count: int) -> int:
        """Arrays of a lane's own are registers: one at a time."""
        local = index.src[0]
        return 1 if local.op is Op.LOCAL and local.arg.private else super().access_width(index, count)

    def _store(self, node: UOp) -> None:
        """Floats of 16 bits in a lane's own array are registers of two."""
        (array, place), value = node.src[0].src[:2], node.src[1]
        if not _in_pairs(array):
            super()._store(node)
            return
        if value.op is Op.CONST:  # what a mask hides from all lanes
            wide = UOp.const(dtypes.float32.vec(value.dtype.count), value.arg)
        else:
            wide = value.src[0] if value.op is Op.CAST else value
        if wide.dtype.count != 2 or wide.dtype.scalar is not dtypes.float32:
            raise RenderError(f"kernel {self.program.name}: a register of two floats is not stored as a whole")
        pair = ", ".join(self.value(wide))
        kind = FACTORS[array.dtype].name
        self.line(f"{self.value(array)[0]}[{self.value(place)[0]} / 2] = pair_{kind}({pair});")

    def _range(self, node: UOp) -> None:
        """A loop that runs once or not at all is a condition."""
        if len(node.src) > 1:
            self._found(node)
            return
        plain = node.arg.kind in (AxisKind.LOOP, AxisKind.ORDERED)
        if is_fixed(node) or not plain or size_bound(node) != 1:
            if plain and self.weighs:  # a lane that copies has few registers
                self.line("#pragma unroll 1")
            super()._range(node)
            return
        if self.under_way and any(n.op is Op.ACROSS for n in node.src[0].src[:1]):
            self.line(f"computed_until_here({self.voted});")
            self._await_products(0)  # not inside: warps differ, and those of a warpgroup wait for units at one place
        self.line(f"if ({self.value(node.src[0])[0]}) {{")
        self.under_way_outside[node] = list(self.under_way)
        self.depth += 1
        self.values[node] = ("0",)

    # lanes
    def _element_wise(self, node: UOp) -> None:
        """Lanes become narrow two at a time; powers that are next to nothing are nothing where nobody sees it."""
        if node.op is Op.EXP2 and (self.weighs or node in self.swallowed) and node.dtype.scalar is dtypes.float32:
            values = self._lanes(node.src[0], node.dtype.count)
            self.values[node] = tuple([self.declare(node.dtype, f"power_of_two_or_zero({x})") for x in values])
            return
        name, count = node.dtype.scalar.name, node.dtype.count
        if node.op is not Op.CAST or count % 2 or name not in PAIRED or node.src[0].dtype.scalar is not dtypes.float32:
            super()._element_wise(node)
            return
        lanes = self._lanes(node.src[0], count)
        result: list[str] = []
        for low, high in zip(lanes[::2], lanes[1::2], strict=True):
            pair = self.declare(dtypes.uint32, f"two_{name}({low}, {high})")
            result += [self.declare(node.dtype, f"(unsigned short)({pair}{shift})") for shift in ("", " >> 16")]
        self.values[node] = tuple(result)

    def _lanes_that_store(self) -> str:
        """Which of the lanes that computed the same store it: those whose other digits are 0."""
        threads = self.program.threads
        conditions: list[str] = []
        covered = 1
        for stride, size in [*sorted(self.program.lanes), (threads, 1)]:
            if stride > covered:
                number = "threadIdx.x" if stride >= threads else f"threadIdx.x % {stride}u"
                conditions.append(f"{number} < {covered}u")
            covered = stride * size
        return " && ".join(conditions)

    def _guard_of_stores(self) -> str:
        return self.guard

    def _barrier(self, node: UOp) -> None:
        if self.units_run_on:
            self.line("stores_seen_by_units();")
        self.line("__syncthreads();")

    def _copy_async(self, node: UOp) -> None:
        """One instruction where the elements are one access with one guard; else a load and a store."""
        near, far = node.src
        count, dtype = node.arg.elements, near.dtype
        gates = self._gates(far, count)
        array, memory = self.value(near.src[0])[0], self.value(far.src[0])[0]
        whole = count * dtype.itemsize == 16 and len(set(gates)) < 2
        if whole and self.access_width(near, count) == count == self.access_width(far, count):
            guard = f"{gates[0]} ? 16 : 0" if gates else "16"
            self.line(f"copy_ahead({array} + {self._place(near)}, {memory} + {self._place(far)}, {guard});")
            return
        zeros = (UOp.const(dtype.vec(count), 0),) if gates else ()
        load = mk(Op.LOAD, dtype.vec(count), (far, *zeros))
        self._load(load)
        self._store(mk(Op.STORE, dtypes.void, (near, load)))

    def _commit(self, node: UOp) -> None:
        self.line("end_of_copies();")

    def _wait(self, node: UOp) -> None:
        if node.arg.pending in (-2, -3):
            self.line(f"room_for_boxes_{node.arg.pending + 3}();")
        elif node.arg.pending < 0 and self.products:
            self._await_products(1 if node.arg.pending == -4 else 0)
        elif node.arg.pending < 0:
            self.line("wait_for_units<0>();")
            self._settled()
            if self.rings:
                self.line("buffer_is_free(ring + 2 * held + 1);")
                self.line("held = -1;")
        else:
            self.line(f"wait_for_copies<{node.arg.pending}>();")

    def _found(self, node: UOp) -> None:
        """Of a loop whose guards are known beforehand, the iterations that do something."""
        words = [self.declare(dtypes.uint32, f"lanes_where({self.value(s)[0]})") for s in node.src[1:]]
        word, left, name = self.name("word"), self.name("left"), self.name("i")
        chosen = "".join(f"{word} == {n} ? {text} : " for n, text in enumerate(words[:-1])) + words[-1]
        self.line(f"for (int {word} = 0; {word} < {len(words)}; ++{word})")
        self.line(f"for (u32 {left} = {chosen}; {left}; {left} &= {left} - 1u) {{")
        self.depth += 1
        kind = self.register_type(node.dtype)
        self.line(f"const {kind} {name} = {WARP} * {word} + lowest({left});")
        self.values[node] = (name,)

    # a ring of buffers
    def _ring(self, node: UOp) -> None:
        buffers, _, warps, _ = node.arg
        name = ring_name(node)
        at = self.end + sum(16 * r.arg.buffers for r in self.rings[: self.rings.index(node)])
        self.line(f"u64* const {name} = (u64*)(shared + {at});")
        self.line(f"ring_begins({name}, {buffers}, {warps});")
        if node is self.rings[-1]:
            self.line("__syncthreads();")
        self.values[node] = (name,)

    def _role(self, node: UOp) -> None:
        """The first lanes compute, one after them begins copies."""
        lanes = self.computing
        copies = node.src[0].arg == 1
        if self.hands_over:
            self._hand_over(copies, lanes)
        self.copying = copies
        self.line(f"if (threadIdx.x {'==' if copies else '<'} {lanes}u) {{")
        inner = INDENT * (self.depth + 1)
        for ring in self.rings:
            slot, phase = ring_position(ring)
            held = "" if copies or self.weighs else ", held = -1"
            self.lines.append(f"{inner}int {slot} = 0{held};")
            self.lines.append(f"{inner}u32 {phase} = {int(copies)};")
        self.values[node] = ("0",)

    def _registers_of_units(self) -> int:
        """Of a lane: those of all products that are made beside one another."""
        units = {n.src[:2]: int(n.arg.columns) for n in self.program.uops if n.op is Op.WGMMA}
        return sum(units.values()) // 2

    def _hand_over(self, copies: bool, lanes: int) -> None:
        """The warps that copy leave their registers to those that compute."""
        full = lanes == 2 * WARPGROUP and self._registers_of_units() > MANY
        few, many = MANY_REGISTERS if full else REGISTERS[lanes // WARPGROUP]
        name, count = ("fewer", few) if copies else ("more", many)
        self.line(f"if (threadIdx.x {'>=' if copies else '<'} {lanes}u) {name}_registers<{count}>();")

    def _walk(self, node: UOp) -> None:
        name = self.name("block")
        blocks = self.value(node.src[0])[0]
        self.values[node] = (name,)
        if not self.takes_blocks:
            self.line(f"for (int {name} = (int)blockIdx.x; {name} < {blocks}; {name} += {self.program.grid}) {{")
            return
        # The lane that copies says which block it is where the first ring's buffer says that it is there.
        ring, (slot, phase) = ring_name(self.rings[0]), ring_position(self.rings[0])
        taken = f"((volatile int*)(shared + {self.end + sum(16 * r.arg.buffers for r in self.rings)}))[{slot}]"
        lines = [f"const int {name} = {taken};"]
        if self.copying:
            lines = [f"const int {name} = next_block({blocks}, {self.program.grid});"]
        self.line("for (;;) {")
        lines.insert(self.copying, f"wait_for_phase({ring} + 2 * {slot}{' + 1' if self.copying else ''}, {phase});")
        lines += [f"{taken} = {name};"] if self.copying else []
        last = f"{{ buffer_is_full({ring} + 2 * {slot}); break; }}" if self.copying else "break;"
        self.lines += [INDENT * (self.depth + 1) + line for line in (*lines, f"if ({name} >= {blocks}) {last}")]

    def _end(self, node: UOp) -> None:
        loop = node.src[0]
        stores = any(n.op is Op.STORE_BOX for n in self.program.uops)
        if loop.arg.kind is AxisKind.ROLE and loop.src[0].arg != 1 and stores:
            self.line("room_for_boxes_0();")  # the memory of a workgroup that has ended is another's
        super()._end(node)
        self.under_way = self.under_way_outside.pop(loop, self.under_way)

    def _turn(self, node: UOp) -> None:
        ring = node.src[0]
        name, (slot, phase) = ring_name(ring), ring_position(ring)
        self.line(f"wait_for_phase({name} + 2 * {slot}{'' if node.arg.full else ' + 1'}, {phase});")
        if not node.arg.full:
            self.line(f"buffer_expects({name} + 2 * {slot}, {ring.arg.bytes}u);")
        self.values[node] = (self.declare(node.dtype, slot, "turn"),)

    def _pass_on(self, node: UOp) -> None:
        turn, name = node.src[0], self.value(node.src[0])[0]
        ring = ring_name(turn.src[0])
        if turn.arg.full and turn.arg.pending:
            self.line(f"if (held >= 0) buffer_is_free({ring} + 2 * held + 1);")
            self.line(f"held = {name};")
        elif turn.arg.full:
            self.line(f"buffer_is_free({ring} + 2 * {name} + 1);")
        slot, phase = ring_position(turn.src[0])
        self.line(f"if (++{slot} == {turn.src[0].arg.buffers}) {{")
        self.lines.append(f"{INDENT * (self.depth + 1)}{slot} = 0;")
        self.lines.append(f"{INDENT * (self.depth + 1)}{phase} ^= 1;")
        self.line("}")

    def _map(self, box: UOp) -> tuple[str, str]:
        """The tensor map of a box, and the coordinates."""
        number = self.boxes.index(Box(box.src[0].arg.slot, box.dtype, box.arg))
        return f"m{number}", ", ".join(f"(int)({self.value(s)[0]})" for s in box.src[1:])

    def _copy_box(self, node: UOp) -> None:
        near, box, turn = node.src
        name, at = self._map(box)
        array = self.value(near.src[0])[0]
        word = f"{ring_name(turn.src[0])} + 2 * {self.value(turn)[0]}"
        self.line(f"copy_box({array} + {self._place(near)}, {name}, {word}, {at});")

    def _store_box(self, node: UOp) -> None:
        near, box = node.src
        name, at = self._map(box)
        self.line(f"store_box({self.value(near.src[0])[0]} + {self._place(near)}, {name}, {at});")

    def _settled(self) -> None:
        """No instruction: what reads the sums comes after this."""
        self.line(f"settled({', '.join(self.summed)});")

    def _wgmma(self, node: UOp) -> None:
        """The accumulator is changed where it is: its variables are the result."""
        arg = node.arg
        if arg.alone:
            self._product(node)
            return
        first, second, warps, buffer, start = node.src
        unit = UnitCall(
            arg.columns, FACTORS[first.dtype], FACTORS[second.dtype], arg.first_across, arg.second_across
        )  # fmt: skip
        self.units.setdefault(unit)
        registers = self.value(start)
        if not self.changing.issuperset(registers):
            raise RenderError(f"kernel {self.program.name}: a matrix unit adds to registers that are kept")
        group = self.value(warps)[0]
        places = [self.value(first)[0], self.value(second)[0]]
        if buffer.op is not Op.CONST:
            number = self.value(buffer)[0]
            sizes = [arg.rows * arg.depth, arg.columns * arg.depth]
            places = [f"{place} + {number} * {size}" for place, size in zip(places, sizes)]
        name = unit_name(unit)
        self.line(f"{name}({', '.join(registers)}, {places[0]} + {group} / 4 * {64 * arg.depth}, {places[1]});")
        self.summed = registers
        if self.units_run_on:
            self.line(f"wait_for_units<{arg.pending}>();")
            if not arg.pending:
                self._settled()
        self.values[node] = registers

    def _product(self, node: UOp) -> None:
        """Into registers of its own, which nothing but the unit writes, or into an array that it adds to."""
        first, second, lanes, turn, start = node.src[:5]
        arg, kind = node.arg, FACTORS[second.dtype].name
        self.products.setdefault((arg._replace(pending=0), kind))
        factor = self.value(first)[0]
        if not arg.registers and arg.rows > 64:
            factor = f"{factor} + {self.value(lanes)[0]} / 32 * {64 * 64}"
        if len(node.src) > 5 and node.src[5].src[0].arg.buffers > 1:
            factor = f"{factor} + {self.value(node.src[5])[0]} * {arg.rows * arg.depth}"
        tile = f"{self.value(second)[0]} + {self.value(turn)[0]} * {arg.columns * arg.depth}"
        count = arg.columns // 2
        if start.op is Op.LOCAL:
            name = self.value(start)[0]
            places = [place_of_register(i, arg.columns) for i in range(count)]
        else:
            name, places = self.name("product"), list(range(count))
            self.line(f"float {name}[{count}];")
        self.line(f"{tile_product_name(arg, kind)[0]}({name}, {factor}, {tile});")
        self.values[node] = tuple([f"{name}[{place}]" for place in places])
        self.under_way.append(f"settled({', '.join(self.values[node])});")
        self._await_products(arg.pending)

    def _await_products(self, pending: int) -> None:
        """Wait until so many products are under way at most: what reads the others comes after this."""
        if len(self.under_way) <= pending:
            return
        self.line(f"wait_for_units<{pending}>();")
        done = len(self.under_way) - pending
        for text in self.under_way[:done]:
            self.line(text)
        del self.under_way[:done]

    def _across(self, node: UOp) -> None:
        """First inside of every warp, then, through shared memory, over the warps."""
        op, lanes, stride = node.arg
        dtype = node.dtype.scalar
        if op is Op.OR and dtype is dtypes.bool and lanes == WARP and stride == 1:
            self.voted = next((self.value(n.src[0])[0] for n in node.src[0].toposort() if n.op is Op.CMPNE), "0.0f")
            name = self.declare(dtype, f"any_lane({self.value(node.src[0])[0]})")
            self.values[node] = (name,)
            return
        narrow = dtype.itemsize < 4
        kind = "int" if narrow else self.register_type(dtype)
        results: list[str] = []
        for value in self._lanes(node.src[0], node.dtype.count):
            name = self.name("all")
            self.line(f"{self.register_type(dtype)} {name} = {value};")
            if stride > 1:
                self._far(op, dtype, name, lanes, stride, kind)
            else:
                self._exchange(op, dtype, name, min(lanes, WARP), kind)
            if stride == 1 and lanes > WARP:
                self._over_warps(op, dtype, name, lanes // WARP, kind)
            results.append(name)
        self.values[node] = tuple(results)

    def _exchange(self, op: Op, dtype: DType, name: str, lanes: int, kind: str) -> None:
        distance = lanes // 2
        while distance:
            other = self.declare(dtype, f"({self.register_type(dtype)})from_lane(({kind}){name}, {distance})")
            self.line(f"{name} = {self.combine(op, dtype, name, other)};")
            distance //= 2

    def _far(self, op: Op, dtype: DType, name: str, lanes: int, stride: int, kind: str) -> None:
        """Lanes in different warps, all through shared memory."""
        room = self.name("lanes")
        self.line(f"__shared__ {kind} {room}[{self.program.threads}];")
        if self.depth > 1:
            self.line("__syncthreads();")
        self.line(f"{room}[threadIdx.x] = {name};")
        self.line("__syncthreads();")
        first, step = self.name("first"), self.name("i")
        group = (
            f"threadIdx.x / {stride * lanes}u * {stride * lanes}u + " if stride * lanes < self.program.threads else ""
        )
        self.line(f"const unsigned int {first} = {group}threadIdx.x % {stride}u;")
        own = self.register_type(dtype)
        self.line(f"{name} = ({own}){room}[{first}];")
        self.line(f"for (unsigned int {step} = 1; {step} < {lanes}u; ++{step}) {{")
        self.depth += 1
        other = self.declare(dtype, f"({own}){room}[{first} + {step} * {stride}u]")
        self.line(f"{name} = {self.combine(op, dtype, name, other)};")
        self.depth -= 1
        self.line("}")

    def _over_warps(self, op: Op, dtype: DType, name: str, warps: int, kind: str) -> None:
        room = self.name("warps")
        self.line(f"__shared__ {kind} {room}[{self.program.threads // WARP}];")
        if self.depth > 1:
            self.line("__syncthreads();")  # what the iteration before left there has been read
        self.line(f"if (threadIdx.x % {WARP}u == 0) {room}[threadIdx.x / {WARP}u] = {name};")
        self.line("__syncthreads();")
        first = f"threadIdx.x / {WARP * warps}u * {warps}u + " if warps * WARP < self.program.threads else ""
        self.line(f"{name} = ({self.register_type(dtype)}){room}[{first}threadIdx.x % {warps}u];")
        self._exchange(op, dtype, name, warps, kind)


def _in_pairs(array: UOp) -> bool:
    """Whether a lane's own array is of 16-bit floats."""
    return array.op is Op.LOCAL and bool(array.arg.private) and array.dtype.is_float and array.dtype.itemsize == 2
