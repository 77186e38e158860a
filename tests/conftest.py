"""Shared by all tests: graphs are checked between every two passes, settings are restored after each test."""

from __future__ import annotations

import os

# Before the first gradlet import, and inherited by every subprocess a test starts.
os.environ["SPEC"] = "1"

from collections.abc import Iterator

import hypothesis
import pytest

from gradlet.base.settings import SETTINGS

# The same examples on every run and every machine, however slow or loaded it is.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("steady")


@pytest.fixture(autouse=True)
def restore_settings() -> Iterator[None]:
    """A test that changes a setting and fails must not change the tests after it."""
    before = [(row, row._value) for row in SETTINGS.values()]
    yield
    for row, value in before:
        row._value = value
