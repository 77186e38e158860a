"""Events reach the one sink, and only while it listens."""

from __future__ import annotations

import pytest

from gradlet.base import events
from gradlet.base.events import CacheHit, PassRan, ScheduleMade


def test_without_a_listener_nothing_is_active() -> None:
    assert not events.active()
    events.emit(CacheHit("disk", "E_4"))  # goes nowhere


def test_record_collects_in_order_and_stops_listening() -> None:
    first, second = ScheduleMade(3, 1, 0.5), PassRan("codegen", "simplify", 0.1, (10, 7))
    with events.record() as seen:
        assert events.active()
        events.emit(first)
        events.emit(second)
    events.emit(CacheHit("disk", "E_4"))
    assert seen == [first, second]
    assert not events.active()


def test_inner_listener_replaces_the_outer_one_and_gives_it_back_after_an_exception() -> None:
    with events.record() as outer:
        with pytest.raises(RuntimeError), events.record() as inner:
            events.emit(CacheHit("kernel", "inner"))
            raise RuntimeError
        events.emit(CacheHit("kernel", "outer"))
    assert inner == [CacheHit("kernel", "inner")]
    assert outer == [CacheHit("kernel", "outer")]
