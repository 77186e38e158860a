"""Matrix products of narrow integers go by words of several: exact for every value, and only where it pays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.rules.sets import simplify
from gradlet.schedule.context import sink
from gradlet.schedule.packed import pack_products
from gradlet.target.target import AVX2, AVX512, NEON, NVPTX, SSE, WASM, Target

VNNI = replace(AVX512, features=AVX512.features + ",+avx512vnni", dot8=True)
DOTPROD = replace(NEON, features="+neon,+dotprod", dot8=True)
NARROW = ("int8", "uint8", "int16")


def numbers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Any values, the least and the largest among them, runs of the least in one row and column."""
    limits = np.iinfo(dtype)
    made = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)
    made[..., 0, :], made[..., :, 0], made[..., 1, 1:] = limits.min, limits.min, limits.max
    return made


def packed(value: Tensor, target: Target) -> Counter[Op]:
    """The dots of the rewritten graph, after checking that it computes the same."""
    node: UOp = simplify(value.uop)
    changed = pack_products(sink([node]), lambda device: target, "CPU").src[0]
    buffers = {}
    for n in toposort((node,)):
        if n.op is Op.BUFFER:
            limits = np.iinfo(str(n.dtype).removeprefix("dtypes."))
            made = np.random.default_rng(n.arg.number).integers(limits.min, limits.max + 1, n.arg.size)
            made[: n.arg.size // 2 : 3] = limits.min
            buffers[n] = made.astype(limits.dtype)
    got, wanted = evaluate([changed, node], buffers)
    np.testing.assert_array_equal(got, wanted)
    return Counter(n.op for n in toposort((changed,)) if n.op in (Op.DOT, Op.DOT16))


def product(one: str, other: str, m: int = 64, k: int = 66, n: int = 64, turned: bool = False) -> Tensor:
    a, b = Tensor.empty(m, k, dtype=one), Tensor.empty(*((n, k) if turned else (k, n)), dtype=other)
    return a.cast("int32") @ (b.T if turned else b).cast("int32")


@pytest.mark.parametrize("one", NARROW)
@pytest.mark.parametrize("other", NARROW)
def test_which_dots(one: str, other: str) -> None:
    """Bytes by fours where the machine has an instruction, else halves by twos, which never saturate."""
    halves = "int16" in (one, other)
    value = product(one, other)
    assert packed(value, AVX2) == {Op.DOT16: 1}
    assert packed(value, VNNI) == ({Op.DOT16: 1} if halves else {Op.DOT: 1})
    assert packed(value, DOTPROD) == ({} if halves else {Op.DOT: 1})


@pytest.mark.parametrize("target", [SSE, WASM, NEON, NVPTX], ids=lambda t: t.name)
def test_other_machines(target: Target) -> None:
    assert packed(product("int8", "int8"), target) == ({Op.DOT16: 1} if target in (SSE, WASM) else {})


def test_ways_of_writing_it() -> None:
    a, b = Tensor.empty(64, 67, dtype="int8"), Tensor.empty(67, 80, dtype="uint8")
    assert packed(a.matmul(b, dtype="int32"), AVX2)
    assert packed(a.cast("uint32") @ b.cast("uint32"), VNNI)
    assert packed(a.cast("int16").cast("int32") @ b.cast("int32"), VNNI) == {Op.DOT: 1}
    assert packed(product("int8", "int8", turned=True), VNNI)
    assert packed(a[:, ::2].cast("int32") @ b[::2].cast("int32").pad(((0, 0), (40, 4))), VNNI)
    batched = Tensor.empty(3, 32, 65, dtype="int8").cast("int32") @ Tensor.empty(3, 65, 48, dtype="int8").cast("int32")
    assert packed(batched, VNNI) and packed(batched, AVX2)
    over_rows = Tensor.empty(96, 64, dtype="int8").cast("int32").T @ Tensor.empty(96, 48, dtype="int8").cast("int32")
    assert packed(over_rows, AVX2)


def test_what_stays() -> None:
    """Few uses of an element, little work, floats, and conversions that change values."""
    assert not packed(product("int8", "int8", m=4, k=512, n=512), VNNI)
    assert not packed(product("int8", "int8", m=16, k=16, n=16), VNNI)
    assert not packed(product("int8", "int32"), VNNI)
    wrapped = Tensor.empty(64, 66, dtype="int8").cast("uint16").cast("int32")
    assert not packed(wrapped @ Tensor.empty(66, 64, dtype="int8").cast("int32"), VNNI)
    longer = Tensor.empty(64, 66, dtype="int8").cast("int64") @ Tensor.empty(66, 64, dtype="int8").cast("int64")
    assert not packed(longer, VNNI)


@pytest.mark.parametrize("shape", [(65, 97, 83), (33, 515, 17), pytest.param((130, 1025, 67), marks=pytest.mark.slow)])
@pytest.mark.parametrize("turned", [False, True])
def test_compiled_products_are_exact(shape: tuple[int, int, int], turned: bool) -> None:
    m, k, n = shape
    for number, (one, other) in enumerate((("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8"))):
        a, b = numbers(one, (m, k), number), numbers(other, (n, k) if turned else (k, n), number + 9)
        right = b.T if turned else b
        wanted = a.astype(np.int64) @ right.astype(np.int64)
        got = Tensor(a).matmul(Tensor(b).T if turned else Tensor(b), dtype=dtypes.int32).numpy()
        np.testing.assert_array_equal(got, wanted.astype(np.int32))
