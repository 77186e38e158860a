"""Conversions between all data types as machine code."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.dtype import DType, dtypes
from gradlet.device.common.llvm import emit_assembly
from gradlet.device.cpu.target import runnable
from gradlet.graph import numeric
from gradlet.render.llvmir import render
from gradlet.target.target import TARGETS, Target, by_name
from tests.render.build import Build, assert_same_bits, execute, run_both, storage
from tests.render.test_llvmalu import edge_values

LLVM_TARGETS = [target for target in TARGETS.values() if target.language == "llvm"]
LIMITS = [
    127.5,
    128.0,
    -128.5,
    -129.0,
    255.9,
    256.0,
    32767.9,
    65535.5,
    2.0**31,
    2.0**32,
    2.0**63,
    2.0**64,
    -(2.0**63),
    -1e20,
]


def cast_program(source: DType, dtype: DType, size: int, lanes: int) -> Build:
    build = Build()
    px, out = build.param(source, size), build.param(dtype, size)
    loop = build.loop(size // lanes)
    build.store(out, loop * lanes, build.load(px, loop * lanes, lanes).cast(dtype))
    build.end(loop)
    return build


def values_of(dtype: DType) -> np.ndarray:
    values = edge_values(dtype)
    if dtype.is_float:
        with np.errstate(over="ignore"):
            more = numeric.store(numeric.cast(np.array(LIMITS), dtypes.float64, dtype), dtype)
        values = np.concatenate([values, more])
    return np.resize(values, 32)


@pytest.mark.parametrize("target", runnable())
@pytest.mark.parametrize("source", dtypes.all(), ids=lambda d: d.name)
def test_cast_to_every_type(source: DType, target: str) -> None:
    values = values_of(source)
    for lanes in (1, 16):
        build = Build()
        px = build.param(source, 32)
        outs = [(d, build.param(d, 32)) for d in dtypes.all() if d is not source]
        loop = build.loop(32 // lanes)
        x = build.load(px, loop * lanes, lanes)
        for dtype, out in outs:
            build.store(out, loop * lanes, x.cast(dtype))
        build.end(loop)
        arrays = [values] + [np.zeros(32, storage(d)) for d, _ in outs]
        machine, reference = run_both(build.program(), by_name(target), arrays)
        for (dtype, _), got, expected in zip(outs, machine[1:], reference[1:], strict=True):
            try:
                assert_same_bits(got, expected, dtype)
            except AssertionError as error:
                raise AssertionError(f"{source.name} to {dtype.name}, {lanes} lanes: {error}") from None


@pytest.mark.parametrize("lanes", (1, 4))
@pytest.mark.parametrize("target", LLVM_TARGETS, ids=lambda t: t.name)
def test_all_casts_compile_for_every_target(target: Target, lanes: int) -> None:
    build = Build()
    sources = [(d, build.param(d, lanes)) for d in dtypes.all()]
    outs = [(d, build.param(d, lanes)) for d in dtypes.all()]
    for _, px in sources:
        x = build.load(px, 0, lanes)
        for dtype, out in outs:
            build.store(out, 0, x.cast(dtype))
    assert emit_assembly(render(build.program(), target), target)


@pytest.mark.parametrize("target", runnable())
@pytest.mark.parametrize("lanes", (1, 16))
def test_every_float16_widens_exactly(target: str, lanes: int) -> None:
    values = np.arange(65536, dtype=np.uint16).view(np.float16)
    out = np.zeros(65536, np.float32)
    execute(cast_program(dtypes.float16, dtypes.float32, 65536, lanes).program(), by_name(target), [values, out])
    assert_same_bits(out, values.astype(np.float32), dtypes.float32)


@pytest.mark.parametrize("target", runnable())
@pytest.mark.parametrize("lanes", (1, 16))
def test_float32_rounds_to_nearest_even_float16(target: str, lanes: int) -> None:
    rng = np.random.default_rng(1)
    random = rng.integers(0, 2**32, 2**15, dtype=np.uint32).view(np.float32)
    near = np.float32(2.0) ** rng.uniform(-27, 17, 2**14).astype(np.float32) * rng.choice([-1, 1], 2**14).astype(
        np.float32
    )
    # halfway between two neighbours, exactly and just off
    halves = rng.integers(0, 0x7C00, 2**12, dtype=np.uint16).view(np.float16).astype(np.float64)
    following = (halves.astype(np.float16).view(np.uint16) + 1).astype(np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(all="ignore"):
        middle = ((halves + following) / 2).astype(np.float32)
        around = [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(0)), -middle]
        values = np.concatenate([random, near.astype(np.float32), *around])
        expected = values.astype(np.float16)
    out = np.zeros(len(values), np.float16)
    execute(cast_program(dtypes.float32, dtypes.float16, len(values), lanes).program(), by_name(target), [values, out])
    assert_same_bits(out, expected, dtypes.float16)


@pytest.mark.parametrize("target", runnable())
def test_float64_rounds_to_float16_once(target: str) -> None:
    # Just above a tie in float64, exactly a tie after rounding to float32: rounding twice would go to even.
    tie = 1.0 + 2.0**-11
    values = np.array(
        [
            tie,
            tie + 2.0**-40,
            tie - 2.0**-40,
            -(tie + 2.0**-40),
            65519.999999999,
            2.0**-25 * (1 + 2.0**-45),
            1e300,
            np.nan,
        ]
    )
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
        twice = values.astype(np.float32).astype(np.float16)
    assert (expected.view(np.uint16) != twice.view(np.uint16)).any()
    for lanes in (1, 8):
        out = np.zeros(8, np.float16)
        execute(cast_program(dtypes.float64, dtypes.float16, 8, lanes).program(), by_name(target), [values, out])
        assert_same_bits(out, expected, dtypes.float16)


@pytest.mark.parametrize("target", runnable())
@pytest.mark.parametrize("lanes", (1, 16))
def test_float32_rounds_to_nearest_even_bfloat16(target: str, lanes: int) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is the reference for bfloat16")
    rng = np.random.default_rng(2)
    upper = rng.integers(0, 2**16, 2**15, dtype=np.uint32) << 16
    lower = rng.choice(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), 2**15)
    values = (upper | lower).view(np.float32)
    out = np.zeros(len(values), np.uint16)
    execute(cast_program(dtypes.float32, dtypes.bfloat16, len(values), lanes).program(), by_name(target), [values, out])
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert_same_bits(out, expected, dtypes.bfloat16)
    back = np.zeros(len(values), np.float32)
    execute(
        cast_program(dtypes.bfloat16, dtypes.float32, len(values), lanes).program(), by_name(target), [expected, back]
    )
    assert_same_bits(back, expected.view(ml_dtypes.bfloat16).astype(np.float32), dtypes.float32)


@pytest.mark.parametrize("lanes", (1, 8))
@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        (dtypes.float32, dtypes.int32), (dtypes.int32, dtypes.float32), (dtypes.float64, dtypes.uint64),
        (dtypes.float16, dtypes.uint16), (dtypes.int16, dtypes.bfloat16), (dtypes.bool, dtypes.uint8),
        (dtypes.uint8, dtypes.int8),
    ],
    ids=lambda d: d.name,
)  # fmt: skip
def test_bitcast(source: DType, dtype: DType, lanes: int) -> None:
    values = np.resize(edge_values(source), 16)
    build = Build()
    px, out = build.param(source, 16), build.param(dtype, 16)
    loop = build.loop(16 // lanes)
    build.store(out, loop * lanes, build.load(px, loop * lanes, lanes).bitcast(dtype))
    build.end(loop)
    machine = [values.copy(), np.zeros(16, storage(dtype))]
    execute(build.program(), by_name(runnable()[0]), machine)
    np.testing.assert_array_equal(machine[1].view(np.uint8), values.view(np.uint8))


@pytest.mark.parametrize("target", runnable())
@pytest.mark.parametrize("lanes", (1, 16))
@pytest.mark.parametrize("dtype", [d for d in dtypes.all() if d.is_float8], ids=lambda d: d.name)
def test_every_8_bit_float_and_what_rounds_to_it(dtype: DType, target: str, lanes: int) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is the reference for 8-bit floats")
    kind = getattr(ml_dtypes, dtype.name)
    codes = np.arange(256, dtype=np.uint8)
    wide = np.zeros(256, np.float32)
    execute(cast_program(dtype, dtypes.float32, 256, lanes).program(), by_name(target), [codes, wide])
    assert_same_bits(wide, codes.view(kind).astype(np.float32), dtypes.float32)
    with np.errstate(all="ignore"):
        upper = np.arange(2**16, dtype=np.uint32) << 16
        values = np.concatenate([upper, upper | 1, upper | 0xFFFF]).view(np.float32)
        expected = values.astype(kind).view(np.uint8)
    out = np.zeros(len(values), np.uint8)
    execute(cast_program(dtypes.float32, dtype, len(values), lanes).program(), by_name(target), [values, out])
    assert_same_bits(out, expected, dtype)
