"""Quantised weights against blocks taken apart in NumPy, byte by byte as the format says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, nn
from gradlet.base.errors import DTypeError
from gradlet.schedule.create import create_schedule
from gradlet.target.target import AVX2

Array = np.ndarray[Any, Any]
# Types of which every test runs; the others run at night.
QUICK = ("Q4_0", "Q4_1", "Q8_0", "Q6_K")
BLOCKS = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q4_K": (256, 144),
    "Q5_K": (256, 176), "Q6_K": (256, 210),
}  # fmt: skip
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def half(block: bytes, at: int) -> np.float32:
    return np.float32(np.frombuffer(block[at : at + 2], np.float16)[0])


def sub_scales(packed: bytes, i: int) -> tuple[int, int]:
    """Scale and minimum number i of the 8 in 12 bytes."""
    if i < 4:
        return packed[i] & 63, packed[i + 4] & 63
    return packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4


def values(type: str, block: bytes) -> list[np.float32]:
    """The weights of one block."""
    d = half(block, 208 if type == "Q6_K" else 0)
    if type == "Q8_0":
        return [d * np.float32(q) for q in np.frombuffer(block[2:], np.int8)]
    if type in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        m = half(block, 2) if type[-1] == "1" else np.float32(0)
        at = 2 if type[-1] == "0" else 4
        high = 0
        if type[1] == "5":
            high, at = int.from_bytes(block[at : at + 4], "little"), at + 4
        codes = [block[at + j % 16] >> 4 * (j // 16) & 15 | (high >> j & 1) << 4 for j in range(32)]
        zero = {"Q4_0": 8, "Q5_0": 16}.get(type, 0)
        return [d * np.float32(q - zero) + m for q in codes]
    result = []
    for k in range(256):
        if type == "Q6_K":
            half_block, within = divmod(k, 128)
            quarter, place = divmod(within, 32)
            low = block[64 * half_block + 32 * (quarter % 2) + place] >> 4 * (quarter // 2) & 15
            high = block[128 + 32 * half_block + place] >> 2 * quarter & 3
            scale = np.frombuffer(block[192:208], np.int8)[k // 16]
            result.append(d * np.float32(scale) * np.float32((low | high << 4) - 32))
            continue
        sub, place = divmod(k, 32)
        at = 16 if type == "Q4_K" else 48
        code = block[at + 32 * (sub // 2) + place] >> 4 * (sub % 2) & 15
        if type == "Q5_K":
            code |= (block[16 + place] >> sub & 1) << 4
        scale, minimum = sub_scales(block[4:16], sub)
        result.append(d * np.float32(scale) * np.float32(code) - half(block, 2) * np.float32(minimum))
    return result


def random_blocks(type: str, rows: int, columns: int) -> tuple[Array, Array]:
    """Bytes, and the matrix they stand for."""
    chance = np.random.default_rng(rows + columns)
    size, length = BLOCKS[type]
    raw = chance.integers(0, 256, (rows * columns // size, length), dtype=np.uint8)
    for at in HALVES.get(type, (0,)):
        raw[:, at : at + 2] = chance.standard_normal((len(raw), 1)).astype(np.float16).view(np.uint8)
    matrix = np.array([values(type, block.tobytes()) for block in raw], np.float32)
    return raw.reshape(-1), matrix.reshape(rows, columns)


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize(("rows", "blocks"), [(19, 2), (8, 1)])
def test_weights_are_those_of_the_format_bit_by_bit(type: str, rows: int, blocks: int) -> None:
    raw, matrix = random_blocks(type, rows, blocks * BLOCKS[type][0])
    weight = nn.QuantizedWeight.from_gguf_blocks(Tensor(raw), type, matrix.shape)
    np.testing.assert_array_equal(weight.dequantize().numpy(), matrix)


@pytest.mark.parametrize("type", ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("shape", [(256,), (2, 1, 256), (17, 256), (0, 256)])
def test_products(type: str, shape: tuple[int, ...]) -> None:
    """Few rows with integers: the error is a part of the largest element of a block times the sum of the weights."""
    raw, matrix = random_blocks(type, 37, 256)
    weight = nn.QuantizedWeight.from_gguf_blocks(Tensor(raw), type, matrix.shape)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    got = weight.linear(Tensor(x)).numpy()
    assert got.shape == (*shape[:-1], 37) and got.dtype == np.float32
    wide = matrix.astype(np.float64).T
    allowed = (np.abs(x).max(initial=0) / 60000 + 1e-6) * np.abs(wide).sum(0)
    assert (np.abs(got - x.astype(np.float64) @ wide) <= allowed).all()


@pytest.mark.parametrize("type", ["Q4_0", "Q5_1", "Q4_K", "Q8_0"])
@pytest.mark.parametrize("count", [1, 3, 48])
def test_codes_are_read_once_for_all_vectors(type: str, count: int) -> None:
    """One kernel goes over the codes: nothing that is made of them waits in memory."""
    raw, matrix = random_blocks(type, 256, 1024)
    weight = nn.QuantizedWeight.from_gguf_blocks(Tensor(raw), type, matrix.shape)
    node = weight.linear(Tensor.ones(count, 1024).realize()).uop
    schedule = create_schedule([node], lambda _: AVX2)
    sizes = [param.arg.size for call in schedule.calls for param in call.buffers]
    assert max(sizes) <= matrix.size // 4
    words = matrix.size // (4 if type == "Q8_0" else 8)
    longest = [call for call in schedule.calls if words in [b.arg.size for b in call.buffers]]
    assert len(longest) == 1


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1e20, 1e33])
def test_vectors_of_any_size(scale: float) -> None:
    raw, matrix = random_blocks("Q4_0", 8, 64)
    weight = nn.QuantizedWeight.from_gguf_blocks(Tensor(raw), "Q4_0", matrix.shape)
    x = (np.random.default_rng(1).standard_normal(64) * scale).astype(np.float32)
    wanted = x.astype(np.float64) @ matrix.T.astype(np.float64)
    atol = max(scale, 1e-30) * 3e-5 * float(np.abs(matrix).sum(1).max())
    np.testing.assert_allclose(weight(Tensor(x)).numpy(), wanted, rtol=0, atol=atol)


def test_what_is_no_number_stays_none() -> None:
    raw, matrix = random_blocks("Q4_1", 8, 64)
    weight = nn.QuantizedWeight.from_gguf_blocks(Tensor(raw), "Q4_1", matrix.shape)
    for bad in (np.nan, np.inf):
        x = np.ones(64, np.float32)
        x[40] = bad
        assert not np.isfinite(weight(Tensor(x)).numpy()).any()


def test_narrow_vectors_and_its_name() -> None:
    raw, matrix = random_blocks("Q4_0", 8, 32)
    weight = nn.QuantizedWeight.from_gguf_blocks(Tensor(raw), "Q4_0", (8, 32))
    x = np.arange(32, dtype=np.float16)
    np.testing.assert_allclose(weight(Tensor(x)).numpy(), matrix @ x.astype(np.float32), rtol=1e-3, atol=1e-2)
    assert repr(weight) == "QuantizedWeight(Q4_0, (8, 32))"


@pytest.mark.parametrize("type", [t if t in QUICK else pytest.param(t, marks=pytest.mark.slow) for t in BLOCKS])
def test_rows_are_those_of_the_whole_matrix(type: str) -> None:
    size, length = BLOCKS[type]
    raw = np.random.default_rng(5).integers(0, 60, (37, 512 // size * length)).astype(np.uint8)
    weight = nn.QuantizedWeight.from_gguf_blocks(Tensor(raw.reshape(-1)), type, (37, 512))
    numbers = np.array([[0, 36, 7], [8, 15, 16]], np.int32)
    np.testing.assert_array_equal(weight.rows(Tensor(numbers)).numpy(), weight.dequantize().numpy()[numbers])
    with pytest.raises(DTypeError, match="rows: indices are integers"):
        weight.rows(Tensor([1.0]))
