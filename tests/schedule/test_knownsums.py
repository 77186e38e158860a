"""Sums that follow from other sums, and factors that are the same for all that is summed."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.rules.sets import simplify
from gradlet.schedule.context import sink
from gradlet.schedule.knownsums import use_known_sums
from tests.schedule.helpers import contents, expand, reshape, tensor, total


def passes(node: UOp, shape: tuple[int, ...]) -> int:
    """Sums over something of this shape."""
    return sum(n.op is Op.REDUCE_AXES and n.src[0].shape == shape for n in toposort((node,)))


def changed(*nodes: UOp) -> UOp:
    """The pass over some roots; the values stay."""
    before = sink(list(nodes))
    after = use_known_sums(before, toposort((before,)))
    arrays = contents(nodes)
    for have, want in zip(evaluate(after.src, arrays), evaluate(before.src, arrays), strict=True):
        scale = np.abs(want).max() + 1
        np.testing.assert_allclose(have / scale, want / scale, atol=1e-4)
    return after


def along(values: UOp, shape: tuple[int, ...]) -> UOp:
    """Numbers for each channel, the same for all pixels."""
    return expand(reshape(values, 1, shape[1], 1), *shape)


@pytest.mark.parametrize("shape", [(32, 5, 64), (17, 3, 101)])
def test_the_mean_in_the_gradient_of_a_norm_goes_over_nothing(shape):
    g, x = tensor(*shape), tensor(*shape)
    a, b = tensor(shape[1]), tensor(shape[1])
    count = UOp.const(g.dtype, 1 / (shape[0] * shape[2]))
    shift, mean = total(g, 0, 2), total(x, 0, 2) * count
    centred = x + along(mean * UOp.const(x.dtype, -1.0), shape)
    slope = g * along(a, shape) + centred * along(b, shape)
    after = changed(shift, mean, total(slope, 0, 2))
    assert passes(after, shape) == 2


def test_common_factors_are_outside_of_sums_which_are_one_then():
    shape = (40, 4, 50)
    g, x, a, b = tensor(*shape), tensor(*shape), tensor(4), tensor(4)
    one, other = total(g * (x * along(a, shape)), 0, 2), total((along(b, shape) * g) * x, 0, 2)
    assert passes(changed(one, other), shape) == 1


def test_sums_of_something_else_stay():
    shape = (40, 4, 50)
    g, x, y = tensor(*shape), tensor(*shape), tensor(*shape)
    roots = [
        total(g * x, 0, 2),
        total(g + y, 0, 2),
        total(x, 0),
        total(tensor(3, 4, 5) * along(tensor(4), (3, 4, 5)), 0, 2),
    ]
    before = sink(roots)
    assert use_known_sums(before, toposort((before,))) is before


def test_a_sum_that_follows_from_one_that_follows_itself():
    shape = (64, 3, 32)
    x, a, b = tensor(*shape), tensor(3), tensor(3)
    least = total(x, 0, 2) * UOp.const(x.dtype, -1 / (64 * 32))
    first = (x + along(least, shape)) * along(a, shape)
    second = first * along(b, shape)
    after = changed(total(x, 0, 2), total(first, 0, 2), total(second, 0, 2))
    assert passes(after, shape) == 1


def far_from_zero(node: UOp) -> tuple[np.ndarray, np.ndarray]:
    """What the pass makes of the last of some roots for numbers around ten thousand, and what it was before."""
    arrays = contents([node])
    rng = np.random.default_rng(2)
    arrays = {b: (1e4 + rng.standard_normal(values.size)).astype(np.float32) for b, values in arrays.items()}
    after = use_known_sums(node, toposort((node,)))
    return evaluate(after.src, arrays)[-1], evaluate(node.src, arrays)[-1]


def test_differences_are_added_as_exactly_as_before():
    """The sum of large numbers is known to a few tens, that of what they differ by to a few millionths."""
    shape = (64, 3, 32)
    x, y, guess = tensor(*shape), tensor(*shape), tensor(3)
    negative = y * UOp.const(x.dtype, -1.0)
    for roots in (
        [total(x, 0, 2), total(x + UOp.const(x.dtype, -1e4), 0, 2)],
        [total(x, 0, 2), total(x + along(guess * UOp.const(x.dtype, -1.0), shape), 0, 2)],
        [total(x, 0, 2), total(y, 0, 2), total(x + negative, 0, 2)],
    ):
        have, want = far_from_zero(sink(roots))
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_the_gradient_of_a_batch_norm_in_training():
    shape = (16, 6, 12, 12)
    x, g, scale, shift = Tensor.empty(*shape), Tensor.empty(*shape), Tensor.empty(6), Tensor.empty(6)
    mean = x.mean((0, 2, 3))
    deviation = ((x - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3)) + 1e-5).rsqrt()
    y = x.batchnorm(scale, shift, mean, deviation)
    nodes = [simplify(t.uop) for t in (y, *(y * g).sum().gradient(x, scale, shift))]
    # The mean, what deviates from it, the gradient of the shift and that of the scale.
    assert passes(sink(nodes), shape) > 4 and passes(changed(*nodes), shape) == 4
