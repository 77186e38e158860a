"""Mistakes in jitted functions."""

from __future__ import annotations

from typing import Any

import pytest

from gradlet import Tensor, Variable, jit
from gradlet.base.errors import JitError
from gradlet.tensor.function import MAX_CAPTURES
from tests.errors.table import Row, check

N = Variable("n", 1, 4)
twice = jit(lambda x, *more: x * 2)


def memory() -> Tensor:
    return Tensor([1.0, 2.0, 3.0, 4.0]).realize()


def for_every_number(count: int) -> None:
    """A call with each of several numbers, which are part of what is captured."""
    step = jit(lambda x, number: x * number)
    for number in range(count):
        step(memory(), number)


def writing_a_view() -> None:
    @jit
    def clear(x: Tensor) -> Tensor:
        x.assign(x * 0)
        return x + 1

    whole = memory()
    part = whole[:2]
    clear(part)


def reading_a_leftover() -> None:
    """A tensor that a jitted function made and did not return, read behind a replay."""
    made: list[Tensor] = []
    keep = made.append

    @jit
    def step(x: Tensor) -> Tensor:
        half = (x / 2).realize()
        keep(half)
        return half + 1

    for _ in range(4):
        step(memory())
    made[-1].tolist()


MISTAKES: list[Row] = [
    (lambda: jit(3), JitError, "jit takes a function, not int; write @jit above a def"),
    (
        lambda: twice(memory(), {1, 2}),
        JitError,
        r"argument .* of type set can change without the jit noticing; pass a T",
    ),
    (
        lambda: twice(memory(), N.bind(2), N.bind(3)),
        JitError,
        "argument .*: variable 'n' is bound to 2 and to 3 in one call; use two variables",
    ),
    (
        lambda: for_every_number(MAX_CAPTURES + 1),
        JitError,
        r"was captured 16 times and still meets new .*; make it a Tensor argument or a bound Variable, or call reset",
    ),
    (
        lambda: writing_a_view(),
        JitError,
        r"argument .* is a view of another tensor and is written .*; pass the whole t",
    ),
    (lambda: reading_a_leftover(), JitError, r"made inside .*step.* is not one of its results, .*; return it from"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_mistakes_leave_nothing_behind() -> None:
    step: Any = jit(lambda x: x + 1)
    for row in MISTAKES[-2:]:
        check(row)
        assert step(memory()).tolist() == [2.0, 3.0, 4.0, 5.0]
