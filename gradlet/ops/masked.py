"""Composed mixin: reductions that leave out what a mask does not select."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.dtype import DType, accumulator
from gradlet.base.errors import DTypeError
from gradlet.ops.arguments import axis_number, number
from gradlet.ops.counting import CountingMixin
from gradlet.ops.distance import DistanceMixin
from gradlet.ops.op import Op, identity_element
from gradlet.ops.reduce import Axis, total_type


class MaskedMixin(CountingMixin, DistanceMixin):
    """Masked reductions. A mask is True where an element counts; it broadcasts to this, and None selects everything.

    What is left out gets no gradient, and its value does not matter, NaN or not.
    """

    __slots__ = ()

    def _selected(self, mask: Any, otherwise: Any, what: str) -> Self:
        """This with another value where the mask is False."""
        return self if mask is None else self._mask(mask, what).where(self, otherwise)

    def _mask(self, mask: Any, what: str) -> Self:
        """The mask in the shape of this."""
        if not isinstance(mask, MaskedMixin) or not mask.dtype.is_bool:
            kind = getattr(mask, "dtype", type(mask).__name__)
            raise DTypeError(f"{what}: mask must be a bool tensor, got {kind}; compare, or cast it to bool")
        given: Any = mask
        chosen: Self = given if given.shape == self.shape else given.broadcast_into(self.shape, what)
        return chosen

    def masked_sum(
        self, mask: Any = None, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """Sum over `axis` of what the mask selects; 0 where it selects nothing.

        >>> Tensor([1, 2, 3]).masked_sum(Tensor([True, False, True])).item()
        4
        """
        return self._selected(mask, 0, "masked_sum").sum(axis, keepdim, dtype)

    def masked_prod(
        self, mask: Any = None, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """Product over `axis` of what the mask selects; 1 where it selects nothing.

        >>> Tensor([1, 2, 3]).masked_prod(Tensor([True, False, True])).item()
        3
        """
        return self._selected(mask, 1, "masked_prod").prod(axis, keepdim, dtype)

    def masked_amax(self, mask: Any = None, axis: Axis = None, keepdim: bool = False) -> Self:
        """Largest element over `axis` that the mask selects; -inf (the least of an integer type) where it is none.

        >>> Tensor([1, 2, 3]).masked_amax(Tensor([True, True, False])).item()
        2
        """
        return self._selected(mask, _least(self.dtype), "masked_amax").amax(axis, keepdim)

    def masked_amin(self, mask: Any = None, axis: Axis = None, keepdim: bool = False) -> Self:
        """Smallest element over `axis` that the mask selects; inf (the largest of an integer type) where it is none.

        >>> Tensor([1, 2, 3]).masked_amin(Tensor([False, True, True])).item()
        2
        """
        return self._selected(mask, _greatest(self.dtype), "masked_amin").amin(axis, keepdim)

    def masked_argmax(self, mask: Any = None, axis: int | None = None, keepdim: bool = False) -> Self:
        """Where the largest element is that the mask selects, the first of ties; 0 where it selects nothing.

        >>> Tensor([1, 2, 3]).masked_argmax(Tensor([True, True, False])).item()
        1
        """
        return self._selected(mask, _least(self.dtype), "masked_argmax").argmax(axis, keepdim)

    def masked_argmin(self, mask: Any = None, axis: int | None = None, keepdim: bool = False) -> Self:
        """Where the smallest element is that the mask selects, the first of ties; 0 where it selects nothing.

        >>> Tensor([1, 2, 3]).masked_argmin(Tensor([False, True, True])).item()
        1
        """
        return self._selected(mask, _greatest(self.dtype), "masked_argmin").argmin(axis, keepdim)

    def _selected_count(self, mask: Any, axis: Axis, keepdim: bool, dtype: DType, what: str) -> Self:
        """How many elements over `axis` the mask selects."""
        one = self.constant_like(1, dtype=dtype) if mask is None else self._mask(mask, what).cast(dtype)
        return one.reduce_over(Op.ADD, axis, keepdim, what)

    def masked_mean(
        self, mask: Any = None, axis: Axis = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Self:
        """Average over `axis` of what the mask selects: `masked_sum / count`; NaN where it selects nothing.

        >>> Tensor([1.0, 2.0, 5.0]).masked_mean(Tensor([True, False, True])).item()
        3.0
        """
        if mask is None:
            return self.mean(axis, keepdim, dtype)
        result = total_type(self.same_float("masked_mean").dtype, dtype)
        if not result.is_float:
            raise DTypeError(f"masked_mean: the mean of {self.dtype} does not fit {result}; use a float type")
        wide = accumulator(result)
        total = self._selected(mask, 0, "masked_mean").cast(wide).reduce_over(Op.ADD, axis, keepdim, "masked_mean")
        return total.fdiv(self._selected_count(mask, axis, keepdim, wide, "masked_mean")).cast(result)

    def masked_median(self, mask: Any = None, dim: int = -1, keepdim: bool = False) -> Self:
        """Median along `dim` of what the mask selects and is not NaN; NaN where that is nothing. See `nanmedian`.

        >>> Tensor([1.0, 2.0, 5.0]).masked_median(Tensor([True, False, True])).item()
        1.0
        """
        x = self.same_float("masked_median")
        axis = axis_number(dim, x.ndim, "masked_median")
        selected = x._selected(mask, math.nan, "masked_median")
        result: Self = selected.nanmedian(axis, keepdim)[0]
        return result

    def masked_norm(
        self, ord: float = 2.0, mask: Any = None, axis: Axis = None, keepdim: bool = False,
        dtype: DType | str | None = None,
    ) -> Self:  # fmt: skip
        """The p-norm over `axis` of what the mask selects: `sum(|x|**ord) ** (1 / ord)`, ord also 0 or infinite.

        >>> Tensor([3.0, 9.0, 4.0]).masked_norm(2.0, Tensor([True, False, True])).item()
        5.0
        """
        x = self.same_float("masked_norm") if dtype is None else self.cast(dtype)
        p = number(ord, "masked_norm", "ord")
        selected = x._selected(mask, 0.0 if p >= 0 else math.inf, "masked_norm")
        return selected._p_norm(p, axis, keepdim, "masked_norm").cast(x.dtype)

    def masked_var(
        self, mask: Any = None, axis: Axis = None, keepdim: bool = False, correction: float | None = 1
    ) -> Self:
        """Variance over `axis` of what the mask selects; the divisor is its number minus `correction`, at least 0.

        >>> Tensor([1.0, 9.0, 3.0]).masked_var(Tensor([True, False, True])).item()
        2.0
        """
        x = self.same_float("masked_var")
        return x._masked_variance(mask, axis, keepdim, correction, "masked_var").cast(x.dtype)

    def masked_std(
        self, mask: Any = None, axis: Axis = None, keepdim: bool = False, correction: float | None = 1
    ) -> Self:
        """Standard deviation over `axis` of what the mask selects; see `masked_var`.

        >>> Tensor([1.0, 9.0, 5.0]).masked_std(Tensor([True, False, True]), correction=0).item()
        2.0
        """
        x = self.same_float("masked_std")
        return x._masked_variance(mask, axis, keepdim, correction, "masked_std")._flat_root().cast(x.dtype)

    def _masked_variance(self, mask: Any, axis: Axis, keepdim: bool, correction: float | None, what: str) -> Self:
        """The variance of floats, in the type that sums are carried in."""
        if mask is None:
            return self._variance(axis, keepdim, correction, what)
        wide = self.cast(accumulator(self.dtype))
        chosen = self._mask(mask, what)
        count = chosen.cast(wide.dtype).reduce_over(Op.ADD, axis, True, what)
        mean = chosen.where(wide, 0.0).reduce_over(Op.ADD, axis, True, what).fdiv(count.maximum(1.0))
        gap = chosen.where(wide, mean).sub(mean)
        total = gap.mul(gap).reduce_over(Op.ADD, axis, keepdim, what)
        divisor = count.sub(1 if correction is None else number(correction, what, "correction")).maximum(0.0)
        return total.fdiv(divisor.reshape(total.shape))

    # along an axis
    def masked_cumsum(self, mask: Any = None, axis: int = 0, dtype: DType | str | None = None) -> Self:
        """Running sum along `axis` of what the mask selects.

        >>> Tensor([1, 2, 3]).masked_cumsum(Tensor([True, False, True])).tolist()
        [1, 1, 4]
        """
        return self._selected(mask, 0, "masked_cumsum").cumsum(axis, dtype)

    def masked_cumprod(self, mask: Any = None, axis: int = 0, dtype: DType | str | None = None) -> Self:
        """Running product along `axis` of what the mask selects.

        >>> Tensor([1, 2, 3]).masked_cumprod(Tensor([True, False, True])).tolist()
        [1, 1, 3]
        """
        return self._selected(mask, 1, "masked_cumprod").cumprod(axis, dtype)

    def masked_logsumexp(self, mask: Any = None, axis: Axis = None, keepdim: bool = False) -> Self:
        """`log(sum(exp(self)))` over `axis` of what the mask selects; -inf where it selects nothing.

        >>> Tensor([0.0, 9.0, 0.0]).masked_logsumexp(Tensor([True, False, True])).exp().item()
        2.0
        """
        x = self.same_float("masked_logsumexp")
        return x._selected(mask, -math.inf, "masked_logsumexp").logsumexp(axis, keepdim)

    def masked_logaddexp(self, other: Any, input_mask: Any = None, other_mask: Any = None) -> Self:
        """`log(exp(self) + exp(other))`, where only what the masks select counts.

        >>> Tensor([1.0, 2.0]).masked_logaddexp(Tensor([5.0, 5.0]), None, Tensor([False, False])).tolist()
        [1.0, 2.0]
        """
        x = self.same_float("masked_logaddexp")
        y = x.coerce(other).same_float("masked_logaddexp")
        x = x._selected(input_mask, -math.inf, "masked_logaddexp")
        return x.logaddexp(y._selected(other_mask, -math.inf, "masked_logaddexp"))

    def masked_normalize(self, ord: float = 2.0, dim: int = -1, eps: float = 1e-12, mask: Any = None) -> Self:
        """Divide by the p-norm along `dim` of what the mask selects, or by `eps` where that is larger.

        What is left out becomes 0.

        >>> Tensor([3.0, 9.0, 4.0]).masked_normalize(2.0, 0, mask=Tensor([True, False, True])).tolist()
        [0.6000000238418579, 0.0, 0.800000011920929]
        """
        x = self.same_float("masked_normalize")
        axis = axis_number(dim, x.ndim, "masked_normalize")
        norm = x.masked_norm(ord, mask, axis, True).maximum(number(eps, "masked_normalize", "eps"))
        return x._selected(mask, 0.0, "masked_normalize").fdiv(norm)

    def masked_softmax(self, mask: Any = None, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """Softmax along `axis` over what the mask selects; the others get 0; NaN where it selects nothing.

        >>> Tensor([0.0, 9.0, 0.0]).masked_softmax(Tensor([True, False, True])).tolist()
        [0.5, 0.0, 0.5]
        """
        x = self.same_float("masked_softmax")
        return x._selected(mask, -math.inf, "masked_softmax").softmax(axis, dtype)

    def masked_log_softmax(self, mask: Any = None, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """Logarithm of `masked_softmax`.

        >>> Tensor([1.0, 9.0]).masked_log_softmax(Tensor([True, False])).tolist()
        [0.0, -inf]
        """
        x = self.same_float("masked_log_softmax")
        return x._selected(mask, -math.inf, "masked_log_softmax").log_softmax(axis, dtype)

    def masked_softmin(self, mask: Any = None, axis: int = -1, dtype: DType | str | None = None) -> Self:
        """Softmin along `axis` over what the mask selects; the others get 0; NaN where it selects nothing.

        >>> Tensor([0.0, 9.0, 0.0]).masked_softmin(Tensor([True, False, True])).tolist()
        [0.5, 0.0, 0.5]
        """
        x = self.same_float("masked_softmin")
        return x._selected(mask, math.inf, "masked_softmin").softmin(axis, dtype)


def _least(dtype: DType) -> Any:
    """What is never larger than anything of a type."""
    return -math.inf if dtype.is_float else identity_element(Op.MAX, dtype)


def _greatest(dtype: DType) -> Any:
    """What is never smaller than anything of a type."""
    return math.inf if dtype.is_float else identity_element(Op.MIN, dtype)
