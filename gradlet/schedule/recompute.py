"""Stored or computed again: readers of an element-wise value may compute it from what it was made of, where cheaper.

A backward pass reads what the forward pass has left. Of `gelu(z)` and the inner derivative it needs several values that
are all functions of `z`: storing `z` alone and computing them where they are read saves their traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gradlet.schedule.cells import Cell
from gradlet.schedule.price import Verdict

if TYPE_CHECKING:
    from gradlet.schedule.fuse import Kernel, Search

# Readers of one value that each compute it.
MAX_READERS: Final = 8


def recompute(search: Search) -> bool:
    """Try it for every kernel; whether any changed."""
    known = search.dropped
    changed = False
    for number, kernel in enumerate(search.kernels):
        if not kernel.alive:
            continue
        for chosen in proposals(search, kernel):
            readers = readers_of(search, number, chosen)
            if not 1 <= len(readers) <= MAX_READERS:
                continue
            numbers = {c.number for c in chosen}
            key = (
                kernel.shape,
                tuple([position for position, c in enumerate(kernel.cells) if c.number in numbers]),
                *[(search.kernels[r].shape, search.kernels[r].layer - kernel.layer) for r in readers],
            )
            if known.get(key, True):
                known[key] = drop(search, number, chosen, readers)
                changed |= known[key]
    return changed


def proposals(search: Search, kernel: Kernel) -> list[list[Cell]]:
    """Sets of stored values that might be computed again: all that no matrix product reads, then each alone."""
    free = [c for c in kernel.stored if is_free(search, c)]
    products = [search.cells[v] for c in free for v in search.users[c.number] if search.cells[v].contraction]
    inside = {r.source for product in products for r in product.reads if r.inside}
    outside = [c for c in free if c.root not in inside]
    return [outside, *[[c] for c in outside]] if len(outside) > 1 else [[c] for c in outside]


def is_free(search: Search, cell: Cell) -> bool:
    """Whether a cell is element-wise, nobody asked for its values, and only data ties it to its readers."""
    if cell.reduce is not None or cell.sequential or cell.root in search.steps.forced or cell.number in search.copied:
        return False
    return search.readers.isdisjoint(cell.members)


def readers_of(search: Search, number: int, chosen: Sequence[Cell]) -> list[int]:
    """The other kernels that read the chosen values."""
    roots = {c.root for c in chosen}
    found: list[int] = []
    for other in search.graph.after[number]:
        if any(r.source in roots for c in search.kernels[other].cells for r in c.reads):
            found.append(other)
    return found


def closure(search: Search, kernel: Kernel, chosen: Sequence[Cell]) -> list[Cell] | None:
    """The chosen cells and the element-wise ones below them that are not stored; None where one must not be copied."""
    maker = {c.root: c for c in kernel.cells}
    kept = {c.number for c in kernel.stored} - {c.number for c in chosen}
    found = {c.number: c for c in chosen}
    pending = list(chosen)
    while pending:
        for read in pending.pop().reads:
            below = maker.get(read.source)
            if below is None or below.number in kept or below.number in found or below.reduce is not None:
                continue
            if below.number not in search.copied and not is_free(search, below):
                return None
            found[below.number] = below
            pending.append(below)
    return [found[n] for n in sorted(found)]


def drop(search: Search, number: int, chosen: Sequence[Cell], readers: Sequence[int]) -> bool:
    """Let the readers compute the chosen values, if that lowers the total price."""
    kernel = search.kernels[number]
    copies = closure(search, kernel, chosen)
    if copies is None:
        return False
    fresh = {c.number for c in copies} - search.copied
    before = kernel.price + sum(search.kernels[r].price for r in readers)
    search.copied |= fresh
    cells = needed(search, kernel)
    parts_of = [cells] if cells else []
    parts_of += [[*copies, *search.kernels[r].cells] for r in readers]
    made: list[tuple[list[Cell], list[Cell], Verdict]] = []
    launch = search.pricer(search.steps.devices[kernel.cells[0].root]).launch
    total = launch * len(parts_of)  # nothing costs less
    for chosen_cells in parts_of:
        made.append(search.joined(chosen_cells))
        total += made[-1][-1].price - launch
        if before <= total:
            search.copied -= fresh
            return False
    changed = ([number] if cells else []) + list(readers)
    for changed_number, (parts, stored, verdict) in zip(changed, made, strict=True):
        search.take(changed_number, parts, stored, verdict)
    if not cells:
        kernel.alive = False
        search.graph.hand_down(number)
    for changed_number in changed:
        for other in search.neighbours(changed_number):
            search.propose(changed_number, other)
    return True


def needed(search: Search, kernel: Kernel) -> list[Cell]:
    """The cells of a kernel that its stored values are made of."""
    maker = {c.root: c for c in kernel.cells}
    found = {c.number: c for c in search.stored_cells(kernel.cells)}
    pending = list(found.values())
    while pending:
        for read in pending.pop().reads:
            below = maker.get(read.source)
            if below is not None and below.number not in found:
                found[below.number] = below
                pending.append(below)
    return [found[n] for n in sorted(found)]
