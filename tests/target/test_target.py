"""Targets as data."""

from __future__ import annotations

import dataclasses

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.ops.op import Op
from gradlet.target.target import AVX512, MAX_SCRATCH, NVPTX, SSE, TARGETS, Target, by_name, scratch_of


def test_targets_are_found_by_name() -> None:
    assert by_name("avx512") is AVX512
    assert list(TARGETS) == [
        "avx512",
        "avx2",
        "sse",
        "neon",
        "wasm",
        "nvptx",
        "amdgpu",
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90",
    ]
    with pytest.raises(ArgumentError, match="unknown target 'avx3'; use one of: avx512, avx2"):
        by_name("avx3")


def test_the_key_differs_where_code_may_differ() -> None:
    assert len({t.key for t in TARGETS.values()}) == len(TARGETS)
    assert dataclasses.replace(AVX512, cores=99).key == AVX512.key


@pytest.mark.parametrize(("target", "lanes"), [(AVX512, 16), (SSE, 4), (NVPTX, 1)])
def test_lanes_fill_a_register(target: Target, lanes: int) -> None:
    assert target.lanes(dtypes.float32) == lanes
    assert target.lanes(dtypes.float32.vec(4)) == lanes
    assert target.lanes(dtypes.float64) == max(1, lanes // 2)


def test_supports_says_what_must_be_decomposed() -> None:
    assert AVX512.supports(Op.ADD, dtypes.float32)
    assert AVX512.supports(Op.CAST, dtypes.bfloat16)
    assert not AVX512.supports(Op.ADD, dtypes.float16)
    assert NVPTX.supports(Op.ADD, dtypes.float16)
    assert not AVX512.supports(Op.EXP, dtypes.float32)
    assert AVX512.supports(Op.EXP, dtypes.float64)
    assert not NVPTX.supports(Op.EXP, dtypes.float64)


def test_a_target_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        AVX512.cores = 3  # type: ignore[misc]


def test_a_region_may_use_half_of_the_second_cache() -> None:
    assert scratch_of(512 * 1024) == 256 * 1024
    assert scratch_of(16 * 1024 * 1024) == MAX_SCRATCH
    assert NVPTX.scratch_bytes == 0 and AVX512.scratch_bytes == 512 * 1024
