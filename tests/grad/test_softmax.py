"""The gradient of a softmax as a whole: right, of any order, and nothing but its result is kept for it."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.grad.softmax import softmax_inputs
from gradlet.ops.op import Op

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 5), (4, 1), (2, 3, 4)])
def test_first_and_second_order(shape: tuple[int, ...], axis: int) -> None:
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x, w = Tensor(data), Tensor(weight)
    (slope,) = (x.softmax(axis) * w).sum().gradient(x)
    (bend,) = (slope * slope).sum().gradient(x)
    tx = torch.tensor(data, requires_grad=True)
    (tslope,) = torch.autograd.grad((tx.softmax(axis) * torch.tensor(weight)).sum(), tx, create_graph=True)
    (tbend,) = torch.autograd.grad((tslope * tslope).sum(), tx)
    np.testing.assert_allclose(slope.numpy(), tslope.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(bend.numpy(), tbend.numpy(), atol=1e-6)


def test_masked_rows() -> None:
    data = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    mask = np.tril(np.ones((4, 6), bool))
    x = Tensor(data)
    probability = Tensor(mask).where(x, -float("inf")).softmax(-1)
    (slope,) = (probability * probability).sum().gradient(x)
    tx = torch.tensor(data, requires_grad=True)
    other = tx.masked_fill(~torch.tensor(mask), -float("inf")).softmax(-1)
    (tslope,) = torch.autograd.grad((other * other).sum(), tx)
    np.testing.assert_allclose(slope.numpy(), tslope.numpy(), atol=1e-6)


def test_a_target_inside_gets_its_own_gradient() -> None:
    data = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)

    def build(x, w, exp, total):
        power = exp(x)
        return power, (power / total(power) * w).sum()

    power, loss = build(Tensor(data), Tensor(weight), lambda x: x.exp(), lambda p: p.sum(-1, True))
    (slope,) = loss.gradient(power)
    tpower, tloss = build(
        torch.tensor(data, requires_grad=True), torch.tensor(weight), torch.exp, lambda p: p.sum(-1, keepdim=True)
    )
    (tslope,) = torch.autograd.grad(tloss, tpower)
    np.testing.assert_allclose(slope.numpy(), tslope.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x.exp() / x.exp().sum(0, True),  # found
        lambda x: x.exp() / (x + 1.0).exp().sum(0, True),
        lambda x: x.exp() / x.exp().max(0, True),
        lambda x: x.exp() / x.exp().sum(1).reshape(1, 3),  # the sums of rows, spread over columns
    ],
)
def test_near_misses(build) -> None:
    data = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    x = Tensor(data)
    y = build(x)
    (slope,) = (y * y).sum().gradient(x)
    step = 1e-3
    for i in range(3):
        for j in range(3):
            up, down = data.copy(), data.copy()
            up[i, j] += step
            down[i, j] -= step
            wide = [build(Tensor(v.astype(np.float64))) for v in (up, down)]
            expected = ((wide[0] * wide[0]).sum().item() - (wide[1] * wide[1]).sum().item()) / (
                float(up[i, j]) - float(down[i, j])
            )
            np.testing.assert_allclose(slope.numpy()[i, j], expected, rtol=2e-2, atol=1e-3)


def test_only_the_quotient_is_read_again() -> None:
    x, g = Tensor.rand(4, 6).realize(), Tensor.rand(4, 6).realize()
    y = x.softmax(-1)
    (slope,) = y.gradient(x, gradient=g)
    found = softmax_inputs(y.uop.toposort(), ())
    assert list(found) == [y.uop]
    power = y.uop.src[0]
    without = {n for n in slope.uop.toposort() if n is not y.uop and power in n.src}
    assert all(n.op is Op.REDUCE_AXES for n in without)  # the power is used inside the softmax alone


def test_rows_that_are_hidden_altogether() -> None:
    data = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    hidden = np.random.default_rng(2).random((4, 6)) < 0.5
    hidden[2] = True
    x, w = Tensor(data), Tensor(weight)
    probability = Tensor(hidden).where(-float("inf"), x).safe_softmax(-1)
    assert len(softmax_inputs(probability.uop.toposort(), set())) == 1
    (slope,) = (probability * w).sum().gradient(x)
    (bend,) = (slope * slope).sum().gradient(x)
    tx = torch.tensor(data[[0, 1, 3]], requires_grad=True)
    other = tx.masked_fill(torch.tensor(hidden[[0, 1, 3]]), -float("inf")).softmax(-1)
    (tslope,) = torch.autograd.grad((other * torch.tensor(weight[[0, 1, 3]])).sum(), tx, create_graph=True)
    (tbend,) = torch.autograd.grad((tslope * tslope).sum(), tx)
    for mine, theirs in ((slope, tslope), (bend, tbend)):
        np.testing.assert_allclose(mine.numpy()[[0, 1, 3]], theirs.detach().numpy(), atol=1e-6)
        assert not mine.numpy()[2].any()


def test_ones_instead_of_other_sums_are_no_softmax() -> None:
    x = Tensor(np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32))
    top = x.detach().max(0).reshape(5, 1)  # of columns
    nothing = top.eq(-float("inf"))
    power = x.sub(nothing.where(0.0, top)).exp()
    quotient = power.fdiv(nothing.where(1.0, power.sum(1, True)))
    assert not softmax_inputs(quotient.uop.toposort(), set())
