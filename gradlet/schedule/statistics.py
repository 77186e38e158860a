"""How often schedules were found again in this process, and why not: DEBUG=2 and `gradlet cache stats` show it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gradlet.base.errors import ScheduleMissError
from gradlet.schedule.difference import Difference

# Reasons are kept in words for so many misses, the last ones.
KEPT: Final = 64

# What to do about a miss in a steady state, by the kind of difference.
_REMEDIES: Final = {
    "shape": "bind a Variable where a size changes from step to step",
    "constant": "pass a number that changes from step to step as a tensor",
    "setting": "choose settings before the steady state begins",
    "held": "realize or drop tensors that are built on old values before the step",
}


class Miss(NamedTuple):
    """A graph whose schedule this process did not have.

    Attributes:
        difference: from the nearest graph that it knew.
        line: where the program asked, as `file:line`; "" where that is not known.
        recalled: whether the disk had the schedule.
    """

    difference: Difference
    line: str
    recalled: bool

    @property
    def text(self) -> str:
        """One line about it."""
        return f"{self.difference.text}{f' ({self.line})' if self.line else ''}"


@dataclass
class Statistics:
    """What became of the questions of this process.

    Attributes:
        hits: answered by a schedule of this process.
        recalled: answered by the disk.
        made: decided anew.
        kinds: the misses by what differed.
        misses: the last ones.
    """

    hits: int = 0
    recalled: int = 0
    made: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    misses: deque[Miss] = field(default_factory=lambda: deque(maxlen=KEPT))

    def missed(self, difference: Difference, line: str, recalled: bool) -> None:
        """Count a miss."""
        self.recalled += recalled
        self.made += not recalled
        self.kinds[difference.kind] += 1
        self.misses.append(Miss(difference, line, recalled))

    def reset(self) -> None:
        """Start counting anew."""
        self.hits = self.recalled = self.made = 0
        self.kinds.clear()
        self.misses.clear()


def refusal(difference: Difference, line: str) -> ScheduleMissError:
    """The error for a miss where SCHEDULE_MISS=raise."""
    where = f" at {line}" if line else ""
    remedy = _REMEDIES.get(difference.kind, "run it once before the steady state begins")
    return ScheduleMissError(
        f"SCHEDULE_MISS=raise: this process has no schedule for what is computed{where}. The nearest that it has "
        f"differs: {difference.text}; {remedy}"
    )
