"""A partition of steps into launches: the hand-over from deciding to lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from gradlet.graph.node import UOp
from gradlet.schedule.axes import Loop


@dataclass
class Group:
    """The steps of one body.

    Attributes:
        members: steps computed here, sources first; a step may be computed in several bodies.
        outputs: those that are stored, in order.
        nest: output loops in nesting order, outermost first; loops not listed come after.
    """

    members: Sequence[UOp]
    outputs: Sequence[UOp]
    nest: Sequence[Loop] = ()


class Cut(NamedTuple):
    """A loop of `outer * inner` iterations cut in `outer` blocks."""

    atom: int
    outer: int
    inner: int


@dataclass(frozen=True)
class Blocks:
    """How the iterations that all bodies of a region share are cut: one block for each combination of outer loops."""

    cuts: tuple[Cut, ...]

    @property
    def count(self) -> int:
        """Number of blocks."""
        return prod(cut.outer for cut in self.cuts)


@dataclass
class Region:
    """Bodies that run one after another for each block; an ordinary kernel when there is one and no blocks."""

    bodies: list[Group]
    blocks: Blocks | None = None


@dataclass
class Launch:
    """What is started at once.

    Attributes:
        stages: run one after another; the regions of a stage are independent.
        scratch: stored steps that only this launch needs, a block at a time.
    """

    stages: list[list[Region]]
    scratch: dict[UOp, None] = field(default_factory=dict)

    @property
    def bodies(self) -> list[Group]:
        """All bodies in order."""
        return [body for stage in self.stages for region in stage for body in region.bodies]

    @property
    def members(self) -> list[UOp]:
        """All steps computed here."""
        return list(dict.fromkeys([m for body in self.bodies for m in body.members]))

    @property
    def outputs(self) -> list[UOp]:
        """The steps that are stored in memory."""
        return [o for body in self.bodies for o in body.outputs if o not in self.scratch]


def single(group: Group) -> Launch:
    """One body as a launch."""
    return Launch([[Region([group])]])
