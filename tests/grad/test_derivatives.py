"""Every derivative against torch, against finite differences, and at the points where a convention decides."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import GradientError
from gradlet.grad.backward import gradients
from gradlet.grad.derivatives import DERIVATIVES, NOT_DIFFERENTIABLE
from gradlet.grad.shapes import expand, filled, flip_axes, pad, permute, positions, reduce_axes, reshape, shrink, stride
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import OP_INFO, DeviceArg, Op, ScatterArg, Stage, WindowArg
from tests.grad.helpers import Leaves, finite_difference, gradient_values

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def power(base: UOp, exponent: UOp) -> UOp:
    return base.alu(Op.POW, exponent)


def window(node: UOp, *arg: int) -> UOp:
    return mk(Op.WINDOW, node.dtype, (node,), WindowArg(*arg))


def unwindow(node: UOp, *arg: int) -> UOp:
    return mk(Op.UNWINDOW, node.dtype, (node,), WindowArg(*arg))


def gather(table: UOp, index: UOp) -> UOp:
    return mk(Op.GATHER, table.dtype, (table, index))


def scatter(op: Op | None) -> Callable[..., UOp]:
    return lambda target, index, values: mk(Op.SCATTER, target.dtype, (target, index, values), ScatterArg(op))


def torch_rows(reduce: str) -> Callable[..., Any]:
    """torch's row update of the same meaning."""

    def apply(target: Any, index: Any, values: Any) -> Any:
        if reduce == "set":
            return target.index_put((index,), values)
        if reduce == "sum":
            return target.index_add(0, index.reshape(-1), values.reshape(-1, *target.shape[1:]))
        wide = index.reshape(-1, 1).expand(-1, target.shape[1])
        return target.scatter_reduce(0, wide, values.reshape(-1, target.shape[1]), reduce)

    return apply


class Case(NamedTuple):
    name: str
    ours: Callable[..., UOp]
    theirs: Callable[..., Any]  # torch's
    shapes: tuple[tuple[int, ...], ...]
    low: float = -2.0
    high: float = 2.0
    index: np.ndarray | None = None  # inserted as the second argument


def torch_module() -> Any:
    return pytest.importorskip("torch")


INDEX = np.array([[2, 0], [2, 4]], np.int32)
DISTINCT = np.array([3, 0, 1], np.int32)

