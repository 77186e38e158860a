"""The steps of a graph: the nodes that do work, what each reads, who uses it, and what has to live in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.allocation import COUNTER_NUMBER
from gradlet.graph.extents import Extents
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, SCALAR_LEAVES, Op
from gradlet.schedule.axes import Axes
from gradlet.schedule.calls import MOST_KEPT, is_worth_keeping
from gradlet.schedule.clean import find_devices
from gradlet.schedule.hazards import Effects, operands
from gradlet.schedule.moves import root_of
from gradlet.schedule.sizes import values_only

# A table of at most this many element-wise ops may be recomputed at every gathered element.
CHEAP_TABLE_DEPTH = 8
# Steps that are calls of their own, made as they are: nothing else is in their kernel.
NO_KERNEL: Final = frozenset({Op.COPY, Op.CUSTOM})
# Steps whose values are in memory, and those that read memory: a GATHER unless its table is cheap.
_STORED: Final = frozenset({Op.CONTIGUOUS, Op.COPY, Op.CUSTOM, Op.WRITE, Op.SCATTER, Op.MERGE, Op.LARGEST})
_READS_MEMORY: Final = frozenset({Op.COPY, Op.LARGEST, Op.CUSTOM, Op.GATHER})
_NO_STEPS: Final = MOVEMENT | SCALAR_LEAVES | {Op.BUFFER}


@dataclass
class Work:
    """How much deciding a schedule took, in counts that are the same on every machine.

    Attributes:
        prices: kernels and regions that were priced.
        merges: merges that were made.
        replayed: those of them that were taken over from an equal part of the graph.
    """

    prices: int = 0
    merges: int = 0
    replayed: int = 0


def is_number(node: UOp) -> bool:
    """Whether a node is arithmetic on values of variables: memory cannot hold it, every kernel computes it itself."""
    return node.dtype is dtypes.index and node.op in ELEMENTWISE


def is_step(node: UOp) -> bool:
    """Whether a node does work that a kernel is made for."""
    return node.op not in _NO_STEPS and not is_number(node)


class Steps:
    """A graph as steps.

    Attributes:
        order: the steps, sources first.
        reads: for every step its operands as (operand node, what lies below its movement ops).
        users: for every step the steps that read it.
        forced: the steps whose values have to be in memory, in order.
        wanted: the nodes whose values outlive the schedule.
        before: for every in-place step the steps that have to run first.
        axes: loops of all nodes.
        work: what deciding took so far.
        counted: integer arithmetic on positions alone.
        once: for steps that need not be computed at every call whether they are stored: all that they depend on is
            memory that is expected to stay as it is.
        limited: loops that end where a size says which is known only at launch. A region would go through all blocks.
    """

    def __init__(
        self,
        effects: Effects,
        wanted: Sequence[UOp],
        asked: Mapping[UOp, str],
        default_device: str,
        settled: Collection[UOp] = (),
    ) -> None:
        nodes = values_only(toposort(wanted), wanted)
        self.work = Work()
        self.effects = effects
        self.order = [n for n in nodes if is_step(n)]
        present = set(self.order)
        self.axes = Axes(nodes)
        self.reads: dict[UOp, list[tuple[UOp, UOp]]] = {}
        self.users: dict[UOp, list[UOp]] = {n: [] for n in self.order}
        for node in self.order:
            pairs = [(operand, root_of(operand)) for operand in operands(node)]
            pairs = [(operand, root) for operand, root in pairs if not is_number(root)]
            self.reads[node] = pairs
            for source in dict.fromkeys([root for _, root in pairs]):
                if source in present:
                    self.users[source].append(node)
        self.before = {w: [r for r in first if r in present] for w, first in effects.before.items() if w in present}
        self.versions = {op: v for op, v in effects.memory.items() if op in present}
        self.wanted = {root_of(w) for w in wanted}
        self._waited_for = {r for first in self.before.values() for r in first} | set(self.versions.values())
        self._overwritten = set(self.versions.values())
        apart = [n for n in self.order if n.op in NO_KERNEL]
        self._copied = {*apart, *[root_of(s) for n in apart for s in n.src]}
        self.forced = self._find_forced(wanted)
        self.devices = self._find_devices(nodes, asked, default_device)
        self.once = self._find_once(settled) if settled else {}
        self.limited: frozenset[int] = frozenset()
        self.counted = self._find_counted()

    def limit(self, sizes: Mapping[UOp, Extents]) -> None:
        """Take note of how far nodes are needed that are not needed in full."""
        found: set[int] = set()
        for node, extents in sizes.items():
            for axis, size in enumerate(extents):
                loops = [atom for atom, count in self.axes.axis(node, axis) if count != 1] if size is not None else []
                found.update(loops[:1])
        self.limited = frozenset(found)

    def _find_counted(self) -> set[UOp]:
        """The steps that are integer arithmetic on positions alone: `arange`, and what is computed of it."""
        found: set[UOp] = set()
        for step in self.order:
            sources = [source for _, source in self.reads[step] if source.op not in SCALAR_LEAVES]
            if step.op in ELEMENTWISE and step.dtype.is_int and sources:
                if all(s in found or (s.op is Op.BUFFER and s.arg.number == COUNTER_NUMBER) for s in sources):
                    found.add(step)
        return found

    def outlives(self, step: UOp) -> bool:
        """Whether a step's value is memory that somebody outside knows: a result, or a version of a buffer."""
        return step in self.wanted or step in self.versions or step in self._overwritten or step in self._copied

    def is_last(self, step: UOp) -> bool:
        """Whether nothing in this schedule waits for the step."""
        return not self.users[step] and step not in self._waited_for

    def apart(self, first: Iterable[UOp], second: Iterable[UOp]) -> bool:
        """Whether some steps are computed once, and others, some of `first` or some of `second`, at every call.

        Steps that are not stored do not count: either computes them itself.
        """
        if not self.once:
            return False
        kinds = [{self.once.get(step, False) for step in steps} for steps in (first, second)]
        return (True in kinds[0] and self._moves(second)) or (True in kinds[1] and self._moves(first))

    def is_once(self, steps: Iterable[UOp]) -> bool:
        """Whether some of these steps are stored, and need not be computed at every call."""
        return any(self.once.get(step, False) for step in steps)

    def _moves(self, steps: Iterable[UOp]) -> bool:
        return any(step not in self.once for step in steps)

    def _find_once(self, settled: Collection[UOp]) -> dict[UOp, bool]:
        stays = set(settled) - set(self.effects.versions.values())
        found: dict[UOp, bool] = {}
        below: dict[UOp, int] = {}  # bytes of weights
        kept = 0
        for step in self.order:
            sources = dict.fromkeys([root for _, root in self.reads[step] if root.op not in SCALAR_LEAVES])
            changes = step.mask & 1 << Op.VARIABLE or step.op in (Op.COPY, Op.CUSTOM, Op.WRITE) or self.outlives(step)
            if not sources or changes or not all(source in stays or source in found for source in sources):
                continue
            below[step] = sum(below.get(s) or s.dtype.itemsize * prod(s.shape) for s in sources)
            stored = step in self.forced or step.op is Op.REDUCE_AXES
            made = step.dtype.itemsize * prod(step.shape)
            if stored and (not is_worth_keeping(made, below[step]) or kept + made > MOST_KEPT):
                continue
            found[step] = stored
            kept += made * stored
        return found

    def _find_forced(self, wanted: Sequence[UOp]) -> dict[UOp, None]:
        forced: dict[UOp, None] = dict.fromkeys([root_of(w) for w in wanted])
        versions = self.effects.versions
        for node in self.order:
            if node.op in _STORED or node in versions:
                forced[node] = None
            if node.op not in _READS_MEMORY:
                continue
            if node.op is not Op.GATHER:
                forced.update(dict.fromkeys([root_of(source) for source in node.src]))
            elif not self.is_cheap_table(root_of(node.src[0]), node):
                forced[root_of(node.src[0])] = None
        for version in self.versions.values():
            forced[version] = None
        return {n: None for n in self.order if n in forced}

    def is_cheap_table(self, table: UOp, gather: UOp) -> bool:
        """Whether recomputing the table's elements where they are gathered is no more work than making the table."""
        if prod(gather.shape) > prod(table.shape):
            return False
        level = [table]
        for _ in range(CHEAP_TABLE_DEPTH):
            below: dict[UOp, None] = {}
            for node in level:
                if node.op is Op.BUFFER or node.op in SCALAR_LEAVES:
                    continue
                if node.op not in ELEMENTWISE:
                    return False
                below.update(dict.fromkeys([root_of(s) for s in node.src]))
            if not below:
                return True
            level = list(below)
        return False

    def _find_devices(self, nodes: Sequence[UOp], asked: Mapping[UOp, str], default: str) -> dict[UOp, str]:
        """Where every step runs. One that only depends on constants runs where its users do."""
        devices = find_devices(nodes)
        for node in self.order:
            memory = self.effects.versions.get(node)
            while memory is not None and memory.op is not Op.BUFFER:
                memory = self.effects.versions.get(memory)
            if memory is not None:
                devices.setdefault(node, memory.arg.device)  # constants go where the memory is that they go into
        devices.update({n: d for n, d in asked.items() if n not in devices})
        for node in reversed(self.order):
            overwritten = self.effects.versions.get(node)
            # A constant that is written into constants goes where these are.
            device = devices.setdefault(node, default if overwritten is None else devices.get(overwritten, default))
            if overwritten is not None:
                devices.setdefault(overwritten, device)  # zeros that a scatter adds to, say
            if node.op is not Op.COPY:
                for _, source in self.reads[node]:
                    devices.setdefault(source, device)
        return devices
