"""Where to cut: the partition of steps into kernels, by price."""

from __future__ import annotations

from collections.abc import Callable

from gradlet.schedule.partition import Group
from gradlet.schedule.steps import Steps
from gradlet.target.target import Target


def partition(steps: Steps, target_of: Callable[[str], Target]) -> list[Group]:
    """One kernel a step."""
    return [Group([n], [n]) for n in steps.order]
