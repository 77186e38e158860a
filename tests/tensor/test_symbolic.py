"""Axes whose size is a bound variable: shapes, results for many values from one kernel, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, nn
from gradlet.base.errors import ArgumentError, GradientError, IndexingError, ShapeError
from gradlet.base.settings import SCHEDULE_CACHE
from gradlet.base.symint import Size
from gradlet.tensor.tensor import Variable

torch = pytest.importorskip("torch")

N = Variable("n", 0, 12)
X = np.random.default_rng(3).standard_normal((12, 5)).astype(np.float32)
W = np.random.default_rng(4).standard_normal((5, 7)).astype(np.float32)


@pytest.fixture(params=["CPU", "PYTHON"])
def device(request: Any) -> Iterator[str]:
    yield request.param


def test_shape_shows_the_variable() -> None:
    y = Tensor(X)[: N.bind(5)]
    n = y.shape[0]
    assert isinstance(n, Size) and (n.low, n.high, n.value) == (0, 12, 5)
    assert y.shape[1] == 5 and n != 5 and n == Tensor(X)[: N.bind(5)].shape[0] and y.ndim == 2
    assert str(y.shape) == "(n, 5)" and "shape (n, 5)" in repr(y)
    assert y.numel() == n * 5 and y.T.shape == (5, n) and y.sum(0).shape == (5,)
    assert y.sum(0, keepdim=True).shape == (1, 5) and y.sum(1).shape == (n,)
    assert y.unsqueeze(1).shape == (n, 1, 5) and y.flatten().shape == (n * 5,) and y.reshape(-1).shape == (n * 5,)
    assert y.reshape(n * 5).reshape(-1, 5).shape == (n, 5) and y.reshape(n, 5, 1).squeeze().shape == (n, 5)


def test_part_of_an_axis_from_a_fixed_start() -> None:
    m = Variable("m", 3, 9)
    for value in (3, 4, 9):
        y = Tensor(X)[2 : m.bind(value) + 1]
        assert str(y.shape[0]) == "m + -1"
        np.testing.assert_array_equal(y.numpy(), X[2 : value + 1])
        np.testing.assert_allclose(y.mean(0).numpy(), X[2 : value + 1].mean(0), rtol=1e-5)


def every(function: Callable[[Any], Any], arrays: list[np.ndarray], device: str, values: tuple[int, ...]) -> None:
    """The function of arrays cut to many sizes, beside torch, from kernels that are the same for all sizes."""
    kernels = set()
    tensors = [Tensor(a, device=device) for a in arrays]
    for value in values:
        n = N.bind(value)
        got = function(*[t[:n] for t in tensors])
        kernels.add(tuple(call.ast for call in got.schedule().calls))
        want = function(*[torch.tensor(a[:value]) for a in arrays]).numpy()
        result = got.numpy()
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=2e-5, atol=1e-6)
    assert len(kernels) == 1


CASES: dict[str, Callable[..., Any]] = {
    "element-wise": lambda x: (x * 2 + 1).exp(),
    "with a row": lambda x: x * x.sum(0, keepdim=True),
    "with a column": lambda x: x - x.mean(1, keepdim=True),
    "sum of all": lambda x: x.sum(),
    "sum along": lambda x: x.sum(0),
    "sum beside": lambda x: x.sum(1),
    "mean along": lambda x: x.mean(0),
    "mean of all": lambda x: x.mean(),
    "softmax along": lambda x: x.softmax(0),
    "softmax beside": lambda x: x.softmax(1),
    "log softmax along": lambda x: x.log_softmax(0),
    "transposed": lambda x: x.transpose(0, 1) * 2,
    "flat": lambda x: x.reshape(-1) * 2,
    "product beside": lambda x: x @ (torch.tensor(W) if isinstance(x, torch.Tensor) else Tensor(W, device=x.device)),
    "product along": lambda x: x.transpose(0, 1) @ x,
    "gram": lambda x: x @ x.transpose(0, 1),
    "attention": lambda x: (x @ x.transpose(0, 1)).softmax(-1) @ x,
    "running sum along": lambda x: x.cumsum(0),
    "running sum beside": lambda x: x.cumsum(1),
    "columns": lambda x: x[:, 1:3] + 1,
    "reversed columns": lambda x: x.flip(1) if not isinstance(x, torch.Tensor) else x.flip([1]),
    "padded columns": lambda x: torch.nn.functional.pad(x, (1, 2)) if isinstance(x, torch.Tensor) else x.pad((1, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_beside_torch(name: str, device: str) -> None:
    every(CASES[name], [X], device, (12, 1, 7, 2))


@pytest.mark.parametrize("name", ["with a row", "sum along", "sum of all", "sum beside", "product along", "transposed"])
def test_no_rows(name: str, device: str) -> None:
    every(CASES[name], [X], device, (5, 0))


def test_reductions_of_nothing_give_neutral_elements(device: str) -> None:
    y = Tensor(X, device=device)[: N.bind(0)]
    assert y.sum().item() == 0 and y.prod().item() == 1 and y.max().item() == -np.inf and np.isnan(y.mean().item())
    assert y.numpy().shape == (0, 5) and y.tolist() == []


def test_largest_and_where_it_is(device: str) -> None:
    for value in (1, 4, 12):
        y = Tensor(X, device=device)[: N.bind(value)]
        np.testing.assert_array_equal(y.argmax(0).numpy(), X[:value].argmax(0))
        np.testing.assert_array_equal(y.max(0).numpy(), X[:value].max(0))
        np.testing.assert_allclose(y.var(0).numpy(), torch.tensor(X[:value]).var(0).numpy(), rtol=1e-4)


def test_what_lies_past_the_size_has_no_influence(device: str) -> None:
    poisoned = X.copy()
    poisoned[5:] = np.nan
    y = Tensor(poisoned, device=device)[: N.bind(5)]
    stored = (y * 3).realize()
    for result in (y.sum(), stored.sum(), (stored @ Tensor(W, device=device)).sum(), stored.softmax(0).max()):
        assert np.isfinite(result.item())
    np.testing.assert_allclose(stored.sum(0).numpy(), X[:5].sum(0) * 3, rtol=1e-5)


def test_stored_values_keep_their_size() -> None:
    y = (Tensor(X)[: N.bind(5)] * 2).realize()
    assert y.is_realized and str(y.shape) == "(n, 5)"
    np.testing.assert_array_equal(y.numpy(), X[:5] * 2)
    assert y.contiguous().sum().item() == pytest.approx(2 * X[:5].sum(), rel=1e-5)
    assert y.to("PYTHON").sum().item() == pytest.approx(2 * X[:5].sum(), rel=1e-5)


def test_graphs_built_before_computing_keep_the_size() -> None:
    y = Tensor(X)[: N.bind(5)] * 2
    later = y.sum(0)
    y.realize()
    np.testing.assert_allclose(later.numpy(), X[:5].sum(0) * 2, rtol=1e-5)


def test_rows_by_index(device: str) -> None:
    table = Tensor(X, device=device)
    ids = Tensor(np.array([3, 1, 2, 0, 7, 5, 11, 9, 8, 2, 2, 2], np.int32), device=device)
    for value in (1, 6, 12):
        n = N.bind(value)
        np.testing.assert_array_equal(table[ids[:n]].numpy(), X[ids.numpy()[:value]])
        inside = table[:n][Tensor(np.array([0, value, value - 1], np.int32), device=device)]
        np.testing.assert_array_equal(inside.numpy(), np.stack([X[0], 0 * X[0], X[value - 1]]))


@pytest.mark.parametrize("name", ["softmax along", "product beside", "mean along", "attention", "with a row", "log"])
def test_gradients_beside_torch(name: str) -> None:
    function = {**CASES, "log": lambda x: (x * x).log()}[name]
    for value in (12, 1, 7):
        data = X.copy()
        data[value:] = 0  # a derivative that is infinite past the size
        x, t = Tensor(data), torch.tensor(data, requires_grad=True)
        y, u = function(x[: N.bind(value)]), function(t[:value])
        (found,) = (y * y).sum().gradient(x)
        (want,) = torch.autograd.grad((u * u).sum(), t)
        assert found.shape == (12, 5)
        np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-3, atol=1e-5)


def test_gradients_of_weights_count_the_rows_that_exist() -> None:
    for value in (12, 1, 7):
        x, w, b = Tensor(X), Tensor(W), Tensor(np.ones(7, np.float32))
        y = (x[: N.bind(value)] @ w + b).relu().sum()
        found = y.gradient(w, b)
        tw, tb = torch.tensor(W, requires_grad=True), torch.tensor(np.ones(7, np.float32), requires_grad=True)
        want = torch.autograd.grad((torch.tensor(X[:value]) @ tw + tb).relu().sum(), [tw, tb])
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


def test_one_value_repeated_to_both_kinds_of_sizes() -> None:
    b = Tensor(np.ones((1, 5), np.float32))
    wide = b.expand(12, 5)
    n = N.bind(3)
    loss = (wide * Tensor(X)).sum() + (b.expand(Tensor(X)[:n].shape[0], 5) * Tensor(X)[:n]).sum()
    (found,) = loss.gradient(b)
    np.testing.assert_allclose(found.numpy(), (X.sum(0) + X[:3].sum(0))[None], rtol=1e-5)


def test_new_tensors_of_such_sizes(device: str) -> None:
    n = Tensor(X, device=device)[: N.bind(5)].shape[0]
    assert Tensor.zeros(n, 3, device=device).numpy().shape == (5, 3)
    np.testing.assert_array_equal(Tensor.ones(n, n, device=device).tril().numpy(), np.tril(np.ones((5, 5))))
    np.testing.assert_array_equal(Tensor.full((2, n), 3, device=device).sum(1).numpy(), [15, 15])
    assert Tensor.rand(n, 3, device=device).numpy().shape == (5, 3)


def test_causal_attention_over_time_of_unknown_size(device: str) -> None:
    for value in (1, 6, 12):
        y, t = Tensor(X, device=device)[: N.bind(value)], torch.tensor(X[:value])
        mask = Tensor.ones(y.shape[0], y.shape[0], dtype="bool", device=device).tril()
        got = mask.where(y @ y.T, -np.inf).softmax(-1) @ y
        want = (t @ t.T).masked_fill(~torch.ones(value, value, dtype=torch.bool).tril(), -np.inf).softmax(-1) @ t
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


def test_writing_the_first_rows(device: str) -> None:
    kernels = set()
    x = Tensor(X.copy(), device=device).realize()
    wanted = X.copy()
    for step, value in enumerate((5, 0, 12, 1, 7)):
        n = N.bind(value)
        new = np.full((12, 5), step, np.float32)
        x[:n] = Tensor(new, device=device)[:n] * 2
        kernels.add(tuple(call.ast for call in x.schedule().calls))
        wanted[:value] = 2 * step
        np.testing.assert_array_equal(x.realize().numpy(), wanted)
    x[2, 1 : Variable("m", 1, 5).bind(3)] = -1
    wanted[2, 1:3] = -1
    x[:, : Variable("k", 1, 5).bind(2)] = Tensor(np.arange(12, dtype=np.float32), device=device).reshape(12, 1)
    wanted[:, :2] = np.arange(12)[:, None]
    np.testing.assert_array_equal(x.numpy(), wanted)
    assert len(kernels) == 1


def test_back_to_a_fixed_size(device: str) -> None:
    for value in (0, 1, 7, 12):
        x = Tensor(X, device=device)
        y = (x[: N.bind(value)] + 1).pad_to(12, None)
        wanted = np.concatenate([X[:value] + 1, np.zeros((12 - value, 5), np.float32)])
        assert y.shape == (12, 5)
        np.testing.assert_array_equal(y.numpy(), wanted)
        np.testing.assert_allclose(y.flip(0).cumsum(0).numpy(), wanted[::-1].cumsum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal((x[: N.bind(value)] + 1).pad_to(14, 6).numpy()[:12, :5], wanted)
        z = Tensor(X, device=device)
        padded = (z[: N.bind(value)] + 1).pad_to(12, None)
        (found,) = (padded * padded).sum().gradient(z)
        np.testing.assert_allclose(found.numpy(), 2 * wanted, rtol=1e-5)


def test_layers() -> None:
    layer, norm = nn.Linear(5, 7), nn.LayerNorm(7)
    for value in (2, 9):
        rows = norm(layer(Tensor(X)[: N.bind(value)])).numpy()
        np.testing.assert_allclose(rows, norm(layer(Tensor(X[:value].copy()))).numpy(), rtol=1e-4, atol=1e-5)


def test_keys_and_values_of_a_cache() -> None:
    """Decoding: append at a position, attend to all positions so far."""
    size, position = 16, Variable("position", 0, 15)
    keys, values = Tensor.zeros(size, 5).contiguous().realize(), Tensor.zeros(size, 5).contiguous().realize()
    kernels = set()
    for step in range(6):
        p = position.bind(step)
        row = Tensor(X[step : step + 1].copy())
        keys[p : p + 1] = row
        values[p : p + 1] = row * 2
        result = (row @ keys[: p + 1].T).softmax(-1) @ values[: p + 1]
        kernels.add(tuple(call.ast for call in result.schedule(keys, values).calls))
        Tensor.realize(result, keys, values)
        seen = torch.tensor(X[: step + 1])
        want = (torch.tensor(X[step : step + 1]) @ seen.T).softmax(-1) @ (seen * 2)
        np.testing.assert_allclose(result.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
    assert len(kernels) <= 2  # the first step finds other values alive than the later ones


def test_schedules_are_found_again_for_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradlet.schedule import pipeline

    made = []
    original = pipeline.make_schedule
    monkeypatch.setattr(pipeline, "make_schedule", lambda *args: made.append(1) or original(*args))
    x = Tensor(X)
    assert SCHEDULE_CACHE.value
    for value in (3, 4, 5):
        np.testing.assert_allclose((x[: N.bind(value)] * 7).sum(0).numpy(), X[:value].sum(0) * 7, rtol=1e-5)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda x, n: x[:n] + x, ShapeError, "add"),
        (lambda x, n: x[:n] + x[: Variable("m", 0, 12).bind(5)], ShapeError, "broadcast"),
        (lambda x, n: x[:n] + x[: N.bind(6)], ShapeError, "broadcast"),
        (lambda x, n: x[:n].T.reshape(-1), ShapeError, "reshape"),
        (lambda x, n: x[:n].reshape(6, 10), ShapeError, "reshape"),
        (lambda x, n: x[:n].pad((0, 0, 1, 1), mode="reflect"), ShapeError, "pad"),
        (lambda x, n: x[:n][::2], IndexingError, "known only at launch"),
        (lambda x, n: x[:n][2:7], IndexingError, "known only at launch"),
        (lambda x, n: x[:n][3], ShapeError, "known only at launch"),
        (lambda x, n: x[:n].split(2), ShapeError, "split"),
        (lambda x, n: x[:n].cat(x, dim=1), ShapeError, "cat"),
        (lambda x, n: len(x[:n]), ShapeError, "known only at launch"),
        (lambda x, n: list(x[:n]), ShapeError, "known only at launch"),
        (lambda x, n: x[:n].item(), ShapeError, "item"),
        (lambda x, n: x[:n].unfold(0, 2, 1), ShapeError, "unfold"),
        (lambda x, n: x[:n].assign(x[:n]), ShapeError, "write"),
        (lambda x, n: x.assign(x[:n]), ShapeError, "assign"),
        (lambda x, n: x[:n].__setitem__(0, 0), ShapeError, "known only at launch"),
        (lambda x, n: x.__setitem__(slice(None, n), x), ShapeError, "setitem"),
        (lambda x, n: x[:n][:n], IndexingError, "known only at launch"),
        (lambda x, n: x[: Variable("k", 0, 13).bind(3)], IndexingError, "limits"),
        (lambda x, n: x[5:n], IndexingError, "limits"),
        (lambda x, n: x[:N], IndexingError, "no value"),
        (lambda x, n: x[: Variable("k", 0, 1).bind(1)], IndexingError, "allow 2"),
        (lambda x, n: (x[:n].prod()).gradient(x), (ShapeError, GradientError), "known only at launch"),
        (lambda x, n: (x[:n] + x[: Variable("n", 0, 12).bind(5)]).sum() + x[: N.bind(6)].sum(), None, ""),
    ],
)
def test_what_is_refused(use: Any, error: Any, message: str) -> None:
    x = Tensor(X.copy())
    if error is None:
        with pytest.raises(ArgumentError, match="bound to"):
            use(x, N.bind(5)).realize()
        return
    with pytest.raises(error, match=message):
        use(x, N.bind(5))


@pytest.mark.parametrize(
    ("low", "high", "stop", "values"),
    [
        (1, 2, lambda n: n, (1, 2)),
        (3, 3, lambda n: n, (3,)),
        (0, 5, lambda n: n * 2 + 1, (0, 2, 5)),
        (0, 8, lambda n: n * -1 + 8, (0, 3, 8)),
    ],
)
def test_sizes_of_every_form(low: int, high: int, stop: Callable[[Any], Any], values: Any, device: str) -> None:
    variable = Variable("n", low, high)
    for value in values:
        count = stop(value)
        y, rows = Tensor(X, device=device)[: stop(variable.bind(value))], X[:count]
        np.testing.assert_array_equal((y * 2).numpy(), rows * 2)
        np.testing.assert_allclose(y.sum(0).numpy(), rows.sum(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose((y @ y.T).numpy(), rows @ rows.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(y.realize().cumsum(0).sum(0).numpy(), rows.cumsum(0).sum(0), rtol=1e-4, atol=1e-5)
        if count:
            np.testing.assert_allclose(y.softmax(0).sum(0).numpy(), np.ones(5), rtol=1e-5)
            np.testing.assert_array_equal(y.max().item(), rows.max())


Z = X.copy()
Z[2, 1], Z[3, 0], Z[1, 0], Z[0, 2] = np.nan, np.inf, np.inf, -np.inf
JOINED: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda a, b, x: a.cat(x[:1]), lambda a, b, x: np.concatenate([a, x[:1]])),
    (lambda a, b, x: a.cat(b), lambda a, b, x: np.concatenate([a, b])),
    (lambda a, b, x: x.cat(a, b), lambda a, b, x: np.concatenate([x, a, b])),
    (lambda a, b, x: a.cat(x[:2], a), lambda a, b, x: np.concatenate([a, x[:2], a])),
    (lambda a, b, x: a.T.cat(b.T, dim=1), lambda a, b, x: np.concatenate([a.T, b.T], 1)),
    (lambda a, b, x: a.vstack(b), lambda a, b, x: np.concatenate([a, b])),
    (lambda a, b, x: a.stack(a, dim=1), lambda a, b, x: np.stack([a, a], 1)),
    (lambda a, b, x: a.pad(((1, 2), (0, 1))), lambda a, b, x: np.pad(a, ((1, 2), (0, 1)))),
    (lambda a, b, x: a.pad(((2, 0), (0, 0)), value=7), lambda a, b, x: np.pad(a, ((2, 0), (0, 0)), constant_values=7)),
    (lambda a, b, x: a.pad(((0, 12 - a.shape[0]), (0, 0))), lambda a, b, x: np.pad(a, ((0, 12 - len(a)), (0, 0)))),
    (lambda a, b, x: a.pad_to(12, 5), lambda a, b, x: np.pad(a, ((0, 12 - len(a)), (0, 0)))),
    (
        lambda a, b, x: a.pad_to(14, 5, value=3),
        lambda a, b, x: np.pad(a, ((0, 14 - len(a)), (0, 0)), constant_values=3),
    ),
    (lambda a, b, x: b.pad(((-1, 0), (0, 0))), lambda a, b, x: b[1:]),
    (lambda a, b, x: b.pad(((1, -1), (0, 0))), lambda a, b, x: np.pad(b[:-1], ((1, 0), (0, 0)))),
    (lambda a, b, x: a.flip(0), lambda a, b, x: a[::-1]),
    (lambda a, b, x: a.flip(0, 1), lambda a, b, x: a[::-1, ::-1]),
    (lambda a, b, x: a.roll(1, 0), lambda a, b, x: np.roll(a, 1, 0)),
    (lambda a, b, x: a.roll(-4, 0), lambda a, b, x: np.roll(a, -4, 0)),
    (lambda a, b, x: a.sort(0)[0], lambda a, b, x: np.sort(a, 0)),
    (lambda a, b, x: a.argsort(0), lambda a, b, x: np.argsort(a, 0, kind="stable")),
    (lambda a, b, x: (a > 0).sort(0, descending=True)[0], lambda a, b, x: np.sort(a > 0, 0)[::-1]),
    (lambda a, b, x: (a * 4).floor().isnan().sort(0)[1], lambda a, b, x: np.argsort(np.isnan(a), 0, kind="stable")),
    (lambda a, b, x: b.topk(1, 0, largest=False)[0], lambda a, b, x: np.sort(b, 0)[:1]),
]


@pytest.mark.parametrize("on", ["CPU", pytest.param("PYTHON", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", range(len(JOINED)))
def test_along_the_axis(number: int, on: str) -> None:
    """Joined, padded, reversed and sorted along the axis itself: one kernel for all values."""
    ours, wanted = JOINED[number]
    x, kernels = Tensor(Z, device=on), set()
    other = Variable("m", 1, 7)
    for n, m in ((3, 2), (0, 7), (12, 1)):
        got = ours(x[: N.bind(n)], x[: other.bind(m)], x)
        want = wanted(Z[:n], Z[:m], Z)
        if n == 3:
            kernels.add(tuple(call.ast for call in got.schedule().calls))
        np.testing.assert_array_equal(got.numpy(), want)
        assert tuple(getattr(s, "value", s) for s in got.shape) == want.shape
        if n == 12:
            kernels.add(tuple(call.ast for call in ours(x[: N.bind(5)], x[: other.bind(4)], x).schedule().calls))
    assert len(kernels) == 1


def test_gradients_along_the_axis() -> None:
    w, v = Tensor(X), Tensor(np.arange(65, dtype=np.float32).reshape(13, 5))
    for n in (4, 0, 12):
        part = w[: N.bind(n)]
        wanted = np.zeros_like(X)
        wanted[:n] = v.numpy()[:n]
        wanted[5] += v.numpy()[n]
        joined = (part.cat(w[5:6]).pad_to(13, 5) * v).sum().gradient(w)[0]
        np.testing.assert_array_equal(joined.numpy(), wanted)
        wanted = np.zeros_like(X)
        wanted[:n] = v.numpy()[:n][::-1]
        padded = (part.pad(((1, 2), (0, 0))).pad_to(15, 5) * v[0]).sum().gradient(w)[0]
        np.testing.assert_array_equal(padded.numpy(), np.where(np.arange(12)[:, None] < n, v.numpy()[0], 0))
        flipped = (part.flip(0).pad_to(13, 5) * v).sum().gradient(w)[0]
        np.testing.assert_array_equal(flipped.numpy(), wanted)


IMAGES = np.random.default_rng(6).standard_normal((2, 4, 24, 16)).astype(np.float32)
KERNELS = [
    # kernel, stride, padding, dilation, groups
    (3, 1, 1, 1, 1), (3, 2, 1, 1, 1), (1, 1, 0, 1, 1), (1, 2, 0, 1, 1), (5, 1, 2, 1, 4), (3, 1, 2, 2, 2),
    (2, 2, 0, 1, 1), (2, 1, 0, 1, 1), (3, 2, 1, 1, 4),
]  # fmt: skip


@pytest.mark.parametrize("numbers", KERNELS)
def test_windows_along_axes_of_unknown_size(numbers: tuple[int, ...], device: str) -> None:
    """Convolution and pooling over images of which both sizes are variables: one kernel for all values."""
    size, stride, padding, dilation, groups = numbers
    weight = np.random.default_rng(7).standard_normal((8, 4 // groups, size, size)).astype(np.float32)
    rows, columns = Variable("rows", 1, 6), Variable("columns", 1, 4)
    kernels = set()
    for r, c in ((6, 1), (1, 4), (2, 3)):
        x = Tensor(IMAGES, device=device)[:, :, : rows.bind(r) * 4, : columns.bind(c) * 4]
        t = torch.tensor(IMAGES[:, :, : r * 4, : c * 4])
        got = x.conv2d(Tensor(weight, device=device), None, groups, stride, dilation, padding)
        want = torch.nn.functional.conv2d(t, torch.tensor(weight), None, stride, padding, dilation, groups)
        if size != 2:
            got, want = got.relu().max_pool2d(2), torch.nn.functional.max_pool2d(want.relu(), 2)
        means = got.mean((2, 3))
        kernels.add(tuple(call.ast for call in got.schedule(means).calls))
        got.realize(means)
        assert got.numpy().shape == tuple(want.shape)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(means.numpy(), want.mean((2, 3)).numpy(), rtol=1e-4, atol=1e-5)
    assert len(kernels) == 1


def test_windows_that_fit_for_some_values_only() -> None:
    x = Tensor(IMAGES)[:, :, : Variable("n", 1, 24).bind(9)]
    for use in (
        lambda: x.conv2d(Tensor.ones(8, 4, 3, 1)),  # one row has no window
        lambda: x.conv2d(Tensor.ones(8, 4, 3, 1), stride=2, padding=(1, 0)),  # the number of windows is rounded
        lambda: x.max_pool2d(2),
    ):
        with pytest.raises(ShapeError, match="depends on the values"):
            use()
