"""Matrix products with enough rows: the wide factor is copied near, panel by panel, as the register tile walks it.

A block of columns is copied by the core that computes it (`STAGE`), each panel contiguous: no step along the sum jumps
to another page, and lines do not push each other out where rows are a power of two apart. All rows go by while the
block stays in the second cache. A tile's rows meet panel after panel: they stay in the first cache, and the result is
written in runs as long as a block is wide. Where there is a wide factor for every image or batch, those come one after
another outside of all this.
(Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.)
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, OptKind, PrefetchDetail, StageDetail, Tail
from gradlet.optimize.actions.language import apply
from gradlet.optimize.analysis import Access, KernelFacts, range_size, size_bound
from gradlet.optimize.plan import BLOCKS, PANELS, Part, Plan
from gradlet.optimize.tileshape import Need, choose_tile
from gradlet.target.panels import MIN_DEPTH, MIN_ROWS, MIN_VECTORS, room

COPY_ROWS: Final = 6  # rows of a product that take as long as copying the wide factor
FAR_ROWS: Final = 5  # and so many more where a copy takes this part of the second cache, or more of it
FAR_SHARE: Final = 4
WALK: Final = 0.1  # of a panel's time that reading a tile's rows from far away costs
FILL: Final = 0.01  # of the time that a copy costs which takes all the room there is: other things are pushed out
AHEAD: Final = 4  # rows of the wide factor that are asked for before they are copied
PIECE_BYTES: Final = 16  # exchanges of elements stay inside so many bytes of a vector
UNEVEN: Final = 1.02  # rows in whole tiles by rows: beyond that, tiles of two heights pay for their code
NEAR_SHARE: Final = 4  # a wide factor of up to one part in so many of the second cache is read where it is
MIN_BLOCK_ROWS: Final = 128  # fewer pay for a copy only where reading in place is slow
WAYS: Final = 8  # places that a cache has for lines whose addresses agree in the lower bits
LINE: Final = 64
PAGE: Final = 4096
SHALLOW: Final = 64  # terms of a sum that is so short that the end of a tile counts
COPIES: Final = (4, 3, 2)  # iterations of a sum that are written out
MAX_COPIES: Final = 64  # multiply-adds that are written out


class Product(NamedTuple):
    """`out[batch.., rows.., columns] = sum(left[batch.., rows.., depth] * right[batch.., depth, columns])`.

    There is nothing else in the kernel's loops.

    Attributes:
        reduce: the sum.
        batch: ranges of the wide factor that are neither columns nor summed, outermost first.
        rows: the longest range of rows.
        columns: the range along which the result is contiguous.
        right: the load of the wide factor.
        converted: whether its value is converted before it is used.
        transposed: whether it is contiguous along the sum.
        lone: whether there is one range of rows.
    """

    reduce: UOp
    batch: tuple[UOp, ...]
    rows: UOp
    columns: UOp
    right: Access
    converted: bool
    transposed: bool
    lone: bool


class Cut(NamedTuple):
    """How a product is cut.

    Attributes:
        panels: of a block.
        parts: into how many the rows are cut for the cores; 1 where cores share something else.
        batched: whether cores share the outermost range of the batch; blocks otherwise, where rows are whole.
    """

    panels: int
    parts: int
    batched: bool


def plan_panels(facts: KernelFacts, plan: Plan, reduce: UOp, factors: tuple[UOp, UOp], parallel: bool) -> bool:
    """Plan such a product, if the kernel is one."""
    found = _product(facts, plan, reduce, factors)
    if found is None:
        return False
    rows, columns, along = found.rows, found.columns, reduce.src[1]
    lanes = plan.lanes_for(columns)
    length = plan.size(columns)
    depth = plan.size(along)
    need = Need(
        plan.size(rows), lanes, length // (2 * lanes), length=length, depth=depth if depth <= SHALLOW else 0
    )  # fmt: skip
    shape = choose_tile(plan.target, need)
    width = shape.vectors * lanes
    cut = _cut(plan, found, width, plan.target.cores if parallel else 1)
    if cut is None:
        return False
    outputs = [r for r in facts.loops if r in facts.ranges[reduce] and r.arg.kind is AxisKind.LOOP]
    plan.parallel_settled = parallel
    if parallel and cut.parts > 1:
        plan.block(rows, -(-plan.size(rows) // cut.parts), outputs[0])
        plan.parallel(rows)
        plan.before(rows, columns)
    inside = found.batch if parallel and cut.parts == 1 and not cut.batched else ()
    first = next(r for r in outputs if r is not columns and (inside or r not in found.batch))
    plan.block(columns, cut.panels * width, first)
    if parallel and cut.batched:
        plan.parallel(found.batch[0])
    elif parallel and cut.parts == 1:
        plan.parallel(columns)
    if cut.panels > 1:
        plan.panels(columns, width, along)
    copy = _copy(plan, found, along, Part(inside[-1]) if inside else Part(columns, BLOCKS))
    plan.vectorize(columns, lanes)
    plan.unroll(columns, shape.vectors)
    size = plan.blocks(rows)
    if -(-size // shape.rows) * shape.rows > UNEVEN * size and plan.divides_evenly(rows, shape.rows):
        plan.balance(rows, shape.rows)
    else:
        plan.unroll(rows, shape.rows)
    body = shape.rows * shape.vectors
    plan.unroll(along, next((n for n in COPIES if plan.size(along) % n == 0 and body * n <= MAX_COPIES), 1))
    _copy_vectors(plan, found, copy, lanes, shape.vectors)
    return True


def _product(facts: KernelFacts, plan: Plan, reduce: UOp, factors: tuple[UOp, UOp]) -> Product | None:
    along = reduce.src[1]
    depth = range_size(along)
    if plan.opts or facts.reduces != [reduce] or len(reduce.src) != 2 or depth is None or depth < MIN_DEPTH:
        return None
    outputs = [r for r in facts.ranges[reduce] if r.arg.kind is AxisKind.LOOP]
    if {r for r in facts.loops if r.arg.kind is not AxisKind.PARALLEL} != {*outputs, along}:
        return None
    stores = [a for a in facts.accesses if a.is_store]
    columns = next((r for r in outputs if all(facts.stride(a, r) == 1 for a in stores)), None)
    if columns is None or (range_size(columns) or 0) < MIN_VECTORS * plan.lanes_for(columns):
        return None
    for left, right in (factors, factors[::-1]):
        if columns in facts.ranges[left] or columns not in facts.ranges[right]:
            continue
        converted = right.op is Op.CAST
        load = right.src[0] if converted else right
        access = next((a for a in facts.accesses if a.node is load), None)
        if access is None or len(access.address.src) > 2 or any(a.param is access.param for a in stores):
            return None
        if converted and sum(load in n.src for n in facts.order) != 1:
            return None
        across, down = facts.stride(access, columns), facts.stride(access, along)
        batch = tuple([r for r in facts.loops if r in outputs and r in access.ranges and r is not columns])
        rows = [r for r in outputs if r is not columns and r not in batch]
        if across is None or down is None or not rows or not facts.ranges[left].issuperset(rows):
            return None
        if any(facts.nesting(b) > facts.nesting(r) for b in batch for r in rows):
            return None
        if across != 1 and (down != 1 or batch):
            return None
        if across == 1 and _is_near(plan, access, batch):
            return None
        longest = max(rows, key=lambda r: (size_bound(r), r.arg.number))
        if size_bound(longest) < MIN_ROWS:
            return None
        again = any(r.arg.kind is AxisKind.PARALLEL and r not in access.ranges for r in facts.loops)
        step = down * access.param.dtype.itemsize
        few = size_bound(longest) < MIN_BLOCK_ROWS
        if across == 1 and few and (again or _spread(step, depth, plan.target.l2_bytes)):
            return None
        if across == 1 and batch and _in_good_order(plan, step, depth, math.prod(size_bound(r) for r in rows)):
            return None
        lone = len(rows) == 1 and not batch
        return Product(reduce, batch, longest, columns, access, converted, across != 1, lone)
    return None


def _is_near(plan: Plan, right: Access, batch: tuple[UOp, ...]) -> bool:
    """Whether everything about one of a batch lies in the second cache together, and the wide factor takes little."""
    l2 = plan.target.l2_bytes
    sizes: dict[UOp, int] = {}
    for a in plan.facts.accesses:
        count = math.prod(size_bound(r) for r in batch if r in a.ranges)
        sizes[a.param] = a.param.arg.size * a.param.dtype.itemsize // max(1, count)
    return bool(sizes[right.param] <= l2 // NEAR_SHARE and sum(sizes.values()) <= l2)


def _in_good_order(plan: Plan, step: int, depth: int, rows: int) -> bool:
    """Whether strips of a wide factor, whose rows are `step` bytes apart, are read in place as fast as from a copy."""
    nbytes = rows * depth * plan.facts.reduces[0].dtype.itemsize
    near = nbytes <= plan.target.l2_bytes // 2  # the other factor, which comes by once for every strip
    return near and step < PAGE and step % LINE == 0 and _spread(step, depth, plan.target.l1_bytes)


def _spread(step: int, depth: int, cache: int) -> bool:
    """Whether so many lines `step` bytes apart do not push each other out of a cache."""
    one = cache // WAYS  # addresses this far apart are for the same places
    return depth <= WAYS * (one // max(LINE, math.gcd(step, one)))


def _cut(plan: Plan, found: Product, width: int, cores: int) -> Cut | None:
    """The blocks that waste least: columns computed twice, cores that wait, rows read once more a block, copies."""
    columns, depth = plan.size(found.columns), plan.size(found.reduce.src[1])
    rows = plan.size(found.rows)
    count = -(-columns // width)
    nbytes = depth * width * found.reduce.dtype.itemsize
    most = room(plan.target, nbytes)
    shareable = cores > 1 and range_size(found.rows) is not None and plan.may_repeat and found.lone
    best: Cut | None = None
    lowest = 0.0
    for panels in range(min(most, -(-count // 2)), 0, -1):
        if panels * width > columns or (columns % (panels * width) and not plan.may_repeat):
            continue
        blocks = -(-count // panels)
        work = blocks * panels / count * (1 + WALK / panels + FILL * panels / most)
        for parts in (1, cores) if shareable else (1,):
            length = -(-rows // parts)
            if length < MIN_ROWS:
                continue
            waits = 1.0 if parts > 1 else _waits(blocks, cores)
            batched = parts == 1 and bool(found.batch) and _waits(plan.size(found.batch[0]), cores) <= waits
            if batched:
                waits = _waits(plan.size(found.batch[0]), cores)
            copy = COPY_ROWS + FAR_ROWS * min(1.0, FAR_SHARE * panels * nbytes / plan.target.l2_bytes)
            cost = work * waits * (1 + copy / length)
            if best is None or cost < lowest - 1e-9:
                best, lowest = Cut(panels, parts, batched), cost
    return best


def _waits(shared: int, cores: int) -> float:
    """How much longer it takes when cores share so many iterations than if they could be cut anywhere."""
    return -(-shared // cores) * cores / shared


def _copy(plan: Plan, found: Product, along: UOp, level: Part) -> list[int]:
    """The copy of a block; returns the numbers of its loops over the sum and over a panel's columns."""
    slot = found.right.param.arg.slot
    loads = [a.node for a in plan.facts.accesses if not a.is_store and a.slot == found.right.slot]
    detail = StageDetail(slot, loads.index(found.right.node), converted=found.converted)
    panels = Part(found.columns, PANELS)
    order = [*([panels] if plan.has(panels) else []), Part(along), Part(found.columns)]
    numbers = plan.stage(level, detail, order)
    if len(loads) > 1:
        _name_again(plan, slot)
    if found.transposed:
        return numbers[-2:]
    if len(order) == 3:
        # Whole rows of the block, not a panel's part of every row.
        plan.opts.append(Opt(OptKind.REORDER, numbers[1], plan.depth))
        numbers = [numbers[1], numbers[0], numbers[2]]
    plan.opts.append(Opt(OptKind.PREFETCH, numbers[0], AHEAD, detail=PrefetchDetail(slot)))
    return [numbers[0], numbers[-1]]


