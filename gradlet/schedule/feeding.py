"""Products that feed products: what is as large as all pairs of rows and keys is computed again wherever it is needed.

The gradients of attention are three products: of the gradient of the scores with the keys and with the queries, of the
weights with the gradient of the result. Their left factors have an element for every pair of a query and a key, and are
element-wise functions of other products (scores, and the gradient of the weights), so a block of them takes little
more than two small products to make. A kernel that goes over keys (or queries) by blocks makes each block near the core
and uses it at once (`FEED`); no memory ever holds all pairs. Products over the same loop share a kernel: one for the
gradient of the queries, one for those of keys and values.

What is looked for is not that gradient but its form: cells whose loops are those of the scores of attention, all of
whose users are cells like them, the reductions of its softmax, or products that sum along one of these loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.ops.op import Op
from gradlet.schedule.cells import Cell
from gradlet.schedule.exchange import LARGE
from gradlet.target.rotation import feeding_blocks

if TYPE_CHECKING:
    from gradlet.schedule.fuse import Search

# Products that share a kernel.
MOST_TOGETHER: Final = 4


class Feeding(NamedTuple):
    """What is computed again, and by whom.

    Attributes:
        wide: numbers of the cells that have an element for every pair.
        kernels: the cells of each kernel that sums along a loop of pairs, sources first.
    """

    wide: frozenset[int]
    kernels: list[list[Cell]]


def feeding(search: Search, chain: Sequence[Cell], first: Cell, key: int) -> Feeding | None:
    """What else the scores of an attention feed; None if something must have them in memory.

    Args:
        search: the search over kernels.
        chain: the cells from the product of the scores to the one of the weights.
        first: the product of the scores.
        key: the loop along which the softmax goes.
    """
    pairs = first.kept
    inside = {c.number for c in chain}
    wide = {c.number for c in chain if c.kept == pairs}
    fed: dict[int, int] = {}  # a product and the loop that it sums along
    pending = sorted(wide)
    while pending:
        cell = search.cells[pending.pop()]
        if is_tied(search, cell) or cell.root in search.steps.forced:
            return None
        for user in [search.cells[n] for n in search.users[cell.number]]:
            if user.number in wide or user.number in fed:
                continue
            if user.kept == pairs and _is_pointwise(user):
                wide.add(user.number)
                pending.append(user.number)
            elif user.number not in inside:
                along = _summed(search, user, pairs, wide)
                if along is None:
                    return None
                fed[user.number] = along
        for number in _made_of(search, cell):
            maker = search.cells[number]
            if maker.kept == pairs and number not in wide:
                if not _is_pointwise(maker):
                    return None
                wide.add(number)
                pending.append(number)
    # Each factor of pairs may have been met before its product was: only one of the two is.
    kernels: list[list[Cell]] = []
    for along in sorted(set(fed.values())):
        products = [search.cells[n] for n in sorted(fed) if fed[n] == along]
        if any(_summed(search, p, pairs, wide) != along for p in products):
            return None
        cells = _needed(search, products, wide)
        if not _fits(search, cells, products, pairs, along):
            return None
        kernels.append(cells)
    rows = first.loops[key] >= LARGE * max([first.loops[a] for a in first.running - first.kept], default=1)
    return Feeding(frozenset(wide), kernels) if kernels and rows else None


def is_tied(search: Search, cell: Cell) -> bool:
    """Whether more than data ties a cell to others: a write, an order, memory that somebody else reads."""
    steps = search.steps
    tied = not search.readers.isdisjoint(cell.members) or cell.root in steps.versions
    return tied or bool(cell.sequential) or cell.is_alone


def _is_pointwise(cell: Cell) -> bool:
    """Whether a cell is an element-wise function, of one product of two factors at most."""
    reduce = cell.reduce
    return reduce is None or (cell.contraction and _is_product(cell) and len(cell.running - cell.kept) == 1)


def _is_product(cell: Cell) -> bool:
    reduce = cell.reduce
    if reduce is None or reduce.arg.op is not Op.ADD or reduce.src[0].op is not Op.MUL or reduce.arg.limited:
        return False
    return len(reduce.arg.axes) == 1 and reduce.dtype is dtypes.float32


def _made_of(search: Search, cell: Cell) -> list[int]:
    return [search.home[r.source] for r in cell.reads if r.source in search.home]


def _summed(search: Search, cell: Cell, pairs: frozenset[int], wide: set[int]) -> int | None:
    """The loop of pairs that a product of a factor of pairs and another one sums along, if it is one."""
    missing, columns = pairs - cell.kept, cell.kept - pairs
    if not cell.contraction or not _is_product(cell) or len(missing) != 1 or len(columns) != 1:
        return None
    if is_tied(search, cell) or sum(n in wide for n in _made_of(search, cell)) != 1:
        return None
    (along,) = missing
    return along


def _needed(search: Search, products: Sequence[Cell], wide: set[int]) -> list[Cell]:
    """The products with the cells of pairs that they need."""
    found = {p.number for p in products}
    pending = sorted(found)
    while pending:
        more = [n for n in _made_of(search, search.cells[pending.pop()]) if n in wide and n not in found]
        found.update(more)
        pending += more
    return [search.cells[n] for n in sorted(found)]


def _fits(
    search: Search, cells: Sequence[Cell], products: Sequence[Cell], pairs: frozenset[int], along: int
) -> bool:  # fmt: skip
    """Whether blocks of rows and of the loop along are near enough, and all run on one device."""
    devices = {search.steps.devices[c.root] for c in cells}
    if len(devices) != 1 or len(products) > MOST_TOGETHER:
        return False
    inner = [c for c in cells if c.contraction and c not in products]
    depths = [c.loops[a] for c in inner for a in c.running - c.kept]
    columns = [p.loops[a] for p in products for a in p.kept - pairs]
    size = inner[0].loops[along]
    rows = max([inner[0].loops[a] for a in pairs - {along} - _shared(inner, along)], default=1)
    return feeding_blocks(search.target_of(devices.pop()), rows, size, columns, depths) is not None


def _shared(inner: Sequence[Cell], along: int) -> frozenset[int]:
    """The loops of factors of the inner products that go by with the loop along: batches, not rows."""
    found: frozenset[int] = frozenset()
    for cell in inner:
        depth = cell.running - cell.kept
        for read in cell.reads:
            if along in read.atoms and read.atoms & depth:
                found |= read.atoms - depth - {along}
    return found
