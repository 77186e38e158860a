"""Mistakes in jitted functions."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable, jit
from gradlet.base.errors import JitError
from gradlet.tensor import turns
from gradlet.tensor.function import MAX_CAPTURES
from gradlet.tensor.guards import MOST_ITEMS
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


class Slotted:
    """Takes no weak reference."""

    __slots__ = ()

    @jit
    def step(self, x: Tensor) -> Tensor:
        return x + 1


def rows(x: Tensor) -> Iterator[Tensor]:
    """No function that returns its results."""
    yield x


def around(value: Any) -> Any:
    """A list or a dict that contains itself."""
    if isinstance(value, list):
        value.append(value)
    else:
        value["again"] = value
    return value


def reading_a_large_array() -> None:
    table = np.zeros(1 << 15)
    jit(lambda x: x + float(table[0]))(memory())


def reaching_too_much() -> None:
    objects = [[] for _ in range(MOST_ITEMS + 1)]  # type: ignore[var-annotated]
    jit(lambda x: x + len(objects))(memory())


def drawing_from_python() -> None:
    generator = random.Random(1)
    jit(lambda x: x + generator.random())(memory())


def another_form_at_every_call() -> None:
    """A tensor that is another view of its memory every time."""
    whole = Tensor.ones(64).contiguous().realize()
    part = whole[:4]
    step = jit(lambda x: x + part)
    for begin in range(2 * MAX_CAPTURES):
        part.replace(whole[begin : begin + 4])
        step(memory())


def an_object_at_every_call() -> None:
    """An attribute that is another object after every call."""

    class Cell:
        def __init__(self, h: Tensor) -> None:
            self.h = h

    class Network:
        def __init__(self) -> None:
            self.cell = Cell(memory())

        @jit
        def step(self, x: Tensor) -> Tensor:
            self.cell = Cell(self.cell.h + x)
            return self.cell.h * 1

    network = Network()
    for _ in range(MAX_CAPTURES + 2):
        network.step(memory())


def waiting_for_one_another() -> None:
    """A call while a jitted function of another thread waits for something."""
    begun, end = threading.Event(), threading.Event()

    @jit
    def waiting(x: Tensor) -> Tensor:
        begun.set()
        end.wait(60)
        return x + 1

    thread = threading.Thread(target=waiting, args=(memory(),))
    thread.start()
    begun.wait(60)
    before, turns.SECONDS = turns.SECONDS, 0.2
    try:
        jit(lambda x: x * 2)(memory())
    finally:
        turns.SECONDS = before
        end.set()
        thread.join()


def keeping_what_is_made() -> None:
    """A list that is longer at every call."""
    kept: list[Tensor] = []

    @jit
    def step(x: Tensor) -> Tensor:
        kept.append((x * 2).realize())
        return x + 1

    for _ in range(3 * MAX_CAPTURES):
        step(memory())


def exporting(function: Any) -> Any:
    return lambda: jit(function).export("never written", memory())


def first_gradient() -> Any:
    weight = memory()

    def step(x: Tensor) -> Tensor:
        loss = (weight * x).sum()
        loss.backward()
        return loss

    return step


def growing_list() -> Any:
    kept: list[Tensor] = []

    def step(x: Tensor) -> Tensor:
        kept.append(x * 2)
        return x + len(kept)

    return step


MISTAKES: list[Row] = [
    (exporting(first_gradient()), JitError, "makes tensors at its first call .*: call it before it is exported"),
    (
        exporting(growing_list()),
        JitError,
        "changes kept, and not to tensors in lists, .*: what a program keeps are ten",
    ),
    (lambda: jit(rows), JitError, "returns its results, not a generator; return a list of tensors"),
    (lambda: Slotted().step(memory()), JitError, "a method of Slotted, which has __slots__ .*; add '__weakref__' to"),
    (lambda: twice(around([1])), JitError, "argument .* contains itself; pass tensors in lists, tuples and dicts"),
    (lambda: jit(lambda x: around([x]))(memory()), JitError, "result.* contains itself; return lists, tuples and d"),
    (lambda: jit(lambda x: iter([x]))(memory()), JitError, "result is a .*, which would be used up .*; return tensors"),
    (lambda: jit(lambda x: lambda: x)(memory()), JitError, "result is a function that holds a tensor .*; return tens"),
    (lambda: reading_a_large_array(), JitError, "reads the array .*table.*, which is too large .*; make it a Tensor"),
    (lambda: reaching_too_much(), JitError, "reaches more than .* Python objects, .* through objects.*; what it does"),
    (lambda: drawing_from_python(), JitError, "generator was drawn from inside .*; draw outside and pass the number"),
    (
        lambda: another_form_at_every_call(),
        JitError,
        r"times and still meets new form of part: its shape, .*; make it a Tensor",
    ),
    (
        lambda: an_object_at_every_call(),
        JitError,
        r"for the same arguments: the call changes self.cell, .*; write to o",
    ),
    (lambda: waiting_for_one_another(), JitError, "waits for jitted function 'waiting', .* at .*; wait outside of it"),
    (lambda: keeping_what_is_made(), JitError, r"times in a row and still meets new values of kept .*; make it a Tens"),
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
