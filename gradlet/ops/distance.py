"""Composed mixin: how vectors differ and vary together: distances, similarity, normalisation, covariance."""

from __future__ import annotations

import math
from typing import Any, Final, Self

from gradlet.base.dtype import DType, accumulator, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import axis_number, broadcast_shapes, integer, number
from gradlet.ops.linalg import LinalgMixin
from gradlet.ops.movement import operand
from gradlet.ops.reduce import Axis

# From so many rows on either side Euclidean distances come from a matrix product.
MANY_ROWS: Final = 25
COMPUTE_MODES: Final = {
    "use_mm_for_euclid_dist_if_necessary": MANY_ROWS, "use_mm_for_euclid_dist": 0, "donot_use_mm_for_euclid_dist": None,
}  # fmt: skip


class DistanceMixin(LinalgMixin):
    """Distances. Gradients are 0 where a distance is 0, as in torch."""

    __slots__ = ()

    def _p_norm(self, p: float, axis: Axis, keepdim: bool, what: str) -> Self:
        """`sum(|self|**p) ** (1 / p)` of floats over `axis`, in the type that sums are carried in.

        Infinite p is the largest (-inf: the smallest) absolute value, 0 counts what is not zero. The gradient is 0
        where an element is 0, and where the norm is.
        """
        wide = self.cast(accumulator(self.dtype))
        size = wide.abs()
        if p == 0:
            return wide.detach().ne(0.0).cast(wide.dtype).sum(axis, keepdim)
        if 0 in self.shape and p > 0:
            return size.sum(axis, keepdim)
        if math.isinf(p):
            return size.max(axis, keepdim) if p > 0 else size.min(axis, keepdim)
        if p == 1:
            return size.sum(axis, keepdim)
        if p == 2:
            return wide.mul(wide).sum(axis, keepdim)._flat_root()
        zero = size.detach().eq(0.0)
        powers = zero.where(0.0 if p > 0 else math.inf, zero.where(1.0, size).pow(p))
        total = powers.sum(axis, keepdim)
        none = total.detach().eq(0.0)
        return none.where(0.0 if p > 0 else math.inf, none.where(1.0, total).pow(1.0 / p))

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """Divide by the p-norm along `dim`, or by `eps` where that is larger: `self / max(norm, eps)`.

        Args:
            p: any number; infinity for the largest absolute value.

        Raises:
            ArgumentError: p is no number.
            IndexingError: no such axis.

        >>> Tensor([[3.0, 4.0]]).normalize().tolist()
        [[0.6000000238418579, 0.800000011920929]]
        """
        x = self.same_float("normalize")
        axis = axis_number(dim, self.ndim, "normalize")
        norm = x._p_norm(number(p, "normalize", "p"), axis, True, "normalize")
        return x.cast(norm.dtype).fdiv(norm.maximum(number(eps, "normalize", "eps"))).cast(x.dtype)

    def dist(self, other: Any, p: float = 2.0) -> Self:
        """The p-norm of all elements of the difference: `sum(|self - other|**p) ** (1 / p)`; the two broadcast.

        >>> Tensor([0.0, 0.0]).dist(Tensor([3.0, 4.0])).item()
        5.0
        """
        gap = self.sub(other).same_float("dist")
        return gap._p_norm(number(p, "dist", "p"), None, False, "dist").cast(gap.dtype)

    def pairwise_distance(self, other: Self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Self:
        """The p-norm along the last axis of `self - other + eps`; the two broadcast.

        Raises:
            ShapeError: shapes that do not broadcast.

        >>> Tensor([[0.0, 0.0]]).pairwise_distance(Tensor([[3.0, 4.0]]), eps=0.0).tolist()
        [5.0]
        """
        gap = self.sub(operand(other, "pairwise_distance", "other")).same_float("pairwise_distance")
        gap = gap.add(number(eps, "pairwise_distance", "eps"))
        norm = gap._p_norm(number(p, "pairwise_distance", "p"), -1, keepdim, "pairwise_distance")
        return norm.cast(gap.dtype)

    def cosine_similarity(self, other: Self, dim: int = 1, eps: float = 1e-8) -> Self:
        """The cosine of the angle between vectors along `dim`: `sum(x y) / (max(|x|, eps) max(|y|, eps))`.

        The two broadcast, and `dim` is an axis of the result of that.

        Raises:
            ShapeError: shapes that do not broadcast.
            IndexingError: no such axis.

        >>> Tensor([[1.0, 0.0]]).cosine_similarity(Tensor([[1.0, 1.0]])).tolist()
        [0.7071067690849304]
        """
        what = "cosine_similarity"
        x, y = self.same_dtype((operand(other, what, "other"),))
        x, y = x.same_float(what), y.same_float(what)
        shape = broadcast_shapes((x.shape, y.shape), what)
        axis = axis_number(dim, len(shape), what)
        own, smallest = x.dtype, number(eps, what, "eps")
        x, y = x.cast(accumulator(own)).expand(shape), y.cast(accumulator(own)).expand(shape)
        sizes = [v._p_norm(2, axis, False, what).maximum(smallest) for v in (x, y)]
        return x.mul(y).sum(axis).fdiv(sizes[0].mul(sizes[1])).cast(own)

    def cdist(self, other: Self, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Self:
        """The distance of every row of this to every row of `other`: `result[i, j] = |self[i] - other[j]|` in p-norm.

        Args:
            other: [*, R, M] for this [*, P, M]; the leading axes broadcast. The result is [*, P, R].
            p: not negative.
            compute_mode: whether Euclidean distances come from a matrix product, as
                `sqrt(|x|**2 + |y|**2 - 2 x.y)`: faster, and less exact for rows that are close. By default from
                more than 25 rows on.

        Raises:
            ShapeError: shapes that do not fit.
            ArgumentError: a negative p, or another mode.

        >>> Tensor([[0.0, 0.0]]).cdist(Tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]
        """
        p = number(p, "cdist", "p")
        if not p >= 0:
            raise ArgumentError(f"cdist: p must not be negative, got {p}")
        if not isinstance(compute_mode, str) or compute_mode not in COMPUTE_MODES:
            raise ArgumentError(f"cdist: compute_mode {compute_mode!r} is none of {', '.join(COMPUTE_MODES)}")
        x, y = self.same_dtype((operand(other, "cdist", "other"),))
        x, y = x.same_float("cdist"), y.same_float("cdist")
        if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
            raise ShapeError(
                f"cdist: shapes {x.shape} and {y.shape} need at least 2 axes and rows of the same length (last axis)"
            )
        lead = broadcast_shapes((x.shape[:-2], y.shape[:-2]), "cdist")
        x, y = x.expand(*lead, *x.shape[-2:]), y.expand(*lead, *y.shape[-2:])
        threshold = COMPUTE_MODES[compute_mode]
        if p == 2 and threshold is not None and max(x.shape[-2], y.shape[-2]) > threshold and 0 not in x.shape:
            return x._euclidean_by_product(y)
        gap = x.unsqueeze(-2).sub(y.unsqueeze(-3))
        return gap._p_norm(p, -1, False, "cdist").cast(x.dtype)

    def _euclidean_by_product(self, other: Self) -> Self:
        x, y = self.cast(accumulator(self.dtype)), other.cast(accumulator(self.dtype))
        squares = x.mul(x).sum(-1, True).add(y.mul(y).sum(-1, True).transpose(-1, -2))
        total = squares.sub(x.matmul(y.transpose(-1, -2)).mul(2.0))
        return total.maximum(0.0)._flat_root().cast(self.dtype)

    def pdist(self, p: float = 2.0) -> Self:
        """The distance in p-norm of every two different rows: of 0 and 1, 0 and 2, ... 1 and 2, ... as one axis.

        Raises:
            ShapeError: not two axes.
            ArgumentError: a negative p.

        >>> Tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]).pdist().tolist()
        [5.0, 1.0, 4.242640495300293]
        """
        p = number(p, "pdist", "p")
        if not p >= 0:
            raise ArgumentError(f"pdist: p must not be negative, got {p}")
        x = self.same_float("pdist")
        if x.ndim != 2:
            raise ShapeError(f"pdist: shape {x.shape} must have 2 axes, rows and their elements")
        count = x.shape[0]
        pairs = count * (count - 1) // 2
        if pairs == 0:
            return x.constant_like(0.0, (0,))
        first, second = x._pairs_of_rows(count)
        gap = x.gather_rows(first).sub(x.gather_rows(second))
        return gap._p_norm(p, -1, False, "pdist").cast(x.dtype)

    def _pairs_of_rows(self, count: int) -> tuple[Self, Self]:
        """The first and the second row of every pair, in order.

        The pairs of row i begin at i * (2 * count - 1 - i) / 2; the root of that in floats may be off by one.
        """

        def begin(row: Self) -> Self:
            return row.mul(row.mul(-1).add(2 * count - 1)).rshift(1)

        pair = self.positions(count * (count - 1) // 2, self.place).cast(dtypes.int64)
        middle = count - 0.5
        root = pair.cast(dtypes.float64).mul(-2.0).add(middle * middle).maximum(0.0).sqrt()
        first = root.mul(-1.0).add(middle).cast(dtypes.int64)
        first = first.sub(pair.lt(begin(first)).cast(dtypes.int64))
        first = first.add(pair.lt(begin(first.add(1))).logical_not().cast(dtypes.int64))
        return first, pair.sub(begin(first)).add(first).add(1)

    def renorm(self, p: float, dim: int, maxnorm: float) -> Self:
        """Slices along `dim` whose p-norm is above `maxnorm` scaled down to it.

        Args:
            p: positive.
            maxnorm: not negative.

        Raises:
            ArgumentError: p or maxnorm outside of that.
            ShapeError: fewer than two axes.

        >>> Tensor([[3.0, 4.0], [0.3, 0.4]]).renorm(2, 0, 1.0).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645]]
        """
        p, limit = number(p, "renorm", "p"), number(maxnorm, "renorm", "maxnorm")
        if not p > 0:
            raise ArgumentError(f"renorm: p must be positive, got {p}")
        if not limit >= 0:
            raise ArgumentError(f"renorm: maxnorm must not be negative, got {limit}")
        x = self.same_float("renorm")
        if x.ndim < 2:
            raise ShapeError(f"renorm: shape {x.shape} has no slices; give it at least 2 axes")
        axis = axis_number(dim, x.ndim, "renorm")
        norm = x._p_norm(p, [a for a in range(x.ndim) if a != axis], True, "renorm")
        above = norm.gt(limit)
        factor = above.where(above.where(norm, 1.0).add(1e-7).reciprocal().mul(limit), 1.0)
        return x.cast(factor.dtype).mul(factor).cast(x.dtype)

    def cov(self, correction: int = 1, fweights: Self | None = None, aweights: Self | None = None) -> Self:
        """Covariance of variables (rows) over observations (columns).

        `result[i, j] = sum_k w[k] (self[i, k] - m[i]) (self[j, k] - m[j]) / d` with the weighted means `m`, where
        `d = W - correction * sum_k(w[k] * aweights[k]) / W`, `w = fweights * aweights` and `W = sum(w)`; `d` is at
        least 0. Weights that are not given are 1.

        Args:
            fweights: how often each observation counts, integers.
            aweights: the weight of each observation. Where a weight is negative, all is NaN.

        Returns:
            A matrix; for one variable a tensor without axes.

        Raises:
            ShapeError: more than two axes, or weights that do not fit.
            DTypeError: `fweights` are not integers.

        >>> Tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).cov().tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
        """
        x = self.same_float("cov")
        if x.ndim > 2:
            raise ShapeError(
                f"cov: shape {x.shape} has more than 2 axes; give variables as rows, observations as columns"
            )
        own = x.dtype if aweights is None else x.same_dtype((operand(aweights, "cov", "aweights"),))[0].dtype
        x = x.cast(accumulator(own))
        rows = x if x.ndim == 2 else x.reshape(1, -1)
        count = rows.shape[1]
        correction = integer(correction, "cov", "correction")
        weights = self._observation_weights(fweights, aweights, count, x.dtype)
        if weights is None:
            divisor: Any = float(max(0, count - correction))
            gap = rows.sub(rows.mean(1, True))
            scaled = gap
        else:
            total = weights.sum()
            lost: Any = correction
            if aweights is not None and correction:
                lost = weights.mul(aweights).sum().fdiv(total).mul(correction)
            # A negative weight means nothing, and known are the weights only when the kernel runs.
            divisor = weights.lt(0.0).any().where(math.nan, total.sub(lost).maximum(0.0))
            gap = rows.sub(rows.mul(weights).sum(1, True).fdiv(total))
            scaled = gap.mul(weights)
        result = scaled.matmul(gap.transpose(0, 1)).fdiv(divisor).cast(own)
        return result if rows.shape[0] > 1 else result.reshape(())

    def _observation_weights(
        self, fweights: Self | None, aweights: Self | None, count: int, dtype: DType
    ) -> Self | None:
        """The product of both weights of `cov`, or None."""
        result: Self | None = None
        for name, weights in (("fweights", fweights), ("aweights", aweights)):
            if weights is None:
                continue
            weights = operand(weights, "cov", name)
            if weights.shape != (count,):
                raise ShapeError(f"cov: {name} of shape {weights.shape} must have one axis of {count} observations")
            if name == "fweights" and not weights.dtype.is_int:
                raise DTypeError(f"cov: fweights say how often, as integers, got {weights.dtype}; use aweights")
            result = weights.cast(dtype) if result is None else result.mul(weights)
        return result

    def corrcoef(self) -> Self:
        """Correlation of variables (rows) over observations (columns): `cov[i, j] / sqrt(cov[i, i] * cov[j, j])`.

        Values lie in [-1, 1]; NaN for a variable that does not vary.

        Raises:
            ShapeError: more than two axes.

        >>> Tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).corrcoef().tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
        """
        covariance = self.cov()
        if covariance.ndim == 0:
            return covariance.fdiv(covariance)
        spread = covariance.diagonal().sqrt()
        return covariance.fdiv(spread.unsqueeze(1)).fdiv(spread.unsqueeze(0)).clamp(-1.0, 1.0)
