"""Schedules by structure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.base.settings import Context
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op, VariableArg
from gradlet.schedule import create
from tests.schedule.helpers import (
    check,
    copy,
    create_schedule,
    expand,
    matmul,
    reshape,
    shrink,
    target_of,
    tensor,
    write,
)


def update(rate: float) -> Callable[[], list[UOp]]:
    def build() -> list[UOp]:
        w, g = tensor(4, 4), tensor(4, 4)
        new = write(w, w, w - matmul(g, w) * rate)
        return [new, new * 2.0]

    return build


def test_same_structure_is_scheduled_once(made: list[int]) -> None:
    for _ in range(3):
        check(update(0.1)())
    assert len(made) == 1


def test_constants_and_aliasing_are_structure(made: list[int]) -> None:
    check(update(0.1)())
    check(update(0.2)())
    x, y = tensor(4), tensor(4)
    check([x * y])
    check([x * x])
    assert len(made) == 4


def test_live_readers_are_structure(made: list[int]) -> None:
    for held in (False, True, False, True):
        t = tensor(4)
        writer = write(t, shrink(t, (0, 2)), UOp.const(dtypes.float32, 1))
        check([writer], live=[t * 2.0] if held else [])
    assert len(made) == 2


def test_settings_are_part_of_the_key(made: list[int]) -> None:
    for fuse in (0, 1, 0, 1):
        with Context(FUSE=fuse):
            check(update(0.5)())
    assert len(made) == 2
    with Context(SCHEDULE_CACHE=0):
        check(update(0.5)())
    assert len(made) == 3


def test_settled_memory_is_part_of_the_key(made: list[int]) -> None:
    for _ in range(2):
        x, y = tensor(4, 4), tensor(4, 4)
        check([x + y])
        check([x + y], settled=frozenset([x.src[0]]))
        check([x + y], settled=frozenset([y.src[0]]))
    assert len(made) == 3


def test_copies_are_bound_again(made: list[int]) -> None:
    for _ in range(2):
        x = tensor(4, 4)
        schedule = check([copy(x, "OTHER")])
        assert schedule.calls[0].source is x.src[0]
    assert len(made) == 1


def bound(name: str, value: int) -> UOp:
    variable = mk(Op.VARIABLE, dtypes.int32, (), VariableArg(name, 1, 9))
    return mk(Op.BIND, dtypes.int32, (variable, UOp.const(dtypes.int32, value)), None)


def scaled(*factors: UOp) -> UOp:
    result = tensor(8)
    for factor in factors:
        result = result * mk(Op.CAST, dtypes.float32, (expand(reshape(factor, 1), 8),), None)
    return result


def test_values_are_bound_again(made: list[int]) -> None:
    for name, value in (("i", 3), ("j", 4), ("i", 9)):
        schedule = check([scaled(bound(name, value))])
        assert {v.arg.name: n for v, n in schedule.values.items()} == {name: value}
    assert len(made) == 1


def test_two_values_of_one_variable_are_refused_from_the_cache_too() -> None:
    create_schedule([scaled(bound("i", 3), bound("j", 4))], target_of)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="bound to"):
            create_schedule([scaled(bound("i", 3), bound("i", 4))], target_of)


def test_cached_schedules_keep_no_buffer(made: list[int]) -> None:
    import weakref

    x = tensor(4)
    check([x * 3.0])
    dead = weakref.ref(x)
    del x
    assert dead() is None and len(create._cache.entries) == 1
