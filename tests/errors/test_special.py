"""Mistakes in special functions, signal windows, random numbers and dropout."""

from __future__ import annotations

import math

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from tests.errors.table import Row, check

X = Tensor([0.5, 1.5])
I = Tensor([1, 2])
B = Tensor([True, False])
A = Tensor.zeros(2, 3)

MISTAKES: list[Row] = [
    # special functions
    (lambda: X.polygamma(-1), ArgumentError, "polygamma: n must be at least 0, got -1"),
    (lambda: X.polygamma(1.5), ArgumentError, "polygamma: n must be an integer, got 1.5"),
    (lambda: X.polygamma(X), ArgumentError, "polygamma: n must be an integer, got Tensor"),
    (lambda: X.mvlgamma(0), ArgumentError, "mvlgamma: p must be at least 1, got 0"),
    (lambda: X.zeta(Tensor.zeros(3)), ShapeError, r"zeta: shapes \(2,\) and \(3,\) do not broadcast"),
    (lambda: X.igamma(Tensor.zeros(3)), ShapeError, r"igamma: shapes \(2,\) and \(3,\) do not broadcast"),
    (lambda: X.igammac("a"), DTypeError, "str"),
    (lambda: X.xlog1py(Tensor.zeros(3)), ShapeError, "do not broadcast"),
    (lambda: X.chebyshev_polynomial_t(math.inf), ArgumentError, "chebyshev_polynomial_t: the degree n must be finite"),
    (lambda: X.legendre_polynomial_p(math.nan), ArgumentError, "legendre_polynomial_p: the degree n must be finite"),
    (lambda: X.hermite_polynomial_h(Tensor([1, 2, 3])), ShapeError, "hermite_polynomial_h: shapes .* do not broadcast"),
    (lambda: X.laguerre_polynomial_l("a"), DTypeError, "str"),
    # windows
    (lambda: Tensor.hann_window(-1), ArgumentError, "hann_window: the number of points must be at least 0, got -1"),
    (lambda: Tensor.hann_window(2.5), ArgumentError, "hann_window: the number of points must be an integer, got 2.5"),
    (lambda: Tensor.cosine_window(3, dtype="int32"), DTypeError, "cosine_window: dtypes.int32 is not a float type"),
    (lambda: Tensor.kaiser_window(3, beta=-1), ArgumentError, "kaiser_window: beta must be finite and not negative"),
    (lambda: Tensor.hamming_window(3, alpha="a"), ArgumentError, "hamming_window: alpha must be a number"),
    (
        lambda: Tensor.gaussian_window(3, std=0),
        ArgumentError,
        "gaussian_window: std must be positive and finite, got 0",
    ),
    (lambda: Tensor.exponential_window(3, tau=-1), ArgumentError, "exponential_window: tau must be positive"),
    (lambda: Tensor.exponential_window(3, center=1), ArgumentError, "symmetric window has its center in the middle"),
    (lambda: Tensor.general_cosine_window(3, a=[]), ArgumentError, "general_cosine_window: a must be a list of one"),
    (lambda: Tensor.general_cosine_window(3, a=["b"]), ArgumentError, "general_cosine_window: a must be a number"),
    (lambda: Tensor.general_hamming_window(3, alpha=None), ArgumentError, "general_hamming_window: alpha must be"),
    # random numbers
    (lambda: Tensor.randint(3, low=0, high=2**65), DTypeError, "randint: .* does not fit dtypes.int32"),
    (lambda: Tensor.randint(3, low=0.5), ArgumentError, "randint: low must be an integer, got 0.5"),
    (lambda: Tensor.randint(3, high=3000, dtype="float16"), DTypeError, "randint: .* does not fit dtypes.float16"),
    (lambda: B.randint_like(0, 2), DTypeError, "randint: .* does not fit dtypes.bool"),
    (lambda: Tensor.uniform(2, low=2, high=1), ArgumentError, r"uniform: low must not be above high, got \[2, 1\)"),
    (lambda: Tensor.uniform(2, low=-3e38, high=3e38), ArgumentError, "uniform: .* wider than the largest number"),
    (lambda: Tensor.uniform(2, low=math.nan), ArgumentError, "uniform: low must not be above high"),
    (lambda: Tensor.normal(2, std=-1), ArgumentError, "normal: std must not be negative, got -1"),
    (lambda: Tensor.normal(mean=X, std=-1.0), ArgumentError, "normal: std must not be negative"),
    (lambda: Tensor.normal(mean="a"), ArgumentError, "normal: mean must be a number"),
    (lambda: Tensor.normal(mean=X, std=Tensor.ones(3)), ShapeError, "normal: shapes .* do not broadcast"),
    (lambda: Tensor.normal(3, mean=X), ShapeError, "normal: shapes .* do not broadcast"),
    (lambda: Tensor.normal(1, mean=X), ShapeError, r"normal: mean and std of shape \(2,\) do not broadcast to shape"),
    (lambda: X.bernoulli(1.5), ArgumentError, r"bernoulli: p must lie in \[0, 1\], got 1.5"),
    (lambda: I.bernoulli(), DTypeError, "bernoulli: probabilities must be floats, these are dtypes.int32; give p"),
    (lambda: X.exponential(0), ArgumentError, "exponential: lambd must be positive, got 0"),
    (lambda: I.exponential(), DTypeError, "exponential: .* dtypes.int32 does not hold; use a float type"),
    (lambda: X.cauchy(0, -1), ArgumentError, "cauchy: sigma must be positive, got -1"),
    (lambda: I.cauchy(), DTypeError, "cauchy: .* does not hold"),
    (lambda: X.geometric(0), ArgumentError, "geometric: p must lie between 0 and 1, both excluded, got 0"),
    (lambda: X.geometric(1), ArgumentError, "geometric: p must lie between 0 and 1, both excluded, got 1"),
    (lambda: B.geometric(0.5), DTypeError, "geometric: bool does not hold"),
    (lambda: X.log_normal(0, 0), ArgumentError, "log_normal: std must be positive, got 0"),
    (lambda: I.log_normal(), DTypeError, "log_normal: .* does not hold"),
    (lambda: I.poisson(), DTypeError, "poisson: .* does not hold"),
    (lambda: I.normal_(), DTypeError, "randn: dtypes.int32 is not a float type"),
    (lambda: X.multinomial(3), ArgumentError, "multinomial: 3 different numbers of 2; draw fewer, or with replacement"),
    (lambda: X.multinomial(0), ArgumentError, "multinomial: num_samples must be at least 1, got 0"),
    (lambda: Tensor.zeros(2, 0).multinomial(), ShapeError, r"at least one weight, got shape \(2, 0\)"),
    (lambda: Tensor.randperm(-1), ArgumentError, "randperm: n must be at least 0, got -1"),
    # dropout
    (lambda: X.alpha_dropout(2), ArgumentError, r"alpha_dropout: p must lie in \[0, 1\], got 2"),
    (lambda: X.dropout1d(), ShapeError, r"dropout1d: needs 2 or 3 axes, got shape \(2,\)"),
    (lambda: A.dropout2d(), ShapeError, r"dropout2d: needs 3 or 4 axes, got shape \(2, 3\)"),
    (lambda: A.dropout3d(), ShapeError, r"dropout3d: needs 4 or 5 axes, got shape \(2, 3\)"),
    (lambda: X.feature_alpha_dropout(0.5, training=True), ShapeError, "needs axes of batch and channels"),
    (lambda: X.native_dropout_backward([True], 2.0), DTypeError, "native_dropout_backward: mask must be a Tensor"),
]


@pytest.mark.parametrize("row", MISTAKES)
def test_mistakes(row: Row) -> None:
    check(row)
