"""A partition of steps into kernels: the hand-over from deciding to lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradlet.graph.node import UOp
from gradlet.schedule.axes import Loop


@dataclass
class Group:
    """The steps of one kernel.

    Attributes:
        members: steps computed here, sources first; a step may be computed in several kernels.
        outputs: those that are stored, in order.
        nest: output loops in nesting order, outermost first; loops not listed come after.
    """

    members: Sequence[UOp]
    outputs: Sequence[UOp]
    nest: Sequence[Loop] = ()
