"""Composed mixin: derivatives of sampled functions by finite differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import axis_number, axis_numbers, number
from gradlet.ops.movement import MovementMixin
from gradlet.ops.stats import StatsMixin


class DifferencesMixin(StatsMixin):
    """Finite differences."""

    __slots__ = ()

    def numerical_gradient(
        self, *, spacing: Any = 1, dim: int | Sequence[int] | None = None, edge_order: int = 1
    ) -> list[Self]:
        """The derivative along each axis, estimated from the samples `f(x[0]), f(x[1]), ...` that this tensor holds.

        Inside, with `a = x[i] - x[i - 1]` and `b = x[i + 1] - x[i]`, it is the second-order estimate
        `(a**2 f[i + 1] + (b**2 - a**2) f[i] - b**2 f[i - 1]) / (a b (a + b))`; at the edges a one-sided difference of
        order `edge_order`. This is `torch.gradient`; `gradient` is the exact derivative of a computation.

        Args:
            spacing: distance of samples: one number, one an axis, or a vector of coordinates an axis.
            dim: the axes; all of them when None.
            edge_order: 1 or 2.

        Raises:
            ArgumentError: another `edge_order`, an axis twice, or not one spacing an axis.
            ShapeError: an axis with not more than `edge_order` samples, or coordinates that are not one a sample.

        >>> [d.tolist() for d in Tensor([1.0, 4.0, 9.0, 16.0]).numerical_gradient()]
        [[3.0, 4.0, 6.0, 7.0]]
        """
        if edge_order not in (1, 2):
            raise ArgumentError(f"numerical_gradient: edge_order {edge_order!r} is not 1 or 2")
        axes = axis_numbers(dim, self.ndim, "numerical_gradient")
        if isinstance(dim, (list, tuple)):
            axes = tuple([axis_number(axis, self.ndim, "numerical_gradient") for axis in dim])  # in the order asked
        spacing = 1 if spacing is None else spacing
        steps = list(spacing) if isinstance(spacing, (list, tuple)) else [spacing] * len(axes)
        if len(steps) != len(axes):
            raise ArgumentError(f"numerical_gradient: {len(steps)} spacings for {len(axes)} axes; give one an axis")
        source = self.same_float("numerical_gradient")
        for axis, step in zip(axes, steps):
            if not isinstance(step, MovementMixin):
                number(step, "numerical_gradient", "spacing")
            size = source.shape[axis]
            if size <= edge_order:
                raise ShapeError(
                    f"numerical_gradient: axis {axis} of shape {source.shape} needs at least {edge_order + 1} samples "
                    f"for edge_order {edge_order}"
                )
            if isinstance(step, MovementMixin) and step.shape not in ((), (size,)):
                raise ShapeError(
                    f"numerical_gradient: spacing of shape {step.shape} for axis {axis} of shape {source.shape}; give "
                    f"a number, or {size} coordinates"
                )
        return [source._slopes(axis, source._distances(step, axis), edge_order) for axis, step in zip(axes, steps)]

    def _distances(self, step: Any, axis: int) -> Self:
        """The distance from each sample to the next along an axis, shaped to broadcast."""
        count = self.shape[axis] - 1
        if not isinstance(step, MovementMixin) or not step.shape:
            return self.constant_like(1.0, (1,) * self.ndim).mul(step).expand(self._alone(axis, count))
        coordinates: Self = step.cast(self.dtype)  # type: ignore[attr-defined]
        return coordinates._box(0, 1, count + 1).sub(coordinates._box(0, 0, count)).reshape(self._alone(axis, count))

    def _alone(self, axis: int, size: int) -> tuple[int, ...]:
        return tuple([size if a == axis else 1 for a in range(self.ndim)])

    def _slopes(self, axis: int, distances: Self, edge_order: int) -> Self:
        size = self.shape[axis]
        slopes = self._box(axis, 1, size).sub(self._box(axis, 0, size - 1)).div(distances)
        first, last = slopes._box(axis, 0, 1), slopes._box(axis, size - 2, size - 1)
        if size == 2:
            return first.cat(last, dim=axis)
        before, after = slopes._box(axis, 0, size - 2), slopes._box(axis, 1, size - 1)
        left, right = distances._box(axis, 0, size - 2), distances._box(axis, 1, size - 1)
        # The parabola through three samples: each slope weighs as much as the other interval is long.
        weight = left.div(left.add(right))
        inside = before.add(after.sub(before).mul(weight))
        if edge_order == 2:
            bend = after.sub(before).div(left.add(right))
            first = first.sub(bend._box(axis, 0, 1).mul(left._box(axis, 0, 1)))
            last = last.add(bend._box(axis, size - 3, size - 2).mul(right._box(axis, size - 3, size - 2)))
        return first.cat(inside, last, dim=axis)
