"""Statistics on long rows, at edges, twice differentiated, and along axes whose size is known only at launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable
from gradlet.base.dtype import dtypes
from gradlet.base.errors import ShapeError
from gradlet.ops.selection import FEW_VALUES

torch = pytest.importorskip("torch")

NAN, INF = math.nan, math.inf


def ties(size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.round(np.random.default_rng(seed).standard_normal(size) * 20).astype(np.float32)


def test_long_rows_against_numpy() -> None:
    x, edges = ties(301), np.unique(ties(90, 1))
    ours = Tensor(x)
    values, inverse, counts = ours.unique(return_inverse=True, return_counts=True)
    wanted = np.unique(x, return_inverse=True, return_counts=True)
    for mine, other in zip((values, inverse, counts), wanted, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other)
    for side in ("left", "right"):
        np.testing.assert_array_equal(
            Tensor(edges).searchsorted(ours, side=side).numpy(), np.searchsorted(edges, x, side)
        )
    np.testing.assert_array_equal(ours.isin(Tensor(edges)).numpy(), np.isin(x, edges))
    np.testing.assert_array_equal(ours.isin(Tensor(edges), invert=True).numpy(), np.isin(x, edges, invert=True))
    np.testing.assert_array_equal(ours.histogram(37)[0].numpy(), np.histogram(x, 37)[0])
    np.testing.assert_array_equal(ours.histogram(Tensor(edges))[0].numpy(), np.histogram(x, edges)[0])
    np.testing.assert_allclose(ours.quantile(0.37).item(), np.quantile(x, 0.37), rtol=1e-6)
    assert ours.median().item() == np.median(x)
    assert len(edges) > FEW_VALUES


def test_searching_for_values_that_do_not_compare() -> None:
    row, wanted = Tensor([-INF, 0.0, 1.0, INF]), Tensor([NAN, -INF, INF, -0.0])
    for right in (False, True):
        theirs = torch.searchsorted(torch.tensor(row.tolist()), torch.tensor(wanted.tolist()), right=right)
        assert row.searchsorted(wanted, right=right).tolist() == theirs.tolist()
    assert Tensor([1, 3, 5]).searchsorted(2.5).item() == 1
    assert Tensor([5, 1, 3]).searchsorted(Tensor([2]), sorter=Tensor([1, 2, 0])).tolist() == [1]
    assert row.searchsorted(wanted, out_int32=True).dtype is dtypes.int32


def test_distinct_slices_of_many_columns() -> None:
    x = np.random.default_rng(2).integers(0, 2, (20, 3)).astype(np.int32)
    slices, inverse, counts = Tensor(x).unique(dim=0, return_inverse=True, return_counts=True)
    wanted = np.unique(x, axis=0, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(slices.numpy(), wanted[0])
    np.testing.assert_array_equal(inverse.numpy(), wanted[1].reshape(-1))
    np.testing.assert_array_equal(counts.numpy(), wanted[2])


def test_bins_of_a_given_number_leave_out_what_is_outside() -> None:
    x = Tensor([-1, 0, 2, 2, 9])
    assert x.bincount(size=3).tolist() == [1, 0, 2]
    assert x.bincount(Tensor([1, 2, 3, 4, 5]), size=3).tolist() == [2.0, 0.0, 7.0]
    assert Tensor([0.5, NAN, 2.0, -INF]).histc(2, 0, 2).tolist() == [1.0, 1.0]
    assert Tensor([NAN, 0.5]).histogram(2, range=(0.0, 1.0))[0].tolist() == [0.0, 1.0]


def test_many_halves_are_counted_exactly() -> None:
    x = Tensor(np.ones(5000, np.float16))
    assert x.histc(1, 0, 2).item() == x.masked_sum().item() == 5000.0
    assert x.segment_reduce("sum", lengths=Tensor([3000, 2000])).tolist() == [3000.0, 2000.0]
    assert x.std().dtype is dtypes.float16


def test_a_hash_of_a_long_row() -> None:
    x = np.random.default_rng(3).integers(-(2**40), 2**40, (2, 3000))
    np.testing.assert_array_equal(Tensor(x).hash_tensor(1).numpy(), np.bitwise_xor.reduce(x, 1).astype(np.uint64))
    assert Tensor([1.5]).hash_tensor().item() == np.float64(1.5).view(np.uint64)


def test_negative_weights_mean_nothing() -> None:
    x = Tensor([[1.0, 2.0, 4.0], [0.0, 5.0, 1.0]])
    assert all(math.isnan(v) for v in x.cov(aweights=Tensor([1.0, -1.0, 1.0])).flatten().tolist())
    assert all(math.isnan(v) for v in x.cov(fweights=Tensor([1, -1, 1])).flatten().tolist())


def test_fractions_that_are_known_late() -> None:
    x = Tensor([1.0, 2.0, 3.0])
    q = Tensor([0.5, 1.5, -0.5])
    found = x.quantile(q).tolist()
    assert found[0] == 2.0 and math.isnan(found[1]) and math.isnan(found[2])


TWICE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "std": (lambda x: x.std(1), lambda x: x.std(1)),
    "var": (lambda x: x.var(0, correction=0), lambda x: x.var(0, correction=0)),
    "logsumexp": (lambda x: x.logsumexp(1), lambda x: x.logsumexp(1)),
    "log_softmax": (lambda x: x.log_softmax(1), lambda x: x.log_softmax(1)),
    "normalize": (lambda x: x.normalize(3.0), lambda x: torch.nn.functional.normalize(x, 3.0)),
    "prod": (lambda x: x.prod(1), lambda x: x.prod(1)),
    "corrcoef": (lambda x: x.corrcoef(), torch.corrcoef),
    "dist": (lambda x: x.dist(0.5), lambda x: torch.dist(x, torch.tensor(0.5))),
    "trapezoid": (lambda x: (x * x).trapezoid(), lambda x: torch.trapezoid(x * x)),
    "quantile": (lambda x: (x * x).quantile(0.3, 1), lambda x: torch.quantile(x * x, 0.3, 1)),
    "cummax": (lambda x: (x * x).cummax(1)[0], lambda x: torch.cummax(x * x, 1).values),
    "masked_std": (lambda x: x.masked_std(Tensor([[True, False, True, True]]), 1),
                   lambda x: x[:, [0, 2, 3]].std(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_second_gradients(name: str) -> None:
    ours, theirs = TWICE[name]
    x = np.random.default_rng(4).standard_normal((3, 4)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    value = theirs(leaf)
    weight = np.random.default_rng(5).standard_normal(tuple(value.shape)).astype(np.float32)
    (first,) = torch.autograd.grad((value * torch.tensor(weight)).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), leaf)
    tensor = Tensor(x)
    (mine,) = (ours(tensor) * Tensor(weight)).sum().gradient(tensor)
    (again,) = (mine * mine).sum().gradient(tensor)
    mine.realize(again)
    np.testing.assert_allclose(mine.numpy(), first.detach().numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(again.numpy(), second.numpy(), rtol=5e-3, atol=1e-3)


KNOWN_AT_LAUNCH: dict[str, Callable[[Tensor], Tensor]] = {
    "std": lambda x: x.std(),
    "nanmean": lambda x: x.nanmean(),
    "count_nonzero": lambda x: (x > 2).count_nonzero(),
    "cummax": lambda x: x.cummax()[1].sum(),
    "max_with_indices": lambda x: x.max_with_indices(0)[1],
    "masked_var": lambda x: x.masked_var(x > 1),
    "bincount": lambda x: x.cast("int32").bincount(size=6),
    "bucketize": lambda x: x.bucketize(Tensor([1.0, 2.0])).sum(),
}


@pytest.mark.parametrize("name", KNOWN_AT_LAUNCH)
def test_axes_whose_size_is_known_at_launch(name: str) -> None:
    full = Tensor([3.0, 1.0, 2.0, 5.0, 4.0, 9.0, 9.0]).realize()
    n = Variable("n", 2, 7)
    for size in (3, 5):
        got = KNOWN_AT_LAUNCH[name](full[: n.bind(size)]).numpy()
        np.testing.assert_allclose(got, KNOWN_AT_LAUNCH[name](full[:size]).numpy(), rtol=1e-6)


@pytest.mark.parametrize("method", ["median", "mode", "unique", "diff", "trapezoid", "pdist"])
def test_what_needs_a_fixed_size_says_so(method: str) -> None:
    row = Tensor.zeros(8)[: Variable("n", 2, 8).bind(4)]
    with pytest.raises(ShapeError, match="known only at launch|depends on the values|is no size"):
        getattr(row.reshape(-1, 1) if method == "pdist" else row, method)()
