"""Digests equal those of the standard library."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.ops.digest import LEAF_BYTES

LENGTHS = {"shake_128": 16, "shake_256": 32}
NAMES = ("sha3_224", "sha3_256", "sha3_384", "sha3_512", "shake_128", "shake_256")


def expected(name: str, data: bytes) -> bytes:
    found = hashlib.new(name, data)
    return found.digest(LENGTHS[name]) if name in LENGTHS else found.digest()  # type: ignore[call-arg]


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("name", NAMES)
def test_digests(name: str) -> None:
    rate = {"sha3_224": 144, "sha3_256": 136, "sha3_384": 104, "sha3_512": 72, "shake_128": 168, "shake_256": 136}[name]
    data = some(rate - 1)
    assert bytes(Tensor(data).keccak(name).tolist()) == expected(name, data.tobytes())


@pytest.mark.parametrize("size", [0, 3, 136, 300])
def test_lengths(size: int) -> None:
    data = some(size)
    assert bytes(Tensor(data).keccak().tolist()) == expected("sha3_256", data.tobytes())


def test_many_messages_at_once() -> None:
    data = some(2, 3, 20)
    result = Tensor(data).keccak().numpy()
    assert result.shape == (2, 3, 32)
    for i in range(2):
        for j in range(3):
            assert result[i, j].tobytes() == hashlib.sha3_256(data[i, j].tobytes()).digest()
    assert Tensor(some(2, 0, 5)).keccak().shape == (2, 0, 32)


def test_other_functions_of_the_family() -> None:
    data = some(20)
    assert bytes(Tensor(data).keccak((168, 0x1F)).tolist()) == hashlib.shake_128(data.tobytes()).digest(16)
    # A digest of 80 bytes from blocks of 40 takes two steps; a longer one of the library begins with the same bytes.
    assert Tensor(data).keccak((40, 0x1F)).shape == (80,)
    # The first Keccak pads with a single bit.
    legacy = bytes(Tensor.zeros(0, dtype="uint8").keccak((136, 0x01)).tolist()).hex()
    assert legacy == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


def tree(data: bytes) -> bytes:
    """The documented tree hash, with the standard library."""
    size = len(data)
    while True:
        chunks = [data[i : i + LEAF_BYTES] for i in range(0, max(len(data), 1), LEAF_BYTES)]
        data = b"".join(hashlib.shake_128(chunk).digest(16) for chunk in chunks)
        if len(data) == 16:
            return hashlib.shake_128(data + size.to_bytes(8, "little")).digest(16)


@pytest.mark.parametrize("size", [0, 5])
def test_tree_hash(size: int) -> None:
    data = some(size)
    assert bytes(Tensor(data).hash().tolist()) == tree(data.tobytes())


@pytest.mark.slow
@pytest.mark.parametrize("size", [LEAF_BYTES, LEAF_BYTES + 1, 5 * LEAF_BYTES + 17, 300 * LEAF_BYTES])
def test_tree_hash_of_more(size: int) -> None:
    data = some(size)
    assert bytes(Tensor(data).hash().tolist()) == tree(data.tobytes())


def test_the_hash_is_of_the_bytes() -> None:
    data = np.arange(6, dtype=np.int32).reshape(2, 3)
    whole = Tensor(data).hash().tolist()
    assert bytes(whole) == tree(data.tobytes())
    assert bytes(Tensor(data).T.hash().tolist()) == tree(data.T.tobytes())
    assert bytes(Tensor([True, False]).hash().tolist()) == tree(b"\x01\x00")


def test_inside_a_jitted_function() -> None:
    digest = jit(lambda x: x.keccak("sha3_224").realize())
    for number in range(3):
        assert (
            bytes(digest(Tensor([number, 1], dtype="uint8")).tolist()) == hashlib.sha3_224(bytes([number, 1])).digest()
        )
