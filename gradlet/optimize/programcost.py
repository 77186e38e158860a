"""What a scheduled kernel is expected to take, counted in its linear program: to rank schedules before any runs.

Instructions by how often their loops run, chains of dependences, values that find no register, bytes that every cache
has to hand on, and how evenly threads share the work. The figures are typical of today's processors: the order of two
schedules of one kernel is meant to be right, not the time.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import DType
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import Op
from gradlet.optimize.analysis import size_bound
from gradlet.target.target import Target

LINE: Final = 64
LATENCY: Final = 4.0  # cycles until a multiply-add can be used
LOOP_CYCLES: Final = 1.5  # count, compare, branch
BRANCH_CYCLES: Final = 2.0  # a guard of one element
SPILL_CYCLES: Final = 1.5  # a load and a store
PARTS: Final = 8  # blocks that a thread should get, so that threads end together

# Cycles of one register's worth of an op; everything else takes half a cycle.
_CYCLES: Final[dict[Op, float]] = {
    Op.FDIV: 6.0, Op.SQRT: 7.0, Op.IDIV: 20.0, Op.MOD: 24.0, Op.EXP: 20.0, Op.EXP2: 20.0, Op.LOG: 20.0, Op.LOG2: 20.0,
    Op.SIN: 30.0, Op.COS: 30.0, Op.POW: 60.0, Op.EXTRACT: 1.0,
}  # fmt: skip
_PLAIN: Final = 0.5
_INDEX_CYCLES: Final = 0.15  # most address arithmetic is part of the access
_FREE: Final = frozenset({Op.CONST, Op.PARAM, Op.VARIABLE, Op.INDEX, Op.ACC, Op.UPDATE, Op.END, Op.BITCAST})


class Estimate(NamedTuple):
    """Expected seconds, and what they consist of on one core.

    Attributes:
        seconds: of one launch on all cores that share it.
        compute: cycles of instructions, chains and spills.
        memory: cycles of handing bytes on between caches.
        spills: vectors that do not stay in registers, over all loops.
    """

    seconds: float
    compute: float
    memory: float
    spills: int


class _Loop:
    """A loop of the program, or the whole of it (`node` None)."""

    def __init__(self, node: UOp | None, parent: _Loop | None) -> None:
        self.node, self.parent = node, parent
        self.trips = 1 if node is None else max(1, size_bound(node))
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.cycles = 0.0
        self.nodes: list[UOp] = []
        self.inner: list[_Loop] = []
        self.streams: dict[tuple[Any, ...], _Stream] = {}


class _Stream:
    """Accesses of one array that move alike.

    Attributes:
        steps: the loops around, innermost first, and the bytes that a step of each moves on.
        places: first and last byte of each access in the first iteration.
        weight: bytes handed on for each byte touched.
    """

    def __init__(self, steps: list[tuple[_Loop, int]], weight: float) -> None:
        self.steps = steps
        self.places: list[tuple[int, int]] = []
        self.weight = weight


def estimate(program: LinearProgram, target: Target) -> Estimate:
    """The expected cost of one launch of a program."""
    root = _tree(program, target)
    spills = [0]
    compute = _compute(root, target, spills)
    memory = _memory(root, target)
    cycles = max(compute, memory) + 0.3 * min(compute, memory)
    seconds = cycles / _hertz(target)
    if program.grid > 1 and target.cores > 1:
        seconds = seconds * _share(program.grid, target.cores) + target.launch_ps * 1e-12
    return Estimate(seconds, compute, memory, spills[0])


def _share(blocks: int, cores: int) -> float:
    """The part of a kernel that the busiest core has."""
    return math.ceil(blocks / cores) / blocks if blocks < PARTS * cores else 1.03 / cores


# instructions
def _tree(program: LinearProgram, target: Target) -> _Loop:
    """The loops of a program with the nodes and the accesses that each has directly."""
    root = here = _Loop(None, None)
    loops: list[_Loop] = []
    ranges = [n for n in program.uops if n.op is Op.RANGE]
    numbers = {node: 1 + k for k, node in enumerate(ranges)}
    points: dict[UOp, Any] = {}
    for node in program.uops:
        if node.op is Op.RANGE:
            here = _Loop(node, here)
            here.parent.inner.append(here)  # type: ignore[union-attr]
            loops.append(here)
            points[node] = _unit(numbers[node], 1 + len(ranges))
            continue
        if node.op is Op.END:
            assert here.parent is not None
            here = here.parent
            continue
        here.nodes.append(node)
        if node.dtype.kind == "x" or node.op is Op.CAST:
            points[node] = value_at(node, points, 1 + len(ranges))
        if node.op in (Op.LOAD, Op.STORE):
            _add_access(here, node, points, numbers)
    return root


def _unit(which: int, count: int) -> tuple[int, ...]:
    """The values of a range at the points: everything at 0, then each range at 1."""
    return tuple(1 if k == which else 0 for k in range(count))


def value_at(node: UOp, points: dict[UOp, Any], count: int) -> tuple[int, ...] | None:
    """The values of an index expression at `count` points; None where they depend on memory.

    `points` has those of the nodes that it is made of.
    """
    op = node.op
    if op is Op.CONST:
        return (int(node.arg),) * count if node.dtype.kind in "xui" else None
    if op is Op.VARIABLE:
        return (int(node.arg.high),) * count
    sources = [points.get(s) for s in node.src]
    if any(s is None for s in sources):
        if op is Op.WHERE:  # a guard that is not arithmetic: the ordinary case is the first
            return sources[1]
        return None
    if op is Op.CAST:
        return sources[0]
    function = _ARITHMETIC.get(op)
    if function is None or len(sources) != 2:
        return None
    first, second = sources
    return tuple([function(a, b) for a, b in zip(first, second, strict=True)])  # type: ignore[arg-type]


_ARITHMETIC: Final[dict[Op, Any]] = {
    Op.ADD: lambda a, b: a + b,
    Op.MUL: lambda a, b: a * b,
    Op.MIN: min,
    Op.MAX: max,
    Op.IDIV: lambda a, b: a // b if b else 0,
    Op.MOD: lambda a, b: a % b if b else 0,
    Op.SHL: lambda a, b: a << b if 0 <= b < 64 else 0,
    Op.SHR: lambda a, b: a >> b if 0 <= b < 64 else 0,
}


def _registers(dtype: DType, target: Target) -> int:
    """Registers that a value fills; lanes that are no power of two are taken apart one by one."""
    if dtype.count & (dtype.count - 1):
        return dtype.count
    return max(1, -(-8 * dtype.itemsize // target.vector_bits))


def _node_cycles(node: UOp, target: Target) -> float:
    """Cycles that an instruction keeps its unit busy."""
    op, dtype = node.op, node.dtype
    if op in _FREE:
        return 0.0
    if dtype.kind == "x" and dtype.count == 1:
        return _INDEX_CYCLES
    if op is Op.VECTORIZE:
        first = node.src[0]
        if all(s is first for s in node.src):
            return 0.0 if first.op in (Op.LOAD, Op.CONST) else 1.0
        return 0.0 if all(s.op is Op.CONST for s in node.src) else float(len(node.src))
    if op is Op.LOAD:
        return _PLAIN * _registers(dtype, target) + _guard_cycles(node)
    if op is Op.STORE:
        return 1.0 * _registers(node.src[1].dtype, target) + 2 * _guard_cycles(node)
    if op is Op.REDUCE_LANES:
        return 2.0 * math.log2(max(2, node.src[0].dtype.count)) + _registers(node.src[0].dtype, target)
    return _CYCLES.get(op, _PLAIN) * _registers(dtype, target)


def _guard_cycles(node: UOp) -> float:
    index = node.src[0]
    if len(index.src) < 3:
        return 0.0
    return 1.0 if index.src[2].dtype.count > 1 else BRANCH_CYCLES


def _compute(loop: _Loop, target: Target, spills: list[int]) -> float:
    """Cycles of all iterations of a loop with what is inside it."""
    own = sum(_node_cycles(n, target) for n in loop.nodes)
    longest, uses = _chains(loop)
    if not loop.inner:
        live = _live(loop, target)
        excess = live - target.vector_registers
        if excess > 0:
            # What found no register is loaded and stored wherever it is used.
            spills[0] += excess
            own += SPILL_CYCLES * max(1.0, uses / live) * excess
    own = max(own, LATENCY * longest)
    inside = sum(_compute(i, target, spills) for i in loop.inner)
    return loop.trips * (own + inside + (LOOP_CYCLES if loop.node is not None else 0.0))


def _chains(loop: _Loop) -> tuple[int, int]:
    """Ops of the longest chain from a register's value to its next one in one iteration, and of all such chains."""
    depth: dict[UOp, int] = {}
    longest = 0
    for node in loop.nodes:
        if node.op is Op.UPDATE:
            longest = max(longest, depth.get(node.src[1], 0))
            continue
        if node.dtype.kind == "x" or node.op in (Op.LOAD, Op.STORE, Op.ACC):
            continue
        found = 0
        for source in node.src:
            found = max(found, depth.get(source, 1 if source.op is Op.ACC else 0))
        if found:
            heavy = 3 if node.op is Op.FDIV else 1
            depth[node] = found + heavy if any(s in depth for s in node.src) else heavy
    return longest, len(depth)


