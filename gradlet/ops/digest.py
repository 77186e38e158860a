"""Digests of bytes: the Keccak family (SHA3, SHAKE) along the last axis, and the hash of a tensor as a tree of them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.random import RandomMixin

# Bytes of the state, as 25 words of 64 bits.
STATE_BYTES: Final = 200
# The tree hash: bytes of a leaf, and of its digest.
LEAF_BYTES: Final = 4096
DIGEST_BYTES: Final = 16


class Sponge(NamedTuple):
    """One function of the family.

    Attributes:
        rate: bytes that a block takes in.
        suffix: the bits that say which function it is, with the first bit of the padding behind them.
        length: bytes of the digest.
    """

    rate: int
    suffix: int
    length: int


FUNCTIONS: Final = {
    **{f"sha3_{bits}": Sponge(STATE_BYTES - bits // 4, 0x06, bits // 8) for bits in (224, 256, 384, 512)},
    "shake_128": Sponge(168, 0x1F, 16),
    "shake_256": Sponge(136, 0x1F, 32),
}


def _rotations() -> tuple[int, ...]:
    """By how many bits each word is turned: triangular numbers along a walk over the 5 x 5 words."""
    found = [0] * 25
    x, y = 1, 0
    for step in range(24):
        found[x + 5 * y] = (step + 1) * (step + 2) // 2 % 64
        x, y = y, (2 * x + 3 * y) % 5
    return tuple(found)


def _round_constants() -> tuple[int, ...]:
    """What is added to the first word in each of the 24 rounds: bits of a shift register at positions 2**j - 1."""
    register, constants = 1, []
    for _ in range(24):
        constant = 0
        for j in range(7):
            if register & 1:
                constant |= 1 << (2**j - 1)
            register <<= 1
            if register & 0x100:
                register ^= 0x171
        constants.append(constant)
    return tuple(constants)


ROTATIONS: Final = _rotations()
ROUND_CONSTANTS: Final = _round_constants()
# Word x + 5 y of the state is row x + 5 y of a tensor. Where the word at each place comes from when they change places,
# and where those one and two to the right of it come from.
SOURCES: Final = tuple(
    [
        tuple([((x + step) % 5 + 3 * y) % 5 + 5 * ((x + step) % 5) for y in range(5) for x in range(5)])
        for step in range(3)
    ]
)
LEFT: Final = (4, 0, 1, 2, 3)
RIGHT: Final = (1, 2, 3, 4, 0)


class DigestMixin(RandomMixin):
    """Hashing the bytes of tensors."""

    __slots__ = ()

    def bitcast(self, dtype: DType | str) -> Self:
        """Read the same bytes as another type."""
        raise NotImplementedError

    def gather_rows(self, index: Any, batch: int = 0) -> Self:
        """Rows by number."""
        raise NotImplementedError

    @classmethod
    def fixed_table(cls, values: tuple[int, ...], dtype: DType, device: str | None) -> Self:
        """Numbers that are always the same, in memory that is filled once a device."""
        raise NotImplementedError

    def realize(self, *others: Any) -> Self:
        """Compute this now."""
        raise NotImplementedError

    def keccak(self, cfg: str | tuple[int, int] = "sha3_256") -> Self:
        """The digests of byte strings along the last axis: shape (..., n) gives (..., length), all in uint8.

        Computed now, block by block: one small program runs 24 times a block, for all messages together.

        Args:
            cfg: sha3_224, sha3_256, sha3_384, sha3_512 (digests of 28 to 64 bytes), shake_128, shake_256 (16 and 32
                bytes), or (rate in bytes, suffix) for another function of the family: the digest then has
                100 - rate / 2 bytes, which is half of the capacity, as in SHA3.

        Raises:
            DTypeError: not uint8.
            ShapeError: no axis.
            ArgumentError: no such function.

        Source: FIPS 202, SHA-3 Standard: Permutation-Based Hash and Extendable-Output Functions.

        >>> bytes(Tensor(b"abc").keccak("shake_128").tolist()).hex()
        '5881092dd818bf5cf8a3ddb793fbcba7'
        """
        sponge = _sponge(cfg)
        if self.dtype is not dtypes.uint8:
            raise DTypeError(f"keccak: the bytes must be uint8, got {self.dtype}; use bitcast(dtypes.uint8)")
        if self.ndim == 0:
            raise ShapeError("keccak: a tensor without axes is no byte string; use reshape(1)")
        *batch, size = self.shape
        count = 1
        for extent in batch:
            count *= extent
        if count == 0:
            return self.full((*batch, sponge.length), 0, dtype=dtypes.uint8, device=self.place)
        words = _blocks(self.reshape(count, size), sponge)
        state = self.full((25, count), 0, dtype=dtypes.uint64, device=self.place).contiguous()
        number = self.full((1,), 0, dtype=dtypes.int32, device=self.place).contiguous()
        for _ in range(words.shape[0]):
            # Which block it is stands in memory: so all blocks, and all rounds, run the same two kernels.
            taken = words.gather_rows(number).reshape(25, count)
            state, number = state.bitwise_xor(taken), number.add(1)
            state.realize(number)
            state = _permute(state)
        digest = _bytes_of(state, sponge)
        while digest.shape[1] < sponge.length:
            state = _permute(state)
            digest = digest.cat(_bytes_of(state, sponge), dim=1)
        result: Self = digest[:, : sponge.length].reshape(*batch, sponge.length)
        return result

    def hash(self) -> Self:
        """16 bytes (uint8) that stand for all bytes of this tensor, in row-major order: equal bytes, equal hash.

        A tree of SHAKE-128: the bytes are cut in chunks of 4096 (the last may be shorter, no bytes are one empty
        chunk), each has a digest of 16 bytes, the digests together are cut in the same way, until one is left; the hash
        is the digest of that one and of the number of bytes as 8 bytes, little-endian. Type and shape do not count.
        Computed now.

        >>> bytes(Tensor([1, 2, 3]).hash().tolist()).hex()
        '9b3e460c6ed77b58aecb32387849ca7e'
        """
        data = self.flatten() if self.dtype is not dtypes.bool else self.flatten().cast(dtypes.uint8)
        data = data.bitcast(dtypes.uint8).contiguous()
        length = data.shape[0]
        level = _leaves(data)
        while level.shape[0] > DIGEST_BYTES:
            level = _leaves(level)
        size = [length >> 8 * i & 255 for i in range(8)]
        # No table that is kept: every length has its own.
        numbers = [level.constant_like(byte, (1,)) for byte in size]
        result: Self = level.cat(*numbers).keccak("shake_128")
        return result


def _sponge(cfg: Any) -> Sponge:
    if isinstance(cfg, tuple) and len(cfg) == 2 and all(isinstance(part, int) for part in cfg):
        rate, suffix = cfg
        if not (0 < rate < STATE_BYTES and rate % 8 == 0 and 0 < suffix < 128):
            raise ArgumentError(
                f"keccak: cfg {cfg} must be a rate of 8 to 192 bytes, a multiple of 8, and a suffix of 1 to 127"
            )
        return Sponge(rate, suffix, 100 - rate // 2)
    if not isinstance(cfg, str) or cfg not in FUNCTIONS:
        raise ArgumentError(f"keccak: cfg {cfg!r} is no function; use one of {', '.join(FUNCTIONS)}, or (rate, suffix)")
    return FUNCTIONS[cfg]


def _blocks(data: Any, sponge: Sponge) -> Any:
    """Messages (count, size) as the words of their blocks (blocks, 25, count): the suffix behind the message, the last
    bit set, and zeros for the words that a block does not reach.
    """
    count, size = data.shape
    blocks = size // sponge.rate + 1
    total = blocks * sponge.rate
    place = data.positions(total, data.place)
    ends = place.eq(size).where(sponge.suffix, 0).bitwise_xor(place.eq(total - 1).where(0x80, 0))
    filled = data.pad(((0, 0), (0, total - size))).bitwise_xor(ends.cast(dtypes.uint8))
    words = filled.reshape(count, blocks, sponge.rate).bitcast(dtypes.uint64)
    return words.pad(((0, 0), (0, 0), (0, 25 - sponge.rate // 8))).permute(1, 2, 0).contiguous()


def _bytes_of(state: Any, sponge: Sponge) -> Any:
    """The bytes (count, rate) that a state (25, count) gives."""
    return state.transpose(0, 1).contiguous().bitcast(dtypes.uint8)[:, : sponge.rate]


def _permute(state: Any) -> Any:
    """The permutation Keccak-f[1600] of states (25, count), now: one kernel that runs 24 times."""
    count, place = state.shape[1], state.place
    turns = state.fixed_table(ROTATIONS, dtypes.uint64, place).reshape(25, 1)
    back = state.fixed_table(tuple([-turn % 64 for turn in ROTATIONS]), dtypes.uint64, place).reshape(25, 1)
    constants = state.fixed_table(ROUND_CONSTANTS, dtypes.uint64, place)
    left, right = [state.fixed_table(table, dtypes.int32, place) for table in (LEFT, RIGHT)]
    here, next_to, after = [state.fixed_table(table, dtypes.int32, place) for table in SOURCES]
    first = state.fixed_table((1,) + (0,) * 24, dtypes.uint64, place).reshape(25, 1)
    number = state.full((1,), 0, dtype=dtypes.int32, device=place).contiguous()
    for _ in range(len(ROUND_CONSTANTS)):
        # Every column takes in the parities of both neighbours.
        rows = [state.shrink(((5 * y, 5 * y + 5), None)) for y in range(5)]
        parity = rows[0].bitwise_xor(rows[1]).bitwise_xor(rows[2]).bitwise_xor(rows[3]).bitwise_xor(rows[4])
        beside = parity.gather_rows(right)
        turned = beside.lshift(1).bitwise_or(beside.rshift(63))
        mixed = parity.gather_rows(left).bitwise_xor(turned).reshape(1, 5, count).expand(5, 5, count)
        state = state.bitwise_xor(mixed.reshape(25, count))
        # Words turn by their own numbers of bits and change places.
        state = state.lshift(turns).bitwise_or(state.rshift(back)).contiguous()
        chosen = state.gather_rows(next_to).bitwise_not().bitwise_and(state.gather_rows(after))
        state = state.gather_rows(here).bitwise_xor(chosen)
        state = state.bitwise_xor(constants.gather_rows(number).mul(first))
        number = number.add(1)
        state.realize(number)
    return state


def _leaves(data: Any) -> Any:
    """The digests, one behind the other, of the chunks of a byte string."""
    full = data.shape[0] // LEAF_BYTES * LEAF_BYTES
    parts = []
    if full:
        parts.append(data[:full].reshape(-1, LEAF_BYTES).keccak("shake_128").flatten())
    if full < data.shape[0] or not full:
        parts.append(data[full:].keccak("shake_128"))
    return parts[0] if len(parts) == 1 else parts[0].cat(parts[1])
