"""What a kernel of a GPU is expected to take, counted in the program of its lanes: to rank schedules before any runs.

Instructions of a warp by how often their loops run, lines of memory that neighbouring lanes touch, steps of matrix
units, boxes of the copy engine, and how many warps there are to hide what each waits for. As `programcost` for CPUs, it
is to get the order of two schedules of one kernel right, not the time.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize.analysis import size_bound
from gradlet.optimize.programcost import Estimate, value_at
from gradlet.target.target import Target

CLOCK: Final = 1_750_000_000  # a second
WARP: Final = 32
SECTOR: Final = 32  # bytes of memory that are fetched at least
NEAR_BYTES: Final = 64  # that the second cache hands to a multiprocessor a clock
ISSUES: Final = 4  # instructions that a multiprocessor begins a clock
DEPENDENT: Final = 4.0  # clocks between two instructions of one warp
LATENCY: Final = 500.0  # clocks until memory has answered
HIDING: Final = 16  # warps a multiprocessor that hide most of that
MOST_WARPS: Final = 64  # of a multiprocessor
BLOCK_CLOCKS: Final = 1000.0  # until a workgroup computes, and has stored
BARRIER: Final = 30.0
OVERLAP: Final = 0.1  # of what is not the longest part takes time beside it

# Clocks of an op of one element a lane; everything else takes one.
_CLOCKS: Final[dict[Op, float]] = {
    Op.FDIV: 10.0, Op.SQRT: 8.0, Op.IDIV: 20.0, Op.MOD: 20.0, Op.EXP: 8.0, Op.EXP2: 4.0, Op.LOG: 8.0, Op.LOG2: 4.0,
    Op.SIN: 20.0, Op.COS: 20.0, Op.POW: 40.0, Op.ACROSS: 40.0, Op.BARRIER: BARRIER, Op.WAIT: BARRIER, Op.SHUFFLE: 0.0,
}  # fmt: skip
_FREE: Final = frozenset({
    Op.CONST, Op.PARAM, Op.VARIABLE, Op.INDEX, Op.ACC, Op.UPDATE, Op.END, Op.RANGE, Op.BITCAST, Op.VECTORIZE, Op.LOCAL,
    Op.SPECIAL, Op.RING, Op.TURN, Op.BOX, Op.PICK, Op.EXTRACT,
})  # fmt: skip
_NO_LOOPS: Final = (AxisKind.PARALLEL, AxisKind.ROLE)  # digits of a workgroup's number, lanes that do a part
_INDEX: Final = 0.3  # most arithmetic of addresses leaves the loops
_LOOP: Final = 3.0  # count, compare, branch


class _Counts(NamedTuple):
    """Of a workgroup: clocks of a warp's instructions, accesses waited for, bytes of sectors, clocks of its units."""

    clocks: float
    waits: float
    moved: float
    units: float


def estimate(program: LinearProgram, target: Target) -> Estimate:
    """The expected cost of one launch of a program of lanes."""
    warps = -(-program.threads // WARP)
    counts = _count(program, warps)
    turns = math.ceil(program.grid / target.cores)  # of workgroups, where one has a multiprocessor for itself
    busy = min(1.0, program.grid / target.cores) * target.cores
    resident = min(MOST_WARPS, warps * turns)
    # A warp alone waits for each of its instructions and accesses; many fill the time of one another.
    alone = counts.clocks * DEPENDENT + counts.waits * LATENCY
    issued = counts.clocks * warps / ISSUES
    compute = max(turns * issued, turns * alone * min(1.0, warps / resident)) + BLOCK_CLOCKS
    units = turns * counts.units + (BLOCK_CLOCKS if counts.units else 0.0)
    hidden = 1.0 if counts.units else min(1.0, resident / HIDING)
    near = counts.moved * program.grid / (target.cores * NEAR_BYTES * CLOCK)
    far = program.bytes / target.bytes_per_second
    memory = max(near, far) / (hidden * busy / target.cores)
    parts = [compute / CLOCK, units / CLOCK, memory]
    longest = max(parts)
    seconds = longest + OVERLAP * (sum(parts) - longest) + target.launch_ps * 1e-12
    return Estimate(seconds, max(compute, units), memory * CLOCK, 0)


def _count(program: LinearProgram, warps: int) -> _Counts:
    clocks = before = longest = waits = moved = units = 0.0
    loops: list[UOp] = []
    trips = [1.0]
    places: dict[UOp, Any] = {}
    for node in program.uops:
        op = node.op
        if op is Op.RANGE:
            places[node] = (0,) * WARP
            loops.append(node)
            trips.append(trips[-1] * _trips(node, program.grid))
            clocks += _LOOP * trips[-1] * (node.arg.kind not in _NO_LOOPS)
            if node.arg.kind is AxisKind.ROLE:
                before = clocks
            continue
        if op is Op.END:
            trips.pop()
            if loops.pop().arg.kind is AxisKind.ROLE:  # roles run beside each other
                longest = max(longest, clocks - before)
                clocks = before
            continue
        if op is Op.SPECIAL:
            places[node] = tuple(range(WARP)) if node.arg.name == "thread" else (0,) * WARP
            continue
        if node.dtype.kind == "x" or op is Op.CAST:
            places[node] = value_at(node, places, WARP)
        times = trips[-1]
        if op in (Op.LOAD, Op.STORE):
            memory = node.src[0].src[0]
            touched = _sectors(node, places)
            if memory.op is Op.PARAM:
                moved += times * warps * touched * SECTOR
                waits += times * (op is Op.LOAD) / 4  # several are under way together
            clocks += times * max(1.0, touched / 4)
        elif op is Op.COPY_ASYNC:
            moved += times * warps * WARP * node.arg.elements * node.src[0].dtype.itemsize
            clocks += times
        elif op is Op.COPY_BOX:
            box = node.src[1]
            moved += times * math.prod(box.arg.box) * box.src[0].dtype.itemsize
        elif op is Op.WGMMA:
            units += times * _unit_clocks(node)
        elif op not in _FREE:
            each = _INDEX if node.dtype.kind == "x" else _CLOCKS.get(op, 1.0) * max(1, node.dtype.count)
            clocks += times * each
    return _Counts(clocks + longest, waits, moved, units)


def _trips(loop: UOp, grid: int) -> float:
    """How often a workgroup runs through a loop."""
    if loop.arg.kind in _NO_LOOPS:
        return 1.0
    size = max(1, size_bound(loop))
    return float(-(-size // grid)) if loop.arg.kind is AxisKind.WALK else float(size)


def _unit_clocks(node: UOp) -> float:
    """Of a step of a sum: half a clock a column for every warpgroup's 64 rows and 32 bytes of the sum."""
    arg = node.arg
    source = node.src[1]
    return float(max(1, arg.rows // 64) * arg.columns * arg.depth * source.dtype.itemsize) / 64


def _sectors(node: UOp, places: dict[UOp, Any]) -> int:
    """Sectors that the lanes of a warp touch with one access."""
    index = node.src[0]
    value = (node.src[1] if node.op is Op.STORE else node).dtype
    item = value.scalar.itemsize
    width = value.count * item
    first = places.get(index.src[1])
    if first is None:
        return WARP  # places that are read from memory
    touched: set[int] = set()
    for place in first:
        start = place * item
        touched.update(range(start // SECTOR, (start + width - 1) // SECTOR + 1))
    return len(touched)