def _name_again(plan: Plan, slot: int) -> None:
    """Both factors lie in one memory: which load is copied goes by the order that they have after the opts before."""
    at = max(i for i, opt in enumerate(plan.opts) if opt.kind is OptKind.STAGE)
    detail = plan.opts[at].detail
    assert isinstance(detail, StageDetail)
    facts = KernelFacts(apply(plan.facts.sink, plan.opts[:at], plan.target))
    loads = [a for a in facts.accesses if not a.is_store and a.slot == slot]
    found = [i for i, a in enumerate(loads) if {r.arg.number for r in a.ranges}.issuperset(detail.order)]
    if found and detail.which not in found:
        plan.opts[at] = plan.opts[at]._replace(detail=detail._replace(which=found[0]))


def _copy_vectors(plan: Plan, found: Product, copy: list[int], lanes: int, vectors: int) -> None:
    along, across = copy
    plan.opts.append(Opt(OptKind.VECTORIZE, across, lanes))
    if vectors > 1:
        plan.fresh()
        plan.opts.append(Opt(OptKind.UNROLL, across, vectors))
    if found.transposed:
        piece = max(2, PIECE_BYTES // found.right.param.dtype.itemsize)
        tail = Tail.SHIFT if plan.size(found.reduce.src[1]) % piece else Tail.EXACT
        plan.opts.append(Opt(OptKind.UNROLL, along, piece, tail))
