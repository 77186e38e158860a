"""Composed mixin: second names that torch and numpy have for element-wise methods."""

from __future__ import annotations

from typing import Any, Self

from gradlet.ops.math import MathMixin


class SecondNameMixin(MathMixin):
    """The same methods under another name."""

    __slots__ = ()

    def subtract(self, other: Any, alpha: float = 1) -> Self:
        """Same as `sub`.

        >>> Tensor([2]).subtract(3, alpha=2).tolist()
        [-4]
        """
        return self.sub(other, alpha=alpha)

    def divide(self, other: Any, rounding_mode: str | None = None) -> Self:
        """Same as `div`.

        >>> Tensor([7]).divide(2, rounding_mode="floor").tolist()
        [3]
        """
        return self.div(other, rounding_mode=rounding_mode)

    def absolute(self) -> Self:
        """Same as `abs`.

        >>> Tensor([-2]).absolute().tolist()
        [2]
        """
        return self.abs()

    def negative(self) -> Self:
        """Same as `neg`.

        >>> Tensor([2]).negative().tolist()
        [-2]
        """
        return self.neg()

    def fix(self) -> Self:
        """Same as `trunc`.

        >>> Tensor([-1.5]).fix().tolist()
        [-1.0]
        """
        return self.trunc()

    def multiply(self, other: Any) -> Self:
        """Same as `mul`.

        >>> Tensor([2]).multiply(3).tolist()
        [6]
        """
        return self.mul(other)

    def arccos(self) -> Self:
        """Same as `acos`.

        >>> Tensor([1.0]).arccos().item()
        0.0
        """
        return self.acos()

    def arccosh(self) -> Self:
        """Same as `acosh`.

        >>> Tensor([1.0]).arccosh().item()
        0.0
        """
        return self.acosh()

    def arcsin(self) -> Self:
        """Same as `asin`.

        >>> Tensor([0.0]).arcsin().item()
        0.0
        """
        return self.asin()

    def arcsinh(self) -> Self:
        """Same as `asinh`.

        >>> Tensor([0.0]).arcsinh().item()
        0.0
        """
        return self.asinh()

    def arctan(self) -> Self:
        """Same as `atan`.

        >>> Tensor([0.0]).arctan().item()
        0.0
        """
        return self.atan()

    def arctanh(self) -> Self:
        """Same as `atanh`.

        >>> Tensor([0.0]).arctanh().item()
        0.0
        """
        return self.atanh()

    def arctan2(self, other: Any) -> Self:
        """Same as `atan2`.

        >>> Tensor([0.0]).arctan2(1.0).item()
        0.0
        """
        return self.atan2(other)

    def greater(self, other: Any) -> Self:
        """Same as `gt`.

        >>> Tensor([1, 2]).greater(1).tolist()
        [False, True]
        """
        return self.gt(other)

    def greater_equal(self, other: Any) -> Self:
        """Same as `ge`.

        >>> Tensor([1, 2]).greater_equal(2).tolist()
        [False, True]
        """
        return self.ge(other)

    def less(self, other: Any) -> Self:
        """Same as `lt`.

        >>> Tensor([1, 2]).less(2).tolist()
        [True, False]
        """
        return self.lt(other)

    def less_equal(self, other: Any) -> Self:
        """Same as `le`.

        >>> Tensor([1, 2]).less_equal(1).tolist()
        [True, False]
        """
        return self.le(other)

    def not_equal(self, other: Any) -> Self:
        """Same as `ne`.

        >>> Tensor([1, 2]).not_equal(1).tolist()
        [False, True]
        """
        return self.ne(other)
