"""Kernels that the caller writes, against NumPy: alone, jitted, differentiated, scheduled by hand, on other devices."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from gradlet import Tensor, Variable, dtypes, jit
from gradlet.base.errors import ArgumentError, GradientError, ShapeError
from gradlet.codegen.pipeline import lower
from gradlet.graph.evaluate_tensor import evaluate
from gradlet.graph.node import toposort
from gradlet.io import program
from gradlet.ops.op import Op
from gradlet.render.cuda import render
from gradlet.schedule.calls import KernelCall
from gradlet.target.target import SM_90

RNG = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def product(kernel, out, left, right):
    row, column, inner = kernel.loops(left.shape[0], right.shape[1], left.shape[1])
    terms = left[row, inner].cast(dtypes.float32) * right[inner, column].cast(dtypes.float32)
    out[row, column] = kernel.sum(terms, inner).cast(out.dtype)


def softmax(kernel, out, total, x):
    row, column, other = kernel.loops(*x.shape, x.shape[1])
    largest = kernel.max(x[row, other], other)
    scale = kernel.sum((x[row, other] - largest).exp(), other)
    out[row, column] = (x[row, column] - largest).exp().fdiv(scale)
    total[row] = largest + scale.log()


def neighbours(kernel, out, x):
    """Sums of three neighbours, by blocks of 16 with a copy near the core."""
    size = x.shape[0]
    block, copied, place = kernel.loops(size // 16, 18, 16)
    near = kernel.shared((18,), x.dtype)
    at = block * 16 + copied - 1
    near[copied] = x.load(at, where=(at >= 0) & (at < size))
    near = near.filled(copied)
    out[block * 16 + place] = near[place] + near[place + 1] + near[place + 2]


def neighbours_of(x: np.ndarray) -> np.ndarray:
    wide = np.pad(x, 1)
    return wide[:-2] + wide[1:-1] + wide[2:]


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (3, 5, 7), (64, 33, 48), (17, 0, 4), (0, 3, 2)])
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_product(rows, inner, columns, device):
    a, b = floats(rows, inner), floats(inner, columns)
    result = Tensor.custom_kernel(
        Tensor.empty(rows, columns, device=device), Tensor(a, device=device), Tensor(b, device=device), fn=product
    )
    assert result.device == device
    np.testing.assert_allclose(result.numpy(), a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_several_results_are_one_kernel(device):
    x = floats(9, 21)
    out, total = Tensor.custom_kernel(
        Tensor.empty(9, 21, device=device), Tensor.empty(9, device=device), Tensor(x, device=device), fn=softmax
    )
    plan = Tensor.schedule(out, total)
    assert [call.ast.arg.name for call in plan.calls] == ["custom_softmax"]
    weights = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out.numpy(), weights / weights.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(total.numpy(), np.log(np.exp(x).sum(1)), rtol=1e-5)


def test_a_result_that_nobody_wants_still_has_memory():
    x = floats(4, 6)
    _, total = Tensor.custom_kernel(Tensor.empty(4, 6), Tensor.empty(4), Tensor(x), fn=softmax)
    np.testing.assert_allclose((total * 2).numpy(), 2 * np.log(np.exp(x).sum(1)), rtol=1e-5)


def test_operands_and_results_are_ordinary_values():
    """Operands that are views, constants or computed; results that go on through other kernels."""
    a, b = floats(8, 12), floats(10, 24)
    left = Tensor(a).T + 1
    right = Tensor(b)[1:9, ::2]
    result = Tensor.custom_kernel(Tensor.empty(12, 12), left, right, fn=product)
    expected = (a.T + 1) @ b[1:9, ::2]
    np.testing.assert_allclose((result.T.relu() - 1).numpy(), np.maximum(expected.T, 0) - 1, rtol=1e-4, atol=1e-5)
    ones = Tensor.custom_kernel(Tensor.empty(2, 3), Tensor.ones(2, 5), Tensor.full((5, 3), 2.0), fn=product)
    assert ones.tolist() == [[10.0] * 3] * 2
    chained = Tensor.custom_kernel(Tensor.empty(2, 5), ones, Tensor.ones(3, 5), fn=product)
    assert chained.tolist() == [[30.0] * 5] * 2


def test_what_is_not_stored_is_zero():
    def triangle(kernel, out, x):
        row, column = kernel.loops(*x.shape)
        out.store((row, column), x[row, column], where=column <= row)

    def even(kernel, out, x):
        place = kernel.loop(x.shape[0])
        out[place * 2] = x[place]

    x = floats(7, 7)
    for _ in range(2):
        Tensor(np.full((7, 7), 5.0, np.float32)).numpy()  # memory that may be taken again is not zero
        assert np.array_equal(Tensor.custom_kernel(Tensor.empty(7, 7), Tensor(x), fn=triangle).numpy(), np.tril(x))
    assert Tensor.custom_kernel(Tensor.empty(6), Tensor([1.0, 2.0, 3.0]), fn=even).tolist() == [1, 0, 2, 0, 3, 0]
    plan = Tensor.custom_kernel(Tensor.empty(7, 7), Tensor(x), fn=triangle).schedule()
    assert len(plan.calls) == 2, "zeros, then the kernel"


def test_a_tensor_that_stands_for_a_result_keeps_its_value():
    given, x = Tensor([7.0, 7.0]), Tensor([1.0, 2.0])

    def copy(kernel, out, x):
        place = kernel.loop(2)
        out[place] = x[place] * 3

    assert Tensor.custom_kernel(given, x, fn=copy).tolist() == [3.0, 6.0]
    assert given.tolist() == [7.0, 7.0]


def test_loaded_indices_are_checked_when_it_runs():
    def pick(kernel, out, table, index):
        place = kernel.loop(index.shape[0])
        out[place] = table[index[place]]

    def put(kernel, out, values, index):
        place = kernel.loop(index.shape[0])
        out[index[place]] = values[place]

    index = Tensor([2, 0, 7, -1])
    assert Tensor.custom_kernel(Tensor.empty(4), Tensor([1.0, 2.0, 3.0]), index, fn=pick).tolist() == [3, 1, 0, 0]
    assert Tensor.custom_kernel(Tensor.empty(3), Tensor([5.0, 6.0, 8.0, 9.0]), index, fn=put).tolist() == [6, 0, 5]


@pytest.mark.parametrize("size", [32, 64, 160])
def test_arrays_near_the_core(size):
    x = floats(size)
    for device, opts in itertools.product(("CPU", "PYTHON"), (None, (), "VECTORIZE(range 2, 8), PARALLEL(range 0)")):
        empty = Tensor.empty(size, device=device)
        result = Tensor.custom_kernel(empty, Tensor(x, device=device), fn=neighbours, opts=opts)
        np.testing.assert_allclose(result.numpy(), neighbours_of(x), rtol=1e-5, atol=1e-6)


def test_jitted_with_other_inputs_and_one_compilation():
    @jit
    def step(a, b):
        return (Tensor.custom_kernel(Tensor.empty(6, 9), a, b, fn=product) * 2).relu()

    for _ in range(4):
        a, b = floats(6, 8), floats(8, 9)
        np.testing.assert_allclose(step(Tensor(a), Tensor(b)).numpy(), np.maximum(2 * (a @ b), 0), rtol=1e-4, atol=1e-5)
    assert [kernel.name for kernel in step.kernels][0] == "custom_product"


def test_gradients_are_the_callers():
    def times(a, b):
        def gradient(grad, left, right):
            return grad @ right.T, left.T @ grad

        return Tensor.custom_kernel(Tensor.empty(a.shape[0], b.shape[1]), a, b, fn=product, grad=gradient)

    a, b = Tensor(floats(3, 4)), Tensor(floats(4, 5))
    found = times(a, b).square().sum().gradient(a, b)
    expected = (a @ b).square().sum().gradient(a, b)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)
    second = times(a, b).square().sum().gradient(a)[0].sum().gradient(b)[0]
    wanted = (a @ b).square().sum().gradient(a)[0].sum().gradient(b)[0]
    np.testing.assert_allclose(second.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4)


def test_gradients_of_several_results_reach_the_rule_together():
    def rule(of_out, of_total, x):
        weights = x.softmax(1)
        return weights * (of_out - (of_out * weights).sum(1, keepdim=True)) + of_total.reshape(-1, 1) * weights

    x = Tensor(floats(5, 6))
    out, total = Tensor.custom_kernel(Tensor.empty(5, 6), Tensor.empty(5), x, fn=softmax, grad=rule)
    found = (out.square().sum() + total.sum()).gradient(x)[0]
    expected = (x.softmax(1).square().sum() + x.logsumexp(1).sum()).gradient(x)[0]
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_a_gradient_that_nobody_gave_is_refused():
    a, b = Tensor(floats(3, 4)), Tensor(floats(4, 5))
    result = Tensor.custom_kernel(Tensor.empty(3, 5), a, b, fn=product)
    with pytest.raises(GradientError, match="product has no gradient; give one with grad="):
        result.sum().gradient(a)
    detached = Tensor.custom_kernel(Tensor.empty(3, 5), a.detach(), b.detach(), fn=product)
    assert (detached.sum() + a.sum()).gradient(a)[0].tolist() == [[1.0] * 4] * 3


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_narrow_sums_are_rounded_once(name):
    def total(kernel, out, x):
        place = kernel.loop(x.shape[0])
        out[0] = kernel.sum(x[place], place)

    dtype = dtypes.by_name(name)
    x = Tensor(np.full(4096, 0.5, np.float32)).cast(dtype)
    assert Tensor.custom_kernel(Tensor.empty(1, dtype=dtype), x, fn=total).tolist() == [2048.0]


def test_integers_minimum_and_product():
    def extremes(kernel, low, all_, x):
        row, column = kernel.loops(*x.shape)
        low[row] = kernel.min(x[row, column], column)
        all_[row] = kernel.prod(x[row, column], column)

    x = RNG.integers(-3, 4, (6, 5)).astype(np.int32)
    empty = Tensor.empty(6, dtype=dtypes.int32)
    low, all_ = Tensor.custom_kernel(empty, empty, Tensor(x), fn=extremes)
    assert low.tolist() == x.min(1).tolist() and all_.tolist() == x.prod(1).tolist()


def test_the_evaluator_of_tensors_agrees():
    x = floats(5, 8)
    tensor = Tensor(x).realize()
    out, total = Tensor.custom_kernel(Tensor.empty(5, 8), Tensor.empty(5), tensor, fn=softmax)
    buffer = next(n for n in toposort((out.uop,)) if n.op is Op.BUFFER)
    results = evaluate([out.uop, total.uop], {buffer: x.reshape(-1)})
    np.testing.assert_allclose(results[0], out.numpy(), rtol=1e-5)
    np.testing.assert_allclose(results[1], total.numpy(), rtol=1e-5)


def test_equal_calls_are_computed_once():
    a, b = Tensor(floats(4, 4)), Tensor(floats(4, 4))
    twice = [Tensor.custom_kernel(Tensor.empty(4, 4), a, b, fn=product) for _ in range(2)]
    assert len(Tensor.schedule(*twice).calls) == 1


def test_kernels_that_differ_in_a_number_are_different():
    """The kernel is part of the key of a schedule: two functions of one name never answer for one another."""

    def scaled(factor):
        def scale(kernel, out, x):
            place = kernel.loop(x.shape[0])
            out[place] = x[place] * factor

        return lambda x: Tensor.custom_kernel(Tensor.empty(3), x, fn=scale)

    x = Tensor([1.0, 2.0, 3.0])
    for factor in (2.0, 3.0, 2.0, 5.0):
        assert scaled(factor)(x).tolist() == [factor, 2 * factor, 3 * factor]


def test_a_schedule_survives_the_process():
    text = (
        "from gradlet import Tensor\n"
        "def scale(kernel, out, x):\n"
        "    place = kernel.loop(3)\n"
        "    out[place] = x[place] * 4\n"
        "print(Tensor.custom_kernel(Tensor.empty(3), Tensor([1.0, 2.0, 3.0]), fn=scale).tolist())\n"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[4.0, 8.0, 12.0]"


def test_on_a_gpu_lanes_share_the_array():
    device = "NULL:sm_90"
    opts = "PARALLEL(range 0), THREAD(range 1, 18), THREAD(range 2, 16)"
    empty = Tensor.empty(64, device=device)
    plan = Tensor.custom_kernel(empty, Tensor.empty(64, device=device), fn=neighbours, opts=opts).schedule()
    call = plan.calls[-1]
    assert isinstance(call, KernelCall)
    code = render(lower(call.ast, SM_90), SM_90)
    assert (
        code.count("__syncthreads();") == 1 and "__launch_bounds__(32)" in code and "for (" not in code.split("{")[-1]
    )


def test_on_a_gpu_a_product_uses_the_matrix_units():
    def empty():
        return Tensor.empty(512, 512, device="NULL:sm_90", dtype=dtypes.bfloat16)

    plan = Tensor.custom_kernel(empty(), empty(), empty(), fn=product).schedule()
    call = plan.calls[-1]
    assert isinstance(call, KernelCall)
    assert "wgmma" in render(lower(call.ast, SM_90), SM_90)


def scaled(kernel, out, x):
    place = kernel.loop(x.shape[0])
    out[place] = x[place] * 2


def test_writes_come_after_the_kernels_that_read_old_values():
    x = Tensor([1.0, 2.0, 3.0]).realize()
    before = Tensor.custom_kernel(Tensor.empty(3), x, fn=scaled)
    x.assign(x + 10)
    after = Tensor.custom_kernel(Tensor.empty(3), x, fn=scaled)
    x.assign(Tensor.custom_kernel(Tensor.empty(3), x, fn=scaled))
    assert x.tolist() == [22.0, 24.0, 26.0]
    assert before.tolist() == [2.0, 4.0, 6.0] and after.tolist() == [22.0, 24.0, 26.0]


def test_state_of_a_jitted_step():
    x = Tensor([1.0, 2.0, 3.0]).realize()

    @jit
    def double():
        x.assign(Tensor.custom_kernel(Tensor.empty(3), x, fn=scaled)).realize()

    for _ in range(5):
        double()
    assert x.tolist() == [32.0, 64.0, 96.0]


def test_an_exported_program_contains_it(tmp_path):
    step = jit(lambda x: Tensor.custom_kernel(Tensor.empty(3), x, fn=scaled) + 1)
    step.export(tmp_path / "step.gradlet", Tensor([1.0, 2.0, 3.0]))
    loaded = program.load(tmp_path / "step.gradlet")
    assert loaded(np.array([4.0, 5.0, 6.0], np.float32)).tolist() == [9.0, 11.0, 13.0]


def test_sizes_that_are_known_at_launch_are_refused():
    size = Variable("size", 1, 8).bind(3)
    with pytest.raises(ShapeError, match="custom"):
        Tensor.custom_kernel(Tensor.empty(8), Tensor.arange(8)[:size].cast("float32"), fn=scaled)


X = Tensor([[1.0, 2.0], [3.0, 4.0]])


def simple(kernel, out, x):
    row, column = kernel.loops(2, 2)
    out[row, column] = x[row, column]


def test_a_schedule_that_is_not_possible_is_refused_when_it_is_compiled():
    result = Tensor.custom_kernel(Tensor.empty(2, 2), X, fn=simple, opts="SPLIT(range 7, 2)")
    with pytest.raises(ArgumentError, match="range 7"):
        result.realize()
