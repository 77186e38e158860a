"""Blocks of quantised weights, as GGUF files have them: one row a type, and the float32 values of any of them.

Types that are integer codes times a scale (and less a minimum) are taken apart into these (`Blocks`), so that products
can use the codes. Every type can be expanded; the expressions do what the format's reference does, operation by
operation, so that values agree in every bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from math import prod
from typing import Final, NamedTuple

from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.ops.movement import operand
from gradlet.tensor.tensor import Tensor

SUPER: Final = 256  # columns of a block that has blocks
FOUR_BITS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # floats of 4 bits, doubled
NOT_LINEAR: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Blocks(NamedTuple):
    """A matrix as its blocks are written.

    Attributes:
        codes: uint8 [rows, columns].
        scale: [rows, blocks] or, where they have scales of their own, [rows, blocks of blocks].
        minimum: likewise, or None.
        scales: integers by which `scale` is multiplied, [rows, blocks], or None.
        minima: likewise for `minimum`.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None = None
    scales: Tensor | None = None
    minima: Tensor | None = None


class BlockType(NamedTuple):
    """One type of block.

    Attributes:
        size: columns of a block as it is written.
        bytes: how long it is then.
        group: columns that share a scale.
        bits: of a code.
        zero: the code of weight 0 where there is no minimum.
        read: how it is written.
    """

    size: int
    bytes: int
    group: int
    bits: int
    zero: int
    read: Callable[[Tensor], Blocks]


def _half(raw: Tensor, at: int) -> Tensor:
    """The float16 at a byte of every block."""
    low, high = raw[..., at].cast("uint16"), raw[..., at + 1].cast("uint16")
    return (low | (high << 8)).bitcast("float16")


def _halves(packed: Tensor) -> Tensor:
    """The low halves of some bytes, then the high halves."""
    return Tensor.cat(packed & 15, packed >> 4, dim=-1)


def _bits(packed: Tensor) -> Tensor:
    """The 8 bits of each of 4 bytes, lowest first: 32 of them."""
    places = Tensor.arange(8, dtype="uint8", device=packed.device)
    return ((packed.unsqueeze(-1) >> places) & 1).reshape(*packed.shape[:-1], 8 * packed.shape[-1])


def _flat(codes: Tensor) -> Tensor:
    """[rows, blocks, ...] to [rows, columns]."""
    return codes.reshape(codes.shape[0], prod(codes.shape[1:]))


def _q4_0(raw: Tensor) -> Blocks:
    return Blocks(_flat(_halves(raw[..., 2:])), _half(raw, 0))


def _q4_1(raw: Tensor) -> Blocks:
    return Blocks(_flat(_halves(raw[..., 4:])), _half(raw, 0), _half(raw, 2) * -1)


def _q5_0(raw: Tensor) -> Blocks:
    return Blocks(_flat(_halves(raw[..., 6:]) | (_bits(raw[..., 2:6]) << 4)), _half(raw, 0))


def _q5_1(raw: Tensor) -> Blocks:
    return Blocks(_flat(_halves(raw[..., 8:]) | (_bits(raw[..., 4:8]) << 4)), _half(raw, 0), _half(raw, 2) * -1)


def _q8_0(raw: Tensor) -> Blocks:
    return Blocks(_flat(raw[..., 2:] ^ 128), _half(raw, 0))  # bytes with a sign: the lowest becomes 0


def _scales_and_minima(raw: Tensor) -> tuple[Tensor, Tensor]:
    """8 scales and 8 minima of 6 bits each in 12 bytes: the last four of either have their upper bits elsewhere."""
    first, second, rest = raw[..., 0:4], raw[..., 4:8], raw[..., 8:12]
    scales = Tensor.cat(first & 63, (rest & 15) | ((first >> 6) << 4), dim=-1)
    minima = Tensor.cat(second & 63, (rest >> 4) | ((second >> 6) << 4), dim=-1)
    return _flat(scales), _flat(minima)


def _chunks(raw: Tensor) -> Tensor:
    """128 bytes of codes: of every 32 bytes first the low halves, then the high halves."""
    return _halves(raw.reshape(*raw.shape[:-1], 4, 32)).reshape(*raw.shape[:-1], SUPER)