def _live(loop: _Loop, target: Target) -> int:
    """Vector registers that an innermost loop needs: for what comes from outside, and a few to work with."""
    inside = set(loop.nodes)
    kept: dict[UOp, int] = {}
    for node in loop.nodes:
        for source in node.src:
            if source in inside or source.op in (Op.CONST, Op.RANGE, Op.PARAM, Op.INDEX):
                continue
            if source.dtype.count > 1 and source.dtype.kind != "b":
                kept[source] = _registers(source.dtype, target)
    total = sum(kept.values())
    working = max((_registers(n.dtype, target) for n in loop.nodes if n.dtype.count > 1), default=0)
    return total + (2 * working if total else 0)


# memory
def _add_access(loop: _Loop, node: UOp, points: dict[UOp, Any], numbers: dict[UOp, int]) -> None:
    index = node.src[0]
    value = node.src[1].dtype if node.op is Op.STORE else node.dtype
    item = value.scalar.itemsize
    around: list[_Loop] = []
    here: _Loop | None = loop
    while here is not None and here.node is not None:
        around.append(here)
        here = here.parent
    places = points.get(index.src[1])
    base = 0
    if places is None:
        # An index read from memory: every iteration may touch a line of its own.
        steps = [(each, LINE * 1024) for each in around]
    else:
        base = places[0] * item
        steps = [(each, (places[numbers[each.node]] - places[0]) * item) for each in around]  # type: ignore[index]
    key = (index.src[0], node.op is Op.STORE, tuple(step for _, step in steps))
    stream = loop.streams.get(key)
    if stream is None:
        # What is written is read into the cache first.
        stream = loop.streams[key] = _Stream(steps, 2.0 if node.op is Op.STORE else 1.0)
    stream.places.append((base, base + item * value.count))


