"""Composed mixin: running combinations, differences of neighbours and the trapezoidal rule along an axis."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.dtype import DType, accumulator
from gradlet.base.errors import ShapeError
from gradlet.base.symint import Size
from gradlet.ops.arguments import axis_number, broadcast_shapes, integer, number
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.order import OrderMixin
from gradlet.ops.reduce import position_type, total_type


class RunningMixin(OrderMixin):
    """Running combinations. The hook `running` comes from the user of this."""

    __slots__ = ()

    def running(self, op: Op, axis: int, exclusive: bool = False, factor: Self | None = None) -> Self:
        """Running combination along an axis; MULADD: what came before times `factor`, plus this."""
        raise NotImplementedError

    def _scan(self, op: Op, axis: int, what: str) -> Self:
        """Running combination along `axis`."""
        along = axis_number(axis, self.ndim, what)
        if self.ndim == 0 or 0 in self.shape:
            return self.as_value()
        return self.running(op, along)

    def cumsum(self, axis: int = 0, dtype: DType | str | None = None) -> Self:
        """Running sum along `axis`: `result[i] = self[0] + ... + self[i]`. Integers become int64.

        Args:
            dtype: type of the result, in which the sum is carried.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        """
        result = total_type(self.dtype, dtype)
        return self.cast(accumulator(result))._scan(Op.ADD, axis, "cumsum").cast(result)

    def cumprod(self, axis: int = 0, dtype: DType | str | None = None) -> Self:
        """Running product along `axis`: `result[i] = self[0] * ... * self[i]`. Integers become int64.

        Args:
            dtype: type of the result, in which the product is carried.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([1, 2, 3]).cumprod().tolist()
        [1, 2, 6]
        """
        result = total_type(self.dtype, dtype)
        return self.cast(accumulator(result))._scan(Op.MUL, axis, "cumprod").cast(result)

    def cummax(self, axis: int = 0) -> tuple[Self, Self]:
        """Running maximum along `axis` and where it is: the last of ties, the latest NaN if there was one.

        The gradient of the values goes to these places.

        Raises:
            IndexingError: no such axis.

        >>> [t.tolist() for t in Tensor([1, 3, 3, 2]).cummax()]
        [[1, 3, 3, 3], [0, 1, 2, 2]]
        """
        return self._running_extreme(Op.MAX, axis, "cummax")

    def cummin(self, axis: int = 0) -> tuple[Self, Self]:
        """Running minimum along `axis` and where it is: the last of ties, the latest NaN if there was one.

        The gradient of the values goes to these places.

        Raises:
            IndexingError: no such axis.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).cummin()]
        [[3, 1, 1], [0, 1, 1]]
        """
        return self._running_extreme(Op.MIN, axis, "cummin")

    def _running_extreme(self, op: Op, axis: int, what: str) -> tuple[Self, Self]:
        along = axis_number(axis, self.ndim, what)
        kind = position_type(self.shape[along] if self.ndim else 1)
        if self.ndim == 0 or 0 in self.shape:
            return self.as_value(), self.constant_like(0, dtype=kind)
        values = self.running(op, along)
        leads = self.eq(values)
        if self.dtype.is_float:
            leads = leads.bitwise_or(self.isnan())
        places = leads.where(self.positions_along(along), 0).expand(self.shape)
        return values, places.running(Op.MAX, along).cast(kind)

    def logcumsumexp(self, axis: int = 0) -> Self:
        """Logarithm of the running sum of exponentials along `axis`; -inf while all so far are -inf.

        `result[i] = log(exp(self[0]) + ... + exp(self[i]))`, without overflow.

        Raises:
            IndexingError: no such axis.

        >>> Tensor([0.0, -float("inf")]).logcumsumexp().tolist()
        [0.0, 0.0]
        """
        x = self.same_float("logcumsumexp")
        along = axis_number(axis, x.ndim, "logcumsumexp")
        if x.ndim == 0 or 0 in x.shape:
            return x.as_value()
        wide = x.cast(accumulator(x.dtype))
        # A running sum of exponentials of differences to the running maximum: it shrinks whenever that grows.
        plain = wide.detach()
        top, before = plain.running(Op.MAX, along), plain.running(Op.MAX, along, True)
        finite = top.isfinite().where(top, 0.0)
        shrinks = before.isfinite().where(before, 0.0).sub(finite).exp()
        shrinks = before.eq(-math.inf).where(0.0, shrinks)
        total = wide.sub(finite).exp().running(Op.MULADD, along, False, shrinks)
        return total.log().add(finite).cast(x.dtype)

    # neighbours
    def diff(self, n: int = 1, dim: int = -1, prepend: Self | None = None, append: Self | None = None) -> Self:
        """Differences of neighbours, `n` times: `result[i] = self[i + 1] - self[i]`; of bools, whether they differ.

        Args:
            prepend, append: what is put before and behind along `dim` first; same shape on the other axes.

        Raises:
            ArgumentError: a negative n.
            IndexingError: no such axis.
            ShapeError: a tensor without axes, or parts that do not fit.

        >>> Tensor([1, 4, 9, 16]).diff().tolist(), Tensor([1, 4, 9, 16]).diff(2).tolist()
        ([3, 5, 7], [2, 2])
        """
        n = integer(n, "diff", "n", 0)
        if self.ndim == 0:
            raise ShapeError("diff: a tensor without axes has no neighbours; give it at least one axis")
        along = axis_number(dim, self.ndim, "diff")
        if n == 0:
            return self.as_value()
        parts = [operand(part, "diff", "prepend and append") for part in (prepend, self, append) if part is not None]
        result = parts[0].cat(*parts[1:], dim=along) if len(parts) > 1 else self
        for _ in range(n):
            size = result.shape[along]
            if size == 0:
                break
            later, earlier = result._box(along, 1, size), result._box(along, 0, size - 1)
            result = later.ne(earlier) if result.dtype.is_bool else later.sub(earlier)
        return result

    def trapezoid(self, x: Self | None = None, dx: float = 1.0, dim: int = -1) -> Self:
        """Integral along `dim` by the trapezoidal rule: the sum of `(self[i] + self[i + 1]) / 2 * (x[i + 1] - x[i])`.

        Args:
            x: where the values were taken, shaped like this, or one axis of the size of `dim`.
            dx: the distance between them where `x` is not given.

        Raises:
            IndexingError: no such axis.
            ShapeError: `x` does not fit.

        >>> Tensor([1.0, 2.0, 4.0]).trapezoid().item()
        4.5
        """
        areas, along = self._trapezoids(x, dx, dim, "trapezoid")
        return areas.sum(along)

    def trapz(self, x: Self | None = None, dx: float = 1.0, dim: int = -1) -> Self:
        """Same as `trapezoid`.

        >>> Tensor([1.0, 2.0, 4.0]).trapz().item()
        4.5
        """
        return self.trapezoid(x, dx, dim)

    def cumulative_trapezoid(self, x: Self | None = None, dx: float = 1.0, dim: int = -1) -> Self:
        """Running integral along `dim` by the trapezoidal rule, one element less than there are values.

        Args: as for `trapezoid`.

        >>> Tensor([1.0, 2.0, 4.0]).cumulative_trapezoid().tolist()
        [1.5, 4.5]
        """
        areas, along = self._trapezoids(x, dx, dim, "cumulative_trapezoid")
        return areas.cumsum(along)

    def _trapezoids(self, x: Self | None, dx: float, dim: int, what: str) -> tuple[Self, int]:
        """The area between every two neighbours, and the axis that they lie on."""
        y = self.same_float(what)
        if y.ndim == 0:
            raise ShapeError(f"{what}: a tensor without axes has nothing to integrate; give it at least one axis")
        along = axis_number(dim, y.ndim, what)
        if x is None:
            return y._neighbours(along, False).mul(number(dx, what, "dx") * 0.5), along
        x = operand(x, what, "x")
        if x.ndim == 1 and y.ndim > 1:
            if x.shape[0] != y.shape[along]:
                raise ShapeError(f"{what}: x has {x.shape[0]} elements, axis {along} has {y.shape[along]}")
            x = x.reshape([-1 if axis == along else 1 for axis in range(y.ndim)])
        shape = broadcast_shapes((x.shape, y.shape), what)
        along += len(shape) - y.ndim
        x, y = x.expand(shape), y.expand(shape)
        return y._neighbours(along, False).mul(x._neighbours(along, True)).mul(0.5), along

    def _neighbours(self, axis: int, difference: bool) -> Self:
        """Sums or differences of every two neighbours along an axis."""
        size: Any = self.shape[axis]
        if not isinstance(size, Size) and size < 2:
            return self._box(axis, 0, 0)
        later, earlier = self._box(axis, 1, size), self._box(axis, 0, size - 1)
        return later.sub(earlier) if difference else later.add(earlier)
