"""Composed mixin: rectifiers whose slope is drawn at random while training."""

from __future__ import annotations

from typing import Self

from gradlet.base.errors import ArgumentError
from gradlet.ops.activation import ActivationMixin
from gradlet.ops.arguments import number
from gradlet.ops.random import RandomMixin


class RandomSlopeMixin(RandomMixin, ActivationMixin):
    """Rectifiers with random slopes."""

    __slots__ = ()

    def rrelu(self, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Self:
        """This where positive, else this times a slope: drawn between `lower` and `upper` for each element when
        `training`, else their mean.

        Raises:
            ArgumentError: lower is above upper.

        Source: Xu et al. 2015, "Empirical evaluation of rectified activations in convolutional network".

        >>> Tensor([-2.0, 2.0]).rrelu(0.25, 0.75).tolist()
        [-1.0, 2.0]
        """
        low, high = number(lower, "rrelu", "lower"), number(upper, "rrelu", "upper")
        if not low <= high:
            raise ArgumentError(f"rrelu: lower {low} is above upper {high}")
        x = self.same_float("rrelu")
        slope = x.rand_like().mul(high - low).add(low) if training else (low + high) / 2
        return x.gt(0.0).where(x, x.mul(slope))
