"""Sums of products by matrix units: what the schedule makes of a product, and what stays a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradlet import Tensor, dtypes
from gradlet.base.dtype import DType
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import lower
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, KernelArg, Op, WgmmaArg
from gradlet.ops.opt import Opt, OptKind
from gradlet.optimize import units as products
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import KernelFacts
from gradlet.render.cuda import render, shared_bytes
from gradlet.schedule import rowpitch
from gradlet.target.target import SM_80, SM_86, SM_89, SM_90, Target

D = "NULL:sm_90"
LANES = replace(SM_90, copy_engine=False)  # as lanes copy for themselves


def factor(rows: int, columns: int) -> Tensor:
    return Tensor.empty(rows, columns, device=D, dtype=dtypes.bfloat16)


def kernel(value: Tensor) -> UOp:
    calls = value.schedule().calls
    assert len(calls) == 1, "conversions belong to the kernel"
    return calls[0].ast  # type: ignore[no-any-return]


def units_of(ast: UOp) -> list[Opt]:
    return products.tensor_tile(KernelFacts(ast), SM_90) or []


def units(found: LinearProgram) -> list[WgmmaArg]:
    return [n.arg for n in found.uops if n.op is Op.WGMMA]


@pytest.mark.parametrize(
    ("value", "ways"),
    [
        (lambda: factor(512, 512) @ factor(512, 512), (False, True)),
        (lambda: factor(512, 512) @ factor(512, 512).T, (False, False)),
        (lambda: factor(512, 512).T @ factor(512, 512), (True, True)),
        (lambda: factor(1000, 520) @ factor(520, 1040), (False, True)),
    ],
)
def test_a_product_is_one_instruction_a_step(value: object, ways: tuple[bool, bool]) -> None:
    found = lower(kernel(value()), LANES)  # type: ignore[operator]
    assert units(found) == [WgmmaArg(128, 128, 64, *ways)]
    assert found.threads == 256 and found.lanes == ((1, 4), (4, 8), (32, 8))
    assert sum(n.op is Op.BARRIER for n in found.uops) == 1
    assert sum(n.arg.size * 2 for n in found.uops if n.op is Op.LOCAL) == 3 * 2 * 128 * 64 * 2
    # Two steps before the loop, one in each iteration; every lane copies 4 pieces of 16 bytes of each factor.
    assert sum(n.op is Op.COPY_ASYNC for n in found.uops) == 3 * 8
    assert [n.arg.pending for n in found.uops if n.op is Op.WAIT] == [1]


def test_large_products_have_wide_blocks_whose_steps_overlap() -> None:
    found = lower(kernel(factor(4096, 4096) @ factor(4096, 4096).T), LANES)
    assert units(found) == [WgmmaArg(128, 256, 64, False, False, pending=1)]
    assert found.grid == 32 * 16 and found.threads == 256
    assert sum(n.arg.size * 2 for n in found.uops if n.op is Op.LOCAL) == 4 * (128 + 256) * 64 * 2
    # Two steps are copied ahead; units are waited for once, after the loop.
    assert [n.arg.pending for n in found.uops if n.op is Op.WAIT] == [1, -1]
    # Eight rows of blocks run at the same time: their number is the last digit of a block's.
    assert [n.src[0].arg for n in found.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL] == [4, 16, 8]


def test_without_matrix_units_the_same_schedule_is_loops() -> None:
    ast = kernel(factor(256, 256) @ factor(256, 256))
    opts = tuple(products.tensor_tile(KernelFacts(ast), LANES) or ())
    assert opts[-1].kind is OptKind.TENSORIZE
    found = lower(ast.replace(arg=KernelArg(ast.arg.name, opts)), replace(LANES, matrix_units=None))
    assert not units(found)
    assert any(n.op is Op.RANGE and n.arg.kind is AxisKind.REDUCE and n.src[0].arg == 64 for n in found.uops)


@pytest.mark.parametrize(
    "value",
    [
        lambda: Tensor.empty(512, 512, device=D) @ Tensor.empty(512, 512, device=D),  # float32
        lambda: factor(512, 60) @ factor(60, 512),  # one step
        lambda: factor(12, 512) @ factor(512, 512),  # few rows
        lambda: factor(40, 515) @ factor(515, 40),  # rows that no access of 16 bytes begins at, used too seldom to copy
    ],
)
def test_what_units_cannot_do_is_done_without_them(value: object) -> None:
    assert not units(lower(kernel(value()), SM_90))  # type: ignore[operator]


def bytes_of(dtype: DType, *shape: int) -> Tensor:
    return Tensor.empty(*shape, device=D, dtype=dtype)


@pytest.mark.parametrize(
    ("first", "second", "total", "instruction"),
    [
        (dtypes.float8_e4m3fn, dtypes.float8_e4m3fn, dtypes.float32, "k32.f32.e4m3.e4m3"),
        (dtypes.float8_e5m2, dtypes.float8_e4m3fn, dtypes.float32, "k32.f32.e5m2.e4m3"),
        (dtypes.int8, dtypes.int8, dtypes.int32, "k32.s32.s8.s8"),
        (dtypes.uint8, dtypes.int8, dtypes.int32, "k32.s32.u8.s8"),
    ],
)
def test_factors_of_8_bits_are_multiplied_128_a_step(
    first: DType, second: DType, total: DType, instruction: str
) -> None:
    left, right = bytes_of(first, 512, 512).cast(total), bytes_of(second, 512, 512).cast(total)
    for found in (lower(kernel(left @ right.T), SM_90), lower(kernel(left @ right.T), LANES)):
        (unit,) = units(found)
        assert (unit.depth, unit.first_across, unit.second_across) == (128, False, False)
        text = render(found, SM_90)
        assert instruction in text and ("int& d0" in text) == total.is_int


@pytest.mark.parametrize(
    ("target", "dtype", "total", "instruction"),
    [
        (SM_80, dtypes.bfloat16, dtypes.float32, "m16n8k16.row.col.f32.bf16.bf16.f32"),
        (SM_86, dtypes.float16, dtypes.float32, "m16n8k16.row.col.f32.f16.f16.f32"),
        (SM_80, dtypes.int8, dtypes.int32, "m16n8k32.row.col.s32.s8.s8.s32"),
        (SM_89, dtypes.float8_e4m3fn, dtypes.float32, "m16n8k32.row.col.f32.e4m3.e4m3.f32"),
        (SM_80, dtypes.float32, dtypes.float32, "m16n8k8.row.col.f32.tf32.tf32.f32"),
    ],
)
def test_warps_multiply_what_their_lanes_load(target: Target, dtype: DType, total: DType, instruction: str) -> None:
    a, b = (Tensor.empty(4096, 4096, device=f"NULL:{target.name}", dtype=dtype) for _ in range(2))
    with scope(ALLOW_TF32=1):
        found = lower(kernel(a.matmul(b.T, dtype=total)), target)
    (unit,) = units(found)
    assert (unit.rows, unit.columns, unit.depth, unit.pending) == (128, 128, 128 // dtype.itemsize, 0)
    text = render(found, target)
    assert instruction in text and "ldmatrix.sync" in text and "cp.async" in text
    assert "wgmma" not in text and "copy_box" not in text
    assert shared_bytes(found) <= target.shared_bytes and (found.grid, found.threads) == (1024, 256)


def test_products_of_few_blocks_have_smaller_ones_where_warps_multiply() -> None:
    sizes = []
    for side in (512, 1024, 2048):
        a, b = (Tensor.empty(side, side, device="NULL:sm_80", dtype=dtypes.float16) for _ in range(2))
        (unit,) = units(lower(kernel(a @ b), SM_80))
        sizes.append((unit.rows, unit.columns))
    assert sizes == [(64, 64), (128, 64), (128, 128)]


def test_float8_needs_units_that_know_it() -> None:
    a, b = (Tensor.empty(512, 512, device="NULL:sm_86", dtype=dtypes.float8_e4m3fn) for _ in range(2))
    assert not any(units(lower(call.ast, SM_86)) for call in a.matmul(b.T, dtype="float32").schedule().calls)


def test_types_that_are_not_added_up_alike_are_not_multiplied_by_units() -> None:
    half, byte = factor(512, 512).cast(dtypes.float32), bytes_of(dtypes.float8_e5m2, 512, 512).cast(dtypes.float32)
    calls = (half @ byte.T).schedule().calls
    assert not any(units(lower(call.ast, SM_90)) for call in calls)
    wrapped = bytes_of(dtypes.int8, 512, 512)  # sums of 8 bits
    assert not units(lower(kernel(wrapped @ wrapped.T), SM_90))


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.float8_e4m3fn])
def test_factors_of_8_bits_across_the_sum_are_copied_or_refused(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    total = dtypes.int32 if dtype.is_int else dtypes.float32
    left, right = bytes_of(dtype, 4096, 4096), bytes_of(dtype, 4096, 4096)
    opts = units_of(kernel(left.matmul(right.T, dtype=total)))
    calls = left.matmul(right, dtype=total).schedule().calls
    assert [len(units(lower(call.ast, SM_90))) for call in calls] == [0, 1]
    monkeypatch.setattr(rowpitch, "USES_OF_PIECES", 1 << 40)  # it would be copied
    with scope(SCHEDULE_CACHE=0):
        across = kernel(left.matmul(right, dtype=total))
    assert not units(lower(across, SM_90))
    with pytest.raises(Exception, match=f"factors of {dtype.name} lie along the sum; copy"):
        actions.apply(across, opts, SM_90)


@pytest.mark.parametrize("target", [SM_90, SM_80])
def test_float32_across_the_sum_is_turned_where_it_may_be_rounded(target: Target) -> None:
    a, b = (Tensor.empty(512, 512, device=f"NULL:{target.name}") for _ in range(2))
    for settings, copies in (({"ALLOW_TF32": 1}, 1), ({}, 0), ({"ALLOW_TF32": 1, "STRICT_FLOAT": 1}, 0)):
        with scope(**settings):
            found = [units(lower(call.ast, target)) for call in (a @ b).schedule().calls]
        assert len(found) == copies + 1 and len(found[-1]) == copies


def test_factors_have_to_be_staged() -> None:
    ast = kernel(factor(256, 256) @ factor(256, 256))
    opts = [o for o in products.tensor_tile(KernelFacts(ast), SM_90) or () if o.kind is not OptKind.STAGE]
    with pytest.raises(Exception, match="a factor is not staged"):
        actions.apply(ast, opts, SM_90)
