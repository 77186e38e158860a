"""Optimizers against torch's over several steps, and what a step needs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, jit, nn
from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, GradientError
from gradlet.nn import optim

CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "sgd": (lambda p: optim.SGD(p, 0.1), lambda t, p: t.SGD(p, 0.1)),
    "decay": (lambda p: optim.SGD(p, 0.1, weight_decay=0.1), lambda t, p: t.SGD(p, 0.1, weight_decay=0.1)),
    "momentum": (lambda p: optim.SGD(p, 0.1, momentum=0.9), lambda t, p: t.SGD(p, 0.1, momentum=0.9)),
    "classic": (lambda p: optim.SGD(p, 0.1, momentum=0.9, classic=True), lambda t, p: t.SGD(p, 0.1, momentum=0.9)),
    "nesterov": (
        lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        lambda t, p: t.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    ),
    "adam": (lambda p: optim.Adam(p, 0.01), lambda t, p: t.Adam(p, 0.01)),
    "adam_betas": (
        lambda p: optim.Adam(p, 0.01, b1=0.5, b2=0.9, eps=1e-4),
        lambda t, p: t.Adam(p, 0.01, betas=(0.5, 0.9), eps=1e-4),
    ),
    "adamw": (lambda p: optim.AdamW(p, 0.01), lambda t, p: t.AdamW(p, 0.01)),
    "adamw_decay": (
        lambda p: optim.AdamW(p, 0.01, weight_decay=0.3),
        lambda t, p: t.AdamW(p, 0.01, weight_decay=0.3),
    ),
}


class Model:
    """Two matrices and a function of them with no minimum in reach."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.first = random.normal(size=(4, 3)).astype(np.float32)
        self.second = random.normal(size=(3,)).astype(np.float32)
        self.data = random.normal(size=(5, 5, 4)).astype(np.float32)

    def ours(self) -> list[Tensor]:
        return [Tensor(self.first), Tensor(self.second)]

    def loss(self, params: Any, data: Any) -> Any:
        return ((data @ params[0]).sin() * params[1]).sum()


@pytest.mark.parametrize("name", CASES)
def test_five_steps_are_torch_s(name: str) -> None:
    torch = pytest.importorskip("torch")
    model = Model()
    params = model.ours()
    theirs = [torch.tensor(model.first, requires_grad=True), torch.tensor(model.second, requires_grad=True)]
    make, make_theirs = CASES[name]
    optimizer, reference = make(params), make_theirs(torch.optim, theirs)
    with Tensor.train():
        for data in model.data:
            optimizer.zero_grad()
            model.loss(params, Tensor(data)).backward()
            optimizer.step()
            reference.zero_grad()
            model.loss(theirs, torch.tensor(data)).backward()
            reference.step()
            for ours, their in zip(params, theirs, strict=True):
                np.testing.assert_allclose(ours.numpy(), their.detach().numpy(), rtol=2e-4, atol=2e-5)


def lamb_reference(param: np.ndarray, grads: list[np.ndarray], rate: float, decay: float) -> np.ndarray:
    mean, square = np.zeros_like(param), np.zeros_like(param)
    for step, grad in enumerate(grads, 1):
        mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad * grad
        change = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-6) + decay * param
        size, length = np.linalg.norm(param), np.linalg.norm(change)
        param = param - rate * change * (size / length if size > 0 and length > 0 else 1.0)
    return param


def lars_reference(param: np.ndarray, grads: list[np.ndarray], rate: float) -> np.ndarray:
    velocity = np.zeros_like(param)
    for grad in grads:
        size, slope = np.linalg.norm(param), np.linalg.norm(grad)
        trust = 0.001 * size / (slope + 1e-4 * size) if size > 0 and slope > 0 else 1.0
        velocity = 0.9 * velocity + rate * trust * (grad + 1e-4 * param)
        param = param - velocity
    return param


