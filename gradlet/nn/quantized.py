"""Weights of 4 to 8 bits in blocks with a scale, as GGUF files keep them: laid out once, multiplied without expanding.

A matrix is cut into blocks of 16 or 32 columns. Each row of a block has integer codes and a scale, in some types a
minimum too: `weight = scale * (code - zero) - minimum`. When a matrix is loaded, rows are interleaved: what
neighbouring lanes of a vector need lies side by side, and a word of 32 bits has four codes of one row in the low halves
of its bytes, and those of a second row, for the same columns, in the high halves. So a word of the vector that is read
once meets two rows, and two of its words at a time are enough.

A product multiplies the codes with integers: each vector is written block by block as integers of 16 bits and a scale,
each integer as two signed bytes, and products of bytes are exact. A vector's element is off by at most one part in
65000 of the largest one in its block. Where a processor has no dot products of bytes and multiplies integers of 16 bits
in pairs, three rows and more meet the codes as such integers. Where it has neither, many rows meet the expanded matrix,
in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.io.blocks import BLOCK_TYPES as TYPES
from gradlet.io.blocks import Blocks
from gradlet.ops.movement import operand
from gradlet.runtime.device import Device
from gradlet.tensor.tensor import Tensor

# From this many rows on a product expands the matrix, unless its integers are multiplied faster than floats are.
EXPAND_ROWS: Final = 16
NIBBLES: Final = 0x0F0F0F0F
HALVES: Final = 0x00FF00FF  # of two bytes in words of two integers of 16 bits
HALVES_ROWS: Final = 3  # from this many rows on codes become such words: those are multiplied faster
LARGEST: Final = 127 * 256  # of the integers that stand for a vector: two signed bytes
SMALLEST: Final = 1e-30  # largest element of a block that still has all digits


class Layout(NamedTuple):
    """Where a matrix lies in memory: words of codes, and per block a scale, a minimum, and their integer factors."""

    codes: list[Tensor]
    scale: Tensor
    minimum: Tensor | None
    scales: Tensor | None
    minima: Tensor | None


class QuantizedWeight:
    """A matrix [rows, columns] of quantised blocks, as a layer's weight: `linear(x)` is `x @ dequantize().T`.

    Attributes:
        type: the name of its type, as `Q4_0`.
        shape: rows and columns.

    >>> from gradlet import Tensor, nn
    >>> w = nn.QuantizedWeight.from_gguf_blocks(Tensor.zeros(8 * 18, dtype="uint8"), "Q4_0", (8, 32))
    >>> w.linear(Tensor.ones(3, 32)).shape
    (3, 8)
    """

    def __init__(self, type: str, shape: tuple[int, int], blocks: Blocks) -> None:
        if not isinstance(type, str) or type not in TYPES:
            raise ArgumentError(f"QuantizedWeight: unknown type {type!r}; use one of: {', '.join(TYPES)}")
        if not isinstance(blocks, Blocks):
            raise ArgumentError(f"QuantizedWeight: blocks is {blocks!r}; make weights with from_gguf_blocks")
        if (
            not isinstance(shape, tuple)
            or len(shape) != 2
            or not all(isinstance(n, int) for n in shape)
            or min(shape) < 1
        ):
            raise ShapeError(f"QuantizedWeight: shape {shape!r} is not (rows, columns)")
        self._measure(type, shape, blocks.codes.device)
        rows, lanes = shape[0], self._lanes
        self._nested = self._blocks // blocks.scale.shape[1]  # blocks that share a scale of scales

        def interleave(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            count = values.shape[1]
            padded = values.pad(((0, self._tiles * self._sides * lanes - rows), (0, 0)))
            return padded.reshape(self._tiles, self._sides, lanes, count).permute(0, 3, 1, 2).contiguous()

        self._scale, self._minimum = interleave(blocks.scale), interleave(blocks.minimum)
        self._scales, self._minima = interleave(blocks.scales), interleave(blocks.minima)
        codes = blocks.codes.pad(((0, self._tiles * self._sides * lanes - rows), (0, 0)))
        self._codes = self._pack(codes)
        Tensor.realize(*[t for t in (*self._codes, *self._parts()) if t is not None])

    def _measure(self, type: str, shape: tuple[int, int], device: str) -> None:
        """How a matrix is laid out."""
        self.type, self.shape = type, shape
        self._kind = TYPES[type]
        self._lanes = _lanes_of(device)
        self._sides = 1 if self._kind.bits == 8 else 2  # rows that share a word
        self._tiles = -(-shape[0] // (self._sides * self._lanes))
        self._blocks = shape[1] // self._kind.group

    def _parts(self) -> tuple[Tensor | None, ...]:
        return self._scale, self._minimum, self._scales, self._minima

    def layout(self) -> Layout:
        """Codes and factors as they lie in memory."""
        assert self._scale is not None
        return Layout(self._codes, self._scale, self._minimum, self._scales, self._minima)

    @staticmethod
    def from_layout(type: str, shape: tuple[int, int], layout: Layout) -> QuantizedWeight:
        """The matrix of a type and shape that has such codes and factors."""
        made = QuantizedWeight.__new__(QuantizedWeight)
        made._measure(type, shape, layout.codes[0].device)
        made._nested = made._blocks // layout.scale.shape[1]
        made._codes, (made._scale, made._minimum, made._scales, made._minima) = list(layout.codes), layout[1:]
        return made

    @staticmethod
    def from_gguf_blocks(raw: Tensor, type: str, shape: tuple[int, int]) -> QuantizedWeight:
        """A matrix from the bytes of its blocks, row after row, as they stand in a GGUF file.

        Args:
            raw: uint8, as many as `shape` needs.
            type: one of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K.
            shape: rows (results of the layer) and columns (its inputs).

        Raises:
            ArgumentError: an unknown type, or a wrong number of bytes.
            DTypeError: not bytes.
            ShapeError: columns that are not whole blocks.
        """
        raw = operand(raw, "from_gguf_blocks", "raw")
        kind = TYPES.get(type)
        if kind is None:
            raise ArgumentError(f"from_gguf_blocks: unknown type {type!r}; use one of: {', '.join(TYPES)}")
        if raw.dtype is not dtypes.uint8:
            raise DTypeError(f"from_gguf_blocks: raw must be bytes (uint8), not {raw.dtype.name}")
        if len(shape) != 2 or min(shape) < 1:
            raise ShapeError(f"from_gguf_blocks: shape {tuple(shape)} is not (rows, columns)")
        rows, columns = shape
        if columns % kind.size:
            raise ShapeError(
                f"from_gguf_blocks: {type} has blocks of {kind.size} columns, and {columns} is no multiple of it"
            )
        count = columns // kind.size
        needed = rows * count * kind.bytes
        if raw.numel() != needed:
            raise ArgumentError(
                f"from_gguf_blocks: {type} of shape {(rows, columns)} takes {needed} bytes ({rows} x {count} blocks of "
                f"{kind.bytes}), and there are {raw.numel()}"
            )
        return QuantizedWeight(type, (rows, columns), kind.read(raw.reshape(rows, count, kind.bytes)))

    def __repr__(self) -> str:
        return f"QuantizedWeight({self.type}, {self.shape})"

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear(x)

    def dequantize(self) -> Tensor:
        """The matrix in float32, [rows, columns]."""
        rows, size = self.shape[0], self._kind.group
        values = self._numbers()  # [tiles, blocks, size, sides, lanes]
        scale, minimum = self._factors()
        if self._kind.zero:
            values = values - self._kind.zero
        values = values * scale.unsqueeze(2)
        if minimum is not None:
            values = values - minimum.unsqueeze(2)
        values = values.permute(0, 3, 4, 1, 2).reshape(self._tiles * self._sides * self._lanes, self._blocks * size)
        return values[:rows]

    def rows(self, numbers: Tensor) -> Tensor:
        """Some rows of the matrix in float32, as an embedding looks them up: [..., columns].

        Raises:
            DTypeError: numbers that are no integers.
        """
        numbers = operand(numbers, "rows", "numbers")
        if not numbers.dtype.is_int:
            raise DTypeError(f"rows: indices are integers, numbers is {numbers.dtype}; cast it, for example to int32")
        lanes, size = self._lanes, self._kind.group
        flat = numbers.reshape(numbers.numel()).cast("int32")
        # What the row needs alone is read: its lane of its tile's words.
        at = flat // (self._sides * lanes) * lanes + flat % lanes
        side = (flat // lanes % self._sides).reshape(len(flat), 1, 1)

        def lane(values: Tensor, inner: int) -> Tensor:
            """[tiles, inner..., lanes] as rows [tiles * lanes, inner], of which those asked for are taken."""
            return values.reshape(self._tiles, inner, lanes).permute(0, 2, 1).reshape(self._tiles * lanes, inner)[at]

        def factor(part: Tensor | None, by: Tensor | None) -> Tensor | None:
            if part is None:
                return None
            count = part.shape[1]
            value = _of_side(lane(part, count * self._sides).reshape(len(flat), count, self._sides), side)
            if by is None:
                return value.cast("float32")
            inner = _of_side(lane(by, self._blocks * self._sides).reshape(len(flat), self._blocks, self._sides), side)
            inner = inner.cast("float32").reshape(len(flat), count, self._nested)
            return (value.cast("float32").unsqueeze(-1) * inner).reshape(len(flat), self._blocks)

        words = size // 4
        four = lane(self._codes[0], self._blocks * words).reshape(len(flat), self._blocks, words)
        if self._sides > 1:
            four = (four >> (4 * side)) & NIBBLES
        if len(self._codes) > 1:
            extra = self._kind.bits - 4
            above = lane(self._codes[1], self._blocks * self._sides).reshape(len(flat), self._blocks, self._sides)
            places = (extra * Tensor.arange(words, dtype="int32", device=flat.device)).reshape(1, 1, words)
            mask = 0x01010101 if extra == 1 else 0x03030303
            four = four | (((_of_side(above, side).unsqueeze(-1) >> places) & mask) << 4)
        bytes_ = (8 * Tensor.arange(4, dtype="int32", device=flat.device)).reshape(1, 1, 4, 1)
        codes = ((four.unsqueeze(2) >> bytes_) & 255).reshape(len(flat), self._blocks, size)
        values = codes.cast("float32")
        if self._kind.zero:
            values = values - self._kind.zero
        scale, minimum = factor(self._scale, self._scales), factor(self._minimum, self._minima)
        assert scale is not None
        values = values * scale.unsqueeze(-1)
        if minimum is not None:
            values = values - minimum.unsqueeze(-1)
        return values.reshape(*numbers.shape, self.shape[1])

    def linear(self, x: Tensor) -> Tensor:
        """`x @ dequantize().T` for x [..., columns]: float32 [..., rows].

        Raises:
            DTypeError: x is not a float.
            ShapeError: the last axis of x is not the matrix's columns.
        """
        x = operand(x, "linear", "x")
        rows, columns = self.shape
        if x.ndim == 0 or x.shape[-1] != columns:
            raise ShapeError(f"linear: x of shape {x.shape} does not fit a weight of {columns} columns")
        if not x.dtype.is_float:
            raise DTypeError(f"linear: x is {x.dtype.name}, not a float")
        leading = x.shape[:-1]
        count = prod(leading)
        flat = x.cast("float32").reshape(count, columns)
        fast = _multiplies_bytes(x.device) or _multiplies_halves(x.device)
        if count == 0 or (count >= EXPAND_ROWS and not fast):
            result = flat @ self.dequantize().transpose(0, 1)
        else:
            result = self._by_integers(flat)
        return result.reshape(*leading, rows)

    # the layout
    def _pack(self, codes: Tensor) -> list[Tensor]:
        """Codes [rows, columns] as what the products read: words of four codes of a row, or of two."""
        words = self._kind.group // 4
        # Byte t of word j is code `words * t + j`: neighbouring codes of a vector are then in neighbouring words.
        bytes_ = codes.cast("int32").reshape(self._tiles, self._sides, self._lanes, self._blocks, 4, words)
        bytes_ = bytes_.permute(0, 3, 5, 1, 2, 4)  # [tiles, blocks, words, sides, lanes, 4]
        if self._kind.bits == 8:
            return [_words(bytes_).contiguous()]
        low = _words(bytes_ & 15)
        packed = [(low[:, :, :, 0] | (low[:, :, :, 1] << 4)).contiguous()]
        extra = self._kind.bits - 4
        if extra:
            places = (extra * Tensor.arange(words, dtype="int32", device=codes.device)).reshape(words, 1, 1)
            packed.append((_words(bytes_ >> 4) << places).sum(2, dtype="int32").contiguous())
        return packed

    def _code_words(self) -> Tensor:
        """The words of four codes, [tiles, blocks, words, sides, lanes]."""
        first = self._codes[0]
        if self._kind.bits == 8:
            return first
        words = Tensor.stack(first & NIBBLES, (first >> 4) & NIBBLES, dim=3)
        extra = self._kind.bits - 4
        if extra:
            mask = 0x01010101 if extra == 1 else 0x03030303
            above = self._codes[1]
            upper = [((above >> (extra * place)) & mask) << 4 for place in range(first.shape[2])]
            words = words | Tensor.stack(*upper, dim=2)
        return words

    def _numbers(self) -> Tensor:
        """The codes as float32, [tiles, blocks, columns of a block, sides, lanes]."""
        words = self._code_words()
        places = (8 * Tensor.arange(4, dtype="int32", device=words.device)).reshape(4, 1, 1, 1)
        values = (words.unsqueeze(2) >> places) & 255
        shape = self._tiles, self._blocks, self._kind.group, self._sides, self._lanes
        return values.reshape(shape).cast("float32")

    def _factors(self) -> tuple[Tensor, Tensor | None]:
        """Scale and minimum of every block in float32, [tiles, blocks, sides, lanes]."""
        scale, minimum = [
            None if part is None else self._by_block(part, by)
            for part, by in ((self._scale, self._scales), (self._minimum, self._minima))
        ]
        assert scale is not None
        return scale, minimum

    def _by_block(self, part: Tensor, by: Tensor | None) -> Tensor:
        part = part.cast("float32")
        if by is None:
            return part
        inner = by.cast("float32").reshape(self._tiles, part.shape[1], self._nested, self._sides, self._lanes)
        return (part.unsqueeze(2) * inner).reshape(self._tiles, self._blocks, self._sides, self._lanes)

    # products
    def _by_integers(self, x: Tensor) -> Tensor:
        rows, count, size = self.shape[0], x.shape[0], self._kind.group
        x = x.reshape(count, 1, self._blocks, size)
        scale, minimum = self._factors()
        codes = self._code_words()
        dots: Any = 0
        # Bytes without a sign that use all of their bits have no fast products with others.
        if _multiplies_halves(x.device) and (count >= HALVES_ROWS or self._kind.bits == 8):
            unit, words, sums = _as_halves(x)
            dots = _half_products((codes & HALVES, (codes >> 8) & HALVES), words).sum(3, dtype="int32")
        else:
            unit, words, sums = _as_integers(x)
            for part in words:
                # The upper byte counts 256 times.
                dots = dots * 256 + _byte_products(codes, part).sum(3, dtype="int32")
        if self._kind.zero:
            dots = dots + (sums * -self._kind.zero).contiguous()
        value = dots.cast("float32") * unit * scale
        if minimum is not None:
            value = value + (sums.cast("float32") * -unit).contiguous() * minimum
        total = value.sum(2)
        return total.reshape(count, self._tiles * self._sides * self._lanes)[:, :rows]


def _lanes_of(device: str) -> int:
    """Rows that are interleaved: as many as the machine's vectors have lanes, from 8 to 16."""
    target = getattr(Device[device], "target", None)
    return 16 if target is not None and target.vector_bits > 256 else 8


