"""Values that are cheaper to compute again than to keep: stored once less, and never for more than it saves."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Context, Tensor
from gradlet.schedule import fuse
from gradlet.schedule.pipeline import KernelCall
from gradlet.schedule.traffic import traffic_of


def written(*results: Tensor) -> int:
    """Bytes that a schedule writes."""
    calls = results[0].schedule(*results[1:]).calls
    return sum(traffic_of(c).written for c in calls if isinstance(c, KernelCall))


def two_passes(rows: int, size: int) -> tuple[list[Tensor], list[np.ndarray]]:
    """A product, functions of its result, and later products that need the result and those functions."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) / 16 for s in ((rows, size), (size, size), (size, size))]
    x, w, v = [Tensor(a).realize() for a in arrays]
    z = x @ w
    first = z * z * 0.5 + 1.0
    second = first * z
    y = second @ v
    # What the first product's kernel made is read again behind the second product, as in a backward pass.
    late = (first * y + y * z * z) @ v
    return [y, late], arrays


def test_functions_of_one_stored_value_are_computed_where_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, size = 1024, 256  # square factors that no machine copies into strips
    results, arrays = two_passes(rows, size)
    one = rows * size * 4
    with Context(FUSE=1):  # regions would keep values in scratch memory
        assert written(*results) <= 3.2 * one
        monkeypatch.setattr(fuse, "recompute", lambda search: False)
        with Context(SCHEDULE_CACHE=0):
            assert written(*results) >= 3.8 * one
    x, w, v = (a.astype(np.float64) for a in arrays)
    z = x @ w
    first = z * z * 0.5 + 1
    y = first * z @ v
    expected = [y, (first * y + y * z * z) @ v]
    results[0].realize(*results[1:])
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.numpy(), right, rtol=1e-4, atol=1e-4)


def test_what_was_asked_for_is_stored() -> None:
    x, w = Tensor.rand(256, 256).realize(), Tensor.rand(256, 256).realize()
    z = x @ w
    squares = z * z
    assert written(squares, (squares @ w).sum(0)) >= 256 * 256 * 4


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_training_step_with_gelu(rows: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) / 4 for s in ((rows, 32), (32, 64), (64, 8))]

    def loss(x, w, v):
        z = x @ w
        return ((0.5 * z * (1 + (0.8 * (z + 0.04 * z * z * z)).tanh())) @ v).sum()

    mine = [Tensor(a).realize() for a in arrays]
    found = loss(*mine).gradient(*mine)
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    for a, b in zip(found, torch.autograd.grad(loss(*theirs), theirs), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


def test_what_is_computed_again_may_be_made_of_what_is_computed_again() -> None:
    """A norm in training: everything between its passes is made of the image and numbers for each channel."""
    image = Tensor.empty(64, 28, 28, 256, dtype="bfloat16", device="NULL:sm_90")
    gradient = Tensor.empty(*image.shape, dtype="bfloat16", device="NULL:sm_90")
    scale, shift = Tensor.empty(256, device="NULL:sm_90"), Tensor.empty(256, device="NULL:sm_90")
    x = (image * 2).contiguous().cast("float32")
    mean = x.mean((0, 1, 2))
    centred = x - mean
    factor = (centred.square().mean((0, 1, 2)) + 1e-5).rsqrt()
    result = (centred * factor * scale + shift).cast("bfloat16")
    slope = (gradient * result).cast("float32")
    found = [
        (slope * centred).sum((0, 1, 2)),
        slope.sum((0, 1, 2)),
        (slope * scale - centred * factor).cast("bfloat16"),
    ]
    one = 2 * image.numel()
    assert written(result, *found) <= 3.2 * one
