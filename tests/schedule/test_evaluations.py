"""Little work can be long code: views of views multiply, and a kernel may not grow with their number."""

import numpy as np

from gradlet import Tensor
from gradlet.graph.node import toposort


def test_product_gradient_does_not_explode():
    x = Tensor((np.random.default_rng(0).random(100) + 0.5).astype(np.float32)).realize()
    (gradient,) = x.prod().gradient(x)
    calls = gradient.schedule().calls
    assert max(len(toposort([c.ast])) for c in calls) < 4000
    a = x.numpy().astype(np.float64)
    np.testing.assert_allclose(gradient.numpy(), a.prod() / a, rtol=1e-4)


def test_repeated_views_in_a_chain():
    x = Tensor(np.arange(16, dtype=np.float32)).realize()
    y, expected = x, np.arange(16, dtype=np.float64)
    for _ in range(12):
        y = (y + y.flip(0)) * 0.5 + y[::2].repeat(2)
        expected = (expected + expected[::-1]) * 0.5 + np.tile(expected[::2], 2)
    calls = y.schedule().calls
    assert max(len(toposort([c.ast])) for c in calls) < 6000
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4)


def test_a_tree_of_halves_is_cut():
    x = Tensor(np.arange(4096, dtype=np.int32)).realize()
    y = x
    while y.shape[0] > 1:
        half = y.shape[0] // 2
        y = y[:half] + y[half:]
    calls = y.schedule().calls
    assert max(len(toposort([c.ast])) for c in calls) < 6000
    assert y.item() == 4096 * 4095 // 2
