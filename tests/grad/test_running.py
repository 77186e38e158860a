"""Gradients of running combinations against torch: first and second, with zeros, ties and several axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op

torch = pytest.importorskip("torch")

RUNS: dict[str, tuple[Callable[[Any, int], Any], Callable[[Any, int], Any]]] = {
    "cumsum": (lambda x, axis: x.cumsum(axis), lambda x, axis: x.cumsum(axis)),
    "cumprod": (lambda x, axis: x.cumprod(axis), lambda x, axis: x.cumprod(axis)),
    "cummax": (lambda x, axis: x.cummax(axis)[0], lambda x, axis: x.cummax(axis).values),
    "cummin": (lambda x, axis: x.cummin(axis)[0], lambda x, axis: x.cummin(axis).values),
    "logcumsumexp": (lambda x, axis: x.logcumsumexp(axis), lambda x, axis: x.logcumsumexp(axis)),
}


def values(kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    if kind == "zeros":
        x[..., 1] = 0
        x[0, ..., 3] = 0
    return x


@pytest.mark.parametrize("kind", ["plain", "ties", "zeros"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(("shape", "axis"), [((3, 7), 1), ((3, 7), 0), ((2, 3, 33), 2), ((2, 5, 4), 1)])
def test_first_and_second_gradients(name: str, kind: str, shape: tuple[int, ...], axis: int) -> None:
    ours, theirs = RUNS[name]
    rng = np.random.default_rng(1)
    x, g, h = values(kind, shape), *[rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    leaf = torch.tensor(x, requires_grad=True)
    (wanted,) = torch.autograd.grad(theirs(leaf, axis), leaf, torch.tensor(g), create_graph=True)
    tensor = Tensor(x)
    (first,) = ours(tensor, axis).gradient(tensor, gradient=Tensor(g))
    if name not in ("cumprod", "logcumsumexp"):  # the others are linear in pieces
        np.testing.assert_allclose(first.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-4)
        return
    (second,) = first.gradient(tensor, gradient=Tensor(h))
    (wanted_second,) = torch.autograd.grad(wanted, leaf, torch.tensor(h))
    Tensor.realize(first, second)
    np.testing.assert_allclose(first.numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second.numpy(), wanted_second.numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("op", [Op.ADD, Op.MUL, Op.MAX])
def test_exclusive_runs(op: Op, exclusive: bool) -> None:
    x = values("plain", (2, 6))
    start = {Op.ADD: 0.0, Op.MUL: 1.0, Op.MAX: -float("inf")}[op]
    leaf = torch.tensor(x, requires_grad=True)
    run = {Op.ADD: lambda t: t.cumsum(1), Op.MUL: lambda t: t.cumprod(1), Op.MAX: lambda t: t.cummax(1).values}[op]
    wanted = run(leaf)
    if exclusive:
        wanted = torch.cat([torch.full((2, 1), start), wanted[:, :-1]], 1)
    g = np.random.default_rng(2).standard_normal((2, 6)).astype(np.float32)
    wanted.backward(torch.tensor(g))
    tensor = Tensor(x)
    result = tensor.running(op, 1, exclusive)
    (grad,) = result.gradient(tensor, gradient=Tensor(g))
    np.testing.assert_allclose(grad.numpy(), leaf.grad.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result.numpy(), wanted.detach().numpy(), rtol=1e-6)


def test_linear_recurrence() -> None:
    """h[i] = f[i] h[i - 1] + x[i]: gradients of the values and of the factors."""
    x, f, g = [values("plain", (3, 9)) * scale for scale in (1.0, 0.5, 0.3)]
    f = np.roll(f, 1, 1)
    a, b = torch.tensor(x, requires_grad=True), torch.tensor(f, requires_grad=True)
    steps = [a[:, 0]]
    for i in range(1, 9):
        steps.append(steps[-1] * b[:, i] + a[:, i])
    wanted = torch.stack(steps, 1)
    wanted.backward(torch.tensor(g))
    ours_x, ours_f = Tensor(x), Tensor(f)
    result = ours_x.running(Op.MULADD, 1, False, ours_f)
    grads = result.gradient(ours_x, ours_f, gradient=Tensor(g))
    np.testing.assert_allclose(result.numpy(), wanted.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads[0].numpy(), a.grad.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads[1].numpy()[:, 1:], b.grad.numpy()[:, 1:], rtol=1e-5, atol=1e-6)


def test_gradients_are_runs_themselves() -> None:
    """No gradient of a running combination makes a row for each element."""
    tensor = Tensor(values("plain", (4, 64)))
    for name, (ours, _) in RUNS.items():
        (grad,) = ours(tensor, 1).gradient(tensor, gradient=tensor)
        nodes: list[UOp] = toposort((grad.uop,))
        assert max(int(np.prod(n.shape)) for n in nodes if n.op is not Op.BUFFER) <= 4 * 65, name


def test_half_precision_sums_are_carried_in_more() -> None:
    x = np.full((4096,), 0.001, np.float16)
    np.testing.assert_allclose(Tensor(x).cumsum().numpy()[-1], x.astype(np.float32).sum(), rtol=1e-3)
    tensor = Tensor(x)
    (grad,) = tensor.cummax()[0].gradient(tensor, gradient=Tensor(np.ones(4096, np.float16)))
    np.testing.assert_array_equal(grad.numpy(), np.ones(4096, np.float16))
