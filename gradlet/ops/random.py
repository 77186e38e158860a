"""Composed mixin: random numbers by counting: threefry2x32 (Salmon et al. 2011) of the element's index, no state.

The same seed gives the same numbers on every device. Each call takes one draw number; the words of an element are
threefry(key = the seed, counter = (index of the element, draw number)).
"""

from __future__ import annotations

import math
from math import prod
from typing import Any, Final, Self

from gradlet.base.dtype import DType, accumulator, dtypes, promote, to_dtype
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import broadcast_shapes, has_size, integer, largest_sizes, number, sizes
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
            raise ShapeError(f"random numbers are counted in 32 bits; {count} elements are too many; join parts")
        key0, key1, draw = cls.next_draw()
        index = cls.positions(count, device).cast(dtypes.uint32)
        return threefry2x32(key0, key1, index, draw)

    @classmethod
    def rand(
        cls, *shape: Any, device: str | None = None, dtype: DType | str | None = None, contiguous: bool = True
    ) -> Self:
        """Uniform in [0, 1), on a grid of 2**-24 for float32, of 2**-53 for float64, of the last bit of narrower types.

        Args:
            shape: sizes.
            contiguous: changes nothing, since the numbers are the same however often they are computed.

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
        first, second = cls._random_words(prod(wanted), device)
        result: Self = _to_unit(first, second, chosen).reshape(wanted)
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

        Source: Box and Muller 1958. Values lie within 5.8 of 0 (float64: 6.8).

        Raises:
            DTypeError: not a float type.

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
        # Box and Muller; what the logarithm sees lies in (0, 1], so it is finite.
        if chosen is dtypes.float64:
            radius, turn = to_open_unit(first, chosen), to_open_unit(second, chosen)
        else:
            radius, turn = _to_unit(first, second, dtypes.float32).neg().add(1.0), _highest_bits(second)
        result: Self = radius.log().mul(-2.0).sqrt().mul(turn.mul(2 * math.pi).cos()).cast(chosen).reshape(wanted)
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
        """Integers in [low, high), each as likely as the others to within 2**-32 of the range (2**-64 above 2**32).

        Raises:
            ArgumentError: an empty range.
            DTypeError: the type does not hold all numbers of the range.

        >>> x = Tensor.randint(100, low=2, high=5)
        >>> x.min().item() >= 2, x.max().item() < 5
        (True, True)
        """
        wanted = sizes(shape, "randint")
        chosen = dtypes.default_int if dtype is None else to_dtype(dtype)
        low, high = integer(low, "randint", "low"), integer(high, "randint", "high")
        if not low < high:
            raise ArgumentError(f"randint: the range [{low}, {high}) holds no number")
        if chosen.is_float:
            fits = max(abs(low), abs(high - 1)) <= min(2**chosen.format.digits, chosen.format.largest)
        else:
            fits = chosen.is_int and chosen.min <= low and high - 1 <= chosen.max
        if not fits:
            raise DTypeError(f"randint: [{low}, {high}) does not fit {chosen}; choose another dtype")
        if 0 in wanted:
            return cls.constant(0, wanted, chosen, device, False)
        first, second = cls._random_words(prod(wanted), device)
        span = high - low
        # The high half of word * range; no remainder, so no number is favoured by more than one part in 2**32.
        if span <= 2**32:
            scaled = first.cast(dtypes.uint64).mul(span).rshift(32)
        else:
            scaled = _high_half(first.cast(dtypes.uint64), second.cast(dtypes.uint64), span)
        if low < 0:  # wraps into place
            return scaled.cast(dtypes.int64).add(low).cast(chosen).reshape(wanted)
        return scaled.add(low).cast(chosen).reshape(wanted)

    def randint_like(
        self, low: int = 0, high: int = 10, dtype: DType | str | None = None, device: str | None = None
    ) -> Self:
        """Integers in [low, high), in this one's shape; in its type unless another is given.

        Raises:
            ArgumentError: an empty range.
            DTypeError: the range does not fit the type.

        >>> Tensor.zeros(2, 3).randint_like(high=1).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        """
        chosen = self.dtype if dtype is None else dtype
        place = self.place if device is None else device
        return self.randint(*self.shape, low=low, high=high, dtype=chosen, device=place)

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
            ArgumentError: an end that is no number, `low` above `high`, or a range wider than the type's numbers.
            DTypeError: not a float type.

        >>> x = Tensor.uniform(100, low=-1.0, high=1.0)
        >>> x.min().item() >= -1.0
        True
        """
        low, high, chosen = (
            number(low, "uniform", "low"),
            number(high, "uniform", "high"),
            _float_type(dtype, "uniform"),
        )
        if not low <= high:
            raise ArgumentError(f"uniform: low must not be above high, got [{low}, {high})")
        if not high - low <= chosen.format.largest:
            raise ArgumentError(f"uniform: [{low}, {high}) is wider than the largest number of {chosen}")
        scaled = cls.rand(*shape, dtype=chosen, device=device).mul(high - low).add(low)
        # Rounding may reach the upper end.
        return scaled if low == 0 and high == 1 else scaled.lt(high).where(scaled, low)

    @classmethod
    def normal(
        cls,
        *shape: Any,
        mean: Any = 0.0,
        std: Any = 1.0,
        dtype: DType | str | None = None,
        device: str | None = None,
    ) -> Self:
        """Normal with this mean and standard deviation: mean + std * randn; differentiable with respect to both.

        Args:
            shape: sizes; without any, those of `mean` and `std` together.
            mean, std: numbers, or tensors that broadcast to the shape.

        Raises:
            ArgumentError: a negative standard deviation, or something that is no number.
            ShapeError: tensors that do not broadcast to the shape.

        >>> Tensor.normal(2, 3, mean=5.0).shape
        (2, 3)
        >>> Tensor.normal(mean=Tensor([1.0, 2.0]), std=0.0).tolist()
        [1.0, 2.0]
        """
        tensors = [part for part in (mean, std) if isinstance(part, RandomMixin)]
        if not isinstance(mean, RandomMixin):
            mean = number(mean, "normal", "mean")
        if not isinstance(std, RandomMixin):
            std = number(std, "normal", "std")
            if not std >= 0:
                raise ArgumentError(f"normal: std must not be negative, got {std}")
        if not tensors:
            return cls.randn(*shape, dtype=dtype, device=device).mul(std).add(mean)
        together = broadcast_shapes([part.shape for part in tensors], "normal")
        wanted = sizes(shape, "normal") if shape else together
        if broadcast_shapes((wanted, together), "normal") != wanted:
            raise ShapeError(f"normal: mean and std of shape {together} do not broadcast to shape {wanted}")
        chosen = dtype
        if chosen is None:
            floats = [part.dtype for part in tensors if part.dtype.is_float]
            chosen = promote(floats[0], floats[-1]) if floats else None
        place = tensors[0].place if device is None else device
        return cls.randn(*wanted, dtype=chosen, device=place).mul(std).add(mean)

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
            raise ShapeError("glorot_uniform: needs at least one axis, the first of which is the output; got shape ()")
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

        Raises:
            ArgumentError: n is negative, or no integer.

        >>> sorted(Tensor.randperm(5).tolist())
        [0, 1, 2, 3, 4]
        """
        count = integer(n, "randperm", "n", 0)
        chosen = dtypes.default_int if dtype is None else to_dtype(dtype)
        if count == 0:
            return cls.constant(0, (0,), chosen, device, False)
        words, _ = cls._random_words(count, device)
        return words.argsort(0).cast(chosen)

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Numbers drawn by these weights, along the last axis of a vector or matrix; of type `dtypes.default_int`.

        Args:
            num_samples: how many numbers a row.
            replacement: whether a number may be drawn again.

        Where nothing can be drawn the result is the number of weights, which is no number of them: in rows with a
        negative, infinite or NaN weight or with no weight above 0, and without replacement when those are used up.

        Raises:
            ShapeError: neither a vector nor a matrix, or no weights.
            ArgumentError: fewer than one sample, or without replacement more than there are numbers.

        Source: the inverse of the running sum; without replacement the order in which exponential clocks of these
        rates ring (Efraimidis and Spirakis 2006).

        >>> Tensor([0.0, 1.0]).multinomial(3, replacement=True).tolist()
        [1, 1, 1]
        """
        num_samples = integer(num_samples, "multinomial", "num_samples", 1)
        if self.ndim not in (1, 2) or not self.shape[-1]:
            raise ShapeError(f"multinomial: needs 1 or 2 axes and at least one weight, got shape {self.shape}")
        rows = self.reshape(-1, self.shape[-1]).same_float("multinomial")
        rows, count = rows.cast(accumulator(rows.dtype)).detach(), rows.shape[1]
        if not replacement and num_samples > count:
            raise ArgumentError(
                f"multinomial: {num_samples} different numbers of {count}; draw fewer, or with replacement=True"
            )
        if replacement or num_samples == 1:
            running = rows.cumsum(1)
            total = running.shrink((None, (count - 1, count)))
            point = self.rand(rows.shape[0], num_samples, dtype=rows.dtype, device=self.place).mul(total)
            drawn = running._count_up_to(point)
        else:
            waits = self._open_unit(rows.shape, rows.dtype, self.place).log().neg().fdiv(rows)
            drawn = waits.topk(num_samples, 1, largest=False)[1]
        proper = (rows >= 0.0).bitwise_and(rows.isfinite()).all(1, True)
        drawn = proper.bitwise_and(rows.gather_rows(drawn, 1).gt(0.0)).where(drawn, count)
        return drawn.cast(dtypes.default_int).reshape(self.shape[:-1] + (num_samples,))

    @classmethod
    def _open_unit(cls, shape: Any, dtype: DType, device: str | None) -> Self:
        """Uniform in (0, 1], on a grid of 2**-32 with as many digits as the type has."""
        words, _ = cls._random_words(prod(shape), device)
        result: Self = to_open_unit(words, dtype).reshape(shape)
        return result

    def _count_up_to(self, point: Self) -> Self:
        """How many numbers of each ascending row are at most each point of that row, found by halving, as int64."""
        size = self.shape[1]
        count = point.constant_like(0, dtype=dtypes.int64)
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


