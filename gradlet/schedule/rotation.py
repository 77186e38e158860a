"""Attention as one kernel: two products with a softmax between them along the keys that both have.

Scores for all pairs of queries and keys are as many as the keys squared. Nothing but the softmax and the second product
needs them, and those can take them block by block (`ROTATE`): the maximum of a row so far, the sum and the weighted
values relative to it are all that a row carries from one block of keys to the next. So before the search over kernels
begins, the cells from one product to the other become one kernel, wherever nobody else needs what lies between. What
is written down does not matter, only that it is: exponentials of something less its maximum, divided by their sum, and
as many row by row factors, masks and conversions as there may be.

Lowered it is a kernel like others, whose reductions nest; `optimize/rotation` chooses how it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.allocation import COUNTER_NUMBER
from gradlet.graph.node import UOp
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, Op
from gradlet.schedule.boxed import come_as_boxes
from gradlet.schedule.cells import Atoms, Cell
from gradlet.schedule.exchange import LARGE
from gradlet.schedule.feeding import Feeding, feeding, is_one_loop, is_tied, longest_loop, size_of
from gradlet.target.rotation import blocks, unit_blocks

if TYPE_CHECKING:
    from gradlet.schedule.fuse import Search

# Ops between a value and its user that give every element of it, perhaps many times.
_WHOLE: Final = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.CONTIGUOUS})
NOTHING_FED: Final = Feeding(frozenset(), [])
# Work of an element that a kernel may do again for every block of rows.
CHEAP: Final = 2


class Rotation(NamedTuple):
    """Cells that become one kernel.

    Attributes:
        cells: all of them, sources first.
        again: those among them that are computed by every kernel that needs them: they only count or convert, or have
            an element for every pair of a query and a key.
    """

    cells: list[Cell]
    again: list[Cell]


def rotations(search: Search) -> list[Rotation]:
    """All of a graph."""
    if STRICT_FLOAT.value:  # it would change the order of sums
        return []
    steps = search.steps
    if not any(n.op is Op.EXP for n in steps.order):
        return []
    found: list[list[Cell]] = []
    wide: set[int] = set()
    converted: set[int] = set()
    for cell in search.cells:
        chain = _between(search, cell) if cell.contraction else None
        if chain is not None:
            found += [chain.cells, *chain.fed.kernels]
            wide |= chain.fed.wide
            converted |= chain.fed.converted
    counted = _counted(search, found) | converted
    return [_with_operands(search, cells, counted, wide) for cells in found]


class Chain(NamedTuple):
    """The cells from a product of scores to the product of the weights, and what else the scores feed."""

    cells: list[Cell]
    fed: Feeding


def _between(search: Search, last: Cell) -> Chain | None:
    """The chain that ends with a product, if there is one."""
    reduce, steps = last.reduce, search.steps
    assert reduce is not None
    summed = last.running - last.kept
    if reduce.arg.op is not Op.ADD or reduce.src[0].op is not Op.MUL or len(reduce.arg.axes) != 1 or not summed:
        return None
    if reduce.arg.limited or reduce.dtype is not dtypes.float32:
        return None
    for side in reduce.src[0].src:
        power = _exponential(side, reduce.arg.axes[0])
        parts = _parts(search, *power) if power is not None else None
        if parts is None:
            continue
        first, top, total = parts
        cells = _on_the_way(search, first, last)
        reduces = {first.number, search.home[top], search.home[total], last.number}
        if cells is None or len(reduces) != 4 or {c.number for c in cells if c.reduce is not None} != reduces:
            return None
        if first.reduce is None or first.reduce.arg.limited:
            return None
        rows = frozenset([a for a, _ in steps.axes.loops(total)])
        keys, columns, depth = first.kept - rows, last.kept - rows, first.running - first.kept
        if not rows <= first.kept or not rows <= last.kept:
            return None
        axes = (keys, columns, depth)
        if not all(is_one_loop(search, cells, atoms) for atoms in axes):
            return None
        # Strips of a layout are copied anyway: few scores are made block by block beside that as well as any other way.
        if any(len(atoms) > 1 for atoms in axes) and size_of(first, keys) < LARGE * size_of(first, depth):
            return None
        made = {c.root for c in cells}
        shared = [r.atoms for r in first.reads if r.atoms & keys and r.atoms & depth]
        shared += [r.atoms for r in last.reads if r.atoms & summed and r.source not in made]
        fed: Feeding | None = NOTHING_FED
        if not all(_is_free(search, c, cells) for c in cells):
            fed = feeding(search, cells, first, keys) if all(_is_own(search, c, cells) for c in cells) else None
        target = search.target_of(steps.devices[last.root])
        sizes = (size_of(first, keys), size_of(last, columns), size_of(first, depth))
        if target.kind == "gpu":
            if len(columns) != 1 or len(depth) != 1:
                return None
            (column,) = columns
            longest = max([first.loops[a] for a in rows.difference(*shared)], default=1)
            values = next(s for s in reduce.src[0].src if s is not side)
            fits = unit_blocks(target, longest, *sizes) is not None and fed is not None
            fits = fits and _is_brought(search, first.reduce, values, column, cells)
        else:
            longest = longest_loop(search, cells, total, rows.difference(*shared))
            fits = blocks(target, longest, *sizes) is not None
        if not fits or fed is None:
            return None
        return Chain(_with_statistics(search, cells, rows) if fed.converted else cells, fed)
    return None


def _with_statistics(search: Search, cells: list[Cell], rows: Atoms) -> list[Cell]:
    """The cells with what is made of a row's maximum and sum alone, so that one number a row is stored, not two."""
    inside = {c.number for c in cells}
    found: list[Cell] = []
    for number in sorted({n for c in cells for n in search.users[c.number]} - inside):
        cell = search.cells[number]
        sources = {search.home.get(r.source, -1) for r in cell.reads}
        if cell.reduce is None and cell.kept == rows and sources <= inside and not is_tied(search, cell):
            found.append(cell)
    return sorted([*cells, *found], key=lambda c: c.number)


