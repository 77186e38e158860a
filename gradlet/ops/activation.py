"""Composed mixin: activation functions. Values and gradients stay finite for every finite input."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.errors import ArgumentError
from gradlet.ops.arguments import number
from gradlet.ops.math import MathMixin


def _not_zero(value: float, what: str, name: str) -> float:
    if number(value, what, name) == 0:
        raise ArgumentError(f"{what}: {name} must not be 0: the result is divided by it")
    return value


class ActivationMixin(MathMixin):
    """Activation functions; integers become the default float except in `relu` and `relu6`."""

    __slots__ = ()

    def relu(self) -> Self:
        """`max(self, 0)`; the gradient at 0 is 0.

        >>> Tensor([-1.0, 2.0]).relu().tolist()
        [0.0, 2.0]
        """
        return (self <= 0).where(0, self)

    def relu6(self) -> Self:
        """Limited to [0, 6].

        >>> Tensor([-1.0, 9.0]).relu6().tolist()
        [0.0, 6.0]
        """
        return self.hardtanh(0, 6)

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        """Limited to [min_val, max_val]; the gradient at the limits is 0.

        Raises:
            ArgumentError: the limits are no numbers or in the wrong order.

        >>> Tensor([-3.0, 0.5]).hardtanh().tolist()
        [-1.0, 0.5]
        """
        low, high = number(min_val, "hardtanh", "min_val"), number(max_val, "hardtanh", "max_val")
        if not low <= high:
            raise ArgumentError(f"hardtanh: min_val {low} is above max_val {high}")
        return (self <= min_val).where(min_val, (self >= max_val).where(max_val, self))

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """`alpha * self + beta` limited to [0, 1].

        >>> Tensor([0.0]).hardsigmoid().item()
        0.5
        """
        return self.same_float("hardsigmoid").mul(alpha).add(beta).hardtanh(0.0, 1.0)

    def hardswish(self) -> Self:
        """`self * relu6(self + 3) / 6`.

        >>> Tensor([3.0]).hardswish().item()
        3.0
        """
        x = self.same_float("hardswish")
        return x.mul(x.add(3.0).hardtanh(0.0, 6.0)).mul(1 / 6)

    def logsigmoid(self) -> Self:
        """`log(sigmoid(self))` without overflow.

        >>> round(Tensor([0.0]).logsigmoid().item(), 4)
        -0.6931
        """
        return self.neg().softplus().neg()

    def softplus(self, beta: float = 1.0) -> Self:
        """`log(1 + exp(beta * self)) / beta` without overflow.

        Raises:
            ArgumentError: beta is 0 or no number.

        >>> round(Tensor([0.0]).softplus().item(), 4)
        0.6931
        """
        x = self.same_float("softplus").mul(_not_zero(beta, "softplus", "beta"))
        # max(x, 0) + log(1 + exp(-|x|)): both parts share the gradient at 0, which comes out as 1/2.
        return x.maximum(0.0).add(x.abs().neg().exp().log1p()).mul(1 / beta)

    def silu(self) -> Self:
        """`self * sigmoid(self)`.

        >>> Tensor([0.0]).silu().item()
        0.0
        """
        x = self.same_float("silu")
        return x.mul(x.sigmoid())

    def swish(self) -> Self:
        """Same as `silu`.

        >>> Tensor([0.0]).swish().item()
        0.0
        """
        return self.silu()

    def gelu(self, approximate: str = "tanh") -> Self:
        """Gaussian error linear unit.

        Args:
            approximate: "tanh" (default) or "none" for the exact form by erf.

        Raises:
            ArgumentError: another form.

        >>> Tensor([0.0]).gelu().item()
        0.0
        """
        x = self.same_float("gelu")
        if approximate == "none":
            return x.mul(x.mul(math.sqrt(0.5)).erf().add(1.0)).mul(0.5)
        if approximate != "tanh":
            raise ArgumentError(f"gelu: approximate {approximate!r} is not 'tanh' or 'none'")
        # 0.5 * (1 + tanh(z)) is sigmoid(2 z).
        return x.mul(x.mul(2 * math.sqrt(2 / math.pi)).mul(x.mul(x).mul(0.044715).add(1.0)).sigmoid())

    def quick_gelu(self) -> Self:
        """`self * sigmoid(1.702 * self)`.

        >>> Tensor([0.0]).quick_gelu().item()
        0.0
        """
        x = self.same_float("quick_gelu")
        return x.mul(x.mul(1.702).sigmoid())

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """This where positive, else `neg_slope` times this.

        >>> Tensor([-2.0, 2.0]).leaky_relu(0.5).tolist()
        [-1.0, 2.0]
        """
        x = self.same_float("leaky_relu")
        return (x <= 0).where(x.mul(neg_slope), x)

    def elu(self, alpha: float = 1.0) -> Self:
        """This where positive, else `alpha * (exp(self) - 1)`.

        >>> Tensor([0.0, 2.0]).elu().tolist()
        [0.0, 2.0]
        """
        x = self.same_float("elu")
        positive = x.gt(0.0)
        # The exponential sees no positive number, so it cannot overflow into a gradient of NaN.
        return positive.where(x, positive.where(0.0, x).expm1().mul(alpha))

    def celu(self, alpha: float = 1.0) -> Self:
        """`max(self, 0) + min(0, alpha * (exp(self / alpha) - 1))`.

        Raises:
            ArgumentError: alpha is 0 or no number.

        >>> Tensor([0.0, 2.0]).celu().tolist()
        [0.0, 2.0]
        """
        alpha = _not_zero(alpha, "celu", "alpha")
        x = self.same_float("celu")
        positive = x.gt(0.0)
        return positive.where(x, positive.where(0.0, x).mul(1 / alpha).expm1().mul(alpha))

    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """Scaled elu.

        >>> Tensor([0.0]).selu().item()
        0.0
        """
        return self.elu(alpha).mul(gamma)

    def mish(self) -> Self:
        """`self * tanh(softplus(self))`.

        >>> Tensor([0.0]).mish().item()
        0.0
        """
        x = self.same_float("mish")
        return x.mul(x.softplus().tanh())

    def softsign(self) -> Self:
        """`self / (1 + |self|)`.

        >>> Tensor([1.0]).softsign().item()
        0.5
        """
        x = self.same_float("softsign")
        return x.fdiv(x.abs().add(1.0))

    def prelu(self, weight: Any) -> Self:
        """This where positive, else `weight` times this.

        >>> Tensor([-2.0]).prelu(Tensor([0.5])).item()
        -1.0
        """
        x = self.same_float("prelu")
        return (x <= 0).where(x.mul(weight), x)
