"""Extents: where they begin, how far they go, and what does not go along them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ShapeError
from gradlet.graph.evaluate import evaluate
from gradlet.graph.extents import alike, extents, fill, limit, masked, size_text, write_out
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import LimitArg, Op, ReduceAxesArg, ScanArg
from tests.schedule import helpers as h

N = UOp.variable("n", 2, 6).bind(4)
SIZE = UOp.variable("n", 2, 6)


def limited(*shape: int, axis: int = 0, size: UOp = N) -> UOp:
    x = h.tensor(*shape)
    return mk(Op.LIMIT, x.dtype, (x, size), LimitArg(axis))


def texts(node: UOp) -> list[str | None]:
    return [None if size is None else size_text(size) for size in extents(node)]


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda x: x, [None, "n", None]),
        (lambda x: x.exp(), [None, "n", None]),
        (lambda x: x + h.tensor(4, 6, 3), [None, "n", None]),
        (lambda x: h.permute(x, 1, 2, 0), ["n", None, None]),
        (lambda x: h.reshape(x, 4, 1, 6, 3), [None, None, "n", None]),
        (lambda x: h.reshape(x, 4, 18), [None, "3 * n"]),
        (lambda x: h.reshape(h.reshape(x, 4, 18), 4, 6, 3), [None, "n", None]),
        (lambda x: h.pad(x, (1, 1), (0, 0), (0, 2)), [None, "n", None]),
        (lambda x: h.pad(x, (0, 0), (0, 1), (0, 0)), [None, "n", None]),  # behind the largest size: nothing to anyone
        (lambda x: h.pad(x, (0, 0), (2, 1), (0, 0)), [None, "n + 2", None]),
        (lambda x: h.shrink(x, (0, 2), (0, 6), (1, 2)), [None, "n", None]),
        (lambda x: h.shrink(x, (0, 4), (0, 2), (0, 3)), []),  # positions that exist for every value
        (lambda x: h.total(x, 0), ["n", None]),
        (lambda x: h.total(x, 1), []),
        (lambda x: h.flip(x, 0, 2), [None, "n", None]),
        (lambda x: h.gather(h.tensor(5, 2), x.cast(dtypes.int32)), [None, "n", None, None]),
        (lambda x: fill(x, ()), []),
        (lambda x: mk(Op.SCAN, x.dtype, (x, UOp.const(x.dtype, 0)), ScanArg(Op.ADD, 1)), [None, "n", None]),
    ],
)
def test_extents_follow_from_the_sources(build: Callable[[UOp], UOp], wanted: list[str | None]) -> None:
    assert texts(build(limited(4, 6, 3, axis=1))) == wanted


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda x: h.flip(x, 0), "flip"),
        (lambda x: h.shrink(x, (0, 5), (0, 3)), "shrink"),
        (lambda x: h.stride(x, 2, 1), "stride"),
        (lambda x: h.reshape(h.permute(x, 1, 0), 18), "reshape"),
        (lambda x: h.window(x, 0, 1, 1, 1, 4), "window"),
        (lambda x: h.expand(limited(1, 3, size=UOp.variable("one", 0, 1).bind(1)), 4, 3), "expand"),
        (lambda x: mk(Op.LIMIT, x.dtype, (x, UOp.variable("m", 0, 6).bind(4)), LimitArg(0)), "limit"),
        (lambda x: x + limited(6, 3, size=UOp.variable("n", 2, 6).bind(5)), "add"),
        (lambda x: x + limited(6, 3, size=UOp.variable("m", 2, 6).bind(4)), "add"),
    ],
)
def test_what_does_not_go_along_a_limited_axis_names_the_operation(build: Callable[[UOp], UOp], name: str) -> None:
    with pytest.raises(ShapeError, match=f"^{name}"):
        extents(build(limited(6, 3)))


def test_written_out_graphs_mean_the_same() -> None:
    x = limited(6, 3, size=N)
    (result, cut), found = write_out([h.total(x.exp(), 0), fill(x, ())])
    assert [tuple(e) for e in found] == [(), ()]
    assert result.op is Op.REDUCE_AXES and result.arg.limited == (0,) and result.src[1] is N
    values = np.arange(18, dtype=np.float32) / 10
    buffers = {n: values for n in x.toposort() if n.op is Op.BUFFER}
    got = evaluate([h.total(x.exp(), 0), fill(x, ())], buffers)
    rows = values.reshape(6, 3)
    np.testing.assert_allclose(got[0], np.exp(rows[:4]).sum(0), rtol=1e-6)
    np.testing.assert_array_equal(got[1], np.concatenate([rows[:4], np.zeros((2, 3), np.float32)]))
    np.testing.assert_array_equal(evaluate([cut], buffers)[0], got[1])


@pytest.mark.parametrize("op", [Op.ADD, Op.MUL, Op.MAX, Op.MIN])
def test_a_masked_reduction_is_the_limited_one(op: Op) -> None:
    x = h.tensor(6, 3)
    reduce = mk(Op.REDUCE_AXES, x.dtype, (x, N), ReduceAxesArg(op, (0, 1), (0,)))
    buffers = {n: np.linspace(-2, 3, 18, dtype=np.float32) for n in x.toposort() if n.op is Op.BUFFER}
    one, other = evaluate([reduce, masked(reduce)], buffers)
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_terms_that_end_at_different_places_have_zeros() -> None:
    x, y = limited(6, 3), h.tensor(6, 3)
    assert list(alike([y, y])) == [y, y] and list(alike([x, x])) == [x, x]
    first, second = alike([x, y])
    assert extents(first) == () and second is y


def test_limits_are_given_once() -> None:
    x = limited(6, 3)
    assert limit(x, (N, None)) is x
    assert extents(limit(h.tensor(6, 3), (None, UOp.variable("k", 0, 3).bind(1))))[1] is not None