CASES = [
    Case("add", lambda x, y: x + y, lambda x, y: x + y, ((3, 4), (3, 4))),
    Case("sub", lambda x, y: x - y, lambda x, y: x - y, ((3, 4), (3, 4))),
    Case("mul", lambda x, y: x * y, lambda x, y: x * y, ((3, 4), (3, 4))),
    Case("square", lambda x: x * x, lambda x: x * x, ((3, 4),)),
    Case("affine", lambda x: x * 3.0 + 2.0, lambda x: x * 3 + 2, ((3, 4),)),
    Case("div", lambda x, y: x.fdiv(y), lambda x, y: x / y, ((3, 4), (3, 4)), 0.5),
    Case("reciprocal", lambda x: x.coerce(1.0).fdiv(x), lambda x: 1 / x, ((3, 4),), 0.5),
    Case("max", lambda x, y: x.maximum(y), lambda x, y: x.maximum(y), ((3, 4), (3, 4))),
    Case("min", lambda x, y: x.minimum(y), lambda x, y: x.minimum(y), ((3, 4), (3, 4))),
    Case("pow", power, lambda x, y: x**y, ((3, 4), (3, 4)), 0.5),
    Case("pow_2", lambda x: power(x, x.coerce(2.0)), lambda x: x**2, ((3, 4),)),
    Case("pow_3", lambda x: power(x, x.coerce(3.0)), lambda x: x**3, ((3, 4),)),
    Case("pow_1", lambda x: power(x, x.coerce(1.0)) * x, lambda x: x**1 * x, ((3, 4),)),
    Case("pow_half", lambda x: power(x, x.coerce(-0.5)), lambda x: x**-0.5, ((3, 4),), 0.5),
    Case("power_of_2", lambda x: power(x.coerce(2.0), x), lambda x: 2**x, ((3, 4),)),
    Case("sqrt", lambda x: x.sqrt(), lambda x: x.sqrt(), ((3, 4),), 0.5),
    Case("exp", lambda x: x.exp(), lambda x: x.exp(), ((3, 4),)),
    Case("exp2", lambda x: x.exp2(), lambda x: x.exp2(), ((3, 4),)),
    Case("log", lambda x: x.log(), lambda x: x.log(), ((3, 4),), 0.5),
    Case("log2", lambda x: x.log2(), lambda x: x.log2(), ((3, 4),), 0.5),
    Case("sin", lambda x: x.sin(), lambda x: x.sin(), ((3, 4),), -50, 50),
    Case("trunc", lambda x: x.trunc() * x, lambda x: x.trunc() * x, ((3, 4),)),
    Case("where", lambda x, y: x.lt(y).where(x * x, y), lambda x, y: (x * x).where(x < y, y), ((3, 4), (3, 4))),
    Case("contiguous", lambda x: mk(Op.CONTIGUOUS, x.dtype, (x * x,)), lambda x: x * x, ((3, 4),)),
    Case("detach", lambda x: mk(Op.DETACH, x.dtype, (x,)) * x, lambda x: x.detach() * x, ((3, 4),)),
    Case("reshape", lambda x: reshape(x, (2, 6)) * 2.0, lambda x: x.reshape(2, 6) * 2, ((3, 4),)),
    Case("expand", lambda x: expand(x, (3, 4, 2)).sin(), lambda x: x.expand(3, 4, 2).sin(), ((3, 1, 2),)),
    Case("permute", lambda x: permute(x, (1, 2, 0)).sin(), lambda x: x.permute(1, 2, 0).sin(), ((2, 3, 4),)),
    Case("pad", lambda x: pad(x, [(1, 2), (0, 1)]).sin(), lambda x: torch_module().nn.functional.pad(
        x, (0, 1, 1, 2)).sin(), ((3, 4),)),
    Case("shrink", lambda x: shrink(x, [(1, 3), (0, 2)]).sin(), lambda x: x[1:3, 0:2].sin(), ((3, 4),)),
    Case("flip", lambda x: flip_axes(x, (0, 2)).sin(), lambda x: x.flip(0, 2).sin(), ((2, 3, 2),)),
    Case("stride", lambda x: stride(x, (2, 3)).sin(), lambda x: x[::2, ::3].sin(), ((5, 8),)),
    Case("stride_divides", lambda x: stride(x, (2, 1)).sin(), lambda x: x[::2].sin(), ((6, 2),)),
    Case("stride_past_end", lambda x: stride(x, (9,)).sin(), lambda x: x[::9].sin(), ((5,),)),
    Case("windows", lambda x: window(expand(reshape(x, (2, 7, 1)), (2, 7, 3)), 1, 2, 2, 1, 3).sin(),
         lambda x: x.unfold(1, 3, 2).sin(), ((2, 7),)),
    Case("sum", lambda x: reduce_axes(Op.ADD, x, (0, 2)).sin(), lambda x: x.sum((0, 2)).sin(), ((2, 3, 2),)),
    Case("amax", lambda x: reduce_axes(Op.MAX, x, (1,)).sin(), lambda x: x.amax(1).sin(), ((3, 5),)),
    Case("amin", lambda x: reduce_axes(Op.MIN, x, (0, 1)).sin(), lambda x: x.amin((0, 1)).sin(), ((3, 5),)),
    Case("prod", lambda x: reduce_axes(Op.MUL, x, (1,)).sin(), lambda x: x.prod(1).sin(), ((3, 5),)),
    Case("prod_all", lambda x: reduce_axes(Op.MUL, x, (0, 1)), lambda x: x.prod(), ((2, 4),)),
    Case("prod_one", lambda x: reduce_axes(Op.MUL, x, (1,)).sin(), lambda x: x.prod(1).sin(), ((3, 1),)),
    Case("gather", lambda x, i: gather(x, i).sin(), lambda x, i: x[i].sin(), ((5, 3),), index=INDEX),
    Case("scatter_add", scatter(Op.ADD), torch_rows("sum"), ((5, 3), (2, 2, 3)), index=INDEX),
    Case("scatter_set", scatter(None), torch_rows("set"), ((5, 2), (3, 2)), index=DISTINCT),
    Case("scatter_mul", scatter(Op.MUL), torch_rows("prod"), ((5, 3), (2, 2, 3)), index=INDEX),
    Case("scatter_max", scatter(Op.MAX), torch_rows("amax"), ((5, 3), (2, 2, 3)), index=INDEX),
    Case("scatter_min", scatter(Op.MIN), torch_rows("amin"), ((5, 3), (2, 2, 3)), index=INDEX),
]  # fmt: skip


