"""Matrix products on a GPU: a workgroup has a block of outputs, its lanes copy strips of both factors near.

The lanes of a workgroup stand in a square; each has a few rows and columns of the block, four of them side by side at a
time, so that every element that it reads from shared memory is used several times.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gradlet.base.dtype import DType
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op, adds_in_order
from gradlet.ops.opt import Opt, OptKind, StageDetail, Tail
from gradlet.optimize.analysis import KernelFacts, range_size
from gradlet.target.target import Target

SIDE: Final = 16  # lanes along each side of a block
NEAR: Final = 4  # rows or columns of a lane that lie side by side
SHORT: Final = 16  # fewer sums than this are not worth blocks
DEPTH: Final = 16  # elements of the sums that a copy has
# Rows and columns of a block, the largest first: reuse against workgroups.
BLOCKS: Final = ((128, 128), (128, 64), (64, 128), (64, 64))


class Product(NamedTuple):
    """A sum of products: its REDUCE, the range of the sum, the factors' loads with their ranges of the output."""

    reduce: UOp
    depth: UOp
    first: UOp
    rows: UOp
    second: UOp
    columns: UOp


def product_of(facts: KernelFacts, totals: tuple[DType, ...] = (), taps: bool = False) -> Product | None:
    """The product that a kernel is, None where it is something else.

    Args:
        facts: about the kernel.
        totals: the types that products may be added up in; () for any float.
        taps: whether the sum may have more ranges, as those of a convolution; its longest one is the depth then.
    """
    if len(facts.reduces) != 1 or any(n.op in (Op.CARRY, Op.AFTER) for n in facts.order):
        return None
    reduce = facts.reduces[0]
    value = reduce.src[0]
    if reduce.arg.op is not Op.ADD or (len(reduce.src) != 2 and not taps) or value.op is not Op.MUL:
        return None
    if not (reduce.dtype in totals if totals else reduce.dtype.is_float):
        return None
    depth = max(reduce.src[1:], key=lambda r: range_size(r) or 0)
    if adds_in_order(Op.ADD, reduce.dtype) or (range_size(depth) or 0) < SHORT:
        return None
    if any(r.arg.kind is not AxisKind.REDUCE or range_size(r) is None for r in reduce.src[1:]):
        return None
    sides = [load_of(side) for side in value.src]
    if None in sides:
        return None
    first, second = (s for s in sides if s is not None)
    loops = [r for r in facts.ranges[reduce] if r.arg.kind is AxisKind.LOOP and range_size(r) is not None]
    loops = [r for r in loops if all(r in facts.ranges[s] for s in facts.stores)]
    own = [[r for r in loops if (r in facts.ranges[a]) and r not in facts.ranges[b]] for a, b in
           ((first, second), (second, first))]  # fmt: skip
    if not own[0] or not own[1]:
        return None
    rows, columns = (max(found, key=lambda r: range_size(r) or 0) for found in own)
    stored = next(a for a in facts.accesses if a.is_store)
    if facts.stride(stored, rows) == 1 and facts.stride(stored, columns) != 1:
        first, rows, second, columns = second, columns, first, rows
    return Product(reduce, depth, first, rows, second, columns)


def load_of(node: UOp) -> UOp | None:
    """The load that a factor is, perhaps converted."""
    if node.op is Op.CAST:
        node = node.src[0]
    return node if node.op is Op.LOAD else None


class Opts:
    """Opts in order, and the numbers that splits give."""

    def __init__(self, number: int) -> None:
        self.opts: list[Opt] = []
        self.next = number

    def split(self, kind: OptKind, number: int, amount: int, size: int) -> int:
        """Cut a range of this size; returns the number of the inner part."""
        self.opts.append(Opt(kind, number, amount, Tail.EXACT if size % amount == 0 else Tail.MASK))
        if size <= amount:
            return number
        self.next += 1
        return self.next - 1

    def add(self, kind: OptKind, number: int) -> None:
        """An opt without an amount."""
        self.opts.append(Opt(kind, number, 0))


