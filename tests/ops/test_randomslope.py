"""Rectifiers with random slopes."""

from __future__ import annotations

import numpy as np

from gradlet import Tensor


def test_slopes_are_drawn_for_each_element_while_training() -> None:
    Tensor.manual_seed(3)
    x = Tensor(np.linspace(-4, 4, 1000).astype(np.float32))
    ratio = (x.rrelu(0.25, 0.75, training=True) / x).numpy()
    negative = np.linspace(-4, 4, 1000) < 0
    assert (ratio[~negative] == 1).all()
    drawn = ratio[negative]
    assert 0.2499 < drawn.min() < 0.26 and 0.74 < drawn.max() < 0.7501
    assert len(set(drawn.tolist())) > 400
    assert abs(drawn.mean() - 0.5) < 0.03


def test_the_gradient_is_the_slope_that_was_drawn() -> None:
    x = Tensor([-2.0, -1.0, 3.0])
    y = x.rrelu(training=True)
    (gradient,) = y.sum().gradient(x)
    np.testing.assert_allclose((gradient * x).numpy(), y.numpy(), rtol=1e-6)


def test_the_mean_slope_otherwise() -> None:
    assert Tensor([-2.0, 2.0]).rrelu(0.0, 0.5).tolist() == [-0.5, 2.0]
