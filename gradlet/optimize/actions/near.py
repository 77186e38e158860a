"""Nodes of a kernel that keeps blocks in arrays near the core: loops, sums, arrays, loads and stores."""

from __future__ import annotations

from collections.abc import Iterable

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, LocalArg, Op, ReduceArg
from gradlet.optimize.actions.stage import next_local
from gradlet.optimize.analysis import KernelFacts, make_after, make_range


class NearArrays:
    """What makes a kernel with arrays of its own.

    Args:
        facts: the kernel as it was.
        dtype: type of elements where nothing else is said.
    """

    def __init__(self, facts: KernelFacts, dtype: DType) -> None:
        self.facts, self.dtype = facts, dtype
        self.locals = next_local(facts)

    def _loop(self, size: int, number: int, kind: AxisKind = AxisKind.LOOP) -> UOp:
        return make_range(UOp.const(dtypes.index, size), number, kind)

    def _reduce(self, op: Op, value: UOp, *loops: UOp) -> UOp:
        return mk(Op.REDUCE, value.dtype, (value, *loops), ReduceArg(op))

    def _local(self, elements: int, dtype: DType | None = None, private: bool = False) -> UOp:
        self.locals += 1
        return mk(Op.LOCAL, dtype or self.dtype, (), LocalArg(self.locals - 1, elements, private))

    def _load(self, array: UOp, place: UOp) -> UOp:
        return mk(Op.LOAD, array.dtype, (mk(Op.INDEX, array.dtype, (array, place)),))

    def _filled(self, local: UOp, stores: Iterable[tuple[UOp, UOp]], *loops: UOp) -> UOp:
        """The array once all is stored."""
        made = [mk(Op.STORE, dtypes.void, (mk(Op.INDEX, local.dtype, (local, at)), value)) for at, value in stores]
        return make_after(local.dtype, (local, *made, *loops))