def _q4_k(raw: Tensor) -> Blocks:
    scales, minima = _scales_and_minima(raw[..., 4:16])
    return Blocks(_flat(_chunks(raw[..., 16:])), _half(raw, 0), _half(raw, 2), scales, minima)


def _q5_k(raw: Tensor) -> Blocks:
    scales, minima = _scales_and_minima(raw[..., 4:16])
    places = Tensor.arange(8, dtype="uint8", device=raw.device).reshape(8, 1)
    high = ((raw[..., 16:48].unsqueeze(-2) >> places) & 1).reshape(*raw.shape[:-1], SUPER)
    return Blocks(_flat(_chunks(raw[..., 48:]) | (high << 4)), _half(raw, 0), _half(raw, 2), scales, minima)


def _q6_k(raw: Tensor) -> Blocks:
    low = _halves(raw[..., :128].reshape(*raw.shape[:-1], 2, 64)).reshape(*raw.shape[:-1], SUPER)
    places = (2 * Tensor.arange(4, dtype="uint8", device=raw.device)).reshape(4, 1)
    high = raw[..., 128:192].reshape(*raw.shape[:-1], 2, 1, 32)
    codes = low | (((high >> places) & 3) << 4).reshape(*raw.shape[:-1], SUPER)
    return Blocks(_flat(codes), _half(raw, 208), None, _flat(raw[..., 192:208].bitcast("int8")))


BLOCK_TYPES: Final[dict[str, BlockType]] = {
    "Q4_0": BlockType(32, 18, 32, 4, 8, _q4_0),
    "Q4_1": BlockType(32, 20, 32, 4, 0, _q4_1),
    "Q5_0": BlockType(32, 22, 32, 5, 16, _q5_0),
    "Q5_1": BlockType(32, 24, 32, 5, 0, _q5_1),
    "Q8_0": BlockType(32, 34, 32, 8, 128, _q8_0),
    "Q4_K": BlockType(SUPER, 144, 32, 4, 0, _q4_k),
    "Q5_K": BlockType(SUPER, 176, 32, 5, 0, _q5_k),
    "Q6_K": BlockType(SUPER, 210, 16, 6, 32, _q6_k),
}


def _blocks_of(type: str) -> Callable[[Tensor], Tensor]:
    """How a type that has codes is expanded."""
    kind = BLOCK_TYPES[type]

    def expand(raw: Tensor) -> Tensor:
        count = raw.shape[0]
        parts = kind.read(raw.reshape(count, 1, kind.bytes))
        groups = kind.size // kind.group

        def factor(scale: Tensor, by: Tensor | None) -> Tensor:
            scale = scale.cast("float32")
            return (scale if by is None else scale * by.cast("float32")).reshape(count, groups, 1)

        codes = parts.codes.reshape(count, groups, kind.group).cast("int32")
        if kind.zero:
            codes = codes - kind.zero
        values = codes.cast("float32") * factor(parts.scale, parts.scales)
        if parts.minimum is not None:
            values = values - factor(parts.minimum, parts.minima)
        return values.reshape(count, kind.size)

    return expand


# types that look their values up, or have no integer codes
def _places(count: int, step: int, like: Tensor) -> Tensor:
    return step * Tensor.arange(count, dtype="int32", device=like.device)


def _fields(words: Tensor, count: int, step: int, mask: int) -> Tensor:
    """Some fields of every integer, lowest first, along a new last axis."""
    return (words.cast("int32").unsqueeze(-1) >> _places(count, step, words)) & mask


def _planes(packed: Tensor, count: int, step: int, mask: int) -> Tensor:
    """A field of all of some bytes (the last axis), then the next field of all: a new axis before the last."""
    return (packed.cast("int32").unsqueeze(-2) >> _places(count, step, packed).unsqueeze(-1)) & mask


def _scale(raw: Tensor, at: int) -> Tensor:
    """The float16 at a byte of every block, in float32, [blocks, 1]."""
    return _half(raw, at).cast("float32").unsqueeze(-1)


