"""Blocks of every type expanded, bit for bit as the format's reference package does."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.io import blocks

# The first 16 digits of sha256 of what gguf 0.19 makes of nine random blocks (NaN written as 0).
DIGESTS = {
    "Q4_0": "9916930b4e0076dc", "Q4_1": "33a1279ea9d3758d", "Q5_0": "2ceb0d3d008369e6", "Q5_1": "4089d32c8ab7c536",
    "Q8_0": "f85b37e906771cfe", "Q4_K": "5e42165d96964ed5", "Q5_K": "46c9ac9096f9df28", "Q6_K": "8bd35f94be131991",
    "Q2_K": "098ce1e662409a3d", "Q3_K": "4bf99012d7d14d11", "TQ1_0": "c16393ffd3b116b2", "TQ2_0": "d87df9b479daea4a",
    "MXFP4": "163512aae3da13b0", "NVFP4": "138dd1389ad58e8f", "IQ1_S": "3339d6681a423162", "IQ1_M": "8398640403fd757f",
    "IQ2_XXS": "6f69438cdfec8c2d", "IQ2_XS": "89e61c786f0840ba", "IQ2_S": "c7644ed1a5aa2e30",
    "IQ3_XXS": "f1efba7429ad34a1", "IQ3_S": "31ac1f958c619dd8", "IQ4_NL": "95209d3d610f97d9",
    "IQ4_XS": "5252588f9d68bc96",
}  # fmt: skip


def random_blocks(type: str, count: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, blocks.FORMATS[type].bytes)).astype(np.uint8)


def test_all_types_are_checked() -> None:
    assert set(DIGESTS) == set(blocks.FORMATS)


@pytest.mark.parametrize("type", DIGESTS)
def test_values_are_the_references_in_every_bit(type: str) -> None:
    values = blocks.dequantize(Tensor(random_blocks(type, 9, 7)), type).numpy()
    assert values.shape == (9 * blocks.FORMATS[type].size,)
    finite = np.where(np.isnan(values), np.float32(0), values).astype("<f4")
    assert hashlib.sha256(finite.tobytes()).hexdigest()[:16] == DIGESTS[type]


@pytest.mark.parametrize("type", DIGESTS)
def test_values_agree_with_the_installed_reference(type: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf, which is the reference, is not installed")
    raw = random_blocks(type, 33, 11)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, getattr(gguf.GGMLQuantizationType, type)).reshape(-1)
    got = blocks.dequantize(Tensor(raw), type).numpy()
    both_nan = np.isnan(want) & np.isnan(got)
    assert np.array_equal(np.where(both_nan, 0, want.view(np.uint32)), np.where(both_nan, 0, got.view(np.uint32)))


def test_no_blocks_and_mistakes() -> None:
    assert blocks.dequantize(Tensor.zeros(0, dtype="uint8"), "Q4_0").shape == (0,)
    with pytest.raises(ArgumentError, match="blocks of 18 bytes, 17 is no multiple"):
        blocks.dequantize(Tensor.zeros(17, dtype="uint8"), "Q4_0")
    with pytest.raises(ArgumentError, match="unknown type 'Q9'.*Q4_0"):
        blocks.dequantize(Tensor.zeros(18, dtype="uint8"), "Q9")
    with pytest.raises(DTypeError, match="bytes"):
        blocks.dequantize(Tensor.zeros(18), "Q4_0")
