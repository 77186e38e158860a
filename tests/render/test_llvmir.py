"""Loops, accumulators, guards, variables and vectors as machine code against the reference interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import RenderError
from gradlet.device.common.llvm import emit_assembly
from gradlet.device.cpu.target import runnable
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op, SpecialArg
from gradlet.render.llvmir import render
from gradlet.target.target import AMDGPU, NVPTX, TARGETS, Target, by_name
from tests.render.build import Build, execute, run_both

F32 = dtypes.float32
HOST = by_name(runnable()[0])
LLVM_TARGETS = [target for target in TARGETS.values() if target.language == "llvm"]


def iota(size: int, dtype: str = "float32") -> np.ndarray:
    return (np.arange(size) % 23 - 11).astype(dtype)


def check(
    build: Build, *arrays: np.ndarray, values: tuple[int, ...] = (), part: tuple[int, int] | None = None
) -> list[np.ndarray]:
    machine, reference = run_both(build.program(), HOST, arrays, values, part)
    for got, expected in zip(machine, reference, strict=True):
        np.testing.assert_array_equal(got, expected)
    return machine


def test_nested_loops_with_an_accumulator() -> None:
    build = Build()
    a, b, out = build.param(F32, 12), build.param(F32, 20), build.param(F32, 15)
    i, j = build.loop(3), build.loop(5)
    k = build.range(4, AxisKind.REDUCE)
    total = build.acc(build.const(0, F32), k)
    build.open(k)
    product = build.load(a, i * 4 + k) * build.load(b, k * 5 + j)
    build.update(total, total + product)
    build.end(k)
    build.store(out, i * 5 + j, total)
    build.end(j)
    build.end(i)
    x, y = iota(12), iota(20)
    result = check(build, x, y, np.zeros(15, np.float32))[2]
    np.testing.assert_array_equal(result.reshape(3, 5), x.reshape(3, 4) @ y.reshape(4, 5))


def test_one_accumulator_over_two_loops() -> None:
    build = Build()
    a, out = build.param(F32, 12), build.param(F32, 1)
    i, j = build.range(3, AxisKind.REDUCE), build.range(4, AxisKind.REDUCE)
    total = build.acc(build.const(0, F32), i, j)
    build.open(i)
    build.open(j)
    build.update(total, total + build.load(a, i * 4 + j))
    build.end(j)
    build.end(i)
    build.store(out, 0, total)
    assert check(build, iota(12), np.zeros(1, np.float32))[1][0] == iota(12).sum()


def test_an_accumulator_listed_inside_its_loop_begins_before_it() -> None:
    build = Build()
    a, out = build.param(F32, 6), build.param(F32, 1)
    i = build.loop(6, AxisKind.REDUCE)
    total = build.acc(build.const(0, F32), i)
    build.update(total, total + build.load(a, i))
    build.end(i)
    build.store(out, 0, total)
    arrays = [iota(6), np.zeros(1, np.float32)]
    execute(build.program(), HOST, arrays)
    assert arrays[1][0] == iota(6).sum()


def test_two_accumulators_exchange_values() -> None:
    """Fibonacci: each update reads what the other one held."""
    build = Build()
    out = build.param(dtypes.int32, 2)
    i = build.range(10, AxisKind.REDUCE)
    first = build.acc(build.const(0, dtypes.int32), i, number=0)
    second = build.acc(build.const(1, dtypes.int32), i, number=1)
    build.open(i)
    together = build.emit(first + second)
    build.update(first, build.emit(second + 0))
    build.update(second, together)
    build.end(i)
    build.store(out, 0, first)
    build.store(out, 1, second)
    machine = check(build, np.zeros(2, np.int32))
    assert machine[0].tolist() == [55, 89]


def test_update_is_a_value() -> None:
    build = Build()
    a, out = build.param(F32, 8), build.param(F32, 8)
    i = build.range(8, AxisKind.ORDERED)
    total = build.acc(build.const(0, F32), i)
    build.open(i)
    new = build.update(total, total + build.load(a, i))
    build.store(out, i, new)
    build.end(i)
    np.testing.assert_array_equal(check(build, iota(8), np.zeros(8, np.float32))[1], np.cumsum(iota(8)))


@pytest.mark.parametrize("dtype", [dtypes.index, dtypes.int32, dtypes.int64], ids=lambda d: d.name)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_loop_whose_bound_is_a_variable_runs_so_many_times(count: int, dtype: DType) -> None:
    build = Build()
    a, out = build.param(F32, 5), build.param(F32, 1)
    n = build.variable("n", 0, 5, dtype)
    k = build.range(n, AxisKind.REDUCE, dtype)
    total = build.acc(build.const(7, F32), k)
    build.open(k)
    build.update(total, total + build.load(a, k))
    build.end(k)
    build.store(out, 0, total)
    assert check(build, iota(5), np.zeros(1, np.float32), values=(count,))[1][0] == 7 + iota(5)[:count].sum()


def test_a_loop_of_constant_zero_iterations() -> None:
    build = Build()
    out = build.param(F32, 1)
    k = build.range(0, AxisKind.REDUCE)
    total = build.acc(build.const(3, F32), k)
    build.open(k)
    build.update(total, total + 1)
    build.end(k)
    build.store(out, 0, total)
    assert check(build, np.zeros(1, np.float32))[0][0] == 3


@pytest.mark.parametrize("part", [(0, 8), (2, 5), (7, 8), (4, 4)])
def test_the_parallel_range_runs_from_begin_to_end(part: tuple[int, int]) -> None:
    build = Build()
    out = build.param(dtypes.int32, 8)
    i = build.loop(8, AxisKind.PARALLEL)
    build.store(out, i, i.cast(dtypes.int32) + 1)
    build.end(i)
    expected = np.zeros(8, np.int32)
    expected[part[0] : part[1]] = np.arange(part[0], part[1]) + 1
    np.testing.assert_array_equal(check(build, np.zeros(8, np.int32), part=part)[0], expected)


@pytest.mark.parametrize("dtype", [dtypes.bool, dtypes.int8, dtypes.float16, F32, dtypes.float64], ids=lambda d: d.name)
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_guarded_access_touches_nothing_outside(dtype: DType, lanes: int) -> None:
    """A buffer of 21 elements in steps of `lanes`: the guard is the only thing between the loop and the end."""
    size = 21
    build = Build()
    source, out = build.param(dtype, size), build.param(dtype, size)
    i = build.loop((size + lanes - 1) // lanes)
    at = i * lanes
    if lanes == 1:
        inside = at.lt(build.const(20))
    else:
        numbers = build.broadcast(at, lanes) + build.vector(*(build.const(lane) for lane in range(lanes)))
        inside = numbers.lt(build.const(20, dtypes.index.vec(lanes)))
    x = build.load(source, at, lanes, inside, build.const(1, dtype.vec(lanes)))
    build.store(out, at, x, inside)
    build.end(i)
    values = iota(size, dtype.name)
    result = check(build, values, np.zeros(size, dtype.name))[1]
    np.testing.assert_array_equal(result[:20], values[:20])
    assert result[20] == 0


def test_a_false_guard_gives_the_other_value() -> None:
    build = Build()
    source, out = build.param(F32, 4), build.param(F32, 8)
    i = build.loop(8)
    build.store(out, i, build.load(source, i, 1, i.lt(build.const(4)), build.const(-5, F32)))
    build.end(i)
    result = check(build, iota(4), np.zeros(8, np.float32))[1]
    assert result.tolist() == [*iota(4).tolist(), -5, -5, -5, -5]


def test_a_scalar_guard_of_a_vector_access_covers_all_lanes() -> None:
    build = Build()
    source, out = build.param(F32, 8), build.param(F32, 8)
    i = build.loop(2)
    guard = i.lt(build.const(1))
    x = build.load(source, i * 4, 4, guard, build.const(9, F32.vec(4)))
    build.store(out, i * 4, x + 1, guard)
    build.end(i)
    arrays = [iota(8), np.zeros(8, np.float32)]
    execute(build.program(), HOST, arrays)
    assert arrays[1].tolist() == [*(iota(8)[:4] + 1).tolist(), 0, 0, 0, 0]


def test_a_guarded_store_inside_a_loop_with_an_accumulator() -> None:
    """The store's own blocks must not confuse where the accumulator comes from."""
    build = Build()
    a, out, end = build.param(F32, 8), build.param(F32, 8), build.param(F32, 1)
    i = build.range(8, AxisKind.ORDERED)
    total = build.acc(build.const(0, F32), i)
    build.open(i)
    new = build.update(total, total + build.load(a, i))
    build.store(out, i, new, build.const(0, F32).lt(new))
    build.end(i)
    build.store(end, 0, total)
    check(build, iota(8) + 5, np.zeros(8, np.float32), np.zeros(1, np.float32))