def _is_brought(search: Search, scores: UOp, values: UOp, column: int, cells: Sequence[Cell]) -> bool:
    """Whether a GPU's copy engine can bring queries, keys and values."""
    found = [axis for axis, atoms in enumerate(search.steps.axes.dims(values)) if [a for a, _ in atoms] == [column]]
    (deep,) = scores.arg.axes
    factors = [*[(factor, deep) for factor in scores.src[0].src], *[(values, axis) for axis in found]]
    return len(factors) == 3 and come_as_boxes(search, factors, {c.number for c in cells})


def _traced(node: UOp, axis: int) -> tuple[UOp, int] | None:
    """What lies below movement ops, and which of its axes an axis is; -1 where it repeats. None: not one of them."""
    while node.op in _WHOLE:
        below = node.src[0]
        if axis >= 0 and node.op is Op.PERMUTE:
            axis = node.arg.axes[axis]
        elif axis >= 0 and node.op is Op.EXPAND and below.shape[axis] != node.shape[axis]:
            axis = -1
        elif axis >= 0 and node.op is Op.RESHAPE:
            before, size = prod(node.shape[:axis]), node.shape[axis]
            same = [a for a, s in enumerate(below.shape) if s == size and prod(below.shape[:a]) == before]
            if not same:
                return None
            axis = same[-1]
        node = below
    return (node, axis) if node.op not in MOVEMENT else None


def _exponential(side: UOp, axis: int) -> tuple[UOp, int] | None:
    """The exponential that weights are made of, through what is done to them one by one or row by row; their axis."""
    while True:
        found = _traced(side, axis)
        if found is None or found[1] < 0:
            return None
        node, axis = found
        if node.op is Op.EXP:
            return node, axis
        src = node.src
        if node.op is Op.CAST and node.dtype.is_float and src[0].dtype.is_float:
            side = src[0]
        elif node.op is Op.FDIV and not _varies(src[1], axis):
            side = src[0]
        elif node.op is Op.MUL and _varies(src[0], axis) is not _varies(src[1], axis):
            side = src[0] if _varies(src[0], axis) else src[1]
        elif node.op is Op.WHERE and not _varies(src[0], axis) and any(_is_zero(s) for s in src[1:]):
            side = src[2] if _is_zero(src[1]) else src[1]
        else:
            return None


def _varies(node: UOp, axis: int) -> bool:
    """Whether a value is another one for every place along an axis."""
    if not node.shape:
        return False
    found = _traced(node, axis)
    return found is None or found[1] >= 0


def _is_zero(node: UOp) -> bool:
    found = _traced(node, -1)
    return found is not None and found[0].op is Op.CONST and found[0].arg == 0


def _below(node: UOp) -> UOp:
    while node.op in _WHOLE:
        node = node.src[0]
    return node


def _parts(search: Search, power: UOp, axis: int) -> tuple[Cell, UOp, UOp] | None:
    """The cell of the product in an exponent, the maximum that is subtracted, and the sum of the exponentials."""
    exponent = power.src[0]
    users = search.steps.users.get(power, [])
    totals = [u for u in users if u.op is Op.REDUCE_AXES and u.arg.op is Op.ADD and u.src[0] is power]
    if exponent.op is not Op.ADD or len(totals) != 1 or totals[0].arg.axes != (axis,) or totals[0].arg.limited:
        return None
    for x, shift in (exponent.src, exponent.src[::-1]):
        top = _maximum(shift)
        if top is None or top.src[0] is not x or top.arg != totals[0].arg._replace(op=Op.MAX):
            continue
        first = _product(search, x, axis)
        return (first, top, totals[0]) if first is not None else None
    return None


