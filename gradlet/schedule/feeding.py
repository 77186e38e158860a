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

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp
from gradlet.ops.op import MOVEMENT, Op
from gradlet.schedule.boxed import come_as_boxes
from gradlet.schedule.cells import Atoms, Cell
from gradlet.schedule.exchange import LARGE
from gradlet.schedule.moves import root_of
from gradlet.schedule.widen import is_conversion
from gradlet.target.rotation import feeding_blocks, feeding_unit_blocks

if TYPE_CHECKING:
    from gradlet.schedule.fuse import Search

# Products that share a kernel.
MOST_TOGETHER: Final = 4


class Feeding(NamedTuple):
    """What is computed again, and by whom.

    Attributes:
        wide: numbers of the cells that have an element for every pair.
        kernels: the cells of each kernel that sums along a loop of pairs, sources first.
        converted: numbers of the cells that convert factors which a copy engine brings as they are.
    """

    wide: frozenset[int]
    kernels: list[list[Cell]]
    converted: frozenset[int] = frozenset()


def feeding(search: Search, chain: Sequence[Cell], first: Cell, keys: Atoms) -> Feeding | None:
    """What else the scores of an attention feed; None if something must have them in memory.

    Args:
        search: the search over kernels.
        chain: the cells from the product of the scores to the one of the weights.
        first: the product of the scores.
        keys: the loops along which the softmax goes.
    """
    pairs = first.kept
    inside = {c.number for c in chain}
    wide = {c.number for c in chain if c.kept == pairs}
    fed: dict[int, Atoms] = {}  # a product and the loops that it sums along
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
    for along in sorted(set(fed.values()), key=sorted):
        products = [search.cells[n] for n in sorted(fed) if fed[n] == along]
        if any(_summed(search, p, pairs, wide) != along for p in products):
            return None
        cells = _needed(search, products, wide)
        if not _fits(search, cells, products, pairs, along):
            return None
        kernels.append(cells)
    if not kernels:
        return None
    if search.target_of(search.steps.devices[first.root]).kind != "gpu":
        large = size_of(first, keys) >= LARGE * size_of(first, first.running - first.kept)
        return Feeding(frozenset(wide), kernels) if large else None
    together = {c.number for cells in kernels for c in cells} | inside
    converted = _converted(search, [search.cells[n] for n in sorted(together)])
    if any(not together.issuperset(search.users[n]) or is_tied(search, search.cells[n]) for n in converted):
        return None
    return Feeding(frozenset(wide), kernels, frozenset(converted))


def _converted(search: Search, cells: Sequence[Cell]) -> set[int]:
    """The cells that convert factors of products to float32."""
    found = {n for cell in cells if cell.contraction for n in _made_of(search, cell)}
    return {n for n in found if all(is_conversion(m) or m.op in MOVEMENT for m in search.cells[n].members)}


def size_of(cell: Cell, atoms: Atoms) -> int:
    """Iterations of some of a cell's loops."""
    return prod([cell.loops[a] for a in atoms])


def is_one_loop(search: Search, cells: Sequence[Cell], atoms: Atoms) -> bool:
    """Whether loops of some cells run as one: they follow one another, in one order, in all that has them.

    A layout that cuts an axis in strips cuts it for everything that it belongs to, also where memory is in one piece.
    """
    if len(atoms) < 2:
        return bool(atoms)
    inside = {c.root for c in cells}
    sizes = {a: size for c in cells for a, size in c.loops.items()}
    nodes = [c.root for c in cells if c.reduce is not None]
    nodes += [r.source for c in cells for r in c.reads if r.source not in inside]
    lists = [search.steps.axes.loops(node) for node in nodes]
    lists = [loops for loops in lists if any(a in atoms for a, _ in loops)]
    order = next((own for loops in lists if len(own := [a for a, _ in loops if a in atoms]) == len(atoms)), [])
    return bool(order) and all(_has_in_order(loops, order, sizes) for loops in lists)


def _has_in_order(loops: Sequence[tuple[int, int]], order: Sequence[int], sizes: Mapping[int, int]) -> bool:
    """Whether a node has some loops one after another; `sizes`: of the loops that run.

    A loop that does not run, because it could not be united with the one that does, stands for one of its size.
    """
    found = [place - order.index(a) for place, (a, _) in enumerate(loops) if a in order]
    begin = found[0]
    if begin < 0 or any(place != begin for place in found) or begin + len(order) > len(loops):
        return False
    there = loops[begin : begin + len(order)]
    return all(a == b or (a not in sizes and size == sizes[b]) for (a, size), b in zip(there, order, strict=True))


