"""Random programs along an axis of unknown size, beside the same programs on tensors that have that size."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import ShapeError
from gradlet.tensor.tensor import Variable

SHAPES = [(9, 4, 3), (3, 9, 4), (4, 3, 9), (300, 40), (40, 300), (70, 33)]


def step(x: Any, rng: random.Random, fixed: list[int]) -> Any:
    """One random operation; the same for both kinds of tensors if `rng` is in the same state."""
    choice, axis = rng.randrange(18), rng.randrange(max(1, x.ndim))
    if choice == 0:
        return (x * 0.5).tanh()
    if choice == 1:
        return x + x.sum(axis, keepdim=True) * 0.01
    if choice == 2:
        return x.softmax(axis)
    if choice == 3:
        order = list(range(x.ndim))
        rng.shuffle(order)
        return x.permute(order)
    if choice == 4 and x.ndim > 1:
        return x.sum(axis) * 0.1
    if choice == 5 and x.ndim > 1:
        return x.mean(axis)
    if choice == 6 and x.ndim > 1:
        return x.max(axis)
    if choice == 7 and x.ndim > 1:
        return (x @ x.transpose(-1, -2)).tanh()
    if choice == 8:
        return x.cumsum(axis) * 0.1
    if choice == 9:
        return (x > 0).where(x, x * -0.25)
    if choice == 10:
        return x.contiguous()
    if choice == 11:
        return x.realize()
    if choice == 12 and x.ndim > 1:
        return x.flatten(0, 1)
    if choice == 13:
        return x.unsqueeze(axis)
    if choice == 14:
        return x - x.mean(axis, keepdim=True)
    if choice == 15:
        return x * (x * x).sum().rsqrt()
    if choice == 16 and x.ndim > 1:
        return x.flatten(x.ndim - 2)
    if choice == 17 and fixed:
        return x.pad([(1, 0) if a == fixed[0] else (0, 0) for a in range(x.ndim)])
    return x + 1


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    axis = max(range(len(shape)), key=lambda a: shape[a])
    variable = Variable("n", 1, shape[axis])
    size = rng.choice([1, shape[axis] // 2, shape[axis] - 1, shape[axis]])
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    index = (slice(None),) * axis
    poisoned = array.copy()
    poisoned[(*index, slice(size, None))] = np.nan
    source = Tensor(poisoned)
    one, other = source[(*index, slice(0, variable.bind(size)))], Tensor(array[(*index, slice(0, size))].copy())
    whole, cut, realized = source, other, False
    for _ in range(rng.randint(1, 6)):
        state = rng.getstate()
        fixed = [a for a, extent in enumerate(one.shape) if isinstance(extent, int)]
        try:
            one = step(one, rng, fixed)
        except ShapeError:
            continue
        rng.setstate(state)
        other = step(other, rng, fixed)
        realized = realized or one.is_realized
    if not realized:
        found = (one * one).sum().gradient(whole)[0].numpy()
        wanted = np.zeros(shape, np.float32)
        wanted[(*index, slice(0, size))] = (other * other).sum().gradient(cut)[0].numpy()
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3 * max(1.0, float(np.abs(wanted).max())))
    np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=5e-4, atol=5e-5)
