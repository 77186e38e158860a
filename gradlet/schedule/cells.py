"""Cells: steps that belong together whatever the prices are, and the facts about them that prices need.

A step joins the cell of its only user when it is evaluated there no more often than it has elements. A cell stores one
step, has at most one reduce, and is what the search over partitions moves around.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import prod
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import ELEMENTWISE, SCALAR_LEAVES, Op
from gradlet.schedule.axes import Axes
from gradlet.schedule.chains import View, Views
from gradlet.schedule.dots import is_block_sum
from gradlet.schedule.moves import BIJECTIVE
from gradlet.schedule.steps import Steps
from gradlet.target.target import Target

MAX_STEPS: Final = 512  # in one kernel; more costs compile time and registers, and saves nothing
MAX_OPERANDS: Final = 128
MAX_EVALUATIONS: Final = 1024  # of steps in one kernel, each counted for every view it is computed at

# Partial results of so many elements each are a cut that stays.
LONG: Final = 16
# Steps that take nothing else into their kernel than what they read.
ALONE_OPS: Final = frozenset({Op.SCATTER, Op.COPY, Op.CUSTOM, Op.MERGE, Op.LARGEST})

Atoms = frozenset[int]
ViewNames = dict[tuple[int, int], int]  # (view below, what is on top of it) -> name
NOTHING: Final[Atoms] = frozenset()

# Work of one element-wise op in units of an addition, from times a lane in vector code: exp 0.34 ns a core, a division
# 10 to 16 cycles a vector; powers are calls to libm; lanes of a vector that load from
# places of their own take about a cycle each.
_WEIGHT: Final = {
    Op.EXP: 12, Op.EXP2: 10, Op.LOG: 14, Op.LOG2: 14, Op.SIN: 20, Op.COS: 20, Op.POW: 400, Op.FDIV: 8, Op.SQRT: 8,
    Op.IDIV: 30, Op.MOD: 30, Op.GATHER: 8,
}  # fmt: skip


@dataclass
class Read:
    """One operand of a cell.

    Attributes:
        source: a BUFFER or a step of another cell.
        bytes: distinct bytes that are read.
        atoms: loops of the reading step that the element depends on.
        inside: whether it is read inside the cell's reduce.
        views: names of the views of the source that the root's element needs; 0 is the element itself.
        index: what says which elements of the source are read, where these are not all of them.
    """

    source: UOp
    bytes: int
    atoms: Atoms
    inside: bool
    views: set[int] = field(default_factory=lambda: {0})
    index: UOp | None = None

    @property
    def memory(self) -> object:
        """What is read: other rows of a table are other memory."""
        return self.source if self.index is None else (self.source, self.index)


@dataclass
class Cell:
    """Steps that are computed together.

    Attributes:
        number: position among all cells, sources first.
        root: the step that may be stored.
        members: all steps, sources first.
        reduce: the one reduce, if any.
        loops: size of every loop that runs: of the reduce's operand, or else of the root.
        kept: loops of the root.
        reads: operands from outside.
        inner_work: work of an iteration inside the reduce.
        outer_work: work of an element of the root.
        reuses: whether operands of the reduce are used again along kept loops.
        contraction: whether it is a matrix product or convolution, whose loops are its own.
        evaluations: its steps, each counted once for every view it is evaluated at.
        lane: the innermost loop of the root, along which it lies contiguous in memory.
        sequential: kept loops whose iterations run one after another.
        twice: loops that two axes of one step have, each of which runs for itself.
        running: the loops that run, without their sizes.
        out_bytes: what storing the root writes.
        is_alone: whether it takes nothing else into its kernel than what it reads.
        is_long: whether its reduce has many elements for each result.
        partial: a long reduction of its own kind whose partial results its reduce adds up, if it does.
        picks: the loops along which an index says where it reads.
    """

    number: int
    root: UOp
    members: list[UOp] = field(default_factory=list)
    reduce: UOp | None = None
    sections: dict[UOp, bool] = field(default_factory=dict)  # step -> whether it runs inside the reduce
    sources: set[UOp] = field(default_factory=set)
    loops: dict[int, int] = field(default_factory=dict)
    kept: Atoms = NOTHING
    reads: list[Read] = field(default_factory=list)
    inner_work: int = 0
    outer_work: int = 0
    points: int = 1
    out_points: int = 1
    reuses: bool = False
    contraction: bool = False
    evaluations: int = 1
    lane: int | None = None
    sequential: Atoms = NOTHING
    twice: Atoms = NOTHING
    running: Atoms = NOTHING
    out_bytes: int = 0
    is_alone: bool = False
    is_long: bool = False
    partial: UOp | None = None
    picks: Atoms = NOTHING


def make_cells(
    steps: Steps, target_of: Callable[[str], Target], careful: bool = False, views: Views | None = None
) -> list[Cell]:
    """Every step in exactly one cell, cells in topological order of their roots.

    Args:
        steps: the graph.
        target_of: facts about a device by its name.
        careful: a step that has to run before a write joins no cell but that write's, so that cells cannot come to
            wait for each other (two writes that each overwrite what the other's cell reads).
        views: what is known of the graph's views already.
    """
    views = views if views is not None else Views()
    readers: dict[UOp, list[UOp]] = {}
    for writer, first in steps.before.items():
        for reader in first:
            readers.setdefault(reader, []).append(writer)
    finishing = _finishing(steps)
    cell_of: dict[UOp, Cell] = {}
    cells: list[Cell] = []
    evaluated: dict[UOp, int] = {}
    for step in reversed(steps.order):
        cell = _home(step, steps, cell_of, readers, target_of, careful, finishing)
        count = 1
        if cell is not None:
            count = sum(evaluated[u] * len({o for o, s in steps.reads[u] if s is step}) for u in steps.users[step])
            # Views of views multiply: each level of a tree of halves reads the one below twice.
            if cell.evaluations + count > MAX_EVALUATIONS:
                cell = None
        if cell is None:
            cell, count = Cell(0, step), 1
            cells.append(cell)
        else:
            cell.evaluations += count
        join(step, cell, steps)
        cell_of[step], evaluated[step] = cell, count
    cells.reverse()
    names: ViewNames = {}
    for number, cell in enumerate(cells):
        cell.number = number
        describe(cell, steps, views, steps.counted if target_of(steps.devices[cell.root]).warp > 1 else ())
        name_views(cell, steps, names)
    return cells


def join(step: UOp, cell: Cell, steps: Steps) -> None:
    """Add a step to a cell; steps arrive users first."""
    inside = False
    for user in steps.users[step]:
        if user in cell.sections:
            inside = cell.sections[user] or user is cell.reduce
            break
    if step.op is Op.REDUCE_AXES:
        cell.reduce = step
    cell.members.append(step)
    cell.sections[step] = inside
    cell.sources.discard(step)
    for _, source in steps.reads[step]:
        if source.op not in SCALAR_LEAVES:
            cell.sources.add(source)


def _home(
    step: UOp,
    steps: Steps,
    cell_of: dict[UOp, Cell],
    readers: dict[UOp, list[UOp]],
    target_of: Callable[[str], Target],
    careful: bool,
    finishing: set[UOp],
) -> Cell | None:
    """The cell that a step joins for certain."""
    users = steps.users[step]
    if step in steps.forced or not users or (step.op not in ELEMENTWISE and step.op not in (Op.REDUCE_AXES, Op.GATHER)):
        return None
    cell = cell_of[users[0]]
    if any(cell_of[u] is not cell for u in users[1:]):
        return None
    if steps.devices[step] != steps.devices[cell.root]:
        return None
    # The writer of what this step reads comes after the whole cell: fine unless the cell may wait for that writer.
    if any(w is not cell.root and (careful or not steps.is_last(w)) for w in readers.get(step, ())):
        return None
    if len(cell.members) >= MAX_STEPS or _is_stored_narrow(step, cell.root, steps):
        return None
    limit = min(MAX_OPERANDS, target_of(steps.devices[step]).max_args - 1)
    new_sources = sum(s not in cell.sources and s.op not in SCALAR_LEAVES for s in {s for _, s in steps.reads[step]})
    if len(cell.sources) - 1 + new_sources > limit:
        return None
    sections = {cell.sections[u] or u is cell.reduce for u in users}
    if len(sections) > 1:
        return None
    if step.op is Op.REDUCE_AXES:
        if cell.reduce is not None or cell.root.op in (Op.SCATTER, Op.MERGE) or True in sections:
            return None
        # What is done to one element may have joined a user that spreads it: the loops of that are none of the reduce.
        if prod(step.shape) == 1 and prod(_shown(cell.root).shape) > 1:
            return None
        # Read through several views it would be computed in as many loops.
        seen = {operand for u in users for operand, source in steps.reads[u] if source is step}
        return cell if len(seen) == 1 and all(_keeps_elements(step, u, steps) for u in users) else None
    if step in finishing and any(_is_padded(step, u, steps) for u in users):
        return None  # the reduce would run for the elements of the border too, each guarded
    return cell if all(_reads_once(step, u, steps) for u in users) else None


def _is_stored_narrow(step: UOp, root: UOp, steps: Steps) -> bool:
    """Whether a cell's root only widens the step: whoever reads it may do so, and less is stored."""
    if root.op is not Op.CAST or root.src[0] is not step or root in steps.forced:
        return False
    return step.dtype.is_float and root.dtype.is_float and step.dtype.itemsize < root.dtype.itemsize


def _finishing(steps: Steps) -> set[UOp]:
    """The element-wise steps over a reduce, which its kernel does before it stores."""
    found: set[UOp] = set()
    for step in steps.order:
        if step.op in ELEMENTWISE:
            size = prod(step.shape)
            for _, source in steps.reads[step]:
                if (source.op is Op.REDUCE_AXES or source in found) and 1 < prod(source.shape) == size:
                    found.add(step)
                    break
    return found


def _is_padded(step: UOp, user: UOp, steps: Steps) -> bool:
    """Whether the user sees the step with a border around it."""
    for operand, source in steps.reads[user]:
        node = operand
        while source is step and node is not step:
            if node.op is Op.PAD:
                return True
            node = node.src[0]
    return False


def _shown(root: UOp) -> UOp:
    """What a cell stores: of a write, the part of memory that it changes."""
    return root.src[1] if root.op is Op.WRITE else root


def _keeps_elements(step: UOp, user: UOp, steps: Steps) -> bool:
    """Whether the user reads each element of the step once at most and nothing else, so a reduce may run there."""
    if user.op is Op.GATHER:
        return False
    for operand, source in steps.reads[user]:
        node = operand
        while source is step and node is not step:
            if node.op not in BIJECTIVE and node.op is not Op.SHRINK:
                return False
            node = node.src[0]
    return True


def _reads_once(step: UOp, user: UOp, steps: Steps) -> bool:
    """Whether the user evaluates the step no more often than it has elements (one element is always cheap)."""
    single = prod(step.shape) == 1
    for operand, source in steps.reads[user]:
        node = operand
        while source is step and node is not step and not single:
            if node.op is not Op.PAD and prod(node.shape) > prod(node.src[0].shape):
                return False
            node = node.src[0]
    return True


# facts
def _conversions_elsewhere(cell: Cell, steps: Steps) -> dict[UOp, dict[int, int]]:
    """Conversions that the cell evaluates along other loops than their own: for each of their loops, which one.

    Queries and keys may have one loop, that of the tokens. A product of them runs over two, and converts keys along the
    second one.
    """
    axes = steps.axes
    own = set(cell.members)
    found: dict[UOp, dict[int, int]] = {}
    for step in cell.members:
        for operand, source in steps.reads[step] if step.op in ELEMENTWISE else ():
            if operand is not source or source not in own or source.op is not Op.CAST:
                continue
            pairs = zip(axes.dims(source), axes.dims(step), strict=True)
            new = {a: b for mine, there in pairs for (a, _), (b, _) in zip(mine, there) if a != b}
            found[source] = new if found.get(source, new) == new else {}
    return {step: new for step, new in found.items() if new}


def describe(cell: Cell, steps: Steps, views: Views, free: Collection[UOp] = ()) -> None:
    """Fill in loops, reads and work of a finished cell; steps in `free` become index arithmetic."""
    axes = steps.axes
    cell.members.reverse()
    root = cell.root
    shown = _shown(root)
    cell.loops = dict(axes.loops(shown))
    cell.lane = next(reversed(cell.loops), None)
    cell.out_points = prod(shown.shape)
    cell.kept = frozenset(cell.loops)
    cell.points = cell.out_points
    if root.op is Op.SCATTER:
        batch = root.arg.batch
        rest = (*axes.dims(root)[:batch], *axes.dims(root)[batch + 1 :])
        cell.kept = frozenset(a for axis in rest for a, _ in axis)
        cell.loops = {a: s for axis in rest for a, s in axis}
        cell.points = cell.out_points = prod(root.src[1].shape) * prod(root.shape[batch + 1 :])
    if root.op in (Op.SCAN, Op.MERGE, Op.LARGEST):
        axis = root.arg.axis if root.op is Op.SCAN else len(root.shape) - 1
        cell.sequential = frozenset(a for a, _ in axes.axis(root, axis))
        if root.op is Op.LARGEST:
            cell.points = cell.out_points * root.src[0].shape[-1]
    reduce = cell.reduce
    if reduce is not None:
        cell.loops = dict(axes.loops(reduce.src[0])) | cell.loops
        cell.points = prod(reduce.src[0].shape)
    own = set(cell.members)
    twice: set[int] = set()
    others = _conversions_elsewhere(cell, steps)
    for step in cell.members:
        atoms = [a for a, _ in axes.loops(step)]
        if len(set(atoms)) < len(atoms):
            twice.update(a for a in atoms if atoms.count(a) > 1)
        if step.op is Op.GATHER:
            cell.picks |= frozenset([a for a, _ in axes.loops(step.src[1])])
        inside = cell.sections[step]
        work = 0 if step in free else _WEIGHT.get(step.op, 1)
        for operand, source in steps.reads[step]:
            if source.op not in SCALAR_LEAVES:
                view = views.of(operand, source)
                work += view.guard_work
                if source not in own:
                    read = describe_read(operand, source, view, step, axes, inside or step is reduce)
                    if step in others:
                        read.atoms = frozenset([others[step].get(a, a) for a in read.atoms])
                    cell.reads.append(read)
        if inside or step is reduce:
            cell.inner_work += work
        else:
            cell.outer_work += work
    cell.twice = frozenset(twice)
    cell.running = frozenset(cell.loops)
    cell.out_bytes = cell.out_points * root.dtype.itemsize
    cell.is_alone = root.op in ALONE_OPS
    cell.is_long = reduce is not None and cell.points >= LONG * cell.out_points
    if reduce is not None and reduce.src[0].op is Op.REDUCE_AXES:
        below = reduce.src[0]
        if below.arg.op is reduce.arg.op and prod(below.src[0].shape) >= LONG * prod(below.shape):
            cell.partial = below
    cell.reuses = reduce is not None and reuses_operands(cell)
    cell.contraction = cell.reuses and not sums_blocks(cell)


def name_views(cell: Cell, steps: Steps, names: ViewNames) -> None:
    """Find at how many different views of its element each step of a cell, and each of its operands, is needed."""
    views: dict[UOp, set[int]] = {cell.root: {0}}
    needed: dict[UOp, set[int]] = {}
    own = set(cell.members)
    for step in reversed(cell.members):
        here = views.get(step, {0})
        for operand, source in steps.reads[step]:
            there = (views if source in own else needed).setdefault(source, set())
            there |= here if operand is source else view_of(here, operand.uid, names)
    cell.evaluations = sum(len(v) for v in views.values())
    for read in cell.reads:
        read.views = needed[read.source]


def view_of(views: set[int], view: int, names: ViewNames) -> set[int]:
    """The views that one more view on top of each makes; 0 on top of anything is that itself."""
    return {names.setdefault((below, view), len(names) + 1) for below in views} if view else views


def describe_read(operand: UOp, source: UOp, view: View, step: UOp, axes: Axes, inside: bool) -> Read:
    """What one operand costs to read, and which loops it depends on."""
    if step.op is Op.GATHER and operand is step.src[0]:
        count = min(view.elements, prod(step.shape))
        read = Read(source, count * source.dtype.itemsize, frozenset(a for a, _ in axes.loops(step)), inside)
        read.index = step.src[1] if count < view.elements else None
        return read
    dims = axes.dims(step if step.op in ELEMENTWISE else operand)
    atoms = frozenset([atom for axis in view.axes for atom, _ in dims[axis]])
    return Read(source, view.elements * source.dtype.itemsize, atoms, inside)


def sums_blocks(cell: Cell) -> bool:
    """Whether a reduce sums codes over the few words of a block, or such sums: scaled, summed, all in one loop."""
    return is_block_sum(cell.reduce) or any(read.inside and is_block_sum(read.source) for read in cell.reads)


def reuses_operands(cell: Cell) -> bool:
    """Whether two operands of the reduce are each used again along some kept loop that the other one has."""
    reduced = cell.running - cell.kept
    wide = frozenset(a for a in cell.kept if cell.loops[a] > 1)
    partial = [read.atoms for read in cell.reads if read.inside and read.atoms & reduced and wide - read.atoms]
    return any((a ^ b) & wide and not wide - (a | b) for i, a in enumerate(partial) for b in partial[i + 1 :])