def _highest_bits(words: Any, bits: int = 24) -> Any:
    """Words as float32 in [0, 1), of their highest bits."""
    # Fits int32, which converts to float in one instruction.
    return words.rshift(32 - bits).cast(dtypes.int32).cast(dtypes.float32).mul(2.0**-bits)


def _to_unit(first: Any, second: Any, dtype: DType) -> Any:
    """Words as floats in [0, 1): the highest bits that the type can hold without rounding up to 1."""
    if dtype is not dtypes.float64:
        return _highest_bits(first, min(dtype.format.digits, 24)).cast(dtype)
    high = first.rshift(5).cast(dtypes.int32).cast(dtypes.float64)
    low = second.rshift(6).cast(dtypes.int32).cast(dtypes.float64)
    return high.mul(2.0**26).add(low).mul(2.0**-53)


def to_open_unit(words: Any, dtype: DType) -> Any:
    """Words as floats in (0, 1]: small ones have all 32 bits, which keeps the tails of distributions right."""
    wide = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    return words.cast(wide).add(0.5).mul(2.0**-32)


def _high_half(first: Any, second: Any, span: int) -> Any:
    """The high 64 bits of (first * 2**32 + second) * span, all of them 64 bits wide."""
    if span == 2**64:
        return first.lshift(32).bitwise_or(second)
    high, low, mask = span >> 32, span & (2**32 - 1), 2**32 - 1
    cross, other = first.mul(low), second.mul(high)
    middle = second.mul(low).rshift(32).add(cross.bitwise_and(mask)).add(other.bitwise_and(mask))
    return first.mul(high).add(cross.rshift(32)).add(other.rshift(32)).add(middle.rshift(32))


def _float_type(dtype: DType | str | None, what: str) -> DType:
    chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
    if not chosen.is_float:
        raise DTypeError(f"{what}: {chosen} is not a float type; use randint for integers")
    return chosen
