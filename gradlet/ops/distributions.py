"""Composed mixin: random numbers of many distributions, shaped like a tensor, as new values or in its place.

Each distribution is a function of uniform numbers that keeps its tails: those numbers have 32 bits next to 0. A method
whose name ends with `_` writes the numbers into the tensor and returns it, as in torch.
"""

from __future__ import annotations

import math
from typing import Any, Final, Self

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.ops.arguments import fraction, number
from gradlet.ops.gamma import log_gamma
from gradlet.ops.random import RandomMixin, to_open_unit

# Poisson numbers: rates below this by the distribution function, of which so many values are not yet 1.
RATE_BY_INVERSION: Final = 10.0
MOST_EVENTS: Final = 44
ATTEMPTS: Final = 16


class DistributionsMixin(RandomMixin):
    """Random numbers in this one's shape and type."""

    __slots__ = ()

    def assign(self, x: Any) -> Self:
        """Take the value of `x` in place."""
        raise NotImplementedError

    def bernoulli(self, p: float | None = None) -> Self:
        """1 with probability `p`, else 0, in this one's shape and type.

        Args:
            p: the probability of a 1; each element's own value when None. A value outside [0, 1] counts as the nearer
                end, NaN gives 0.

        Raises:
            ArgumentError: a number p outside [0, 1].
            DTypeError: no p, and values that are no floats.

        >>> Tensor([0.0, 1.0]).bernoulli().tolist()
        [0.0, 1.0]
        """
        if p is None and not self.dtype.is_float:
            raise DTypeError(f"bernoulli: probabilities must be floats, these are {self.dtype}; give p, or cast them")
        chance = self.detach() if p is None else fraction(p, "bernoulli", "p")
        uniform = self._open_unit(self.shape, dtypes.float32, self.place)
        return (uniform <= chance).cast(self.dtype)

    def exponential(self, lambd: float = 1.0) -> Self:
        """Exponential with rate `lambd`: density lambd e**(-lambd x) for x > 0.

        Raises:
            ArgumentError: the rate is not positive.
            DTypeError: this is no float.

        >>> Tensor.zeros(2, 3).exponential().shape
        (2, 3)
        """
        rate = _above_zero(lambd, "exponential", "lambd")
        wide = self._wide_float("exponential")
        # At 1 the logarithm is 0, which is no value of this distribution.
        waits = self._open_unit(self.shape, wide, self.place).log().neg().maximum(2.0**-25)
        return waits.mul(1 / rate).cast(self.dtype)

    def cauchy(self, median: float = 0.0, sigma: float = 1.0) -> Self:
        """Cauchy: density sigma / (pi (sigma**2 + (x - median)**2)).

        Raises:
            ArgumentError: sigma is not positive.
            DTypeError: this is no float.

        >>> Tensor.zeros(2, 3).cauchy().shape
        (2, 3)
        """
        center, width = number(median, "cauchy", "median"), _above_zero(sigma, "cauchy", "sigma")
        wide = self._wide_float("cauchy")
        words, signs = self._random_words(self.numel(), self.place)
        # Of each sign the cotangent of an angle in (0, pi / 2]: small angles, the tails, have all bits.
        angle = to_open_unit(words, wide).mul(math.pi / 2)
        size = angle.cos().fdiv(angle.sin()).maximum(0.0).mul(width)
        value = signs.bitwise_and(1).ne(0).where(size.neg(), size).add(center)
        return value.reshape(self.shape).cast(self.dtype)

    def geometric(self, p: float) -> Self:
        """Geometric: k = 1, 2, ... with probability (1 - p)**(k - 1) p; how many tries the first success takes.

        Raises:
            ArgumentError: p is not in (0, 1).
            DTypeError: this is of type bool.

        >>> bool((Tensor.zeros(100).geometric(0.5) >= 1).all().item())
        True
        """
        chance = number(p, "geometric", "p")
        if not 0 < chance < 1:
            raise ArgumentError(f"geometric: p must lie between 0 and 1, both excluded, got {p}")
        if self.dtype.is_bool:
            raise DTypeError("geometric: bool does not hold numbers of tries; use an integer or float type")
        wide = dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32
        tries = self._open_unit(self.shape, wide, self.place).log().mul(1 / math.log1p(-chance)).ceil()
        return tries.maximum(1.0).cast(self.dtype)

    def log_normal(self, mean: float = 1.0, std: float = 2.0) -> Self:
        """e to the power of a normal number with this mean and standard deviation.

        Raises:
            ArgumentError: std is not positive.
            DTypeError: this is no float.

        >>> bool((Tensor.zeros(100).log_normal() > 0).all().item())
        True
        """
        center, width = number(mean, "log_normal", "mean"), _above_zero(std, "log_normal", "std")
        wide = self._wide_float("log_normal")
        return self.randn(*self.shape, dtype=wide, device=self.place).mul(width).add(center).exp().cast(self.dtype)

    def poisson(self) -> Self:
        """Poisson with each element's own value as rate: k = 0, 1, ... with probability rate**k e**-rate / k!.

        NaN for rates that are negative, infinite or NaN.

        Raises:
            DTypeError: this is no float.

        Source: for rates below 10 the inverse of the distribution function; above the transformed rejection of
        Hormann 1993, "The transformed rejection method for generating Poisson random variables", of which 16 attempts
        are made at once (that all fail has a chance below 1e-9; then the last one counts).

        >>> Tensor([0.0]).poisson().item()
        0.0
        """
        self._wide_float("poisson")
        rate = self.detach().cast(dtypes.float64)
        usual = (rate >= 0.0).bitwise_and(rate.lt(math.inf))
        small = rate.lt(RATE_BY_INVERSION)
        few = self._few_events(usual.bitwise_and(small).where(rate, 1.0))
        many = self._many_events(usual.bitwise_and(small.logical_not()).where(rate, RATE_BY_INVERSION))
        return usual.where(small.where(few, many), math.nan).cast(self.dtype)

    def _few_events(self, rate: Self) -> Self:
        """Poisson numbers of small rates: how many values of the distribution function a uniform number exceeds."""
        uniform = self.rand(*self.shape, dtype=dtypes.float64, device=self.place)
        chance = rate.neg().exp()
        below, count = chance, uniform.mul(0.0)
        for k in range(1, MOST_EVENTS):
            count = count.add((uniform >= below).cast(dtypes.float64))
            chance = chance.mul(rate).mul(1 / k)
            below = below.add(chance)
        return count

    def _many_events(self, rate: Self) -> Self:
        """Poisson numbers of rates that are not small: the first attempt that is accepted."""
        shape = (*self.shape, ATTEMPTS)
        rate = rate.unsqueeze(-1)
        b = rate.sqrt().mul(2.53).add(0.931)
        a = b.mul(0.02483).sub(0.059)
        u = self.rand(*shape, dtype=dtypes.float64, device=self.place).sub(0.5)
        v = self._open_unit(shape, dtypes.float64, self.place)
        rest = u.abs().neg().add(0.5)
        k = a.mul(2.0).fdiv(rest).add(b).mul(u).add(rate).add(0.43).floor()
        surely = (rest >= 0.07).bitwise_and(v <= b.sub(2.0).reciprocal().mul(-3.6224).add(0.9277))
        hat = b.sub(3.4).reciprocal().mul(1.1328).add(1.1239)
        left = v.mul(hat).fdiv(a.fdiv(rest.mul(rest)).add(b)).log()
        right = k.mul(rate.log()).sub(rate).sub(log_gamma(k.maximum(0.0).add(1.0)))
        possible = (k >= 0.0).bitwise_and((rest >= 0.013).bitwise_or(v <= rest))
        accepted = surely.bitwise_or(possible.bitwise_and(left <= right))
        attempt = self.positions(ATTEMPTS, self.place)
        first = accepted.where(attempt, ATTEMPTS - 1).min(-1, keepdim=True)
        return attempt.eq(first).where(k.maximum(0.0), 0.0).sum(-1)

    def _wide_float(self, what: str) -> DType:
        """The type in which numbers of this one's type are computed.

        Raises:
            DTypeError: this is no float.
        """
        if not self.dtype.is_float:
            raise DTypeError(f"{what}: its values are fractions, which {self.dtype} does not hold; use a float type")
        return dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32

    # in place
    def bernoulli_(self, p: Any = 0.5) -> Self:
        """Write 1 with probability `p`, else 0, into this; p is a number, or a float tensor of this one's shape.

        >>> Tensor.zeros(2).contiguous().bernoulli_(1.0).tolist()
        [1.0, 1.0]
        """
        if isinstance(p, DistributionsMixin):
            return self.assign(p.expand(self.shape).bernoulli().cast(self.dtype))
        return self.assign(self.bernoulli(p))

    def exponential_(self, lambd: float = 1.0) -> Self:
        """Write numbers of `exponential` into this.

        >>> bool((Tensor.zeros(9).contiguous().exponential_() > 0).all().item())
        True
        """
        return self.assign(self.exponential(lambd))

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0) -> Self:
        """Write numbers of `cauchy` into this.

        >>> Tensor.zeros(2).contiguous().cauchy_().shape
        (2,)
        """
        return self.assign(self.cauchy(median, sigma))

    def geometric_(self, p: float) -> Self:
        """Write numbers of `geometric` into this.

        >>> bool((Tensor.zeros(9).contiguous().geometric_(0.5) >= 1).all().item())
        True
        """
        return self.assign(self.geometric(p))

    def log_normal_(self, mean: float = 1.0, std: float = 2.0) -> Self:
        """Write numbers of `log_normal` into this.

        >>> bool((Tensor.zeros(9).contiguous().log_normal_() > 0).all().item())
        True
        """
        return self.assign(self.log_normal(mean, std))

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Write normal numbers into this.

        >>> Tensor.zeros(2).contiguous().normal_(3.0, 0.0).tolist()
        [3.0, 3.0]
        """
        return self.assign(self.normal(*self.shape, mean=mean, std=std, dtype=self.dtype, device=self.place))

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Self:
        """Write uniform numbers in [low, high) into this.

        >>> Tensor.zeros(2).contiguous().uniform_(3.0, 3.0).tolist()
        [3.0, 3.0]
        """
        return self.assign(self.uniform(*self.shape, low=low, high=high, dtype=self.dtype, device=self.place))


def _above_zero(value: Any, what: str, name: str) -> float:
    found = float(number(value, what, name))
    if not found > 0:
        raise ArgumentError(f"{what}: {name} must be positive, got {value}")
    return found
