"""torch's operator database against `Tensor`: a slice in every run, all samples in the slow one."""

from __future__ import annotations

import zlib

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

from torch.testing._internal.common_methods_invocations import op_db

from tests.parity.check import check_operator
from tests.parity.page import PAGE, read_page
from tests.parity.table import ENTRIES, REASONS, entry_of, key_of, reason_of

KEYS = {key_of(o): o for o in op_db}
MAPPED = [key for key, operator in KEYS.items() if entry_of(operator) is not None]
RECORDED = read_page() if PAGE.exists() else {}
# The fast run takes one operator in so many, and of its samples one in so many (at least one); which, goes by its name.
OPERATORS = 12
SAMPLES = 64


def _expect(key: str, every: int, offset: int) -> None:
    """An operator that the page says passes still does."""
    forward, backward = RECORDED.get(key, (False, False))
    parts = ("f" if forward else "") + ("b" if backward else "")
    if not parts:
        pytest.skip("the page does not say that it passes")
    entry = entry_of(KEYS[key])
    assert entry is not None
    report = check_operator(KEYS[key], entry, every, offset, parts)
    problems = report.forward.problems + report.backward.problems
    assert not problems, "\n".join(problems)


def _number(key: str) -> int:
    return zlib.crc32(key.encode())


@pytest.mark.parametrize("key", [key for key in MAPPED if _number(key) % OPERATORS == 0])
def test_slice(key: str) -> None:
    _expect(key, SAMPLES, _number(key) // OPERATORS)


@pytest.mark.slow
@pytest.mark.parametrize("key", MAPPED)
def test_all_samples(key: str) -> None:
    _expect(key, 1, 0)


def test_every_operator_is_mapped_or_has_a_reason() -> None:
    silent = [key for key, operator in KEYS.items() if entry_of(operator) is None and not reason_of(operator)]
    assert not silent


def test_no_entry_is_for_an_operator_that_torch_lacks() -> None:
    known = set(KEYS) | {o.name for o in op_db}
    assert not (set(ENTRIES) | set(REASONS)) - known


def test_the_page_names_every_mapped_operator() -> None:
    assert set(RECORDED) == set(MAPPED)


def test_as_many_pass_as_the_project_promises() -> None:
    assert sum(forward for forward, _ in RECORDED.values()) >= 450
    assert sum(backward for _, backward in RECORDED.values()) >= 300
