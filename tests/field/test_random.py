"""Random numbers as users meet them: inside jit, and whatever is computed when."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradlet import Tensor, jit

DRAWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.dropout(0.5, training=True),
    lambda x: x.randn_like(),
    lambda x: x.multinomial(4).cast("float32"),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_replays_of_a_jitted_function_draw_anew_and_as_without_jit(draw: Callable[[Tensor], Tensor]) -> None:
    x = Tensor(np.linspace(1, 2, 64, dtype="float32")).realize()
    jitted = jit(lambda t: draw(t) + 0)
    runs = []
    for function in (jitted, jitted, draw):
        Tensor.manual_seed(21)
        runs.append([function(x).numpy().tolist() for _ in range(5)])
    assert all(a != b for i, a in enumerate(runs[0]) for b in runs[0][:i])
    assert runs[0] == runs[1] == runs[2]


def test_draws_by_weights_do_not_depend_on_what_is_computed_early() -> None:
    """The running sum, the uniform numbers and the weights, each computed before it is used or not."""
    weights = np.array([[0.1, 0.0, 3.0, 0.4, 2.0]] * 3, "float32")
    found = []
    for early in (False, True):
        Tensor.manual_seed(5)
        scores = Tensor(weights).log().softmax(-1)
        scores = scores.realize() if early else scores
        drawn = scores.multinomial(50, replacement=True)
        running = scores.cumsum(1)
        running = running.realize() if early else running
        found.append((drawn.numpy(), running.numpy(), (drawn + 1).sum().item()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)
    assert found[0][2] == found[1][2]
    assert not (found[0][0] == 1).any()


def test_one_draw_used_twice_is_one_draw() -> None:
    Tensor.manual_seed(1)
    noise = Tensor.randn(1000)
    difference = noise * 2 - noise - noise
    assert difference.abs().max().item() == 0
    kept = Tensor.ones(1000).dropout(0.5, training=True)
    assert ((kept > 0) * kept).sum().item() == kept.sum().item()
