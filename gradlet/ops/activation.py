"""Composed mixin: activation functions. Values and gradients stay finite for every finite input."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import axis_number, number
from gradlet.ops.math import MathMixin


def _not_zero(value: float, what: str, name: str) -> float:
    if number(value, what, name) == 0:
        raise ArgumentError(f"{what}: {name} must not be 0: the result is divided by it")
    return value


def _not_negative(value: float, what: str, name: str) -> float:
    if not number(value, what, name) >= 0:
        raise ArgumentError(f"{what}: {name} must not be negative, got {value}")
    return value


class ActivationMixin(MathMixin):
    """Activation functions; integers become the default float except where values are only limited or replaced."""

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
        x, own = self.carried_float("hardsigmoid")
        return x.mul(alpha).add(beta).hardtanh(0.0, 1.0).cast(own)

    def hardswish(self) -> Self:
        """`self * relu6(self + 3) / 6`.

        >>> Tensor([3.0]).hardswish().item()
        3.0
        """
        x, own = self.carried_float("hardswish")
        return x.mul(x.add(3.0).hardtanh(0.0, 6.0)).mul(1 / 6).cast(own)

    def logsigmoid(self) -> Self:
        """`log(sigmoid(self))` without overflow.

        >>> round(Tensor([0.0]).logsigmoid().item(), 4)
        -0.6931
        """
        return self.neg().elementary("softplus").neg()

    def softplus(self, beta: float = 1.0, threshold: float | None = None) -> Self:
        """`log(1 + exp(beta * self)) / beta` without overflow.

        Args:
            beta: how sharp the bend is.
            threshold: where `beta * self` is above it, the result is this itself; None: nowhere.

        Raises:
            ArgumentError: beta is 0 or no number.

        >>> round(Tensor([0.0]).softplus().item(), 4)
        0.6931
        """
        _not_zero(beta, "softplus", "beta")
        x, own = self.carried_float("softplus")
        scaled = x if beta == 1.0 else x.mul(beta)
        bent = scaled.elementary("softplus")
        bent = bent if beta == 1.0 else bent.mul(1 / beta)
        if threshold is not None:
            bent = scaled.gt(number(threshold, "softplus", "threshold")).where(x, bent)
        return bent.cast(own)

    def silu(self) -> Self:
        """`self * sigmoid(self)`.

        >>> Tensor([0.0]).silu().item()
        0.0
        """
        return self.elementary("silu")

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
        if approximate == "none":
            x, own = self.carried_float("gelu")
            return x.mul(x.mul(math.sqrt(0.5)).erf().add(1.0)).mul(0.5).cast(own)
        if approximate != "tanh":
            raise ArgumentError(f"gelu: approximate {approximate!r} is not 'tanh' or 'none'")
        return self.elementary("gelu")

    def quick_gelu(self) -> Self:
        """`self * sigmoid(1.702 * self)`.

        >>> Tensor([0.0]).quick_gelu().item()
        0.0
        """
        x, own = self.carried_float("quick_gelu")
        return x.mul(x.mul(1.702).sigmoid()).cast(own)

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
        x, own = self.carried_float("elu")
        positive = x.gt(0.0)
        # The exponential sees no positive number, so it cannot overflow into a gradient of NaN.
        return positive.where(x, positive.where(0.0, x).expm1().mul(alpha)).cast(own)

    def celu(self, alpha: float = 1.0) -> Self:
        """`max(self, 0) + min(0, alpha * (exp(self / alpha) - 1))`.

        Raises:
            ArgumentError: alpha is 0 or no number.

        >>> Tensor([0.0, 2.0]).celu().tolist()
        [0.0, 2.0]
        """
        alpha = _not_zero(alpha, "celu", "alpha")
        x, own = self.carried_float("celu")
        positive = x.gt(0.0)
        return positive.where(x, positive.where(0.0, x).mul(1 / alpha).expm1().mul(alpha)).cast(own)

    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """Scaled elu.

        >>> Tensor([0.0]).selu().item()
        0.0
        """
        x, own = self.carried_float("selu")
        return x.elu(alpha).mul(gamma).cast(own)

    def mish(self) -> Self:
        """`self * tanh(softplus(self))`.

        >>> Tensor([0.0]).mish().item()
        0.0
        """
        x, own = self.carried_float("mish")
        return x.mul(x.elementary("tanh_softplus")).cast(own)

    def softsign(self) -> Self:
        """`self / (1 + |self|)`.

        >>> Tensor([1.0]).softsign().item()
        0.5
        """
        x, own = self.carried_float("softsign")
        return x.fdiv(x.abs().add(1.0)).cast(own)

    def prelu(self, weight: Any) -> Self:
        """This where positive, else `weight` times this.

        Args:
            weight: number or tensor of one element, one value for each size of axis 1 (channels), or what broadcasts.

        Raises:
            ShapeError: as many values as neither axis 1 nor the last axis has.

        >>> Tensor([-2.0]).prelu(Tensor([0.5])).item()
        -1.0
        """
        x = self.same_float("prelu")
        slope = x.coerce(weight)
        if slope.numel() == 1:
            slope = slope.reshape(())
        elif slope.ndim == 1:
            if x.ndim < 2 or (x.shape[1] != slope.shape[0] and x.shape[-1] != slope.shape[0]):
                raise ShapeError(
                    f"prelu: {slope.shape[0]} weights for shape {x.shape}; give one, or one for each channel (axis 1)"
                )
            if x.shape[1] == slope.shape[0]:
                slope = slope.reshape((1, -1) + (1,) * (x.ndim - 2))
        return x.gt(0.0).where(x, x.mul(slope))

    def tanhshrink(self) -> Self:
        """`self - tanh(self)`.

        >>> Tensor([0.0]).tanhshrink().item()
        0.0
        """
        x, own = self.carried_float("tanhshrink")
        return x.sub(x.tanh()).cast(own)

    def threshold(self, threshold: float, value: float) -> Self:
        """This where above `threshold`, else `value`.

        Raises:
            ArgumentError: an argument is no number.

        >>> Tensor([-1.0, 2.0]).threshold(0.5, 9.0).tolist()
        [9.0, 2.0]
        """
        limit = number(threshold, "threshold", "threshold")
        return (self <= limit).where(number(value, "threshold", "value"), self)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """Moved by `lambd` towards 0, and 0 within `[-lambd, lambd]`.

        Raises:
            ArgumentError: lambd is negative or no number.

        >>> Tensor([-2.0, 0.1, 2.0]).softshrink().tolist()
        [-1.5, 0.0, 1.5]
        """
        x, own = self.carried_float("softshrink")
        limit = _not_negative(lambd, "softshrink", "lambd")
        inside = (x >= -limit) & (x <= limit)
        return inside.where(0.0, x.gt(0.0).where(x.sub(limit), x.add(limit))).cast(own)

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """This outside `[-lambd, lambd]`, else 0.

        Raises:
            ArgumentError: lambd is no number.

        >>> Tensor([-2.0, 0.1, 2.0]).hardshrink().tolist()
        [-2.0, 0.0, 2.0]
        """
        x = self.same_float("hardshrink")
        limit = number(lambd, "hardshrink", "lambd")
        return ((x >= -limit) & (x <= limit)).where(0.0, x)

    def glu(self, dim: int = -1) -> Self:
        """Gated linear unit: the first half along `dim` times the sigmoid of the second.

        Raises:
            ShapeError: no axes, or the size along `dim` is odd.
            IndexingError: no such axis.

        Source: Dauphin et al. 2017, "Language modeling with gated convolutional networks".

        >>> Tensor([4.0, 0.0]).glu().tolist()
        [2.0]
        """
        if self.ndim == 0:
            raise ShapeError("glu: a tensor without axes has no halves; give it an axis")
        axis = axis_number(dim, self.ndim, "glu")
        size = self.shape[axis]
        if size % 2:
            raise ShapeError(f"glu: shape {self.shape} has an odd size, {size}, on axis {axis}; it is cut in halves")
        x, own = self.carried_float("glu")
        whole: list[tuple[int, int] | None] = [None] * self.ndim
        first = x.shrink([*whole[:axis], (0, size // 2), *whole[axis + 1 :]])
        second = x.shrink([*whole[:axis], (size // 2, size), *whole[axis + 1 :]])
        return first.mul(second.sigmoid()).cast(own)