def _footprint(stream: _Stream, loops: int) -> float:
    """Bytes of the lines that a stream touches in all iterations of its innermost `loops` loops."""
    spans = sorted(stream.places)
    runs: list[list[int]] = []
    for low, high in spans:
        if runs and low <= runs[-1][1] + LINE // 2:
            runs[-1][1] = max(high, runs[-1][1])
        else:
            runs.append([low, high])
    count = float(len(runs))
    length = sum(high - low for low, high in runs) / count
    reach = float(runs[-1][1] - runs[0][0])
    for loop, step in sorted(stream.steps[:loops], key=lambda s: abs(s[1])):
        step, trips = abs(step), loop.trips
        if not step or trips == 1:
            continue
        if step <= length + LINE // 2:
            length += step * (trips - 1)
        else:
            count *= trips
        reach += step * (trips - 1)
    lines = length if length % LINE == 0 and length >= LINE else length + LINE / 2
    return min(count * max(LINE, lines), max(LINE, reach + LINE / 2))


def _memory(root: _Loop, target: Target) -> float:
    """Cycles of handing bytes on: from the second cache to the first, from the last to the second, from memory."""
    moved = [_moved(root, size) for size in (target.l1_bytes, target.l2_bytes, target.llc_bytes)]
    hz = _hertz(target)
    near = target.l2_bytes_per_second / target.cores / hz
    far = target.core_bytes_per_second / hz
    return moved[0] / near + moved[1] / math.sqrt(near * far) + moved[2] / far


def _hertz(target: Target) -> float:
    """Clock of a core with two vector units that add and multiply."""
    return max(1.0, target.flops_per_second / target.cores / (4 * target.vector_bits / 32))


def _moved(root: _Loop, size: int) -> float:
    """Bytes that come into a cache of `size` bytes in one of many launches."""
    loops = _all(root)
    keeps: set[_Loop] = set()  # what one iteration of these touches is still there in the next one
    for loop in loops:
        touched = sum(_footprint(s, inner.depth - loop.depth) for inner in _all(loop) for s in inner.streams.values())
        if touched <= size:
            keeps.add(loop)
    if root in keeps:
        return 0.0
    total = 0.0
    for loop in loops:
        for stream in loop.streams.values():
            nbytes = _footprint(stream, 0)
            for number, (around, _) in enumerate(stream.steps, 1):
                nbytes = _footprint(stream, number) if around in keeps else nbytes * around.trips
            total += stream.weight * nbytes
    return total


def _all(loop: _Loop) -> list[_Loop]:
    found = [loop]
    for inner in loop.inner:
        found.extend(_all(inner))
    return found