def inputs_of(case: Case, dtype: str, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    arrays = [random.uniform(case.low, case.high, shape).astype(dtype) for shape in case.shapes]
    if case.index is not None:
        arrays.insert(1, case.index)
    return arrays


def torch_inputs(arrays: list[np.ndarray]) -> list[Any]:
    torch = torch_module()
    return [
        torch.tensor(a, requires_grad=True) if a.dtype.kind == "f" else torch.tensor(a.astype(np.int64)) for a in arrays
    ]


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_first_derivative_is_torch_s(case: Case, dtype: str) -> None:
    torch = torch_module()
    arrays = inputs_of(case, dtype, 0)
    tensors = torch_inputs(arrays)
    expected = case.theirs(*tensors)
    seed = np.random.default_rng(1).uniform(-1, 1, tuple(expected.shape)).astype(dtype)
    value, found = gradient_values(case.ours, arrays, seed)
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    np.testing.assert_allclose(value, expected.detach().numpy(), rtol=tolerance, atol=tolerance)
    leaves = [t for t in tensors if t.requires_grad]
    for ours, theirs in zip(found, torch.autograd.grad(expected, leaves, torch.tensor(seed)), strict=True):
        assert ours is not None and ours.dtype == np.dtype(dtype)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=tolerance, atol=tolerance)


@needs_torch
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_second_derivative_is_torch_s(case: Case) -> None:
    torch = torch_module()
    arrays = inputs_of(case, "float64", 2)
    tensors = torch_inputs(arrays)
    leaves = [t for t in tensors if t.requires_grad]
    # Squared, so that linear functions have a second derivative too.
    first = torch.autograd.grad((case.theirs(*tensors) ** 2).sum(), leaves, create_graph=True)
    expected = torch.autograd.grad(sum((g**2).sum() for g in first), leaves, allow_unused=True)

    graph = Leaves()
    nodes = [graph.add(array) for array in arrays]
    targets = [node for node in nodes if node.dtype.is_float]
    result = case.ours(*nodes)
    root = reduce_axes(Op.ADD, result * result, tuple(range(len(result.shape))))
    parts = [g * g for g in gradients(root, None, targets) if g is not None]
    total = sum((reduce_axes(Op.ADD, g, tuple(range(len(g.shape)))) for g in parts[1:]),
                reduce_axes(Op.ADD, parts[0], tuple(range(len(parts[0].shape)))))  # fmt: skip
    for ours, theirs in zip(gradients(total, None, targets), expected, strict=True):
        assert ours is not None
        np.testing.assert_allclose(graph.evaluate([ours])[0], theirs.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "detach"], ids=lambda case: case.name)
