"""Shared by the tests of schedules."""

from __future__ import annotations

import pytest

from gradlet.schedule import create, pipeline


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many schedules were made from scratch: one entry each."""
    count: list[int] = []
    make = pipeline.make_schedule

    def counted(*arguments: object) -> object:
        count.append(1)
        return make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "make_schedule", counted)
    create.forget_schedules()
    return count