def _of_side(values: Tensor, side: Tensor) -> Tensor:
    """The entry on the last axis that a row's side has: values [rows, n, sides], side [rows, 1, 1]."""
    if values.shape[2] == 1:
        return values[:, :, 0]
    return (side[:, :, 0] == 0).where(values[:, :, 0], values[:, :, 1])


def _words(bytes_: Tensor) -> Tensor:
    """Words from integers below 256, four along the last axis, lowest first."""
    return bytes_[..., 0] | (bytes_[..., 1] << 8) | (bytes_[..., 2] << 16) | (bytes_[..., 3] << 24)


def _as_integers(x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """A vector [count, 1, blocks, size] as `unit * integer`.

    Returns the units [count, 1, blocks, 1, 1], the integers' upper and lower signed bytes as words
    [count, 1, blocks, words, 1, 1], and the sums of the integers [count, 1, blocks, 1, 1].
    """
    count, _, blocks, size = x.shape
    largest = x.abs().max(-1, keepdim=True).maximum(SMALLEST)
    whole = (x * (LARGEST / largest)).round().cast("int32")
    lower = ((whole + 128) & 255) - 128
    parts = [(whole - lower) >> 8, lower]
    words: list[Tensor] = []
    for part in parts:
        bytes_ = (part & 255).reshape(count, 1, blocks, 4, size // 4)
        words.append(_words(bytes_.permute(0, 1, 2, 4, 3)).reshape(count, 1, blocks, size // 4, 1, 1).contiguous())
    unit = (largest * (1.0 / LARGEST)).unsqueeze(-1).contiguous()
    return unit, words, whole.sum(-1, keepdim=True, dtype="int32").unsqueeze(-1)


def _as_halves(x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """The same with integers of 16 bits, two in a word: those of the even and of the odd bytes of a word of codes."""
    count, _, blocks, size = x.shape
    largest = x.abs().max(-1, keepdim=True).maximum(SMALLEST)
    whole = (x * (LARGEST / largest)).round().cast("int32")
    quarters = whole.reshape(count, 1, blocks, 4, size // 4, 1, 1)
    words = [((quarters[:, :, :, n] & 0xFFFF) | (quarters[:, :, :, n + 2] << 16)).contiguous() for n in range(2)]
    unit = (largest * (1.0 / LARGEST)).unsqueeze(-1).contiguous()
    return unit, words, whole.sum(-1, keepdim=True, dtype="int32").unsqueeze(-1)


def _half_products(codes: Sequence[Tensor], signed: Sequence[Tensor]) -> Tensor:
    """The sum of the products of the halves of words: all have signs, and those of the codes are not negative."""
    total: Any = 0
    for one, other in zip(codes, signed, strict=True):
        total = total + (one & 0xFFFF) * ((other << 16) >> 16) + (one >> 16) * (other >> 16)
    return total  # type: ignore[no-any-return]


def _multiplies_bytes(device: str) -> bool:
    """Whether a processor has dot products of bytes."""
    target = getattr(Device[device], "target", None)
    return target is not None and target.kind == "cpu" and target.dot8


def _multiplies_halves(device: str) -> bool:
    """Whether a processor multiplies vectors of integers of 16 bits, and has no dot products of bytes."""
    target = getattr(Device[device], "target", None)
    return target is not None and target.triple.startswith("x86_64") and not target.dot8


def _byte_products(codes: Tensor, signed: Tensor) -> Tensor:
    """The sum of the products of the four bytes of two words: the second's have signs."""
    total: Any = None
    for place in range(0, 32, 8):
        product = ((codes >> place) & 255) * ((signed << (24 - place)) >> 24)
        total = product if total is None else total + product
    return total  # type: ignore[no-any-return]
