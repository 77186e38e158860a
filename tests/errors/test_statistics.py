"""Mistakes in statistics, order, sets, counting, distances and masked reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gradlet import Tensor, jit
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, JitError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
ROW = Tensor([1.0, 2.0, 3.0])
I32 = Tensor([1, 2, 3])
NONE = Tensor.zeros(2, 0)
SCALAR = Tensor(1.0)

MISTAKES: list[Row] = [
    # reductions
    (lambda: X.mean(dtype="int32"), DTypeError, "mean: the mean of .* does not fit dtypes.int32; use a float"),
    (lambda: X.nanmean(dtype="int32"), DTypeError, "nanmean: .*use a float type"),
    (lambda: X.nansum(5), IndexingError, "sum: axis 5 is out of range"),
    (lambda: X.amax(2), IndexingError, "amax: axis 2 is out of range for a tensor of 2 axes; use -2 to 1"),
    (lambda: NONE.amin(1), ShapeError, "amin: shape .*no elements"),
    (lambda: NONE.aminmax(1), ShapeError, "aminmax: shape .*no elements"),
    (lambda: NONE.max_with_indices(1), ShapeError, "max_with_indices: shape .*no elements"),
    (lambda: X.min_with_indices(7), IndexingError, "min_with_indices: axis 7"),
    (lambda: X.count_nonzero((0, 0)), ArgumentError, "count_nonzero: axis .*same axis twice"),
    (lambda: X.std(correction="a"), ArgumentError, "std: correction must be a number"),
    (lambda: X.softmin(5), IndexingError, "softmin: axis 5"),
    (lambda: X.logcumsumexp(3), IndexingError, "logcumsumexp: axis 3"),
    (lambda: X.cummax(2), IndexingError, "cummax: axis 2"),
    (lambda: X.cumsum(dtype="int3"), DTypeError, "int3"),
    # order
    (lambda: X.sort(2), IndexingError, "sort: axis 2"),
    (lambda: X.median(2), IndexingError, "median: axis 2"),
    (lambda: NONE.median(1), ShapeError, "median: shape .*no elements on axis 1"),
    (lambda: NONE.nanmedian(1), ShapeError, "nanmedian: .*no median of nothing"),
    (lambda: NONE.mode(1), ShapeError, "mode: .*nothing is most frequent"),
    (lambda: X.kthvalue(0), ArgumentError, "kthvalue: k is 0, but axis 1 has 2 elements; count from 1"),
    (lambda: X.kthvalue(3, 0), ArgumentError, "kthvalue: k is 3"),
    (lambda: X.kthvalue(1.5), ArgumentError, "kthvalue: k must be an integer, got 1.5"),
    (lambda: X.quantile(1.5), ArgumentError, r"quantile: q must lie in \[0, 1\], got 1.5"),
    (lambda: X.quantile("a"), ArgumentError, "quantile: q must be a number"),
    (lambda: X.quantile(X), ShapeError, r"quantile: q of shape \(2, 2\)"),
    (lambda: X.quantile(0.5, interpolation="cubic"), ArgumentError, "'cubic' is none of linear, lower"),
    (lambda: NONE.nanquantile(0.5, 1), ShapeError, "nanquantile: .*no quantile of nothing"),
    # running
    (lambda: SCALAR.diff(), ShapeError, "diff: a tensor without axes"),
    (lambda: X.diff(-1), ArgumentError, "diff: n must be at least 0, got -1"),
    (lambda: X.diff(prepend=1.0), DTypeError, "diff: prepend and append must be a Tensor, got float"),
    (lambda: SCALAR.trapezoid(), ShapeError, "trapezoid: a tensor without axes"),
    (lambda: X.trapezoid(ROW), ShapeError, "trapezoid: x has 3 elements, axis 1 has 2"),
    (lambda: X.cumulative_trapezoid(dx="a"), ArgumentError, "cumulative_trapezoid: dx must be a number"),
    # sets and searching
    (lambda: SCALAR.searchsorted(1.0), ShapeError, "searchsorted: a tensor without axes is no sequence"),
    (lambda: ROW.searchsorted(1.0, side="middle"), ArgumentError, "side 'middle' is not 'left' or 'right'"),
    (lambda: ROW.searchsorted(1.0, right=True, side="left"), ArgumentError, "side 'left' contradicts right=True"),
    (lambda: ROW.searchsorted(1.0, sorter=Tensor([0, 1])), ShapeError, r"sorter of shape \(2,\)"),
    (lambda: X.searchsorted(ROW), ShapeError, r"values of shape \(3,\) must have the leading axes \(2,\)"),
    (lambda: ROW.bucketize(X), ShapeError, r"bucketize: boundaries of shape \(2, 2\) must have one axis"),
    (lambda: ROW.bucketize([1.0]), DTypeError, "bucketize: boundaries must be a Tensor, got list"),
    (lambda: X.masked_select(Tensor([True, False, True])), ShapeError, r"masked_select: shapes \(2, 2\) and \(3,\)"),
    (lambda: X.masked_select(X > 1, size=-1), ArgumentError, "masked_select: size must be at least 0"),
    (lambda: X.nonzero(size=2.5), ArgumentError, "nonzero: size must be an integer, got 2.5"),
    (lambda: X.unique(dim=4), IndexingError, "unique: axis 4"),
    (lambda: NONE.unique(dim=0), ShapeError, "unique: shape .*no elements in its slices along axis 0"),
    (lambda: X.unique_consecutive(dim=4), IndexingError, "unique_consecutive: axis 4"),
    (lambda: ROW.unravel_index((2, 2)), ArgumentError, "unravel_index: needs integers, got dtypes.float32; cast it"),
    (lambda: I32.unravel_index((2, -2)), ShapeError, "unravel_index: a size may not be negative"),
    # counting
    (lambda: ROW.bincount(), DTypeError, "bincount: needs integers, got dtypes.float32; cast it, or use histc"),
    (lambda: X.cast("int32").bincount(), ShapeError, "bincount: shape .* must have one axis; flatten it"),
    (lambda: Tensor([-1, 2]).bincount(), ArgumentError, "bincount: the number -1 is negative"),
    (lambda: I32.bincount(X), ShapeError, "bincount: weights of shape"),
    (lambda: I32.bincount(minlength=-1), ArgumentError, "bincount: minlength must be at least 0"),
    (lambda: ROW.histc(0), ArgumentError, "histc: bins must be at least 1"),
    (lambda: ROW.histc(3, 2, 1), ArgumentError, "histc: min 2 and max 1 must be finite, and in this order"),
    (lambda: ROW.histc(3, 0, math.inf), ArgumentError, "histc: min 0 and max inf must be finite"),
    (lambda: ROW.histogram(0), ArgumentError, "histogram: bins must be at least 1"),
    (lambda: ROW.histogram(X), ShapeError, "histogram: edges of shape .*at least 2"),
    (lambda: ROW.histogram(3, range=(2.0, 1.0)), ArgumentError, "histogram: range .*two finite numbers in order"),
    (lambda: ROW.histogram(3, range=(1.0,)), ArgumentError, "histogram: range needs 2 numbers, got"),
    (lambda: ROW.histogram(3, weight=X), ShapeError, "histogram: weight of shape"),
    (lambda: SCALAR.histogramdd(3), ShapeError, "histogramdd: a tensor without axes has no points"),
    (lambda: X.histogramdd([2, 2, 2]), ArgumentError, "histogramdd: 3 bins for points of 2 dimensions"),
    (lambda: ROW.segment_reduce("median", lengths=I32), ArgumentError, "reduce 'median' is none of sum, mean"),
    (lambda: ROW.segment_reduce("sum"), ArgumentError, "segment_reduce: give lengths or offsets, one of them"),
    (lambda: ROW.segment_reduce("sum", lengths=X.cast("int32")), ShapeError, r"segments of shape \(2, 2\)"),
    (lambda: X.hash_tensor(3), IndexingError, "hash_tensor: axis 3"),
    # distances
    (lambda: X.cdist(X, -1.0), ArgumentError, "cdist: p must not be negative"),
    (lambda: X.cdist(X, 2.0, "fast"), ArgumentError, "cdist: compute_mode 'fast' is none of use_mm"),
    (lambda: X.cdist(Tensor.zeros(2, 3)), ShapeError, "cdist: shapes .*rows of the same length"),
    (lambda: X.cdist([1.0]), DTypeError, "cdist: other must be a Tensor, got list"),
    (lambda: ROW.pdist(), ShapeError, r"pdist: shape \(3,\) must have 2 axes"),
    (lambda: X.pdist(-2), ArgumentError, "pdist: p must not be negative"),
    (lambda: X.renorm(0, 0, 1.0), ArgumentError, "renorm: p must be positive"),
    (lambda: X.renorm(2, 0, -1.0), ArgumentError, "renorm: maxnorm must not be negative"),
    (lambda: ROW.renorm(2, 0, 1.0), ShapeError, "renorm: shape .*at least 2 axes"),
    (lambda: ROW.dist(X), ShapeError, r"add: shapes \(3,\) and \(2, 2\) do not broadcast"),
    (lambda: X.cosine_similarity(X, dim=3), IndexingError, "cosine_similarity: axis 3"),
    (lambda: X.cosine_similarity(2.0), DTypeError, "cosine_similarity: other must be a Tensor, got float"),
    (lambda: Tensor.zeros(2, 2, 2).cov(), ShapeError, "cov: shape .*more than 2 axes"),
    (lambda: X.cov(fweights=Tensor([1.0, 2.0])), DTypeError, "cov: fweights say how often, as integers"),
    (lambda: X.cov(aweights=ROW), ShapeError, r"cov: aweights of shape \(3,\) must have one axis of 2 observations"),
    # masked
    (lambda: X.masked_sum(Tensor([1, 0])), DTypeError, "masked_sum: mask must be a bool tensor, got dtypes.int32"),
    (lambda: X.masked_mean([True, False]), DTypeError, "masked_mean: mask must be a bool tensor, got list"),
    (lambda: X.masked_var(ROW > 1), ShapeError, r"masked_var: .* shape \(3,\) does not fit into shape \(2, 2\)"),
    (lambda: X.masked_norm("a"), ArgumentError, "masked_norm: ord must be a number"),
    (lambda: X.masked_median(None, 4), IndexingError, "masked_median: axis 4"),
    (lambda: X.masked_mean(X > 1, dtype="int32"), DTypeError, "masked_mean: the mean of .* does not fit dtypes.int32;"),
    (lambda: X.histogramdd(2, weight=ROW), ShapeError, r"histogramdd: weight of shape \(3,\) must have shape \(2,\)"),
    # differences
    (lambda: ROW.numerical_gradient(edge_order=3), ArgumentError, "numerical_gradient: edge_order 3 is not 1 or 2"),
    (lambda: X.numerical_gradient(spacing="a"), ArgumentError, "numerical_gradient: spacing must be a number, got 'a'"),
    (lambda: X.numerical_gradient(spacing=[1]), ArgumentError, "numerical_gradient: 1 spacings for 2 axes; give one a"),
    (
        lambda: X.numerical_gradient(edge_order=2),
        ShapeError,
        r"numerical_gradient: axis 0 of shape \(2, 2\) needs at least 3 samples for edge_order 2",
    ),
    (
        lambda: X.numerical_gradient(dim=0, spacing=[ROW]),
        ShapeError,
        r"numerical_gradient: spacing of shape \(3,\) for axis 0 of shape \(2, 2\); give a number, or 2 coordinates",
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


@pytest.mark.parametrize(
    ("name", "function", "remedy"),
    [
        ("nonzero", lambda x: x.nonzero(), "size=..."),
        ("masked_select", lambda x: x.masked_select(x > 1), "size=..."),
        ("bincount", lambda x: x.bincount(), "size=..."),
        ("unique", lambda x: x.unique(), "compute it outside"),
        ("unique_consecutive", lambda x: x.unique_consecutive(), "compute it outside"),
    ],
)
def test_a_size_that_depends_on_data_inside_a_jitted_function(
    name: str, function: Callable[[Tensor], Any], remedy: str
) -> None:
    compiled = jit(function)
    with pytest.raises(JitError, match=f"{name} inside a jitted function .*{remedy}"):
        for _ in range(3):
            compiled(Tensor([1, 2, 2]).realize())