def test_vectors_are_built_taken_apart_and_reduced() -> None:
    build = Build()
    a, out = build.param(F32, 8), build.param(F32, 4)
    x = build.load(a, 0, 8)
    mixed = build.vector(build.lane(x, 5), build.lane(x, 0), build.lane(x, 7), build.lane(x, 2))
    build.store(out, 0, mixed + build.broadcast(build.reduce_lanes(Op.ADD, x), 4))
    values = iota(8)
    result = check(build, values, np.zeros(4, np.float32))[1]
    np.testing.assert_array_equal(result, values[[5, 0, 7, 2]] + values.sum())


def test_vector_accumulators() -> None:
    build = Build()
    a, out = build.param(F32, 64), build.param(F32, 1)
    k = build.range(8, AxisKind.REDUCE)
    total = build.acc(build.const(0, F32.vec(8)), k)
    build.open(k)
    build.update(total, total + build.load(a, k * 8, 8))
    build.end(k)
    build.store(out, 0, build.reduce_lanes(Op.ADD, total))
    assert check(build, iota(64), np.zeros(1, np.float32))[1][0] == iota(64).sum()


def test_variables_follow_the_addresses_in_the_table() -> None:
    build = Build()
    out = build.param(dtypes.int64, 3)
    n, m = build.variable("n", -10, 10), build.variable("m", 0, 2**40, dtypes.int64)
    small = build.variable("small", 0, 100, dtypes.int32)
    build.store(out, 0, n.cast(dtypes.int64))
    build.store(out, 1, m)
    build.store(out, 2, small.cast(dtypes.int64))
    assert check(build, np.zeros(3, np.int64), values=(-7, 2**40, 99))[0].tolist() == [-7, 2**40, 99]


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, 1e-40, 65504.0])
@pytest.mark.parametrize("dtype", [dtypes.float16, F32, dtypes.float64], ids=lambda d: d.name)
def test_float_constants(dtype: DType, value: float) -> None:
    build = Build()
    out = build.param(dtype, 5)
    build.store(out, 0, build.const(value, dtype))
    build.store(out, 1, build.const(value, dtype.vec(4)))
    result = check(build, np.zeros(5, dtype.name))[0]
    np.testing.assert_array_equal(result, np.full(5, value, dtype.name))
    np.testing.assert_array_equal(np.signbit(result[:1]), np.signbit(np.array([value])))


