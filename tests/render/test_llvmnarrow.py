"""Vectors of bytes and half-words under guards: loaded as words, from the memory alone, at any place and either end."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace

import numpy as np
import pytest

from gradlet.base.dtype import DType, dtypes
from gradlet.device.cpu.target import host_target
from gradlet.graph.program import LinearProgram
from gradlet.render.llvmir import render
from gradlet.target.target import AVX2, AVX512, NEON, SSE
from tests.render.build import Build, execute, run_both, storage

NARROW = (dtypes.bool, dtypes.int8, dtypes.int16, dtypes.float16)
VECTORS = [(d, n) for d in NARROW for n in (2, 4, 8) if n * d.bits <= 64]
SIZE, STEPS, STRIDE = 37, 9, 7


def guarded(dtype: DType, lanes: int, first: int) -> LinearProgram:
    """Vectors that begin at `first`, `first + STRIDE`, ..., of which the lanes that lie in the memory are loaded."""
    b = Build()
    out, x = b.param(dtype, STEPS * lanes), b.param(dtype, SIZE)
    step = b.loop(STEPS)
    element = step * STRIDE + first
    inside = [(b.const(-1) < element + lane) & (element + lane < SIZE) for lane in range(lanes)]
    b.store(out, step * lanes, b.load(x, element, lanes, b.vector(*inside)))
    b.end(step)
    return b.program()


def values(dtype: DType) -> np.ndarray:
    return (np.random.default_rng(dtype.itemsize).random(SIZE) * 90 + 1).astype(storage(dtype))


@pytest.mark.parametrize("first", [-20, -3, 0, 1])
@pytest.mark.parametrize(("dtype", "lanes"), VECTORS, ids=str)
def test_lanes_that_lie_in_memory_are_loaded(dtype: DType, lanes: int, first: int) -> None:
    program, target = guarded(dtype, lanes, first), replace(host_target(), vector_bits=256)
    assert "masked.load" not in render(program, target)
    machine, reference = run_both(program, target, [np.zeros(STEPS * lanes, storage(dtype)), values(dtype)])
    np.testing.assert_array_equal(machine[0], reference[0])
    assert (reference[0] != 0).sum() >= lanes * (SIZE // STRIDE - 2)


def test_nothing_beyond_the_memory_is_touched() -> None:
    """The memory ends where a page does that nobody may read."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    pages = mmap.mmap(-1, 3 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for locked in (begin, begin + 2 * page):
        assert libc.mprotect(ctypes.c_void_p(locked), ctypes.c_size_t(page), 0) == 0
    try:
        for at in (begin + page, begin + 2 * page - SIZE):
            x = np.frombuffer((ctypes.c_int8 * SIZE).from_address(at), np.int8)
            x[:] = values(dtypes.int8)
            out = np.zeros(STEPS * 8, np.int8)
            execute(guarded(dtypes.int8, 8, -5), replace(host_target(), vector_bits=256), [out, x])
            elements = [s * STRIDE - 5 + lane for s in range(STEPS) for lane in range(8)]
            expected = [x[i] if 0 <= i < SIZE else 0 for i in elements]
            np.testing.assert_array_equal(out, expected)
    finally:
        for locked in (begin, begin + 2 * page):
            libc.mprotect(ctypes.c_void_p(locked), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)


def test_registers_with_masks_load_under_them() -> None:
    assert "masked.load" in render(guarded(dtypes.int8, 8, -5), AVX512)
    for target in (AVX2, SSE, NEON):
        text = render(guarded(dtypes.int8, 8, -5), target)
        assert "masked.load" not in text and "load i64" in text
        assert "masked.load" in render(guarded(dtypes.float32, 4, -5), target)