def tile(facts: KernelFacts, target: Target, block: tuple[int, int] | None = None) -> list[Opt] | None:
    """The opts for a matrix product; None where blocks do not pay.

    Args:
        facts: about the kernel.
        target: the machine.
        block: rows and columns of a block, in place of the usual ones.
    """
    found = product_of(facts, taps=True)
    if found is None or not target.shared_bytes:
        return None
    rows, columns = range_size(found.rows) or 0, range_size(found.columns) or 0
    others = 1
    for r in facts.ranges[found.reduce]:
        if r not in (found.rows, found.columns):
            others *= range_size(r) or 1
    # A block that half of the rows or columns would fill wastes the other half.
    fitting = [b for b in BLOCKS if rows > b[0] // 2 and columns > b[1] // 2]
    fitting = fitting or [b for b in BLOCKS[-1:] if rows >= b[0] // 2 and columns >= b[1] // 2]
    if not fitting:
        return None
    counts = [others * -(-rows // b[0]) * -(-columns // b[1]) for b in fitting]
    if len(found.reduce.src) > 2 and 2 * counts[-1] < target.cores:  # a sum over pixels, which lanes share
        return None
    block = block or next((b for b, n in zip(fitting, counts, strict=True) if n >= target.cores), fitting[-1])
    opts = Opts(facts.next_number())
    depth = range_size(found.depth) or 0
    inner_rows = _side(opts, found.rows, rows, block[0], OptKind.UNROLL)
    inner_columns = _side(opts, found.columns, columns, block[1], OptKind.VECTORIZE)
    outer = int(found.depth.arg.number)
    inner = opts.split(OptKind.SPLIT, outer, DEPTH, depth)
    # The copies of a step are made in the innermost loop of the sum.
    level = max(int(r.arg.number) for r in found.reduce.src[1:])
    parallel_rest(facts, found, opts)
    if depth <= DEPTH:
        return None
    numbers = (inner_rows, inner_columns)
    for load, own, (slot, which) in zip((found.first, found.second), numbers, copied_loads(facts, found), strict=True):
        converted = load.dtype is not found.reduce.dtype
        detail = StageDetail(slot, which, (inner, *own), NEAR, converted)
        opts.opts.append(Opt(OptKind.STAGE, level, 0, detail=detail))
    return opts.opts


def copied_loads(facts: KernelFacts, found: Product) -> list[tuple[int, int]]:
    """Slot and number of the first factor's load, then of the second's, once the first one is copied."""
    loads = [a for a in facts.accesses if not a.is_store]
    places: list[tuple[int, int]] = []
    for load in (found.first, found.second):
        slot = next(a.slot or 0 for a in loads if a.node is load)
        places.append((slot, [a.node for a in loads if a.slot == slot].index(load)))
        loads = [a for a in loads if a.node is not load]
    return places


def parallel_rest(facts: KernelFacts, found: Product, opts: Opts) -> None:
    """Workgroups for what a product runs over beside its rows and columns."""
    for r in facts.loops:
        if r in (found.rows, found.columns) or r not in facts.ranges[found.reduce] or range_size(r) is None:
            continue
        if r.arg.kind is AxisKind.LOOP and all(r in facts.ranges[s] for s in facts.stores):
            opts.add(OptKind.PARALLEL, int(r.arg.number))


def _side(opts: Opts, loop: UOp, size: int, block: int, kind: OptKind) -> list[int]:
    """Cut rows or columns into blocks, lanes, and what each lane has; returns the numbers inside of a block."""
    number = int(loop.arg.number)
    inside = opts.split(OptKind.SPLIT, number, block, size)
    if inside != number:
        opts.add(OptKind.PARALLEL, number)
    groups = block // (SIDE * NEAR)
    numbers: list[int] = []
    if groups > 1:
        part = opts.split(OptKind.SPLIT, inside, SIDE * NEAR, block)
        opts.split(OptKind.UNROLL, inside, groups, groups)
        numbers.append(inside)
        inside = part
    near = opts.split(kind, inside, NEAR, SIDE * NEAR)
    opts.split(OptKind.THREAD, inside, SIDE, SIDE)
    return [*numbers, inside, near]


def columns_of(opts: Opts, loop: UOp, columns: int, block: int) -> tuple[int, int, bool]:
    """Cut the columns as the unit has them: groups of eight, pairs; and whether there are several blocks."""
    number = int(loop.arg.number)
    groups = opts.split(OptKind.SPLIT, number, block, columns)
    if groups != number:
        opts.add(OptKind.PARALLEL, number)
    four = opts.split(OptKind.SPLIT, groups, 8, block)
    pair = opts.split(OptKind.VECTORIZE, four, 2, 8)
    opts.split(OptKind.THREAD, four, 4, 4)
    opts.split(OptKind.UNROLL, groups, block // 8, block // 8)
    return groups, pair, groups != number