def longest_loop(search: Search, cells: Sequence[Cell], node: UOp, free: Atoms) -> int:
    """The longest loop over an axis of a node, of those whose atoms are free."""
    sizes = [1]
    for axis in search.steps.axes.dims(node):
        own = [(a, size) for a, size in axis if a in free]
        if own and is_one_loop(search, cells, frozenset([a for a, _ in own])):
            sizes.append(prod([size for _, size in own]))
        else:
            sizes += [size for _, size in own]
    return max(sizes)


def is_tied(search: Search, cell: Cell) -> bool:
    """Whether more than data ties a cell to others: a write, an order, memory that somebody else reads."""
    steps = search.steps
    tied = not search.readers.isdisjoint(cell.members) or cell.root in steps.versions
    return tied or bool(cell.sequential) or cell.is_alone


def _is_pointwise(cell: Cell) -> bool:
    """Whether a cell is an element-wise function, of one product of two factors at most."""
    reduce = cell.reduce
    return reduce is None or (cell.contraction and _is_product(cell) and bool(cell.running - cell.kept))


def _is_product(cell: Cell) -> bool:
    reduce = cell.reduce
    if reduce is None or reduce.arg.op is not Op.ADD or reduce.src[0].op is not Op.MUL or reduce.arg.limited:
        return False
    return len(reduce.arg.axes) == 1 and reduce.dtype is dtypes.float32


def _made_of(search: Search, cell: Cell) -> list[int]:
    return [search.home[r.source] for r in cell.reads if r.source in search.home]


def _summed(search: Search, cell: Cell, pairs: Atoms, wide: set[int]) -> Atoms | None:
    """The loops of pairs that a product of a factor of pairs and another one sums along, if it is one."""
    missing, columns = pairs - cell.kept, cell.kept - pairs
    if not cell.contraction or not _is_product(cell) or not missing or not columns:
        return None
    if is_tied(search, cell) or sum(n in wide for n in _made_of(search, cell)) != 1:
        return None
    return missing


def _needed(search: Search, products: Sequence[Cell], wide: set[int]) -> list[Cell]:
    """The products with the cells of pairs that they need."""
    found = {p.number for p in products}
    pending = sorted(found)
    while pending:
        more = [n for n in _made_of(search, search.cells[pending.pop()]) if n in wide and n not in found]
        found.update(more)
        pending += more
    return [search.cells[n] for n in sorted(found)]


def _fits(search: Search, cells: Sequence[Cell], products: Sequence[Cell], pairs: Atoms, along: Atoms) -> bool:
    """Whether blocks of rows and of the loop along are near enough, and all run on one device."""
    devices = {search.steps.devices[c.root] for c in cells}
    if len(devices) != 1 or len(products) > MOST_TOGETHER:
        return False
    inner = [c for c in cells if c.contraction and c not in products]
    axes = [along, *[c.running - c.kept for c in inner], *[p.kept - pairs for p in products]]
    if not inner or not all(is_one_loop(search, cells, atoms) for atoms in axes):
        return False
    depths = [size_of(c, c.running - c.kept) for c in inner]
    columns = [size_of(p, p.kept - pairs) for p in products]
    free = pairs - along - _shared(inner, along)
    rows = longest_loop(search, cells, inner[0].root, free)
    target = search.target_of(devices.pop())
    if target.kind != "gpu":
        return feeding_blocks(target, rows, size_of(inner[0], along), columns, depths) is not None
    fits = feeding_unit_blocks(target, rows, size_of(inner[0], along), columns, depths) is not None
    return fits and all(len(atoms) == 1 for atoms in axes[1:]) and _are_brought(search, cells, products, pairs)


def _are_brought(search: Search, cells: Sequence[Cell], products: Sequence[Cell], pairs: Atoms) -> bool:
    """Whether a GPU's copy engine can bring the factors of all products, those made of pairs aside."""
    inside = {c.number for c in cells}
    factors: dict[tuple[UOp, int], None] = {}
    for cell in cells:
        if not cell.contraction or cell.reduce is None:
            continue
        sides = [side for side in cell.reduce.src[0].src if cell not in products or is_conversion(root_of(side))]
        if len(sides) != (1 if cell in products else 2):
            return False
        wanted = (cell.kept - pairs) if cell in products else (cell.running - cell.kept)
        for side in sides:
            own = [axis for axis, atoms in enumerate(search.steps.axes.dims(side)) if {a for a, _ in atoms} == wanted]
            if len(own) != 1:
                return False
            factors[side, own[0]] = None
    return come_as_boxes(search, factors, inside)


def _shared(inner: Sequence[Cell], along: Atoms) -> Atoms:
    """The loops of factors of the inner products that go by with the loop along: batches, not rows."""
    found: Atoms = frozenset()
    for cell in inner:
        depth = cell.running - cell.kept
        for read in cell.reads:
            if along & read.atoms and read.atoms & depth:
                found |= read.atoms - depth - along
    return found
