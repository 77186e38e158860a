"""Composed mixin: logarithms, trigonometric and hyperbolic functions and their inverses."""

from __future__ import annotations

from typing import Any, Self

from gradlet.ops.reduce import ReduceMixin


class TranscendentalMixin(ReduceMixin):
    """Functions of `grad/functions`. Integers become the default float; 16-bit floats are rounded once."""

    __slots__ = ()

    def elementary(self, name: str, *others: Any) -> Self:
        """The function called `name` of this and others."""
        raise NotImplementedError

    # exponentials and logarithms
    def log10(self) -> Self:
        """Base 10 logarithm, `log(self) / log(10)`.

        >>> Tensor([1.0, 1000.0]).log10().tolist()
        [0.0, 3.0]
        """
        return self.elementary("log10")

    def log1p(self) -> Self:
        """`log(1 + self)`, exact also for small values.

        >>> Tensor([0.0]).log1p().item()
        0.0
        """
        return self.elementary("log1p")

    def expm1(self) -> Self:
        """`exp(self) - 1`, exact also for small values.

        >>> Tensor([0.0]).expm1().item()
        0.0
        """
        return self.elementary("expm1")

    def logaddexp(self, other: Any) -> Self:
        """`log(exp(self) + exp(other))` without overflow; -inf with -inf is -inf.

        >>> Tensor([0.0]).logaddexp(Tensor([-float("inf")])).item()
        0.0
        """
        return self.elementary("logaddexp", other)

    def logaddexp2(self, other: Any) -> Self:
        """`log2(2 ** self + 2 ** other)` without overflow.

        >>> Tensor([3.0]).logaddexp2(3.0).item()
        4.0
        """
        return self.elementary("logaddexp2", other)

    def sigmoid(self) -> Self:
        """`1 / (1 + exp(-self))`; value and gradient are finite everywhere.

        >>> Tensor([0.0]).sigmoid().item()
        0.5
        """
        return self.elementary("sigmoid")

    # trigonometry
    def tan(self) -> Self:
        """Tangent of radians, `sin(self) / cos(self)`.

        >>> Tensor([0.0]).tan().item()
        0.0
        """
        return self.elementary("tan")

    def atan(self) -> Self:
        """Inverse tangent, in radians.

        >>> Tensor([0.0]).atan().item()
        0.0
        """
        return self.elementary("atan")

    def atan2(self, other: Any) -> Self:
        """Angle of the point (other, self) in (-pi, pi]; signed zeros choose the side as IEEE 754 has it.

        The gradient at (0, 0) is 0.

        >>> round(Tensor([1.0]).atan2(Tensor([-1.0])).item(), 4)
        2.3562
        """
        return self.elementary("atan2", other)

    def asin(self) -> Self:
        """Inverse sine, in radians; NaN outside [-1, 1].

        >>> Tensor([0.0]).asin().item()
        0.0
        """
        return self.elementary("asin")

    def acos(self) -> Self:
        """Inverse cosine, in radians; NaN outside [-1, 1].

        >>> Tensor([1.0]).acos().item()
        0.0
        """
        return self.elementary("acos")

    # hyperbolic functions
    def sinh(self) -> Self:
        """Hyperbolic sine, `(exp(self) - exp(-self)) / 2`.

        >>> Tensor([0.0]).sinh().item()
        0.0
        """
        return self.elementary("sinh")

    def cosh(self) -> Self:
        """Hyperbolic cosine, `(exp(self) + exp(-self)) / 2`.

        >>> Tensor([0.0]).cosh().item()
        1.0
        """
        return self.elementary("cosh")

    def tanh(self) -> Self:
        """Hyperbolic tangent, `(exp(2 self) - 1) / (exp(2 self) + 1)`; finite gradients everywhere.

        >>> Tensor([0.0]).tanh().item()
        0.0
        """
        return self.elementary("tanh")

    def asinh(self) -> Self:
        """Inverse hyperbolic sine, `log(self + sqrt(self**2 + 1))`.

        >>> Tensor([0.0]).asinh().item()
        0.0
        """
        return self.elementary("asinh")

    def acosh(self) -> Self:
        """Inverse hyperbolic cosine, `log(self + sqrt(self**2 - 1))`; NaN below 1.

        >>> Tensor([1.0]).acosh().item()
        0.0
        """
        return self.elementary("acosh")

    def atanh(self) -> Self:
        """Inverse hyperbolic tangent, `log((1 + self) / (1 - self)) / 2`; NaN outside [-1, 1].

        >>> Tensor([0.0]).atanh().item()
        0.0
        """
        return self.elementary("atanh")

    # others
    def erf(self) -> Self:
        """Error function, `2 / sqrt(pi)` times the integral of `exp(-t**2)` from 0.

        >>> Tensor([0.0]).erf().item()
        0.0
        """
        return self.elementary("erf")

    def hypot(self, other: Any) -> Self:
        """`sqrt(self**2 + other**2)` without overflow.

        >>> Tensor([3.0]).hypot(Tensor([4.0])).item()
        5.0
        """
        return self.elementary("hypot", other)
