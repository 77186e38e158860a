"""Composed mixin: statistics, running sums and searching over axes."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError
from gradlet.base.symint import Size
from gradlet.ops.arguments import axis_number, axis_numbers, number
from gradlet.ops.op import Op
from gradlet.ops.order import OrderMixin
from gradlet.ops.reduce import Axis, total_type


class StatsMixin(OrderMixin):
    """Statistics."""

    __slots__ = ()

    # searching
    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Where the largest element is, as int64: the first of ties, the first NaN if there is any.

        Args:
            axis: None searches the flattened tensor.

        Raises:
            ShapeError: there are no elements.

        >>> Tensor([1, 9, 9]).argmax().item()
        1
        """
        return self._position_of(Op.MAX, axis, keepdim, "argmax")

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Where the smallest element is, as int64: the first of ties, the first NaN if there is any.

        >>> Tensor([4, 1, 1]).argmin().item()
        1
        """
        return self._position_of(Op.MIN, axis, keepdim, "argmin")

    def _position_of(self, op: Op, axis: int | None, keepdim: bool, what: str) -> Self:
        if axis is None:
            found = self.flatten()._position_of(op, 0, False, what)
            return found.reshape((1,) * self.ndim) if keepdim else found
        source = self.reshape(1) if self.ndim == 0 else self
        along = axis_number(axis, self.ndim, what)
        best = source.reduce_over(op, along, True, what)
        hit = source.eq(best)
        if self.dtype.is_float:
            hit = hit.bitwise_or(source.isnan())
        size = source.shape[along]
        places = hit.where(source.positions_along(along), size)
        found = places.reduce_over(Op.MIN, along, keepdim and self.ndim > 0, what)
        return found.cast(dtypes.int64)

    # spread
    def var(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> Self:
        """Variance over `axis`; the divisor is the number of elements minus `correction`.

        >>> Tensor([1.0, 2.0, 3.0]).var().item()
        1.0
        """
        source = self.same_float("var")
        carrier = accumulator(source.dtype)
        wide = source.cast(carrier)
        count = math.prod(self.shape[a] for a in axis_numbers(axis, self.ndim, "var"))
        gap = wide.sub(wide.mean(axis, True))
        total = gap.mul(gap).reduce_over(Op.ADD, axis, keepdim, "var")
        divisor = count - number(correction, "var", "correction")
        return total.fdiv(divisor if isinstance(divisor, Size) else float(max(0, divisor))).cast(source.dtype)

    def var_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> tuple[Self, Self]:
        """Variance and mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).var_mean()]
        [1.0, 2.0]
        """
        return self.var(axis, keepdim, correction), self.mean(axis, keepdim)

    def std(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> Self:
        """Standard deviation over `axis`.

        >>> Tensor([1.0, 2.0, 3.0]).std().item()
        1.0
        """
        return self.var(axis, keepdim, correction).sqrt()

    def std_mean(self, axis: Axis = None, keepdim: bool = False, correction: int = 1) -> tuple[Self, Self]:
        """Standard deviation and mean.

        >>> [t.item() for t in Tensor([1.0, 2.0, 3.0]).std_mean()]
        [1.0, 2.0]
        """
        return self.std(axis, keepdim, correction), self.mean(axis, keepdim)

    def normalize(self, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Self:
        """Divide by the p-norm along `dim`, or by `eps` where that is larger; p may be infinite (the largest).

        Raises:
            ArgumentError: p is not positive.

        >>> Tensor([[3.0, 4.0]]).normalize().tolist()
        [[0.6000000238418579, 0.800000011920929]]
        """
        x = self.same_float("normalize")
        axis = axis_number(dim, self.ndim, "normalize")
        if not number(p, "normalize", "p") > 0:
            raise ArgumentError(f"normalize: p must be positive, got {p}")
        norm = x.abs().max(axis, True) if p == math.inf else x.abs().pow(p).sum(axis, True).pow(1 / p)
        return x.fdiv(norm.maximum(eps))

    def allclose(self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
        """Whether all elements are close (see `isclose`). Computes now.

        >>> Tensor([1.0]).allclose(Tensor([1.0]))
        True
        """
        return bool(self.isclose(other, rtol, atol, equal_nan).all().item())

    def item(self) -> Any:
        """The only element as a Python number."""
        raise NotImplementedError

    # exponentials
    def logsumexp(self, axis: Axis = None, keepdim: bool = False) -> Self:
        """`log(sum(exp(self)))` without overflow; -inf where all are -inf.

        >>> Tensor([0.0, 0.0]).logsumexp().exp().item()
        2.0
        """
        x = self.same_float("logsumexp")
        top = x._safe_max(axis)
        result = x.sub(top).exp().sum(axis, True).log().add(top)
        if keepdim:
            return result
        axes = axis_numbers(axis, self.ndim, "logsumexp")
        return result.reshape([s for a, s in enumerate(self.shape) if a not in axes])

    def _safe_max(self, axis: Axis) -> Self:
        """The maximum over `axis`, kept, without gradient; 0 where it is infinite or NaN."""
        top = self.detach().max(axis, True)
        return top.isfinite().where(top, 0.0)

    def softmax(self, axis: int = -1, dtype: Any = None) -> Self:
        """Exponentials divided by their sum along `axis`.

        >>> Tensor([0.0, 0.0]).softmax().tolist()
        [0.5, 0.5]
        """
        x = self.same_float("softmax") if dtype is None else self.cast(dtype)
        along = axis_number(axis, x.ndim, "softmax")
        if 0 in x.shape:
            return x
        wide = x.cast(accumulator(x.dtype))
        power = wide.sub(wide.detach().max(along, True)).exp()
        return power.fdiv(power.sum(along, True)).cast(x.dtype)

    def log_softmax(self, axis: int = -1, dtype: Any = None) -> Self:
        """Logarithm of softmax.

        >>> Tensor([0.0]).log_softmax().item()
        0.0
        """
        x = self.same_float("log_softmax") if dtype is None else self.cast(dtype)
        along = axis_number(axis, x.ndim, "log_softmax")
        if 0 in x.shape:
            return x
        wide = x.cast(accumulator(x.dtype))
        shifted = wide.sub(wide.detach().max(along, True))
        return shifted.sub(shifted.exp().sum(along, True).log()).cast(x.dtype)

    # running totals
    def _scan(self, op: Op, axis: int, what: str) -> Self:
        """Running combination along `axis`."""
        along = axis_number(axis, self.ndim, what)
        if self.ndim == 0 or 0 in self.shape:
            return self
        return self.running(op, along)

    def running(self, op: Op, axis: int, exclusive: bool = False, factor: Self | None = None) -> Self:
        """Running combination along an axis; MULADD: what came before times `factor`, plus this."""
        raise NotImplementedError

    def cumsum(self, axis: int = 0) -> Self:
        """Running sum along `axis`; integers become int64.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        """
        result = total_type(self.dtype)
        return self.cast(accumulator(result))._scan(Op.ADD, axis, "cumsum").cast(result)

    def cumprod(self, axis: int = 0) -> Self:
        """Running product along `axis`; integers become int64.

        >>> Tensor([1, 2, 3]).cumprod().tolist()
        [1, 2, 6]
        """
        result = total_type(self.dtype)
        return self.cast(accumulator(result))._scan(Op.MUL, axis, "cumprod").cast(result)

    def cummax(self, axis: int = 0) -> Self:
        """Running maximum along `axis`.

        >>> Tensor([1, 3, 2]).cummax().tolist()
        [1, 3, 3]
        """
        return self._scan(Op.MAX, axis, "cummax")

    def cummin(self, axis: int = 0) -> Self:
        """Running minimum along `axis`.

        >>> Tensor([3, 1, 2]).cummin().tolist()
        [3, 1, 1]
        """
        return self._scan(Op.MIN, axis, "cummin")

    def logcumsumexp(self, axis: int = 0) -> Self:
        """Logarithm of the running sum of exponentials; -inf while all so far are -inf.

        >>> Tensor([0.0, -float("inf")]).logcumsumexp().tolist()
        [0.0, 0.0]
        """
        x = self.same_float("logcumsumexp")
        if x.ndim == 0 or 0 in x.shape:
            return x
        along = axis_number(axis, x.ndim, "logcumsumexp")
        wide = x.cast(accumulator(x.dtype))
        # A running sum of exponentials of differences to the running maximum: it shrinks whenever that grows.
        plain = wide.detach()
        top, before = plain.running(Op.MAX, along), plain.running(Op.MAX, along, True)
        finite = top.isfinite().where(top, 0.0)
        shrinks = before.isfinite().where(before, 0.0).sub(finite).exp()
        shrinks = before.eq(-math.inf).where(0.0, shrinks)
        total = wide.sub(finite).exp().running(Op.MULADD, along, False, shrinks)
        return total.log().add(finite).cast(x.dtype)
