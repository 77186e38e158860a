"""Bodies lowered once: those of equal layers have other buffers and nothing else. Saves work, decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from gradlet.graph.extents import Extents
from gradlet.graph.node import UOp
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, SCALAR_LEAVES, Op
from gradlet.schedule.axes import Axes
from gradlet.schedule.blocks import Frame
from gradlet.schedule.hazards import operands
from gradlet.schedule.lower import lower_kernel
from gradlet.schedule.lowered import Lowered
from gradlet.schedule.moves import chain_to
from gradlet.schedule.ranges import Loop, RegionError

# Ops whose loops are those of their users.
_PLAIN: Final = ELEMENTWISE | MOVEMENT
_WRITES: Final = frozenset({Op.WRITE, Op.SCATTER})


class Bodies:
    """Lowers bodies over the places of one schedule, and remembers them by structure.

    Attributes:
        lowered: how many were lowered, not found.
    """

    def __init__(
        self, places: Mapping[UOp, UOp], axes: Axes, sizes: Mapping[UOp, Extents] = MappingProxyType({})
    ) -> None:
        self.places = places
        self.axes = axes
        self.sizes = sizes
        self.lowered = 0
        self._known: dict[object, _Known | str] = {}  # a str is the reason why it cannot be lowered

    def lower(
        self, outputs: Sequence[UOp], nest: Sequence[Loop] = (), frame: Frame | None = None, counts: bool = False
    ) -> Lowered:
        """One body; see `lower_kernel`.

        Raises:
            RegionError: a block needs what another block makes.
        """
        needed = {o: sizes for o in outputs if (sizes := self.sizes.get(o)) is not None}
        body = _Description(self.places, self.axes, outputs, nest, frame, needed)
        key = counts, body.key
        known = self._known.get(key)
        if known is None:
            self.lowered += 1
            try:
                known = _Known(
                    lower_kernel(outputs, self.places, self.axes.axis, nest, frame, needed, counts), body.leaves
                )
            except RegionError as error:
                known = str(error)
            self._known[key] = known
        if isinstance(known, str):
            raise RegionError(known)
        return known.with_leaves(body.leaves)


class _Known:
    """A lowered body whose buffers and variables are positions among the leaves of its description."""

    def __init__(self, made: Lowered, leaves: Mapping[UOp, int]) -> None:
        self.made = made
        self.buffers = [leaves[buffer] for buffer in made.buffers]
        self.variables = [leaves[variable] for variable in made.variables]

    def with_leaves(self, leaves: Mapping[UOp, int]) -> Lowered:
        """The same body over other leaves."""
        found = list(leaves)
        buffers, variables = ([found[p] for p in positions] for positions in (self.buffers, self.variables))
        return self.made._replace(buffers=tuple(buffers), variables=tuple(variables))


class _Description:
    """What lowering looks at, with nodes, loops, buffers and variables numbered in the order they are met.

    Attributes:
        key: equal for bodies that are lowered to the same kernel.
        leaves: buffers and variables, with their numbers.
    """

    def __init__(
        self, places: Mapping[UOp, UOp], axes: Axes, outputs: Sequence[UOp], nest: Sequence[Loop], frame: Frame | None,
        sizes: Mapping[UOp, Extents],
    ) -> None:  # fmt: skip
        self.leaves: dict[UOp, int] = {}
        self._scratch: Mapping[UOp, int] = frame.scratch if frame is not None else {}
        self._axes = axes
        self._loops: dict[object, int] = {}
        self._numbered: dict[int, object] = {}
        own = set(outputs)
        numbers: dict[UOp, int] = {}
        rows: list[object] = []
        limits = [size for output in outputs for size in sizes.get(output, ()) if size is not None]
        stack: list[UOp] = limits + [places[output] for output in reversed(outputs)] + list(reversed(outputs))
        while stack:
            node = stack.pop()
            if node in numbers:
                continue
            place = places.get(node) if node not in own else None
            if place is not None and place is not node:
                sources: tuple[UOp, ...] = (place,)
            elif node.op in _WRITES:
                sources = operands(node)  # what it overwrites is memory, not a value
            else:
                sources = node.src
            missing = [s for s in sources if s not in numbers]
            if missing:
                stack.append(node)
                missing.reverse()
                stack += missing
                continue
            numbers[node] = len(rows)
            if not sources:
                rows.append(self._leaf(node))
            elif place is not None:
                rows.append(numbers[place])
            elif node.op in _PLAIN:
                rows.append((node.op, node.dtype, node.arg, *[numbers[s] for s in sources]))
            else:  # its loops and those of what it reads become ranges
                loops = [self._dims(looped) for looped in (node, *sources)]
                if node.op is Op.WRITE:
                    chain = chain_to(node.src[1], node.src[0])
                    loops += [self._dims(node.src[1]), tuple([(m.op, m.arg, m.src[1:]) for m in chain])]
                rows.append((node.op, node.dtype, node.arg, *[numbers[s] for s in sources], *loops))
        for output in outputs:
            far = tuple([None if size is None else numbers[size] for size in sizes.get(output, ())])
            rows.append((numbers[output], numbers[places[output]], self._dims(output), far))
        rows.append(tuple([self._loop(loop) for loop in nest]))
        if frame is not None:
            rows.append(tuple([(self._loop((c.atom, c.outer * c.inner)), c.outer) for c in frame.blocks.cuts]))
        self.key = tuple(rows)

    def _dims(self, node: UOp) -> object:
        if node.op in SCALAR_LEAVES:
            return None
        dims = self._axes.dims(node)
        found = self._numbered.get(id(dims))  # nodes with the same loops share them
        if found is None:
            found = self._numbered[id(dims)] = tuple([tuple([self._loop(loop) for loop in axis]) for axis in dims])
        return found

    def _loop(self, loop: Loop) -> tuple[int, int]:
        return self._loops.setdefault(loop[0], len(self._loops)), loop[1]

    def _leaf(self, node: UOp) -> object:
        if node.op is Op.BUFFER:
            self.leaves[node] = len(self.leaves)
            return node.op, node.dtype, node.arg.size, self._scratch.get(node)
        if node.op is Op.VARIABLE:
            self.leaves[node] = len(self.leaves)
            return node.op, node.dtype, node.arg.low, node.arg.high
        return node  # a constant: equal ones are the same node