def test_first_derivative_is_the_limit_of_differences(case: Case) -> None:
    arrays = inputs_of(case, "float64", 3)
    leaves = Leaves()
    shape = case.ours(*[leaves.add(a) for a in arrays]).shape
    seed = np.random.default_rng(4).uniform(-1, 1, shape)
    _, found = gradient_values(case.ours, arrays, seed)
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    for position, ours in zip(floats, found, strict=True):
        expected = finite_difference(case.ours, arrays, seed, position)
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-6)


def test_every_tensor_op_has_a_row() -> None:
    tensor_ops = {op for op, info in OP_INFO.items() if Stage.TENSOR in info.stages}
    assert tensor_ops == set(DERIVATIVES) | set(NOT_DIFFERENTIABLE)
    assert not set(DERIVATIVES) & set(NOT_DIFFERENTIABLE)
    for op, rules in DERIVATIVES.items():
        assert OP_INFO[op].arity in (len(rules), None), op.name


# conventions
def test_equal_sides_of_an_elementwise_extreme_share() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 0.0])
    for op in (Op.MAX, Op.MIN):
        _, (left, right) = gradient_values(lambda a, b, op=op: a.alu(op, b), [x, y], np.ones(3))
        np.testing.assert_array_equal(left, [0.5, 0, 1] if op is Op.MAX else [0.5, 1, 0])
        np.testing.assert_array_equal(left + right, np.ones(3))


def test_winners_of_a_reduction_share_evenly() -> None:
    x = np.array([[3.0, 1.0, 3.0], [2.0, 2.0, 2.0]])
    _, (found,) = gradient_values(lambda a: reduce_axes(Op.MAX, a, (1,)), [x], np.array([1.0, 6.0]))
    np.testing.assert_array_equal(found, [[0.5, 0, 0.5], [2, 2, 2]])


def test_nan_wins_a_reduction() -> None:
    x = np.array([1.0, np.nan, 3.0])
    _, (found,) = gradient_values(lambda a: reduce_axes(Op.MAX, a, (0,)), [x], np.array(1.0))
    np.testing.assert_array_equal(found, [0, 1, 0])


def test_a_count_of_ties_does_not_overflow_half_precision() -> None:
    x = np.full(70_000, 2.0, np.float16)
    _, (found,) = gradient_values(lambda a: reduce_axes(Op.MAX, a, (0,)), [x], np.array(1, np.float16))
    assert found is not None and found.dtype == np.float16
    np.testing.assert_array_equal(found, np.full(70_000, np.float16(1 / 70_000)))
    assert found[0] > 0


@pytest.mark.parametrize("row", [[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0], [2.0, 5.0, 3.0]])
def test_product_with_zeros(row: list[float]) -> None:
    x = np.array(row)
    _, (found,) = gradient_values(lambda a: reduce_axes(Op.MUL, a, (0,)), [x], np.array(1.0))
    np.testing.assert_array_equal(found, [np.prod(np.delete(x, i)) for i in range(3)])


def test_second_derivative_of_a_product_with_a_zero() -> None:
    x = np.array([0.0, 2.0, 3.0])
    graph = Leaves()
    node = graph.add(x)
    (first,) = gradients(reduce_axes(Op.MUL, node, (0,)), None, [node])
    assert first is not None
    hessian = []
    for i in range(3):
        (row,) = gradients(shrink(first, [(i, i + 1)]), None, [node])
        assert row is not None
        hessian.append(graph.evaluate([row])[0])
    np.testing.assert_array_equal(hessian, [[0, 3, 2], [3, 0, 0], [2, 0, 0]])


@pytest.mark.parametrize(
    ("base", "exponent", "slope"), [(0.0, 0.0, 0.0), (0.0, 2.0, 0.0), (0.0, 1.0, 1.0), (2.0, 0.0, 0.0)]
)
def test_power_at_zero(base: float, exponent: float, slope: float) -> None:
    arrays = [np.array([base]), np.array([exponent])]
    _, (by_base, by_exponent) = gradient_values(power, arrays, np.ones(1))
    _, (by_constant,) = gradient_values(lambda x: power(x, x.coerce(exponent)), arrays[:1], np.ones(1))
    assert by_base is not None and by_exponent is not None and by_constant is not None
    assert by_base[0] == by_constant[0] == slope
    assert by_exponent[0] == (0.0 if base == 0 else np.log(base))


