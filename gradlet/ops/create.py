"""Composed mixin: tensors made from nothing: constants, counting, identity and triangles."""

from __future__ import annotations

import math
from typing import Any, Final, Self, TypeVar

from gradlet.base.dtype import DType, dtypes, to_dtype
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.base.symint import Size
from gradlet.ops.arguments import integer, number, sizes
from gradlet.ops.diagonals import DiagonalsMixin

# Counting beyond this splits into rows and columns of a table of this many integers.
COUNTER: Final = 4096


T = TypeVar("T", bound="CreateMixin")


class CreateMixin(DiagonalsMixin):
    """Creation. The hooks `constant` and `counter` come from whoever mixes this in."""

    __slots__ = ()

    @classmethod
    def constant(cls, value: Any, shape: tuple[int, ...], dtype: DType, device: str | None, own: bool) -> Self:
        """The same value everywhere; with `own`, a float result is distinct from every other for gradients."""
        raise NotImplementedError

    @classmethod
    def counter(cls, size: int, device: str | None) -> Self:
        """0, 1, ... size - 1 as int32, for size <= COUNTER."""
        raise NotImplementedError

    @classmethod
    def full(cls, shape: Any, fill_value: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """The same value everywhere; the type follows from the value unless given.

        Raises:
            ShapeError: a negative size.
            ArgumentError: a value that is no number.
            DTypeError: an integer that the type cannot hold.

        >>> Tensor.full((2, 2), 7).tolist()
        [[7, 7], [7, 7]]
        """
        value = _fill_value(fill_value, "full")
        chosen = _type_of(value) if dtype is None else to_dtype(dtype)
        wanted = sizes((shape,), "full")
        return cls.constant(_fitting(value, chosen, "full"), wanted, chosen, device, True)

    @classmethod
    def zeros(cls, *shape: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Zeros, of the default float type unless another is given.

        Raises:
            ShapeError: a negative size.

        >>> Tensor.zeros(2).tolist()
        [0.0, 0.0]
        """
        return cls.full(sizes(shape, "zeros"), 0, dtype or dtypes.default_float, device)

    @classmethod
    def ones(cls, *shape: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Ones, of the default float type unless another is given.

        Raises:
            ShapeError: a negative size.

        >>> Tensor.ones(2).tolist()
        [1.0, 1.0]
        """
        return cls.full(sizes(shape, "ones"), 1, dtype or dtypes.default_float, device)

    def const_like(self, b: Any, dtype: DType | str | None = None) -> Self:
        """The number `b` everywhere, in this one's shape and device; its type is this one's unless given.

        Raises:
            ArgumentError: `b` is no number.
            DTypeError: an integer that the type cannot hold.

        >>> Tensor([1, 2]).const_like(5).tolist()
        [5, 5]
        """
        value = b if isinstance(b, bool) else number(b, "const_like", "b")
        chosen = self.dtype if dtype is None else to_dtype(dtype)
        return self.constant_like(_fitting(value, chosen, "const_like"), dtype=chosen)

    def full_like(self, fill_value: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """The same value everywhere, in this one's shape, type and device unless others are given.

        Raises:
            ArgumentError: a value that is no number.
            DTypeError: an integer that the type cannot hold.

        >>> Tensor([1, 2]).full_like(5).tolist()
        [5, 5]
        """
        value, chosen = _fill_value(fill_value, "full_like"), self.dtype if dtype is None else to_dtype(dtype)
        return self.constant(_fitting(value, chosen, "full_like"), self.shape, chosen, device or self.place, True)

    def zeros_like(self, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Zeros in this one's shape, type and device.

        >>> Tensor([1, 2]).zeros_like().tolist()
        [0, 0]
        """
        return self.full_like(0, dtype, device)

    def ones_like(self, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Ones in this one's shape, type and device.

        >>> Tensor([1, 2]).ones_like().tolist()
        [1, 1]
        """
        return self.full_like(1, dtype, device)

    def new_full(self, size: Any, fill_value: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """The same value everywhere, in another shape, of this one's type and device unless others are given.

        Raises:
            ShapeError: a negative size.

        >>> Tensor([1, 2]).new_full((2, 2), 5).tolist()
        [[5, 5], [5, 5]]
        """
        chosen = self.dtype if dtype is None else to_dtype(dtype)
        return self.full(sizes((size,), "new_full"), fill_value, chosen, device or self.place)

    def new_zeros(self, *size: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Zeros in another shape, of this one's type and device unless others are given.

        Raises:
            ShapeError: a negative size.

        >>> Tensor([1, 2]).new_zeros(3).tolist()
        [0, 0, 0]
        """
        return self.new_full(sizes(size, "new_zeros"), 0, dtype, device)

    def new_ones(self, *size: Any, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Ones in another shape, of this one's type and device unless others are given.

        Raises:
            ShapeError: a negative size.

        >>> Tensor([1, 2]).new_ones(3).tolist()
        [1, 1, 1]
        """
        return self.new_full(sizes(size, "new_ones"), 1, dtype, device)

    @property
    def place(self) -> str | None:
        """Device that holds the data; None for what any device can make (constants)."""
        raise NotImplementedError

    @classmethod
    def positions(cls, count: int, device: str | None) -> Self:
        """0, 1, ... count - 1, as int32 where it fits, else int64."""
        if isinstance(count, Size):
            return cls.positions(count.high, device).with_sizes((count,))
        if count <= COUNTER:
            return cls.counter(count, device)
        rows = -(-count // COUNTER)
        high = cls.positions(rows, device)
        if count > dtypes.int32.max:
            high = high.cast(dtypes.int64)
        table = high.reshape(rows, 1).mul(COUNTER).add(cls.counter(COUNTER, device).reshape(1, COUNTER))
        return table.reshape(rows * COUNTER).shrink(((0, count),))

    @classmethod
    def arange(
        cls, start: float, stop: float | None = None, step: float = 1, dtype: DType | str | None = None,
        device: str | None = None,
    ) -> Self:  # fmt: skip
        """Numbers from `start` up to but without `stop`, `step` apart; `arange(n)` counts from 0.

        The type is the default integer if all arguments are integers (int64 if it does not hold the numbers), else the
        default float.

        Raises:
            ArgumentError: step is zero, or something is no finite number.
            DTypeError: an integer type that does not hold the numbers.

        >>> Tensor.arange(2, 8, 3).tolist()
        [2, 5]
        """
        if stop is None:
            start, stop = 0, start
        start, stop = number(start, "arange", "start"), number(stop, "arange", "stop")
        step = number(step, "arange", "step")
        if not all(math.isfinite(v) for v in (start, stop, step)):
            raise ArgumentError(f"arange: start {start}, stop {stop} and step {step} must be finite")
        if step == 0:
            raise ArgumentError("arange: step may not be 0")
        whole = all(isinstance(v, int) for v in (start, stop, step))
        count = max(0, -((start - stop) // step) if whole else math.ceil((stop - start) / step))
        ends = (start, start + (count - 1) * step) if count else (0, 0)
        if dtype is not None:
            chosen = to_dtype(dtype)
        elif whole:
            chosen = _type_of(max(ends, key=abs))
        else:
            chosen = dtypes.default_float
        for end in ends:
            _fitting(int(end), chosen, "arange")
        if count == 0:
            return cls.constant(0, (0,), chosen, device, False)
        if whole:
            last = start + (count - 1) * step
            fits = all(-(2**31) <= v < 2**31 for v in (start, last, step))
            numbers = cls.positions(int(count), device).cast(dtypes.int32 if fits else dtypes.int64)
            # Adding also when start is 0: the result is a value of its own, never a view of the counter.
            return numbers.mul(step).add(start).cast(chosen)
        carrier = chosen if chosen.is_float and chosen.itemsize >= 4 else dtypes.float32
        return cls.positions(int(count), device).cast(carrier).mul(float(step)).add(float(start)).cast(chosen)

    @classmethod
    def linspace(
        cls, start: Any, stop: Any, steps: int, dtype: DType | str | None = None, device: str | None = None
    ) -> Self:
        """`steps` numbers evenly from `start` to `stop`, both included.

        Args:
            start, stop: numbers, or tensors without axes.

        Raises:
            ArgumentError: a negative number of steps, or an end that is no number.

        >>> Tensor.linspace(0, 1, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        steps = integer(steps, "linspace", "steps", 0)
        chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
        carrier = chosen if chosen.is_float and chosen.itemsize >= 4 else dtypes.float32
        low, place = cls._end(start, carrier, device, "linspace", "start")
        high, place = cls._end(stop, carrier, place, "linspace", "stop")
        if steps < 2:
            return low.expand(steps).cast(chosen)
        step = high.sub(low).fdiv(steps - 1)
        number = cls.positions(steps, place)
        upward = number.cast(carrier).mul(step).add(low)
        downward = number.mul(-1).add(steps - 1).cast(carrier).mul(step.neg()).add(high)
        return number.lt(steps // 2).where(upward, downward).cast(chosen)

    @classmethod
    def logspace(
        cls, start: Any, stop: Any, steps: int, base: float = 10.0, dtype: DType | str | None = None,
        device: str | None = None,
    ) -> Self:  # fmt: skip
        """`steps` numbers from `base ** start` to `base ** stop`, whose exponents are evenly apart.

        Args:
            start, stop: numbers, or tensors without axes.

        Raises:
            ArgumentError: a negative number of steps, or something that is no number.

        >>> Tensor.logspace(0, 2, 3).tolist()
        [1.0, 10.0, 100.0]
        """
        chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
        power = float(number(base, "logspace", "base"))
        exponents = cls.linspace(start, stop, steps, dtypes.float64, device)
        return exponents.pow(power, reverse=True).cast(chosen)

    @classmethod
    def _end(cls, value: Any, dtype: DType, device: str | None, what: str, name: str) -> tuple[Self, str | None]:
        """One end of a row of numbers as a tensor without axes, and the device."""
        if isinstance(value, CreateMixin):
            if value.ndim:
                raise ArgumentError(f"{what}: {name} must be a number or have no axes, got shape {value.shape}")
            return value.cast(dtype), device or value.place  # type: ignore[return-value]
        return cls.constant(number(value, what, name), (), dtype, None, True), device

    @classmethod
    def eye(cls, n: int, m: int | None = None, dtype: DType | str | None = None, device: str | None = None) -> Self:
        """Ones on the diagonal of an n x m matrix (m is n when not given), zeros elsewhere.

        >>> Tensor.eye(2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        rows, columns = sizes((n, n if m is None else m), "eye")
        chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
        one = cls.constant(1, (rows, columns), chosen, device, True)
        if 0 in (rows, columns):
            return one
        return on_or_below(one, -1).where(0, on_or_below(one, 0).where(one, 0))

    def tril(self, diagonal: int = 0) -> Self:
        """The lower triangle of the last two axes, up to and with this diagonal; zeros elsewhere.

        >>> Tensor([[1, 2], [3, 4]]).tril().tolist()
        [[1, 0], [3, 4]]
        """
        if 0 in self.shape:
            return self
        return on_or_below(self, diagonal).where(self, 0)

    def triu(self, diagonal: int = 0) -> Self:
        """The upper triangle of the last two axes, from this diagonal on; zeros elsewhere.

        >>> Tensor([[1, 2], [3, 4]]).triu().tolist()
        [[1, 2], [0, 4]]
        """
        if 0 in self.shape:
            return self
        return on_or_below(self, integer(diagonal, "triu", "diagonal") - 1).where(0, self)

    def positions_along(self, axis: int) -> Self:
        """The index on `axis` of every element, shaped to broadcast against this."""
        count = self.shape[axis]
        return self.positions(count, self.place).reshape([count if a == axis else 1 for a in range(self.ndim)])


def _fill_value(value: Any, what: str) -> Any:
    """A number; a bool stays one."""
    return value if isinstance(value, bool) else number(value, what, "fill_value")


def _type_of(value: Any) -> DType:
    """The type of a number alone: int64 for integers that the default type does not hold."""
    chosen = dtypes.of(value)
    return chosen if chosen is not dtypes.default_int or chosen.min <= value <= chosen.max else dtypes.int64


def _fitting(value: Any, dtype: DType, what: str) -> Any:
    """The value, which must not wrap in an integer type."""
    if dtype.is_int and isinstance(value, int) and not dtype.min <= value <= dtype.max:
        raise DTypeError(f"{what}: {value} does not fit {dtype}, which holds {dtype.min} to {dtype.max}")
    return value


def on_or_below(like: T, diagonal: int) -> T:
    """True on and below this diagonal of the last two axes."""
    if like.ndim < 2:
        raise ShapeError(f"tril, triu: need at least 2 axes, got shape {like.shape}")
    diagonal = integer(diagonal, "tril, triu", "diagonal")
    rows, columns = like.shape[-2:]
    row = like.positions(rows, like.place).reshape(rows, 1)
    column = like.positions(columns, like.place).reshape(1, columns)
    return column.lt(row.add(diagonal + 1))
