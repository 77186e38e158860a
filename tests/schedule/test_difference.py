"""Why a graph has no schedule yet, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.graph.key import structural_key
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op
from gradlet.schedule import create
from gradlet.schedule.difference import Difference, first_difference, rows_of
from gradlet.target.target import AVX2, AVX512
from tests.schedule.helpers import expand, matmul, reshape, shrink, target_of, tensor, total, write
from tests.schedule.test_cache import bound, scaled


def asked(roots: list[UOp], live: tuple[UOp, ...] = (), device: str = "CPU", target: Any = None) -> tuple[Any, ...]:
    return create._cache.ask(roots, (lambda _: target) if target else target_of, live, device).key


def difference(new: tuple[Any, ...], *known: tuple[Any, ...]) -> Difference:
    return first_difference(new, known)


def elementwise(factor: float = 2.0, op: Op = Op.ADD, n: int = 4, dtype: Any = dtypes.float32) -> list[UOp]:
    x, y = tensor(n, 4), tensor(n, 4)
    if dtype is not dtypes.float32:
        x, y = (mk(Op.CAST, dtype, (v,), None) for v in (x, y))
    return [mk(op, dtype, (x * factor, y), None)]


def halves(low: int) -> list[UOp]:
    return [shrink(tensor(8), (low, low + 4)) * 3.0]


def twice(same: bool) -> list[UOp]:
    a, b = tensor(4), tensor(4)
    return [a * (a if same else b)]


CASES: list[tuple[str, str, Callable[[], list[UOp]], Callable[[], list[UOp]]]] = [
    ("constant", "constant 2.5, not 2.0 (float32)", lambda: elementwise(2.5), elementwise),
    ("op", "MAX where it was ADD", lambda: elementwise(op=Op.MAX), elementwise),
    ("dtype", "ADD of float16, not float32", lambda: elementwise(dtype=dtypes.float16), elementwise),
    ("shape", "RESHAPE to shape (5, 4), not (4, 4)", lambda: elementwise(n=5), elementwise),
    ("shape", "SHRINK ((1, 5),), not ((0, 4),)", lambda: halves(1), lambda: halves(0)),
    ("shape", "a buffer of 6 elements, not 4", lambda: [tensor(6) * 2.0], lambda: [tensor(4) * 2.0]),
    ("operands", "MUL reads 2 operands that are shared differently", lambda: twice(True), lambda: twice(False)),
    ("outputs", "2 tensors are computed together, not 1", lambda: halves(0) + halves(0), lambda: halves(0)),
    ("op", "REDUCE_AXES ADD (0,), not ADD (1,)", lambda: [total(tensor(3, 3), 0)], lambda: [total(tensor(3, 3), 1)]),
]


@pytest.mark.parametrize(("kind", "text", "new", "old"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_the_first_thing_is_named(kind: str, text: str, new: Any, old: Any) -> None:
    found = difference(asked(new()), asked(old()))
    assert found == (kind, text)


def test_nothing_known() -> None:
    assert difference(asked(elementwise())).kind == "first"


def test_settings_devices_and_targets() -> None:
    here = asked(elementwise())
    with scope(FUSE=1):
        assert difference(asked(elementwise()), here) == ("setting", "FUSE=1, not 2")
    assert difference(asked(elementwise(), device="PYTHON"), here).text == "the default device is PYTHON, not CPU"
    found = difference(asked(elementwise(), target=AVX512), asked(elementwise(), target=AVX2))
    assert found == ("device", "CPU has name avx512, not avx2")


def test_what_others_still_need() -> None:
    def key(held: bool) -> tuple[Any, ...]:
        t = tensor(4)
        writer = write(t, shrink(t, (0, 2)), UOp.const(dtypes.float32, 1))
        return asked([writer], (t * 2.0,) if held else ())

    assert difference(key(True), key(False)).kind == "held"
    assert difference(key(True), key(True), key(False)).kind != ""


def test_the_nearest_is_compared() -> None:
    known = [asked(twice(True)), asked(elementwise(2.0)), asked([matmul(tensor(4, 4), tensor(4, 4))])]
    assert difference(asked(elementwise(3.0)), *known).kind == "constant"


@pytest.mark.parametrize(
    "build",
    [
        elementwise,
        lambda: twice(True),
        lambda: [scaled(bound("i", 3), bound("j", 4))],
        lambda: [expand(reshape(UOp.const(dtypes.float32, 0.0), 1), 4), matmul(tensor(3, 4), tensor(4, 5))],
        lambda: [write(t := tensor(4), shrink(t, (0, 2)), UOp.const(dtypes.float32, 1))],
    ],
)
def test_a_key_has_a_row_for_every_node(build: Callable[[], list[UOp]]) -> None:
    roots = build()
    count, rows = rows_of(structural_key(roots)[0])
    order = toposort(roots)
    binds = sum(n.op is Op.BIND for n in order)  # their values are no part of the structure
    assert count == len(roots)
    assert sorted(r.op for r in rows) == sorted(
        n.op for n in order if not (binds and n.op is Op.CONST and n.dtype.is_int)
    )
    assert all(number < len(rows) for row in rows for number in row.src)
