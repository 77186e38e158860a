"""Composed mixin: pooling over sliding windows: average, maximum, p-norm, and the way back from maxima."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Any, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import integers, number, per_axis
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.window import Padding, Sizes, WindowMixin, check_fit, positive, sides_of

Sides = list[tuple[int, int]]
# Kernel, stride, dilation, padding of each axis, and what ceil_mode adds at its end.
Plan = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Sides, list[int]]


class PoolingMixin(WindowMixin):
    """Pooling over the last axes."""

    __slots__ = ()

    # averages
    def avg_pool2d(
        self, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1, padding: Padding = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Self:  # fmt: skip
        """Average of each window over the last axes (as many as `kernel_size` has, two for an integer).

        Args:
            stride: the kernel size when None.
            ceil_mode: also take windows that begin inside and reach beyond the end.
            count_include_pad: whether padding counts in the average.
            divisor_override: divide sums by this instead of the number of elements.

        Raises:
            ShapeError: a window larger than the padded input.

        >>> Tensor([[[[1.0, 3.0], [5.0, 7.0]]]]).avg_pool2d().item()
        4.0
        """
        plan = self._pooling("avg_pool2d", 2, kernel_size, stride, dilation, padding, ceil_mode)
        return self._average("avg_pool2d", plan, count_include_pad, divisor_override)

    def avg_pool1d(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:  # fmt: skip
        """Average of each window over the last axis; see `avg_pool2d`. Arguments in torch's order.

        Raises:
            ShapeError: a window larger than the padded input.

        >>> Tensor([[1.0, 3.0, 5.0]]).avg_pool1d(2, 1).tolist()
        [[2.0, 4.0]]
        """
        plan = self._pooling("avg_pool1d", 1, _axes_of(kernel_size, 1, "avg_pool1d"), stride, 1, padding, ceil_mode)
        return self._average("avg_pool1d", plan, count_include_pad, None)

    def avg_pool3d(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Self:  # fmt: skip
        """Average of each window over the last three axes; see `avg_pool2d`. Arguments in torch's order.

        Raises:
            ShapeError: a window larger than the padded input.

        >>> Tensor.ones(1, 1, 2, 2, 2).avg_pool3d(2).item()
        1.0
        """
        plan = self._pooling("avg_pool3d", 3, _axes_of(kernel_size, 3, "avg_pool3d"), stride, 1, padding, ceil_mode)
        return self._average("avg_pool3d", plan, count_include_pad, divisor_override)

    def _average(self, what: str, plan: Plan, count_include_pad: bool, divisor_override: int | None) -> Self:
        kernel, steps, spread, sides, tail = plan
        source = self.same_float(what)
        count = len(kernel)
        axes = tuple(range(self.ndim, self.ndim + count))
        carrier = accumulator(source.dtype)
        grown = _grown(sides, tail)
        total = source.cast(carrier).pad_sides(grown).windows(kernel, steps, spread)
        total = total.reduce_over(Op.ADD, axes, False, what)
        if divisor_override is not None:
            divisor = number(divisor_override, what, "divisor_override")
            if divisor == 0:
                raise ArgumentError(f"{what}: divisor_override must not be 0")
            return total.fdiv(float(divisor)).cast(source.dtype)
        if not any(tail) and (count_include_pad or not any(map(any, sides))):
            return total.mul(1 / prod(kernel)).cast(source.dtype)
        # How many elements of each window count: those of the input, or also those of the padding that was asked for.
        counted = source.constant_like(1.0, source.shape[-count:], carrier)
        if count_include_pad:
            counted = counted.pad(sides, value=1.0).pad_sides([(0, more) for more in tail])
        else:
            counted = counted.pad_sides(grown)
        amount = counted.windows(kernel, steps, spread).reduce_over(Op.ADD, tuple(range(count, 2 * count)), False, what)
        return total.fdiv(amount).cast(source.dtype)

    def lp_pool1d(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> Self:
        """`sum(x ** p) ** (1 / p)` of each window over the last axis, p the `norm_type`.

        Raises:
            ArgumentError: p is 0 or no number.

        >>> Tensor([[3.0, 4.0]]).lp_pool1d(2, 2).tolist()
        [[5.0]]
        """
        return self._power_pool("lp_pool1d", 1, norm_type, kernel_size, stride, ceil_mode)

    def lp_pool2d(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> Self:
        """`sum(x ** p) ** (1 / p)` of each window over the last two axes, p the `norm_type`.

        Raises:
            ArgumentError: p is 0 or no number.

        >>> Tensor([[[3.0, 0.0], [0.0, 4.0]]]).lp_pool2d(2, 2).item()
        5.0
        """
        return self._power_pool("lp_pool2d", 2, norm_type, kernel_size, stride, ceil_mode)

    def lp_pool3d(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> Self:
        """`sum(x ** p) ** (1 / p)` of each window over the last three axes, p the `norm_type`.

        Raises:
            ArgumentError: p is 0 or no number.

        >>> Tensor.ones(1, 2, 2, 2).lp_pool3d(1, 2).item()
        8.0
        """
        return self._power_pool("lp_pool3d", 3, norm_type, kernel_size, stride, ceil_mode)

    def _power_pool(
        self, what: str, count: int, norm_type: float, kernel_size: Sizes, stride: Sizes | None, ceil_mode: bool
    ) -> Self:
        power = number(norm_type, what, "norm_type")
        if power == 0:
            raise ArgumentError(f"{what}: norm_type must not be 0")
        plan = self._pooling(what, count, _axes_of(kernel_size, count, what), stride, 1, 0, ceil_mode)
        source = self.same_float(what)
        wide = source.cast(accumulator(source.dtype))
        # Windows that reach beyond the end are scaled up to the size of a whole one, as torch does.
        mean = wide.pow(power)._average(what, plan, True, None)
        return mean.maximum(0.0).mul(float(prod(plan[0]))).pow(1 / power).cast(source.dtype)

    # maxima
    def max_pool2d(
        self, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1, padding: Padding = 0,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        """Largest element of each window over the last axes (as many as `kernel_size` has, two for an integer).

        Padding never wins. The first of equal elements has the gradient.

        Args:
            return_indices: also return where each maximum is, numbered in row-major order over the pooled axes: the
                first of ties.

        Raises:
            ShapeError: a window larger than the padded input.

        >>> Tensor([[[[1, 3], [5, 7]]]]).max_pool2d().item()
        7
        """
        plan = self._pooling("max_pool2d", 2, kernel_size, stride, dilation, padding, ceil_mode)
        return self._largest_of("max_pool2d", plan, return_indices)

    def max_pool1d(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, dilation: Sizes = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        """Largest element of each window over the last axis; see `max_pool2d`. Arguments in torch's order.

        Raises:
            ShapeError: a window larger than the padded input.

        >>> [t.tolist() for t in Tensor([[1, 3, 2]]).max_pool1d(2, 1, return_indices=True)]
        [[[3, 3]], [[1, 1]]]
        """
        kernel = _axes_of(kernel_size, 1, "max_pool1d")
        plan = self._pooling("max_pool1d", 1, kernel, stride, dilation, padding, ceil_mode)
        return self._largest_of("max_pool1d", plan, return_indices)

    def max_pool3d(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, dilation: Sizes = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        """Largest element of each window over the last three axes; see `max_pool2d`. Arguments in torch's order.

        Raises:
            ShapeError: a window larger than the padded input.

        >>> Tensor.arange(8).reshape(1, 2, 2, 2).max_pool3d(2).item()
        7
        """
        kernel = _axes_of(kernel_size, 3, "max_pool3d")
        plan = self._pooling("max_pool3d", 3, kernel, stride, dilation, padding, ceil_mode)
        return self._largest_of("max_pool3d", plan, return_indices)

    def _largest_of(self, what: str, plan: Plan, return_indices: bool) -> Any:
        kernel, steps, spread, sides, tail = plan
        count = len(kernel)
        if 0 in self.shape[max(0, self.ndim - count - 1) :]:
            raise ShapeError(
                f"{what}: shape {self.shape} has no elements beside the batch; there is no largest of none"
            )
        grown = _grown(sides, tail)
        lead = [(0, 0)] * (self.ndim - count)
        views = self.pad(lead + grown, value=self.dtype.min).windows(kernel, steps, spread)

        def place() -> Any:
            sizes = self.shape[-count:]
            numbers = self.positions(prod(sizes), self.place).reshape(sizes)
            numbers = numbers.pad(grown, value=numbers.dtype.max).windows(kernel, steps, spread)
            return views.first_place(what, count, numbers)

        if steps == kernel and max(spread) == 1:
            found = views.first_max(what, count)
        else:
            found = self._routed(views.detach(), count, place, what)
        return (found, place()) if return_indices else found

    def _routed(self, views: Self, count: int, place: Callable[[], Any], what: str) -> Self:
        """The largest over the last `count` axes of views of this; each one's gradient goes to its place in this."""
        axes = tuple(range(views.ndim - count, views.ndim))
        found = views.reduce_over(Op.MAX, axes, False, what)

        def rule(gradient: Self) -> list[Self]:
            # Windows overlap: adding once an output is less work than asking every element for its windows.
            return [gradient._added_at(place(), self.shape, count)]

        return found.with_derivative(what, [self], rule)

    def _added_at(self, place: Self, shape: tuple[int, ...], count: int) -> Self:
        """Zeros of this shape, to which every element is added at its place, counted over the last `count` axes."""
        lead = shape[: len(shape) - count]
        flat = self.reshape(lead + (prod(self.shape[len(lead) :]),))
        empty = flat.constant_like(0, lead + (prod(shape[len(lead) :]),))
        return empty.scatter(len(lead), place.reshape(flat.shape), flat, reduce="add").reshape(shape)

    def first_max(self, what: str, count: int) -> Self:
        """Largest element over the last `count` axes; the first of equal ones has the gradient."""
        axes = tuple(range(self.ndim - count, self.ndim))
        if not self.dtype.is_float:
            return self.reduce_over(Op.MAX, axes, False, what)
        found = self.detach().reduce_over(Op.MAX, axes, False, what)
        kernel = self.shape[self.ndim - count :]

        def rule(gradient: Self) -> list[Self]:
            places = self.positions(prod(kernel), self.place).reshape(kernel)
            first = self._hits(found, axes).where(places, prod(kernel)).reduce_over(Op.MIN, axes, True, what)
            spread = gradient.reshape(gradient.shape + (1,) * count)
            return [first.eq(places).where(spread, 0.0)]

        return found.with_derivative(what, [self], rule)

    def _hits(self, found: Self, axes: tuple[int, ...]) -> Self:
        """Where this is what was found over some of its axes, or NaN."""
        kept = tuple([1 if a in axes else size for a, size in enumerate(self.shape)])
        return self.eq(found.reshape(kept)).bitwise_or(self.isnan())

    def first_place(self, what: str, count: int, places: Self) -> Self:
        """The smallest of `places` where this is largest over the last `count` axes: the first NaN if there is any."""
        axes = tuple(range(self.ndim - count, self.ndim))
        plain = self.detach()
        hits = plain._hits(plain.reduce_over(Op.MAX, axes, False, what), axes)
        found = hits.where(places, places.dtype.max).reduce_over(Op.MIN, axes, False, what)
        return found.cast(dtypes.default_int)

    # the way back from maxima
    def max_unpool2d(
        self, indices: Self, kernel_size: Sizes = (2, 2), stride: Sizes | None = None, dilation: Sizes = 1,
        padding: Sizes = 0, output_size: Sequence[int] | None = None,
    ) -> Self:  # fmt: skip
        """The elements of this at the places that `max_pool2d(..., return_indices=True)` found, zeros elsewhere.

        Args:
            indices: places in row-major order over the result's last axes (as many as `kernel_size` has, two for an
                integer), shaped like this; the last of several elements for one place stays, and each has its gradient,
                as in torch: windows that overlap find the same maximum.
            kernel_size, stride, dilation, padding: those of the pooling, which give the size of the result.
            output_size: sizes of the result, where several sizes pool to this one; leading axes may be included.

        Raises:
            ShapeError: indices of another shape, or an output_size that does not fit.

        >>> Tensor([[4.0]]).max_unpool2d(Tensor([[3]]), 2).tolist()
        [[0.0, 0.0], [0.0, 4.0]]
        """
        count = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
        return self._unpool("max_unpool2d", count, indices, kernel_size, stride, dilation, padding, output_size)

    def max_unpool1d(
        self, indices: Self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        output_size: Sequence[int] | None = None,
    ) -> Self:  # fmt: skip
        """The way back from `max_pool1d`; see `max_unpool2d`. Arguments in torch's order.

        Raises:
            ShapeError: indices of another shape, or an output_size that does not fit.

        >>> Tensor([[4.0]]).max_unpool1d(Tensor([[1]]), 2).tolist()
        [[0.0, 4.0]]
        """
        return self._unpool("max_unpool1d", 1, indices, kernel_size, stride, 1, padding, output_size)

    def max_unpool3d(
        self, indices: Self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
        output_size: Sequence[int] | None = None,
    ) -> Self:  # fmt: skip
        """The way back from `max_pool3d`; see `max_unpool2d`. Arguments in torch's order.

        Raises:
            ShapeError: indices of another shape, or an output_size that does not fit.

        >>> Tensor([[[[4.0]]]]).max_unpool3d(Tensor([[[[7]]]]), 2).sum().item()
        4.0
        """
        return self._unpool("max_unpool3d", 3, indices, kernel_size, stride, 1, padding, output_size)

    def _unpool(
        self, what: str, count: int, indices: Self, kernel_size: Sizes, stride: Sizes | None, dilation: Sizes,
        padding: Sizes, output_size: Sequence[int] | None,
    ) -> Self:  # fmt: skip
        if operand(indices, what, "indices").shape != self.shape or self.ndim < count or not indices.dtype.is_int:
            raise ShapeError(
                f"{what}: indices of shape {indices.shape} and type {indices.dtype} must be integers shaped like the "
                f"input {self.shape}, of {count} axes or more"
            )
        kernel = positive(kernel_size, count, what, "kernel_size")
        steps = kernel if stride is None else positive(stride, count, what, "stride")
        spread = positive(dilation, count, what, "dilation")
        around = per_axis(padding, count, f"{what}: padding")
        lead, inner = self.shape[: self.ndim - count], self.shape[self.ndim - count :]
        natural = tuple(
            [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(inner, steps, around, spread, kernel)]
        )
        sizes = natural
        if output_size is not None:
            wanted = integers((tuple(output_size),), f"{what}: output_size")
            sizes = wanted[len(wanted) - count :]
            if len(wanted) not in (count, self.ndim) or any(abs(s - n) >= k for s, n, k in zip(sizes, natural, steps)):
                raise ShapeError(f"{what}: output_size {wanted} must be within the stride {steps} of {natural}")
        if min(sizes) < 1:
            raise ShapeError(f"{what}: the result would have the sizes {sizes}; use a larger kernel or less padding")
        place = indices.reshape(lead + (prod(inner),))
        flat = self.detach().reshape(place.shape)
        result = flat.constant_like(0, lead + (prod(sizes),)).scatter(len(lead), place, flat).reshape(lead + sizes)

        def rule(gradient: Self) -> list[Self]:
            picked = gradient.reshape(lead + (prod(sizes),)).gather(len(lead), place)
            return [picked.reshape(self.shape)]

        return result.with_derivative(what, [self], rule)

    def max_pool2d_with_indices_backward(self, x: Self, indices: Self) -> Self:
        """The gradient of `x` behind `max_pool2d(..., return_indices=True)`, this being the gradient of the maxima.

        Every element is added at its place: `result[..., indices[..., o]] += self[..., o]` over the last two axes.

        Args:
            x: what was pooled.
            indices: where the maxima are, shaped like this.

        Raises:
            ShapeError: shapes that do not fit.

        >>> Tensor([[2.0]]).max_pool2d_with_indices_backward(Tensor.zeros(2, 2), Tensor([[3]])).tolist()
        [[0.0, 0.0], [0.0, 2.0]]
        """
        what = "max_pool2d_with_indices_backward"
        shape = operand(x, what, "x").shape
        if operand(indices, what, "indices").shape != self.shape or self.ndim < 2 or shape[:-2] != self.shape[:-2]:
            raise ShapeError(
                f"{what}: a gradient of shape {self.shape}, indices of shape {indices.shape} and x of shape {shape} "
                "must differ in the last two axes at most, and the indices not at all from the gradient"
            )
        return self._added_at(indices, shape, 2)

    def _pooling(
        self, what: str, count: int, kernel_size: Sizes, stride: Sizes | None, dilation: Sizes, padding: Padding,
        ceil_mode: bool,
    ) -> Plan:  # fmt: skip
        """The windows of a pooling; `count` axes where the kernel size is an integer."""
        if isinstance(kernel_size, (tuple, list)):
            count = len(kernel_size)
        kernel = positive(kernel_size, count, what, "kernel_size")
        if self.ndim < count:
            raise ShapeError(f"{what}: {count} window sizes need at least {count} axes, got shape {self.shape}")
        steps = kernel if stride is None else positive(stride, count, what, "stride")
        spread = positive(dilation, count, what, "dilation")
        sides = sides_of(padding, count, what)
        reaches = [d * (k - 1) + 1 for d, k in zip(spread, kernel)]
        if any(min(pair) < 0 or max(pair) > reach // 2 for pair, reach in zip(sides, reaches)):
            raise ArgumentError(
                f"{what}: padding {sides} must be at least 0 and at most half of the reach {tuple(reaches)} of the "
                "window, or some windows would see padding only"
            )
        tail = [0] * count
        sizes = self.shape[-count:]
        padded = tuple([size + before + after for size, (before, after) in zip(sizes, sides)])
        if not ceil_mode:
            check_fit(what, padded, kernel, spread)
            return kernel, steps, spread, sides, tail
        for i, size in enumerate(padded):
            reach = reaches[i]
            windows = ceil((size - reach) / steps[i]) + 1
            # The last window must begin inside the input or the padding before it.
            if (windows - 1) * steps[i] >= sizes[i] + sides[i][0]:
                windows -= 1
            tail[i] = max(0, (windows - 1) * steps[i] + reach - size)
            if windows < 1 or not sizes[i]:
                check_fit(what, padded, kernel, spread)
        return kernel, steps, spread, sides, tail


def _axes_of(kernel_size: Sizes, count: int, what: str) -> tuple[int, ...]:
    return positive(kernel_size, count, what, "kernel_size")


def _grown(sides: Sides, tail: Sequence[int]) -> Sides:
    return [(before, after + more) for (before, after), more in zip(sides, tail)]
