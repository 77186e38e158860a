"""Composed mixin: random numbers by counting: threefry2x32 (Salmon et al. 2011) of the element's index, no state.

The same seed gives the same numbers on every device. Each call takes one draw number; the words of an element are
threefry(key = the seed, counter = (index of the element, draw number)).
"""

from __future__ import annotations

import math
from math import prod
from typing import Any, Final, Self

from gradlet.base.dtype import DType, dtypes, to_dtype
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import has_size, integer, largest_sizes, number, sizes
from gradlet.ops.stats import StatsMixin

ROTATIONS: Final = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY: Final = 0x1BD11BDA


class RandomMixin(StatsMixin):
    """Random tensors. The hook `next_draw` gives the key and the draw number of the next call."""

    __slots__ = ()

    @classmethod
    def next_draw(cls) -> tuple[Any, Any, Any]:
        """(key word 0, key word 1, draw number) as uint32 tensors without axes; takes the number."""
        raise NotImplementedError

    @classmethod
    def _random_words(cls, count: int, device: str | None) -> tuple[Self, Self]:
        """Two uint32 words an element."""
        if count > 2**32:
            raise ShapeError(f"random numbers are counted in 32 bits; {count} elements are too many for one call")
        key0, key1, draw = cls.next_draw()
        index = cls.positions(count, device).cast(dtypes.uint32)
        return threefry2x32(key0, key1, index, draw)

    @classmethod
    def rand(cls, *shape: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Uniform in [0, 1), on a grid of 2**-24 for float32.

        Raises:
            DTypeError: not a float type.

        >>> Tensor.manual_seed(0)
        >>> x = Tensor.rand(100)
        >>> bool((x >= 0).all().item()), bool((x < 1).all().item())
        (True, True)
        """
        if has_size(shape):
            return cls.rand(*largest_sizes(shape), dtype=dtype, device=device).with_sizes(shape)
        wanted = sizes(shape, "rand")
        chosen = _float_type(dtype, "rand")
        if 0 in wanted:
            return cls.constant(0, wanted, chosen, device, False)
        words, _ = cls._random_words(prod(wanted), device)
        result: Self = _to_unit(words, chosen).reshape(wanted)
        return result

    def rand_like(self, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Uniform in [0, 1), in this one's shape and type.

        >>> Tensor.zeros(2, 3).rand_like().shape
        (2, 3)
        """
        return self.rand(*self.shape, dtype=dtype or self.dtype, device=device or self.place)

    @classmethod
    def randn(cls, *shape: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Normal with mean 0 and standard deviation 1.

        >>> Tensor.randn(2, 3).shape
        (2, 3)
        """
        if has_size(shape):
            return cls.randn(*largest_sizes(shape), dtype=dtype, device=device).with_sizes(shape)
        wanted = sizes(shape, "randn")
        chosen = _float_type(dtype, "randn")
        if 0 in wanted:
            return cls.constant(0, wanted, chosen, device, False)
        first, second = cls._random_words(prod(wanted), device)
        # Box and Muller; 1 - u lies in (0, 1], so the logarithm is finite.
        radius = _to_unit(first, dtypes.float32).neg().add(1.0).log().mul(-2.0).sqrt()
        angle = _to_unit(second, dtypes.float32).mul(2 * math.pi)
        result: Self = radius.mul(angle.cos()).cast(chosen).reshape(wanted)
        return result

    def randn_like(self, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Normal with mean 0 and standard deviation 1, in this one's shape and type.

        >>> Tensor.zeros(2, 3).randn_like().shape
        (2, 3)
        """
        return self.randn(*self.shape, dtype=dtype or self.dtype, device=device or self.place)

    @classmethod
    def randint(
        cls, *shape: Any, low: int = 0, high: int = 10, dtype: DType | str | None = None, device: str | None = None
    ) -> Self:
        """Integers in [low, high), each as likely as the others to within 2**-32 of the range.

        Raises:
            ArgumentError: an empty range, or one wider than 2**32.
            DTypeError: not an integer type, or the range does not fit it.

        >>> x = Tensor.randint(100, low=2, high=5)
        >>> x.min().item() >= 2, x.max().item() < 5
        (True, True)
        """
        wanted = sizes(shape, "randint")
        chosen = dtypes.default_int if dtype is None else to_dtype(dtype)
        if not isinstance(low, int) or not isinstance(high, int):
            raise ArgumentError(f"randint: low and high must be integers, got {low!r} and {high!r}")
        if not low < high <= low + 2**32:
            raise ArgumentError(f"randint: the range [{low}, {high}) must hold 1 to 2**32 numbers")
        if not chosen.is_int or low < chosen.min or high - 1 > chosen.max:
            raise DTypeError(f"randint: [{low}, {high}) does not fit {chosen}; choose another dtype")
        if 0 in wanted:
            return cls.constant(0, wanted, chosen, device, False)
        words, _ = cls._random_words(prod(wanted), device)
        # The high half of word * range; no remainder, so no number is favoured by more than one part in 2**32.
        scaled = words.cast(dtypes.uint64).mul(high - low).rshift(32)
        return scaled.cast(dtypes.int64).add(low).cast(chosen).reshape(wanted)

    @classmethod
    def uniform(
        cls,
        *shape: Any,
        low: float = 0.0,
        high: float = 1.0,
        dtype: DType | str | None = None,
        device: str | None = None,
    ) -> Self:
        """Uniform in [low, high).

        Raises:
            ArgumentError: an end that is no number.
            DTypeError: not a float type.

        >>> x = Tensor.uniform(100, low=-1.0, high=1.0)
        >>> x.min().item() >= -1.0
        True
        """
        low, high = number(low, "uniform", "low"), number(high, "uniform", "high")
        return cls.rand(*shape, dtype=_float_type(dtype, "uniform"), device=device).mul(high - low).add(low)

    @classmethod
    def normal(
        cls,
        *shape: Any,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: DType | str | None = None,
        device: str | None = None,
    ) -> Self:
        """Normal with this mean and standard deviation.

        Raises:
            ArgumentError: a negative standard deviation, or something that is no number.

        >>> Tensor.normal(2, 3, mean=5.0).shape
        (2, 3)
        """
        mean, std = number(mean, "normal", "mean"), number(std, "normal", "std")
        if not std >= 0:
            raise ArgumentError(f"normal: std must not be negative, got {std}")
        return cls.randn(*shape, dtype=dtype, device=device).mul(std).add(mean)

    @classmethod
    def scaled_uniform(cls, *shape: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Uniform in [-1, 1), divided by the square root of the number of elements.

        >>> Tensor.scaled_uniform(2, 3).shape
        (2, 3)
        """
        wanted = sizes(shape, "scaled_uniform")
        return cls.uniform(*wanted, low=-1.0, high=1.0, dtype=dtype, device=device).mul(max(1, prod(wanted)) ** -0.5)

    @classmethod
    def glorot_uniform(cls, *shape: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Uniform in +-sqrt(6 / (fan in + fan out)) (Glorot and Bengio 2010); the first axis is the output.

        >>> Tensor.glorot_uniform(2, 3).shape
        (2, 3)
        """
        wanted = sizes(shape, "glorot_uniform")
        if not wanted:
            raise ShapeError("glorot_uniform: needs at least one axis")
        bound = math.sqrt(6 / max(1, wanted[0] + prod(wanted[1:])))
        return cls.uniform(*wanted, low=-bound, high=bound, dtype=dtype, device=device)

    @classmethod
    def kaiming_uniform(
        cls, *shape: Any, a: float = 0.01, dtype: DType | str | None = None, device: str | None = None
    ) -> Self:
        """Uniform in +-sqrt(6 / ((1 + a**2) * fan in)) (He et al. 2015); the first axis is the output.

        >>> Tensor.kaiming_uniform(2, 3).shape
        (2, 3)
        """
        wanted, a = sizes(shape, "kaiming_uniform"), number(a, "kaiming_uniform", "a")
        bound = math.sqrt(6 / ((1 + a * a) * max(1, prod(wanted[1:]))))
        return cls.uniform(*wanted, low=-bound, high=bound, dtype=dtype, device=device)

    @classmethod
    def kaiming_normal(
        cls, *shape: Any, a: float = 0.01, dtype: DType | str | None = None, device: str | None = None
    ) -> Self:
        """Normal with standard deviation sqrt(2 / ((1 + a**2) * fan in)) (He et al. 2015).

        >>> Tensor.kaiming_normal(2, 3).shape
        (2, 3)
        """
        wanted, a = sizes(shape, "kaiming_normal"), number(a, "kaiming_normal", "a")
        std = math.sqrt(2 / ((1 + a * a) * max(1, prod(wanted[1:]))))
        return cls.normal(*wanted, std=std, dtype=dtype, device=device)

    @classmethod
    def randperm(cls, n: int, device: str | None = None, dtype: DType | str | None = None) -> Self:
        """The numbers 0 to n - 1 in random order.

        >>> sorted(Tensor.randperm(5).tolist())
        [0, 1, 2, 3, 4]
        """
        (count,) = sizes((n,), "randperm")
        chosen = dtypes.default_int if dtype is None else to_dtype(dtype)
        if count == 0:
            return cls.constant(0, (0,), chosen, device, False)
        words, _ = cls._random_words(count, device)
        return words.argsort(0).cast(chosen)

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Numbers drawn by these weights, along the last axis of a vector or matrix; int64.

        Raises:
            ShapeError: neither a vector nor a matrix, or no weights.
            ArgumentError: more than one sample without replacement, or fewer than one.

        >>> Tensor([0.0, 1.0]).multinomial(3, replacement=True).tolist()
        [1, 1, 1]
        """
        num_samples = integer(num_samples, "multinomial", "num_samples", 1)
        if self.ndim not in (1, 2) or not self.shape[-1]:
            raise ShapeError(f"multinomial: needs 1 or 2 axes and at least one weight, got shape {self.shape}")
        if not replacement and num_samples > 1:
            raise ArgumentError("multinomial: draw more than one sample with replacement=True")
        rows = self.reshape(-1, self.shape[-1]).same_float("multinomial")
        running = rows.cumsum(1)
        total = running.shrink((None, (rows.shape[1] - 1, rows.shape[1])))
        point = self.rand(rows.shape[0], num_samples, dtype=rows.dtype, device=self.place).mul(total)
        return running._count_up_to(point).reshape(self.shape[:-1] + (num_samples,))

    def _count_up_to(self, point: Self) -> Self:
        """How many numbers of each ascending row are at most each point of that row, found by halving, as int64."""
        size = self.shape[1]
        count = point.const_like(0, dtype=dtypes.int64)
        step = 1 << (size.bit_length() - 1)
        while step:
            more = count.add(step)
            reached = (self.gather_rows(more.sub(1), 1) <= point).bitwise_and(more.lt(size + 1))
            count = reached.where(more, count)
            step //= 2
        return count


def threefry2x32(key0: Any, key1: Any, counter0: Any, counter1: Any) -> tuple[Any, Any]:
    """20 rounds of threefry on two 32-bit words; all four are uint32 tensors that broadcast."""
    keys = (key0, key1, key0.bitwise_xor(key1).bitwise_xor(PARITY))
    x, y = counter0.add(keys[0]), counter1.add(keys[1])
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x = x.add(y)
            y = y.lshift(rotation).bitwise_or(y.rshift(32 - rotation)).bitwise_xor(x)
        x = x.add(keys[(block + 1) % 3])
        y = y.add(keys[(block + 2) % 3].add(block + 1))
    return x, y


def _to_unit(words: Any, dtype: DType) -> Any:
    """Words as floats in [0, 1): the highest bits that the type can hold without rounding up to 1."""
    bits = min(dtype.format.digits, 24)
    carrier = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    # Fits int32, which converts to float in one instruction.
    return words.rshift(32 - bits).cast(dtypes.int32).cast(carrier).mul(2.0**-bits).cast(dtype)


def _float_type(dtype: DType | str | None, what: str) -> DType:
    chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not chosen.is_float:
        raise DTypeError(f"{what}: {chosen} is not a float type; use randint for integers")
    return chosen