@pytest.mark.parametrize("dtype", [d for d in dtypes.all() if d.is_int], ids=lambda d: d.name)
def test_integer_constants(dtype: DType) -> None:
    build = Build()
    out = build.param(dtype, 2)
    build.store(out, 0, build.const(dtype.min, dtype))
    build.store(out, 1, build.const(dtype.max, dtype))
    assert check(build, np.zeros(2, dtype.name))[0].tolist() == [dtype.min, dtype.max]


def test_int32_element_numbers_may_be_negative_in_between() -> None:
    build = Build()
    a, out = build.param(F32, 4), build.param(F32, 4)
    i = build.loop(4, dtype=dtypes.int32)
    reverse = i * -1 + 3
    build.store(out, i, build.load(a, reverse))
    build.end(i)
    np.testing.assert_array_equal(check(build, iota(4), np.zeros(4, np.float32))[1], iota(4)[::-1])


def test_division_of_what_cannot_be_negative_is_unsigned() -> None:
    build = Build()
    out = build.param(dtypes.int64, 12)
    n = build.variable("n", 1, 9)
    i = build.loop(12)
    build.store(out, i, ((i // n) * 100 + (i % 5)).cast(dtypes.int64))
    build.end(i)
    text = render(build.program(), HOST)
    assert "udiv" in text and "urem" in text
    assert "select" not in text
    result = check(build, np.zeros(12, np.int64), values=(4,))[0]
    np.testing.assert_array_equal(result, np.arange(12) // 4 * 100 + np.arange(12) % 5)


def test_user_arithmetic_on_integers_wraps() -> None:
    build = Build()
    out = build.param(dtypes.int32, 4)
    i = build.loop(4, dtype=dtypes.int32)
    build.store(out, i, i * (2**31 - 1) + i * (2**31 - 1))
    build.end(i)
    check(build, np.zeros(4, np.int32))


def test_the_same_program_gives_the_same_text() -> None:
    def text() -> str:
        build = Build()
        a = build.param(F32, 4)
        i = build.loop(4)
        build.store(a, i, build.load(a, i) + 1)
        build.end(i)
        return render(build.program(), HOST)

    assert text() == text()


def test_a_node_used_before_it_is_computed_is_named() -> None:
    build = Build()
    a = build.param(F32, 4)
    x = mk(Op.LOAD, F32, (build.index(a, 0),))
    build.append(mk(Op.STORE, dtypes.void, (build.emit(build.index(a, 1)), x)))
    with pytest.raises(RenderError, match="uses LOAD before it is computed"):
        render(build.program(), HOST)


def test_a_loop_without_end_is_refused() -> None:
    build = Build()
    build.loop(4)
    with pytest.raises(RenderError, match="1 loops have no END"):
        render(build.program(), HOST)


# GPUs: the assembly shows where indices come from
def gpu_kernel() -> Build:
    build = Build("scale")
    a, out = build.param(F32, 4096), build.param(F32, 4096)
    n = build.variable("n", 1, 4096)
    group, lane = build.loop(32, AxisKind.PARALLEL), build.loop(128, AxisKind.THREAD)
    at = group * 128 + lane
    guard = at.lt(n)
    build.store(out, at, build.load(a, at, 1, guard) * 2.0, guard)
    build.end(lane)
    build.end(group)
    return build


def test_ptx_has_a_kernel_entry_and_thread_indices() -> None:
    assembly = emit_assembly(render(gpu_kernel().program(), NVPTX), NVPTX)
    for part in (".target sm_90", ".visible .entry scale(", "%ctaid.x", "%tid.x", ".maxntid 128", "st.global.b32"):
        assert part in assembly


def test_amdgpu_has_a_kernel_and_global_memory_access() -> None:
    assembly = emit_assembly(render(gpu_kernel().program(), AMDGPU), AMDGPU)
    for part in ("gfx1100", ".amdhsa_kernel scale", "global_store_b32", ".max_flat_workgroup_size: 128"):
        assert part in assembly


@pytest.mark.parametrize("target", [NVPTX, AMDGPU], ids=lambda t: t.name)
def test_several_thread_ranges_share_the_lanes(target: Target) -> None:
    build = Build()
    out = build.param(dtypes.int32, 64)
    y, x = build.loop(8, AxisKind.THREAD), build.loop(8, AxisKind.THREAD)
    build.store(out, y * 8 + x, (x + y).cast(dtypes.int32))
    build.end(x)
    build.end(y)
    text = render(build.program(), target)
    assert "udiv i64" in text
    assert "urem i64" in text
    assert emit_assembly(text, target)


@pytest.mark.parametrize("target", [NVPTX, AMDGPU], ids=lambda t: t.name)
def test_special_is_an_index_register(target: Target) -> None:
    build = Build()
    out = build.param(dtypes.int32, 64)
    lane = mk(Op.SPECIAL, dtypes.index, (), SpecialArg("thread", 64))
    build.store(out, lane, lane.cast(dtypes.int32))
    assert emit_assembly(render(build.program(), target), target)


def test_special_is_refused_on_a_cpu() -> None:
    build = Build()
    build.append(mk(Op.SPECIAL, dtypes.index, (), SpecialArg("thread", 64)))
    with pytest.raises(RenderError, match="SPECIAL thread"):
        render(build.program(), HOST)


def gpu_types(dtype: DType) -> Build:
    build = Build()
    a, out = build.param(dtype, 16), build.param(dtype, 16)
    flags = build.param(dtypes.bool, 16)
    x = build.load(a, 0, 4)
    y: UOp = x + x * x
    build.store(out, 0, x.lt(y).where(y, x.maximum(y)))
    build.store(flags, 0, x.lt(y))
    return build


@pytest.mark.parametrize("target", LLVM_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [d for d in dtypes.all() if not d.is_bool], ids=lambda d: d.name)
def test_every_type_compiles_for_every_target(dtype: DType, target: Target) -> None:
    assert emit_assembly(render(gpu_types(dtype).program(), target), target)


GUARDED = """
import numpy as np
from gradlet.base.dtype import dtypes
from tests.render.build import Build, execute
from tests.render.test_llvmir import HOST
build = Build()
source, out = build.param(dtypes.{dtype}, 64), build.param(dtypes.{dtype}, 64)
far = build.variable("far", -(2**60), 2**60)
inside = far.lt(build.const(64)) & build.const(-1).lt(far)
lanes = build.broadcast(inside, {lanes}) if {lanes} > 1 else inside
x = build.load(source, far, {lanes}, lanes, build.const(1, dtypes.{dtype}.vec({lanes})))
build.store(out, far, x, lanes)
build.store(out, 0, x)
arrays = [np.zeros(64, "{dtype}"), np.zeros(64, "{dtype}")]
for value in (2**44, -(2**44), 2**58):
    execute(build.program(), HOST, arrays, [value])
    assert arrays[1][:{lanes}].tolist() == [1] * {lanes}
print("no fault")
"""


@pytest.mark.parametrize("dtype", ["float32", "bool"])
@pytest.mark.parametrize("lanes", [1, 8])
def test_an_address_behind_a_false_guard_is_never_touched(lanes: int, dtype: str) -> None:
    """In a process of its own: a touch would be a segmentation fault."""
    command = [sys.executable, "-c", GUARDED.format(lanes=lanes, dtype=dtype)]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "no fault\n"), done.stderr


def test_neighbours_share_an_address() -> None:
    build = Build()
    a, out = build.param(F32, 16), build.param(F32, 12)
    i = build.loop(4)
    total = build.load(a, i * 4) + build.load(a, i * 4 + 1) + build.load(a, i * 4 + 2)
    build.store(out, i * 3 + 2, total)
    build.end(i)
    text = render(build.program(), HOST)
    assert text.count("getelementptr float, ptr %p0, i64") == 1
    assert "add nsw" not in text  # the constants are distances of addresses, which the machine adds for free
    check(build, iota(16), np.zeros(12, np.float32))


def test_an_address_is_not_shared_out_of_the_loop_that_computes_it() -> None:
    """The first loop may not run at all."""
    build = Build()
    a, out = build.param(F32, 8), build.param(F32, 8)
    n = build.variable("n", 0, 4)
    k = build.variable("k", 0, 4)
    i = build.open(build.range(n))
    build.store(out, k + 1, build.load(a, k + 2))
    build.end(i)
    build.store(out, k + 3, build.load(a, k))
    for count in (0, 2):
        check(build, iota(8), np.zeros(8, np.float32), values=(count, 3))


def test_a_sum_that_is_also_a_value_is_computed() -> None:
    build = Build()
    out = build.param(F32, 5)
    i = build.loop(4)
    build.store(out, i + 1, (i + 1).cast(F32))
    build.end(i)
    check(build, np.zeros(5, np.float32))