def test_a_branch_not_selected_receives_zero() -> None:
    x = np.array([0.0, 2.0])
    _, (found,) = gradient_values(lambda a: a.ne(0.0).where(a * a, a), [x], np.ones(2))
    np.testing.assert_array_equal(found, [1, 4])


def test_casts_between_floats_pass_and_integers_stop() -> None:
    x = np.array([1.0, 2.5])
    _, (found,) = gradient_values(lambda a: a.cast(dtypes.float32).cast(dtypes.float64) * 3.0, [x], np.ones(2))
    np.testing.assert_array_equal(found, [3, 3])
    _, (stopped,) = gradient_values(lambda a: a.cast(dtypes.int32).cast(dtypes.float64), [x], np.ones(2))
    assert stopped is None
    _, (bits,) = gradient_values(lambda a: a.bitcast(dtypes.int64).bitcast(dtypes.float64), [x], np.ones(2))
    assert bits is None


def test_windows_and_their_adjoint_transpose_each_other() -> None:
    random = np.random.default_rng(5)
    for size, count, step, dilation in [(9, 3, 2, 1), (10, 3, 1, 2), (7, 2, 3, 2), (8, 1, 5, 1)]:
        out = (size - (count - 1) * dilation - 1) // step + 1
        x, y = random.normal(size=(size, count)), random.normal(size=(out, count))
        forward = [0, 1, step, dilation, out]
        value, (back,) = gradient_values(lambda a, f=forward: window(a, *f), [x], y)
        np.testing.assert_allclose((value * y).sum(), (x * back).sum())
        backward = [0, 1, step, dilation, size - 1]  # crops the last element
        value, (back,) = gradient_values(lambda a, b=backward: unwindow(a, *b), [y], x[: size - 1])
        np.testing.assert_allclose((value * x[: size - 1]).sum(), (y * back).sum())


def test_rows_set_twice_give_their_gradient_to_the_last_writer() -> None:
    target, index = np.zeros((3, 2)), np.array([1, 1, 7], np.int32)
    values, seed = np.ones((3, 2)), np.arange(6.0).reshape(3, 2)
    _, (by_target, by_values) = gradient_values(scatter(None), [target, index, values], seed)
    np.testing.assert_array_equal(by_target, [[0, 1], [0, 0], [4, 5]])
    np.testing.assert_array_equal(by_values, [[0, 0], [2, 3], [0, 0]])


@pytest.mark.parametrize("zeros", [(), (0,), (0, 1)])
def test_factors_of_a_scattered_product_with_zeros(zeros: tuple[int, ...]) -> None:
    target, index = np.array([2.0, 3.0]), np.array([0, 0, 1], np.int32)
    values = np.array([5.0, 7.0, 11.0])
    values[list(zeros)] = 0
    _, (by_target, by_values) = gradient_values(scatter(Op.MUL), [target, index, values], np.ones(2))
    np.testing.assert_array_equal(by_target, [values[0] * values[1], values[2]])
    np.testing.assert_array_equal(by_values, [2 * values[1], 2 * values[0], 3])


def test_gathered_half_rows_add_up_in_float32() -> None:
    table, index = np.zeros((1, 1), np.float16), np.zeros(4096, np.int32)
    _, (found,) = gradient_values(gather, [table, index], np.ones((4096, 1), np.float16))
    np.testing.assert_array_equal(found, [[4096]])  # in half precision the sum stops at 2048