@pytest.mark.parametrize("start", [np.array([1.0, -2.0, 3.0]), np.zeros(3)], ids=["values", "zeros"])
@pytest.mark.parametrize("kind", ["lamb", "lars"])
def test_trust_ratios(kind: str, start: np.ndarray) -> None:
    random = np.random.default_rng(1)
    grads = [random.normal(size=3) for _ in range(3)]
    param = Tensor(start)
    optimizer = optim.LAMB([param], 0.1, weight_decay=0.01) if kind == "lamb" else optim.LARS([param], 0.1)
    with Tensor.train():
        for grad in grads:
            optimizer.zero_grad()
            (param * Tensor(grad)).sum().backward()
            optimizer.step()
    expected = lamb_reference(start, grads, 0.1, 0.01) if kind == "lamb" else lars_reference(start, grads, 0.1)
    np.testing.assert_allclose(param.numpy(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_jitted_step_is_the_plain_one(name: str) -> None:
    model = Model()
    results = []
    for wrap in (lambda f: f, jit):
        params = model.ours()
        optimizer = CASES[name][0](params)

        def step(data: Tensor, params: list[Tensor] = params, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = model.loss(params, data)
            loss.backward()
            return loss.realize(*optimizer.schedule_step())

        run = wrap(step)
        with Tensor.train():
            losses = [run(Tensor(data)).item() for data in model.data]
        results.append((losses, [p.numpy() for p in params]))
    (plain, plain_params), (jitted, jitted_params) = results
    np.testing.assert_allclose(jitted, plain, rtol=1e-5)
    for left, right in zip(plain_params, jitted_params, strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-5, atol=1e-7)


def test_the_loss_and_the_gradients_keep_the_values_from_before_the_step() -> None:
    x = Tensor([2.0, 3.0])
    optimizer = optim.SGD([x], 0.5)
    with Tensor.train():
        loss = (x * x).sum()
        loss.backward()
        optimizer.step()
    assert x.tolist() == [0, 0]
    assert x.grad is not None and x.grad.tolist() == [4, 6] and loss.item() == 13


def test_the_learning_rate_can_change() -> None:
    x = Tensor([1.0])
    optimizer = optim.SGD([x], 1.0)
    with Tensor.train():
        for rate, expected in [(1.0, 0.0), (0.25, -0.25)]:
            optimizer.lr.assign(Tensor([rate])).realize()
            optimizer.zero_grad()
            x.sum().backward()
            optimizer.step()
            assert x.item() == expected


def test_half_precision_parameters_have_float32_state() -> None:
    x = Tensor([1.0], dtype=dtypes.float16)
    optimizer = optim.Adam([x], 0.125)
    with Tensor.train():
        (x * 1e-4).sum().backward()  # its square is 0 in half precision
        optimizer.step()
    assert x.dtype is dtypes.float16 and optimizer.v[0].dtype is dtypes.float32
    assert x.item() == pytest.approx(0.875, abs=1e-3)


def test_parameters_without_a_gradient_stay_and_counters_are_not_trained() -> None:
    x, y, counter = Tensor([1.0]), Tensor([5.0]), Tensor([3], dtype=dtypes.int32)
    optimizer = optim.SGD([x, y, counter, x], 1.0)
    assert len(optimizer.params) == 2 and len(optimizer.buffers) == 1
    with Tensor.train():
        (x * 2).sum().backward()
        y.grad = None
        optimizer.step()
    assert (x.item(), y.item(), counter.item()) == (-1, 5, 3)


def test_a_group_steps_all_of_its_optimizers() -> None:
    x, y = Tensor([1.0]), Tensor([1.0])
    group = optim.OptimizerGroup(optim.SGD([x], 1.0), optim.SGD([y], 0.5))
    with Tensor.train():
        (x * 2 + y * 4).sum().backward()
        group.step()
        assert (x.item(), y.item()) == (-1, -1)
        group.zero_grad()
    assert x.grad is None and y.grad is None and group[1].params[0] is y


def test_wrong_uses_are_refused() -> None:
    x = Tensor([1.0])
    optimizer = optim.SGD([x], 1.0)
    with Tensor.train(), pytest.raises(GradientError, match="backward"):
        optimizer.step()
    x.sum().backward()
    with Tensor.train(False), pytest.raises(GradientError, match="training"):
        optimizer.step()
    with pytest.raises(ArgumentError, match="no float tensor"):
        optim.Adam([])
    with pytest.raises(ArgumentError, match=r"params\[0\]"):
        optim.Adam([1.0])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="momentum"):
        optim.SGD([x], nesterov=True)
    with pytest.raises(ArgumentError, match="b2=1"):
        optim.Adam([x], b2=1)


def test_a_small_model_learns() -> None:
    Tensor.manual_seed(0)
    layers = [nn.Linear(2, 16), Tensor.tanh, nn.Linear(16, 1)]
    optimizer = optim.Adam(nn.state.get_parameters(layers), 0.05)
    x = Tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = Tensor([[0.0], [1.0], [1.0], [0.0]])
    with Tensor.train():
        for _ in range(60):
            optimizer.zero_grad()
            loss = ((x.sequential(layers) - y) ** 2).mean()
            loss.backward()
            loss.realize(*optimizer.schedule_step())
    assert loss.item() < 0.05


def test_a_training_loop_keeps_nothing_behind() -> None:
    layers = [nn.Linear(2, 3), nn.BatchNorm(3), nn.Linear(3, 1)]
    optimizer = optim.Adam(nn.state.get_parameters(layers))
    counts = []
    with Tensor.train():
        for number in range(12):
            optimizer.zero_grad()
            loss = (Tensor([[1.0, number], [2.0, 3.0]]).sequential(layers) ** 2).mean()
            loss.backward()
            loss.realize(*optimizer.schedule_step())
            gc.collect()
            counts.append((len(Tensor.all_live()), GlobalCounters.mem_used))
    assert counts[-1] == counts[3]
