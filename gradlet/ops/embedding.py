"""Composed mixin: rows of a table by number: embedding, and sums, means and maxima of bags of them."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import axis_number, number
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.stats import StatsMixin

BAG_MODES = ("sum", "mean", "max")


class EmbeddingMixin(StatsMixin):
    """Looking up rows."""

    __slots__ = ()

    def embedding(
        self, weight: Self, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
    ) -> Self:  # fmt: skip
        """Rows of a table by the numbers this holds: `result[...] = weight[self[...]]`; zeros for numbers outside.

        Args:
            weight: `[rows, features]`.
            padding_idx: the row that gets no gradient.
            max_norm: rows of a larger norm are scaled down to it (in the result, and `weight` stays as it is; the
                gradient is that of the scaled row, as torch has it).
            norm_type: p of that norm.
            scale_grad_by_freq: divide the gradient of a row by how often it occurs.

        Returns:
            `[..., features]`.

        Raises:
            DTypeError: this does not hold integers.
            ShapeError: a table without two axes.

        >>> Tensor([2, 0]).embedding(Tensor([[1.0], [2.0], [3.0]])).tolist()
        [[3.0], [1.0]]
        """
        padding = self._checked_rows("embedding", weight, padding_idx)
        rows = weight.gather_rows(self)
        return self._adjusted(rows, weight.shape[0], padding, max_norm, norm_type, scale_grad_by_freq, "embedding")

    def _checked_rows(self, what: str, weight: Self, padding_idx: int | None) -> int | None:
        """The number of the padding row, counted from 0."""
        if not self.dtype.is_int:
            raise DTypeError(f"{what}: row numbers must be integers, got {self.dtype}; cast them")
        if operand(weight, what, "weight").ndim != 2:
            raise ShapeError(f"{what}: weight of shape {weight.shape} must be [rows, features]")
        return None if padding_idx is None else axis_number(padding_idx, weight.shape[0], f"{what}: padding_idx")

    def _adjusted(
        self, rows: Self, count: int, padding: int | None, max_norm: float | None, norm_type: float,
        by_frequency: bool, what: str,
    ) -> Self:  # fmt: skip
        """Rows cut to a norm, and what of their gradients goes back."""
        if max_norm is not None:
            limit, p = number(max_norm, what, "max_norm"), number(norm_type, what, "norm_type")
            size = rows.detach().cast(accumulator(rows.dtype)).abs()
            norm = size.max(-1, True) if p == math.inf else size.pow(p).sum(-1, True).pow(1 / p)
            factor = norm.gt(limit).where(norm.add(1e-7).reciprocal().mul(limit), 1.0).cast(rows.dtype)
            plain = rows.detach()
            rows = rows.add(plain.mul(factor).sub(plain)) if rows.dtype.itemsize > 2 else rows.mul(factor)
        if padding is not None:
            rows = self.eq(padding).unsqueeze(-1).where(rows.detach(), rows)
        if by_frequency:
            numbers = self.flatten()
            total = numbers.constant_like(0, (count,), dtypes.int32)
            total = total.scatter_rows(numbers, numbers.constant_like(1, dtype=dtypes.int32), Op.ADD)
            share = total.gather_rows(self).maximum(1).cast(rows.dtype).reciprocal().unsqueeze(-1)
            gap = rows.sub(rows.detach())  # zero, with the gradient of the rows
            rows = rows.detach().add(rows.detach().isfinite().where(gap, 0.0).mul(share))
        return rows

    def embedding_bag(
        self, weight: Self, offsets: Self | None = None, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", per_sample_weights: Self | None = None,
        include_last_offset: bool = False, padding_idx: int | None = None,
    ) -> Self:  # fmt: skip
        """Sums, means or maxima of bags of rows of a table; zeros for an empty bag.

        Args:
            weight: `[rows, features]`.
            offsets: where in this vector of row numbers each bag begins, ascending; None when this is a matrix, whose
                rows are bags.
            max_norm, norm_type, scale_grad_by_freq: as `embedding` has them.
            mode: "sum", "mean" or "max".
            per_sample_weights: factors of the rows, shaped like this ("sum" only).
            include_last_offset: `offsets` has one more entry, where the last bag ends.
            padding_idx: row that is no part of any bag.

        Returns:
            `[bags, features]`.

        Raises:
            ShapeError: shapes that do not fit.
            DTypeError: row numbers that are not integers.
            ArgumentError: another mode, or factors without "sum".

        >>> table = Tensor([[1.0], [2.0], [5.0]])
        >>> Tensor([0, 1, 2]).embedding_bag(table, Tensor([0, 2]), mode="sum").tolist()
        [[3.0], [5.0]]
        """
        what = "embedding_bag"
        padding = self._checked_rows(what, weight, padding_idx)
        if mode not in BAG_MODES:
            raise ArgumentError(f"{what}: mode {mode!r} is not one of {', '.join(BAG_MODES)}")
        if per_sample_weights is not None and mode != "sum":
            raise ArgumentError(f"{what}: per_sample_weights go with mode 'sum', not {mode!r}")
        if per_sample_weights is not None and operand(per_sample_weights, what, "factors").shape != self.shape:
            raise ShapeError(
                f"{what}: per_sample_weights of shape {per_sample_weights.shape} must have shape {self.shape}"
            )
        if self.ndim == 2 and offsets is not None:
            raise ShapeError(f"{what}: a matrix {self.shape} of row numbers has its bags as rows; leave out offsets")
        if self.ndim not in (1, 2) or (self.ndim == 1 and (offsets is None or offsets.ndim != 1)):
            raise ShapeError(f"{what}: row numbers {self.shape} must be a vector, with offsets a vector, or a matrix")
        rows = weight.gather_rows(self)
        rows = self._adjusted(rows, weight.shape[0], padding, max_norm, norm_type, scale_grad_by_freq, what)
        wide = rows.cast(accumulator(rows.dtype))
        if per_sample_weights is not None:
            wide = wide.mul(per_sample_weights.unsqueeze(-1))
        counts = self.constant_like(True, dtype=dtypes.bool) if padding is None else self.ne(padding)
        if self.ndim == 2:
            return self._bag_rows(wide, counts, mode).cast(weight.dtype)
        assert offsets is not None
        bags = offsets.shape[0] - (1 if include_last_offset else 0)
        if bags < 0 or not offsets.dtype.is_int:
            raise ShapeError(
                f"{what}: offsets of shape {offsets.shape} and type {offsets.dtype} must be integers, one a bag (and "
                "the end, with include_last_offset)"
            )
        if bags == 0 or 0 in self.shape:
            return weight.constant_like(0, (bags, weight.shape[1]))
        return self._bags_at(wide, counts, offsets, bags, mode).cast(weight.dtype)

    def _bag_rows(self, wide: Self, counts: Self, mode: str) -> Self:
        """Bags that are the rows of a matrix."""
        if 0 in self.shape:
            return wide.constant_like(0, (self.shape[0], wide.shape[-1]))
        if mode == "max":
            top = counts.unsqueeze(-1).where(wide, -math.inf).max(1)
            return counts.any(1).unsqueeze(-1).where(top, 0.0)
        total = counts.unsqueeze(-1).where(wide, 0.0).sum(1)
        if mode == "sum":
            return total
        return total.fdiv(counts.cast(wide.dtype).sum(1).maximum(1.0).unsqueeze(-1))

    def _bags_at(self, wide: Self, counts: Self, offsets: Self, bags: int, mode: str) -> Self:
        """The first `bags` bags: element `i` is in the bag of the last of the ascending offsets that is at most `i`."""
        length = self.shape[0]
        ones = offsets.constant_like(1, dtype=dtypes.int32)
        begins = ones.constant_like(0, (length,)).scatter_rows(offsets, ones, Op.ADD)
        bag = begins.running(Op.ADD, 0).sub(1)
        bag = counts.where(bag, -1)
        start: Any = -math.inf if mode == "max" else 0.0
        total = wide.constant_like(start, (bags, wide.shape[-1]))
        total = total.scatter_rows(bag, wide, Op.MAX if mode == "max" else Op.ADD)
        if mode == "sum":
            return total
        number_of = ones.constant_like(0, (bags,)).scatter_rows(bag, bag.constant_like(1, dtype=dtypes.int32), Op.ADD)
        if mode == "max":
            return number_of.gt(0).unsqueeze(-1).where(total, 0.0)
        return total.fdiv(number_of.maximum(1).cast(wide.dtype).unsqueeze(-1))
