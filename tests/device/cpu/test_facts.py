"""Measured facts: kept on disk for one kind of machine, rounded, used only where settings allow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gradlet import Context
from gradlet.device.cpu import facts, target
from gradlet.device.cpu.facts import Facts, two_bits
from gradlet.runtime import diskcache

SOME = Facts(300_000_000_000, 17_000_000_000, 9_000_000_000, 200_000_000_000, 2_500_000, 700_000, 400_000)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    target.forget_facts()
    with Context(CACHEDIR=str(tmp_path)):
        yield
    target.forget_facts()


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 6),
        (6, 6),
        (7, 8),
        (9, 8),
        (10, 12),
        (11, 12),
        (13, 12),
        (14, 16),
        (1000, 1024),
    ],
)
def test_two_bits(value: int, rounded: int) -> None:
    assert two_bits(value) == rounded


def test_rounding_is_within_a_fourth() -> None:
    for value in range(1, 5000):
        assert abs(two_bits(value) - value) * 4 <= value
        assert two_bits(two_bits(value)) == two_bits(value)


def test_facts_are_kept_by_kind_of_machine() -> None:
    assert facts.recall("avx2", 4) is None
    assert facts.remember(SOME, "avx2", 4)
    assert facts.recall("avx2", 4) == SOME
    assert facts.recall("avx2", 5) is None and facts.recall("sse", 4) is None


def test_a_later_version_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    facts.remember(SOME, "avx2", 4)
    monkeypatch.setattr(facts, "VERSION", facts.VERSION + 1)
    assert facts.recall("avx2", 4) is None


@pytest.mark.parametrize(
    "content",
    ["", "no json", "[]", "{}", '{"launch_ps": 1}', json.dumps(SOME._replace(barrier_ps=0)._asdict())],
)
def test_entries_that_make_no_sense_are_ignored(content: str) -> None:
    diskcache.put(facts._key("avx2", 4), content.encode())
    assert facts.recall("avx2", 4) is None


def test_without_the_cache_there_are_none() -> None:
    with Context(CACHE=0):
        assert not facts.remember(SOME, "avx2", 4)
        assert facts.recall("avx2", 4) is None


def test_the_target_uses_rounded_facts_only_if_settings_allow() -> None:
    typical = target.host_target()
    facts.remember(SOME, typical.name, typical.cores)
    target.forget_facts()
    assert target.host_target() == typical
    with Context(PROBE=1):
        assert target.host_target() == replace(typical, **SOME.rounded()._asdict())
        assert target.host_target() is target.host_target()
    assert target.host_target() == typical
