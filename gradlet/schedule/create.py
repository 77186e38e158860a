"""`create_schedule`: the schedule of an equal graph that this process or another made before, else a new one.

The passes that make schedules are imported when the first is made: a program that only repeats earlier ones starts
without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gradlet.base import settings
from gradlet.graph.node import UOp, no_gc
from gradlet.schedule import kept
from gradlet.schedule.cache import Question, ScheduleCache
from gradlet.schedule.calls import Schedule
from gradlet.schedule.difference import first_difference, user_line
from gradlet.schedule.kept import Store
from gradlet.schedule.statistics import Statistics, refusal
from gradlet.target.target import Target

if TYPE_CHECKING:
    from gradlet.graph.passes import Observer
    from gradlet.schedule.explain import Explanation

_cache: Final = ScheduleCache()
statistics: Final = Statistics()


def forget_schedules() -> None:
    """Empty this process's cache of schedules: equal graphs are decided anew, or recalled from the store."""
    _cache.entries.clear()


def ask_for_schedule(
    roots: Sequence[UOp],
    target_of: Callable[[str], Target],
    live: Sequence[UOp] = (),
    default_device: str = "CPU",
    watched: Iterable[UOp] = (),
) -> Question:
    """Whether this process made or recalled the schedule of an equal graph; arguments as for `create_schedule`.

    Args:
        roots: TENSOR-stage nodes to have in memory.
        target_of: facts about a device, by its name.
        live: other graphs still in use.
        default_device: where constants are stored when nothing says otherwise.
        watched: nodes that stand for something else by now; the question says whether the graph contains one.
    """
    question = _cache.ask(roots, target_of, live, default_device, watched=watched)
    if question.entry is not None:
        statistics.hits += 1
    return question


def create_schedule(
    roots: Sequence[UOp],
    target_of: Callable[[str], Target],
    live: Sequence[UOp] = (),
    observers: Sequence[Observer] = (),
    default_device: str = "CPU",
    tell: Callable[[Explanation], None] | None = None,
    store: Store | None = None,
    settled: frozenset[UOp] = frozenset(),
) -> Schedule:
    """The kernel calls that compute the roots.

    Args:
        roots: TENSOR-stage nodes to have in memory.
        target_of: facts about a device, by its name.
        live: other graphs still in use; they keep seeing the values they were built on.
        observers: called after every pass; a schedule from the cache runs no pass.
        default_device: where constants are stored when nothing says otherwise.
        tell: gets an explanation of the schedule, unless this process made an equal one before.
        store: keeps schedules for other processes; not asked when somebody wants an explanation.
        settled: buffers that are expected to stay as they are: what depends on them alone gets launches of its own.

    Raises:
        ScheduleMissError: no equal graph was scheduled before, and SCHEDULE_MISS=raise.
    """
    with no_gc():
        if not settings.SCHEDULE_CACHE or observers:
            return _make(roots, target_of, live, observers, default_device, tell, settled)
        question = _cache.ask(roots, target_of, live, default_device, settled)
        if question.entry is not None:
            statistics.hits += 1
            return question.bind(question.entry)
        difference, line = first_difference(question.key, _cache.known()), user_line()
        if settings.SCHEDULE_MISS.value:
            raise refusal(difference, line)
        name = kept.entry_name(question, store) if store is not None and tell is None else ""
        entry = kept.recall(name, store, target_of) if store is not None and name else None
        statistics.missed(difference, line, entry is not None)
        if entry is not None:
            question.keep(entry)
            return question.bind(entry)
        made = _make(roots, target_of, live, (), default_device, tell, settled)
        entry = question.remember(made)
        if store is not None and name and entry is not None:
            kept.remember(name, entry, store, target_of)
        return made


def _make(
    roots: Sequence[UOp],
    target_of: Callable[[str], Target],
    live: Sequence[UOp],
    observers: Sequence[Observer],
    default_device: str,
    tell: Callable[[Explanation], None] | None,
    settled: frozenset[UOp],
) -> Schedule:
    from gradlet.schedule import pipeline

    return pipeline.make_schedule(roots, target_of, live, observers, default_device, tell, settled)
