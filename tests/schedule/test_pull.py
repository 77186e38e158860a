"""Sums of windows of sums become one sum, and stay the same numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op
from gradlet.rules.sets import simplify
from gradlet.schedule.pull import pull_sums
from tests.schedule.helpers import contents, expand, reshape, shrink, tensor, total, unwindow


def ops(node: UOp, op: Op) -> int:
    return sum(n.op is op for n in toposort((node,)))


def changed(*nodes: UOp) -> UOp:
    """The pass over some roots; the values stay."""
    sink = mk(Op.SINK, nodes[0].dtype, nodes, None) if len(nodes) > 1 else nodes[0]
    new = pull_sums(sink)
    buffers = contents(nodes)
    after = new.src if new.op is Op.SINK else (new,)
    for have, want in zip(evaluate(after, buffers), evaluate(nodes, buffers), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)
    return new


def scattered(channels: int, size: int, taps: int, step: int = 1, dilation: int = 1) -> UOp:
    """`sum over taps of UNWINDOW(sum over channels of g * w)`: what a convolution owes to its image."""
    grads = expand(reshape(tensor(channels, size), channels, size, 1), channels, size, taps)
    weights = expand(reshape(tensor(channels, taps), channels, 1, taps), channels, size, taps)
    full = (size - 1) * step + (taps - 1) * dilation + 1
    return total(unwindow(total(grads * weights, 0), 0, 1, step, dilation, full), 1)


def test_the_inner_sum_goes_out() -> None:
    node = scattered(4, 9, 3)
    new = changed(node)
    assert ops(node, Op.REDUCE_AXES) == 2 and ops(new, Op.REDUCE_AXES) == 1
    (reduce,) = [n for n in toposort((new,)) if n.op is Op.REDUCE_AXES]
    assert reduce.src[0].op is Op.MUL and reduce.src[0].shape == (4, 11, 3) and reduce.arg.axes == (0, 2)


@pytest.mark.parametrize(("size", "padding", "sums"), [(8, 0, 2), (32, 0, 1), (8, 1, 1)])
def test_products_are_stored_where_one_sum_would_mostly_add_zeros(size: int, padding: int, sums: int) -> None:
    x, w = Tensor.empty(1, 8, size, size), Tensor.empty(64, 8, 3, 3)
    y = x.conv2d(w, padding=padding)
    (gradient,) = y.gradient(x, gradient=Tensor.empty(*y.shape))
    assert ops(changed(simplify(gradient.uop)), Op.REDUCE_AXES) == sums


def test_dilated_taps_too() -> None:
    assert ops(changed(scattered(3, 7, 3, dilation=2)), Op.REDUCE_AXES) == 1


def test_a_larger_stride_stays() -> None:
    node = scattered(4, 9, 3, step=2)
    assert changed(node) is node


def test_what_is_no_sum_of_products_stays() -> None:
    x = unwindow(total(tensor(4, 9, 3), 0), 0, 1, 1, 1, 11)
    node = total(x, 1)
    assert changed(node) is node


def test_only_what_is_kept_is_added_up() -> None:
    node = shrink(scattered(4, 9, 3), (1, 10))
    new = changed(node)
    (reduce,) = [n for n in toposort((new,)) if n.op is Op.REDUCE_AXES]
    assert reduce.shape == (9,)


def test_a_result_that_others_need_whole_is_not_cut() -> None:
    whole = scattered(4, 9, 3)
    new = changed(shrink(whole, (1, 10)), whole)
    assert ops(new, Op.REDUCE_AXES) == 1


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_convolutions(seed: int) -> None:
    chance = random.Random(seed)
    groups = chance.choice((1, 1, 2))
    height, width = chance.randint(3, 7), chance.randint(3, 7)
    kernel = chance.choice((1, 2, 3)), chance.choice((1, 2, 3))
    x = Tensor.empty(chance.randint(1, 3), 2 * groups, height, width)
    w = Tensor.empty(2 * groups, 2, *kernel)
    padding = chance.choice((0, 1))
    step = chance.choice((1, 1, 2))
    y = x.pad((padding,) * 4).conv2d(w, groups=groups, stride=step)
    grads = y.gradient(x, w, gradient=Tensor.empty(*y.shape))
    new = changed(*[g.uop for g in grads])
    if step == 1 and kernel != (1, 1) and groups == 1:
        assert new.op is Op.SINK and ops(new.src[0], Op.REDUCE_AXES) < ops(grads[0].uop, Op.REDUCE_AXES)
