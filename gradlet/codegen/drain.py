"""Sums whose lanes are stored far apart go through an array of the core: vector by vector in, lane by lane out.

An extraction, an address and a store for each lane of each vector are several times the code of the loop that computed
the sums. A loop over the lanes which stores its lane of every vector is a fraction of that, and no slower: an element
takes a load where it took an extraction.
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


def drained(far: Mapping[UOp, FarStore], sink: UOp) -> dict[UOp, UOp]:
    """What stands for each far store, where there are enough of them in the same loops: the store of any one lane.

    Args:
        far: the stores by what they were in the kernel.
        sink: the kernel.
    """
    groups: dict[tuple[frozenset[UOp], DType], list[UOp]] = {}
    for store, parts in far.items():
        groups.setdefault((parts.ranges, parts.vector.dtype), []).append(store)
    new: dict[UOp, UOp] = {}
    number = next_number(sink)
    local = 1 + max((n.arg.number for n in kernel_order(sink) if n.op is _LOCAL), default=-1)
    for (_, dtype), stores in groups.items():
        if len(stores) < LEAST_VECTORS:
            continue
        array = mk(_LOCAL, dtype.scalar, (), LocalArg(local, len(stores) * dtype.count))
        lane = make_range(UOp.const(dtypes.index, dtype.count), number, AxisKind.LOOP)
        new.update(_through(array, lane, {store: far[store] for store in stores}))
        number, local = number + 1, local + 1
    return new


def _through(array: UOp, lane: UOp, far: Mapping[UOp, FarStore]) -> dict[UOp, UOp]:
    """The stores of one lane, from an array that has the vectors one after another."""
    scalar = array.dtype
    count = int(lane.src[0].arg)

    def place(element: UOp, memory: UOp = array) -> UOp:
        return mk(_INDEX, scalar, (memory, element))

    fills = [
        mk(_STORE, dtypes.void, (place(UOp.const(dtypes.index, i * count)), parts.vector))
        for i, parts in enumerate(far.values())
    ]
    filled = make_after(scalar, (array, *fills))
    new: dict[UOp, UOp] = {}
    for i, (store, parts) in enumerate(far.items()):
        value = mk(_LOAD, scalar, (place(lane + i * count if i else lane, filled),))
        target = mk(_INDEX, scalar, (parts.param, parts.first + lane * parts.step))
        new[store] = mk(_STORE, store.dtype, (target, value))
    return new
