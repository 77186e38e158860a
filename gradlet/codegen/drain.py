"""Sums whose lanes are stored far apart go through an array of the core: vector by vector in, lane by lane out.

An extraction, an address and a store for each lane of each vector are several times the code of the loop that computed
the sums. A loop over the lanes which stores its lane of every vector is a fraction of that, and no slower: an element
takes a load where it took an extraction. What is loaded under a guard beside such sums, lanes far apart, is brought
into an array in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, LocalArg, Op
from gradlet.optimize.analysis import kernel_order, make_after, make_range, next_number

# Members of an enum are slow to reach through their class.
_INDEX: Final = Op.INDEX
_LOAD: Final = Op.LOAD
_LOCAL: Final = Op.LOCAL
_STORE: Final = Op.STORE
LEAST_VECTORS: Final = 8  # fewer are written out lane by lane


class FarStore(NamedTuple):
    """A store whose lanes are `step` elements apart, lane 0 at `first`; `ranges` are the loops that it runs in."""

    param: UOp
    first: UOp
    step: int
    vector: UOp
    ranges: frozenset[UOp]


class FarLoad(NamedTuple):
    """A guarded load whose lanes are `step` elements apart, lane 0 at `first`; all lanes have one guard."""

    param: UOp
    first: UOp
    step: int
    gate: UOp
    otherwise: UOp
    dtype: DType
    ranges: frozenset[UOp]


class Drains:
    """Arrays and loops over lanes that are added to a kernel."""

    def __init__(self, sink: UOp) -> None:
        self._range = next_number(sink)
        self._local = 1 + max((n.arg.number for n in kernel_order(sink) if n.op is _LOCAL), default=-1)

    def stores(self, far: Mapping[UOp, FarStore]) -> dict[UOp, UOp]:
        """What stands for each far store, where there are enough of them in the same loops: the store of any one lane.

        Args:
            far: the stores by what they were in the kernel.
        """
        groups: dict[tuple[frozenset[UOp], DType], list[UOp]] = {}
        for store, parts in far.items():
            groups.setdefault((parts.ranges, parts.vector.dtype), []).append(store)
        new: dict[UOp, UOp] = {}
        for (_, dtype), alike in groups.items():
            if len(alike) < LEAST_VECTORS:
                continue
            array, lane = self._array(dtype, len(alike))
            fills = [
                mk(_STORE, dtypes.void, (_place(array, dtype.count * i), far[store].vector))
                for i, store in enumerate(alike)
            ]
            filled = make_after(array.dtype, (array, *fills))
            for i, store in enumerate(alike):
                value = mk(_LOAD, array.dtype, (_place(filled, dtype.count * i, lane),))
                new[store] = mk(_STORE, store.dtype, (_element(far[store], lane), value))
        return new

    def loads(self, far: Mapping[UOp, FarLoad]) -> dict[UOp, UOp]:
        """What stands for each far load, where there are enough of them in the same loops: the load of a vector."""
        groups: dict[tuple[frozenset[UOp], DType], list[UOp]] = {}
        for load, parts in far.items():
            groups.setdefault((parts.ranges, parts.dtype), []).append(load)
        new: dict[UOp, UOp] = {}
        for (_, dtype), alike in groups.items():
            if len(alike) < LEAST_VECTORS:
                continue
            array, lane = self._array(dtype, len(alike))
            fills: list[UOp] = []
            for i, load in enumerate(alike):
                element = mk(_LOAD, array.dtype, (_element(far[load], lane, far[load].gate), far[load].otherwise))
                fills.append(mk(_STORE, dtypes.void, (_place(array, dtype.count * i, lane), element)))
            filled = make_after(array.dtype, (array, *fills, lane))
            for i, load in enumerate(alike):
                new[load] = mk(_LOAD, dtype, (_place(filled, dtype.count * i),))
        return new

    def _array(self, dtype: DType, vectors: int) -> tuple[UOp, UOp]:
        """An array for so many vectors, and a range over their lanes."""
        array = mk(_LOCAL, dtype.scalar, (), LocalArg(self._local, vectors * dtype.count))
        lane = make_range(UOp.const(dtypes.index, dtype.count), self._range, AxisKind.LOOP)
        self._local, self._range = self._local + 1, self._range + 1
        return array, lane


def _place(array: UOp, start: int, lane: UOp | None = None) -> UOp:
    """Where a vector begins in an array, or where one of its lanes lies."""
    element = UOp.const(dtypes.index, start)
    if lane is not None:
        element = lane + element if start else lane
    return mk(_INDEX, array.dtype, (array, element))


def _element(far: FarStore | FarLoad, lane: UOp, *gate: UOp) -> UOp:
    """Where one lane lies in memory."""
    return mk(_INDEX, far.param.dtype, (far.param, far.first + lane * far.step, *gate))