def _maximum(shift: UOp) -> UOp | None:
    """The one maximum that a shift follows from."""
    found: dict[UOp, None] = {}
    stack = [shift]
    while stack:
        node = stack.pop()
        if node.op is Op.REDUCE_AXES:
            found[node] = None
        elif node.op in ELEMENTWISE or node.op in MOVEMENT:
            stack += node.src
    (top,) = found if len(found) == 1 else (None,)
    return top if top is not None and top.arg.op is Op.MAX else None


def _product(search: Search, x: UOp, axis: int) -> Cell | None:
    """The one product of two factors that scores are made of, through what is done to them element by element."""
    found: dict[UOp, None] = {}
    stack = [(x, axis)]
    while stack:
        traced = _traced(*stack.pop())
        if traced is None:
            continue  # part of a mask; a reduction there is one cell too many
        node, along = traced
        if node.op is Op.REDUCE_AXES and along >= 0:
            found[node] = None
        elif node.op in ELEMENTWISE:
            stack += [(s, along if s.shape else -1) for s in node.src]
    if len(found) != 1:
        return None
    (score,) = found
    cell = search.cells[search.home[score]]
    plain = score.arg.op is Op.ADD and score.src[0].op is Op.MUL and len(score.arg.axes) == 1
    return cell if plain and cell.contraction and score.dtype is dtypes.float32 else None


def _on_the_way(search: Search, first: Cell, last: Cell) -> list[Cell] | None:
    """The cells that need one and that the other one needs, both included; None if there is no way."""
    forward = {first.number}
    for number in range(first.number, last.number):
        if number in forward:
            forward.update(search.users[number])
    back = {last.number}
    for number in range(last.number - 1, first.number - 1, -1):
        if not back.isdisjoint(search.users[number]):
            back.add(number)
    both = forward & back
    return [search.cells[n] for n in sorted(both)] if len(both) > 1 else None


def _is_free(search: Search, cell: Cell, inside: Sequence[Cell]) -> bool:
    """Whether nobody else needs what a cell makes, and nothing but data ties it to others."""
    others = {c.number for c in inside}.issuperset(search.users[cell.number])
    return _is_own(search, cell, inside) and (others or cell is inside[-1])


def _is_own(search: Search, cell: Cell, inside: Sequence[Cell]) -> bool:
    """Whether nothing but data ties a cell to others, and nobody asked for what it makes if it is not the last one."""
    steps = search.steps
    if is_tied(search, cell):
        return False
    if cell is inside[-1]:
        return True
    # A conversion that is stored once pays where the product reads it again and again, which blocks do near the core.
    return cell.root not in steps.forced or (cell.root.op is Op.CONTIGUOUS and not steps.outlives(cell.root))


def _counted(search: Search, found: Iterable[Sequence[Cell]]) -> set[int]:
    """Cells that are made of positions alone (a causal mask) and that nothing but these kernels needs."""
    made: set[UOp] = set()
    numbers: list[int] = []
    for cell in search.cells:
        if cell.reduce is None and not cell.is_alone and not cell.sequential:
            sources = {r.source for r in cell.reads}
            counts = all(s in made or (s.op is Op.BUFFER and s.arg.number == COUNTER_NUMBER) for s in sources)
            if counts and sources and all(m.op in ELEMENTWISE for m in cell.members):
                made.add(cell.root)
                numbers.append(cell.number)
    inside = {c.number for cells in found for c in cells}
    for number in reversed(numbers):
        cell = search.cells[number]
        tied = cell.root in search.steps.forced or not search.readers.isdisjoint(cell.members)
        if not tied and search.users[number] and inside.issuperset(search.users[number]):
            inside.add(number)
    return inside.intersection(numbers)


def _with_operands(search: Search, cells: Sequence[Cell], counted: set[int], wide: set[int]) -> Rotation:
    """The cells with those that they alone need, and that are cheap enough to be computed for every block of rows."""
    inside = {c.number for c in cells}
    brought = search.target_of(search.steps.devices[cells[-1].root]).kind == "gpu"
    most = max(prod(c.loops[a] for a in c.kept) for c in cells)
    again = [c for c in cells if c.number in wide]
    for number in range(max(inside) - 1, -1, -1):
        cell = search.cells[number]
        if number in inside or not search.users[number] or cell.reduce is not None or cell.is_alone or cell.sequential:
            continue
        if number in counted and not inside.isdisjoint(search.users[number]):
            inside.add(number)
            again.append(cell)
        elif brought:
            continue  # what a copy engine brings lies in memory
        elif (
            inside.issuperset(search.users[number])
            and wide.isdisjoint(search.users[number])
            and cell.root not in search.steps.forced
        ):
            plain = all(m.op in ELEMENTWISE for m in cell.members) and cell.root not in search.steps.versions
            cheap = cell.inner_work + cell.outer_work <= CHEAP or cell.points * 4 >= most
            if plain and cheap and search.readers.isdisjoint(cell.members):
                inside.add(number)
    return Rotation([search.cells[n] for n in sorted(inside)], again)