@pytest.mark.parametrize("length", [4, 5])
def test_a_write_routes_its_gradient(length: int) -> None:
    def write(base: UOp, value: UOp) -> UOp:
        return mk(Op.WRITE, base.dtype, (base, stride(base, (2,)), value))

    count = (length + 1) // 2
    weights = np.arange(1.0, length + 1)
    value, (by_base, by_value) = gradient_values(write, [np.zeros(length), np.ones(count)], weights)
    np.testing.assert_array_equal(by_value, weights[::2])
    np.testing.assert_array_equal(by_base, np.where(np.arange(length) % 2 == 0, 0, weights))
    np.testing.assert_array_equal(value[::2], np.ones(count))


def test_a_write_through_several_views() -> None:
    def write(base: UOp, value: UOp) -> UOp:
        view = flip_axes(permute(shrink(base, [(1, 3), (0, 2)]), (1, 0)), (0,))
        return mk(Op.WRITE, base.dtype, (base, view, value))

    weights = np.arange(12.0).reshape(3, 4)
    _, (by_base, by_value) = gradient_values(write, [np.zeros((3, 4)), np.ones((2, 2))], weights)
    np.testing.assert_array_equal(by_value, weights[1:3, 0:2].T[::-1])
    weights[1:3, 0:2] = 0
    np.testing.assert_array_equal(by_base, weights)


def test_a_write_into_repeated_memory_is_refused() -> None:
    graph = Leaves()
    base, value = graph.add(np.zeros((1, 3))), graph.add(np.ones((2, 3)))
    node = mk(Op.WRITE, base.dtype, (base, expand(base, (2, 3)), value))
    with pytest.raises(GradientError, match="expanded view"):
        gradients(reduce_axes(Op.ADD, node, (0, 1)), None, [base])


def test_strided_slices_that_select_one_element() -> None:
    z = np.zeros((2, 2))
    first, second = np.array([[1.0, 4.0]]), np.array([[30.0, 60.0]])

    def both(node: UOp, a: UOp, b: UOp) -> UOp:
        even = stride(node, (2, 1)) * a
        odd = stride(shrink(node, [(1, 2), (0, 2)]), (2, 1)) * b
        return reduce_axes(Op.ADD, even + odd, (0, 1))

    _, found = gradient_values(both, [z, first, second])
    np.testing.assert_array_equal(found[0], [[1, 4], [30, 60]])
    _, (back,) = gradient_values(lambda node: stride(flip_axes(node, (0,)), (2,)), [np.zeros(2)], np.array([7.0]))
    np.testing.assert_array_equal(back, [0, 7])


def test_a_copy_returns_its_gradient_to_the_source_device() -> None:
    graph = Leaves()
    x = graph.add(np.ones(3, np.float32), "CPU")
    (found,) = gradients(reduce_axes(Op.ADD, mk(Op.COPY, x.dtype, (x,), DeviceArg("PYTHON")) * 2.0, (0,)), None, [x])
    assert found is not None and found.op is Op.COPY and found.arg.device == "CPU"
    np.testing.assert_array_equal(graph.evaluate([found])[0], [2, 2, 2])


def test_empty_axes() -> None:
    x = np.zeros((0, 3))
    _, (found,) = gradient_values(lambda a: reduce_axes(Op.ADD, a * a, (0,)), [x], np.ones(3))
    assert found is not None and found.shape == (0, 3)
    _, (found,) = gradient_values(lambda a: reduce_axes(Op.MUL, a, (0,)), [x], np.ones(3))
    assert found is not None and found.shape == (0, 3)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 1000])
def test_positions_count(count: int) -> None:
    (found,) = Leaves().evaluate([positions(count)])
    np.testing.assert_array_equal(found, np.arange(count, dtype=np.int32))


def test_the_seed_may_be_a_constant_node() -> None:
    graph = Leaves()
    x = graph.add(np.array([1.0, 2.0]))
    (found,) = gradients(x * x, filled(3.0, dtypes.float64, (2,)), [x])
    assert found is not None
    np.testing.assert_array_equal(graph.evaluate([found])[0], [6, 12])