def _shorts(raw: Tensor) -> Tensor:
    """Bytes as unsigned integers of 16 bits, lowest byte first."""
    pairs = raw.reshape(*raw.shape[:-1], raw.shape[-1] // 2, 2).cast("int32")
    return pairs[..., 0] | (pairs[..., 1] << 8)


def _longs(raw: Tensor) -> Tensor:
    """Bytes as integers of 32 bits, lowest byte first."""
    four = raw.reshape(*raw.shape[:-1], raw.shape[-1] // 4, 4).cast("uint32")
    return four[..., 0] | (four[..., 1] << 8) | (four[..., 2] << 16) | (four[..., 3] << 24)


def _signs(bits: Tensor) -> Tensor:
    """1 or -1 for each of 8 bits, lowest first, along a new last axis."""
    return (1 - 2 * _fields(bits, 8, 1, 1)).cast("float32")


def _even_signs(seven: Tensor) -> Tensor:
    """Signs of which seven are written; the eighth makes their number even."""
    seven = seven.cast("int32")
    parity = seven ^ (seven >> 4)
    parity = parity ^ (parity >> 2)
    parity = (parity ^ (parity >> 1)) & 1
    return _signs(seven | (parity << 7))


@cache
def _grid(name: str, device: str) -> Tensor:
    """The vectors that codes of a type stand for, [codes, 4 or 8] in float32."""
    import numpy as np

    with files("gradlet.io").joinpath("gguf_grids.npz").open("rb") as file, np.load(file) as arrays:
        return Tensor(arrays[name].astype(np.float32), device=device).realize()


@cache
def _table(values: tuple[int, ...], device: str) -> Tensor:
    return Tensor(list(values), dtype="float32", device=device).realize()


def _look_up(grid: str, codes: Tensor) -> Tensor:
    return _grid(grid, codes.device)[codes.cast("int32")]


def _flat_blocks(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], prod(values.shape[1:]))


def _q2_k(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    scale = _scale(raw, 80) * (raw[:, :16] & 15).cast("float32")
    minimum = _scale(raw, 82) * (raw[:, :16] >> 4).cast("float32")
    codes = _planes(raw[:, 16:80].reshape(count, 2, 32), 4, 2, 3).reshape(count, 16, 16).cast("float32")
    return _flat_blocks(scale.unsqueeze(-1) * codes - minimum.unsqueeze(-1))


def _q3_k(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    low = _planes(raw[:, 96:104].reshape(count, 8), 2, 4, 15).reshape(count, 16)
    high = _planes(raw[:, 104:108].reshape(count, 4), 4, 2, 3).reshape(count, 16)
    scale = _scale(raw, 108) * ((low | (high << 4)) - 32).cast("float32")
    codes = _planes(raw[:, 32:96].reshape(count, 2, 32), 4, 2, 3).reshape(count, 16, 16)
    above = _planes(raw[:, :32], 8, 1, 1).reshape(count, 16, 16)
    codes = codes - ((above ^ 1) << 2)  # a bit that is set means no offset
    return _flat_blocks(scale.unsqueeze(-1) * codes.cast("float32"))


def _tq1_0(raw: Tensor) -> Tensor:
    def trits(packed: Tensor, count: int) -> Tensor:
        powers = Tensor.stack(*[packed.cast("int32") * 3**place for place in range(count)], dim=1) & 255
        return _flat_blocks(powers)

    codes = Tensor.cat(trits(raw[:, :32], 5), trits(raw[:, 32:48], 5), trits(raw[:, 48:52], 4), dim=1)
    return _scale(raw, 52) * (((codes * 3) >> 8) - 1).cast("float32")


def _tq2_0(raw: Tensor) -> Tensor:
    codes = _flat_blocks(_planes(raw[:, :64].reshape(raw.shape[0], 2, 32), 4, 2, 3))
    return _scale(raw, 64) * (codes - 1).cast("float32")


def _mxfp4(raw: Tensor) -> Tensor:
    power = raw[:, 0].cast("int32")
    small = power < 2  # half of the smallest powers is subnormal
    bits = small.where(small.where(power, 0) * 0x00200000 + 0x00200000, (power - 1) << 23)
    codes = _planes(raw[:, 1:], 2, 4, 15).reshape(raw.shape[0], 32)
    return bits.bitcast("float32").unsqueeze(-1) * _table(FOUR_BITS, raw.device)[codes]


def _nvfp4(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    code = raw[:, :4].cast("int32")
    power, rest = (code >> 3) & 15, (code & 7).cast("float32")
    normal = (rest * 0.125 + 1.0) * ((power + 120) << 23).bitcast("float32")
    scale = (power == 0).where(rest * 2.0**-9, normal) * 0.5
    scale = ((code == 0) | (code == 0x7F)).where(0.0, scale)
    codes = _planes(raw[:, 4:].reshape(count, 4, 8), 2, 4, 15).reshape(count, 4, 16)
    return _flat_blocks(scale.unsqueeze(-1) * _table(FOUR_BITS, raw.device)[codes])


def _iq2_xxs(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    pairs = raw[:, 2:].reshape(count, 8, 8)
    word = _longs(pairs[..., 4:])[..., 0]
    scale = _scale(raw, 0) * ((word >> 28).cast("float32") + 0.5) * 0.25
    seven = Tensor.stack(*[(word >> 7 * place) & 127 for place in range(4)], dim=-1)
    return _flat_blocks(scale.reshape(count, 8, 1, 1) * _look_up("iq2_xxs", pairs[..., :4]) * _even_signs(seven))


def _iq2_xs(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    codes = _shorts(raw[:, 2:66]).reshape(count, 16, 2)
    scale = _scale(raw, 0) * (_fields(raw[:, 66:74], 2, 4, 15).reshape(count, 16).cast("float32") + 0.5) * 0.25
    return _flat_blocks(scale.reshape(count, 16, 1, 1) * _look_up("iq2_xs", codes & 511) * _even_signs(codes >> 9))


def _iq2_s(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    codes = raw[:, 2:34].cast("int32") | (_fields(raw[:, 66:74], 4, 2, 3).reshape(count, 32) << 8)
    scale = _scale(raw, 0) * (_fields(raw[:, 74:82], 2, 4, 15).reshape(count, 16).cast("float32") + 0.5) * 0.25
    signs = _signs(raw[:, 34:66]).reshape(count, 16, 2, 8)
    return _flat_blocks(scale.reshape(count, 16, 1, 1) * _look_up("iq2_s", codes.reshape(count, 16, 2)) * signs)


def _iq3_xxs(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    word = _longs(raw[:, 66:98])
    scale = _scale(raw, 0) * ((word >> 28).cast("float32") + 0.5) * 0.5
    seven = Tensor.stack(*[(word >> 7 * place) & 127 for place in range(4)], dim=-1)
    vectors = _look_up("iq3_xxs", raw[:, 2:66]).reshape(count, 8, 4, 8)
    return _flat_blocks(scale.reshape(count, 8, 1, 1) * vectors * _even_signs(seven))


def _iq3_s(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    codes = raw[:, 2:66].cast("int32") | (_fields(raw[:, 66:74], 8, 1, 1).reshape(count, 64) << 8)
    odd = 1 + 2 * _fields(raw[:, 106:110], 2, 4, 15).reshape(count, 8)
    scale = _scale(raw, 0) * odd.cast("float32")
    signs = _signs(raw[:, 74:106]).reshape(count, 8, 4, 8)
    return _flat_blocks(scale.reshape(count, 8, 1, 1) * _look_up("iq3_s", codes).reshape(count, 8, 4, 8) * signs)


def _delta(is_negative: Tensor) -> Tensor:
    return is_negative.where(-0.125, 0.125)


def _iq1_s(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    high = _shorts(raw[:, 34:50])
    scale = _scale(raw, 0) * (2 * ((high >> 12) & 7) + 1).cast("float32")
    codes = raw[:, 2:34].cast("int32") | (_fields(high, 4, 3, 7).reshape(count, 32) << 8)
    vectors = _look_up("iq1_s", codes).reshape(count, 8, 32) + _delta((high & 0x8000) != 0).unsqueeze(-1)
    return _flat_blocks(scale.unsqueeze(-1) * vectors)


def _iq1_m(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    packed = _shorts(raw[:, 48:56])
    top = packed >> 12  # four bits of the scale in each word
    bits = top[:, 0] | (top[:, 1] << 4) | (top[:, 2] << 8) | (top[:, 3] << 12)
    whole = bits.cast("uint16").bitcast("float16").cast("float32").unsqueeze(-1)
    scale = whole * (2 * _fields(packed, 4, 3, 7).reshape(count, 16) + 1).cast("float32")
    high = _fields(raw[:, 32:48], 2, 4, 15).reshape(count, 32)
    codes = raw[:, :32].cast("int32") | ((high & 7) << 8)
    vectors = _look_up("iq1_s", codes) + _delta((high & 8) != 0).unsqueeze(-1)
    return _flat_blocks(scale.reshape(count, 16, 1, 1) * vectors.reshape(count, 16, 2, 8))


def _iq4_nl(raw: Tensor) -> Tensor:
    codes = _planes(raw[:, 2:], 2, 4, 15).reshape(raw.shape[0], 32)
    return _scale(raw, 0) * _table(NOT_LINEAR, raw.device)[codes]


def _iq4_xs(raw: Tensor) -> Tensor:
    count = raw.shape[0]
    low = _fields(raw[:, 4:8], 2, 4, 15).reshape(count, 8)
    high = _fields(_shorts(raw[:, 2:4])[:, 0], 8, 2, 3)
    scale = _scale(raw, 0) * ((low | (high << 4)) - 32).cast("float32")
    codes = _planes(raw[:, 8:].reshape(count, 8, 16), 2, 4, 15).reshape(count, 8, 32)
    return _flat_blocks(scale.unsqueeze(-1) * _table(NOT_LINEAR, raw.device)[codes])


class Format(NamedTuple):
    """A type of block: its columns, its bytes, and its values [blocks, columns] from its bytes [blocks, bytes]."""

    size: int
    bytes: int
    expand: Callable[[Tensor], Tensor]


FORMATS: Final[dict[str, Format]] = {
    **{name: Format(kind.size, kind.bytes, _blocks_of(name)) for name, kind in BLOCK_TYPES.items()},
    "Q2_K": Format(SUPER, 84, _q2_k),
    "Q3_K": Format(SUPER, 110, _q3_k),
    "TQ1_0": Format(SUPER, 54, _tq1_0),
    "TQ2_0": Format(SUPER, 66, _tq2_0),
    "MXFP4": Format(32, 17, _mxfp4),
    "NVFP4": Format(64, 36, _nvfp4),
    "IQ1_S": Format(SUPER, 50, _iq1_s),
    "IQ1_M": Format(SUPER, 56, _iq1_m),
    "IQ2_XXS": Format(SUPER, 66, _iq2_xxs),
    "IQ2_XS": Format(SUPER, 74, _iq2_xs),
    "IQ2_S": Format(SUPER, 82, _iq2_s),
    "IQ3_XXS": Format(SUPER, 98, _iq3_xxs),
    "IQ3_S": Format(SUPER, 110, _iq3_s),
    "IQ4_NL": Format(32, 18, _iq4_nl),
    "IQ4_XS": Format(SUPER, 136, _iq4_xs),
}


def dequantize(raw: Tensor, type: str) -> Tensor:
    """The values of some blocks in float32, one after another.

    Args:
        raw: the bytes of whole blocks, uint8.
        type: the name of their type, as `Q4_K`.

    Raises:
        ArgumentError: an unknown type, or bytes that are not whole blocks.
        DTypeError: not bytes.
    """
    raw = operand(raw, "dequantize", "raw")
    form = FORMATS.get(type) if isinstance(type, str) else None
    if form is None:
        raise ArgumentError(f"dequantize: unknown type {type!r}; use one of: {', '.join(FORMATS)}")
    if raw.dtype.name != "uint8":
        raise DTypeError(f"dequantize: raw must be bytes (uint8), not {raw.dtype.name}")
    count, rest = divmod(raw.numel(), form.bytes)
    if rest:
        raise ArgumentError(f"dequantize: {type} has blocks of {form.bytes} bytes, {raw.numel()} is no multiple of it")
    if not count:
        return Tensor.zeros(0, dtype="float32", device=raw.device)
    return form.expand(raw.reshape(count, form.bytes)).reshape(count * form.size)
