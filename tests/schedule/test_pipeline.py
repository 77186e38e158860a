"""Known programs: right values, and as few kernels as they need."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.base.settings import Context
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op, VariableArg
from gradlet.schedule.pipeline import CopyCall, KernelCall
from tests.schedule.helpers import (
    check,
    contents,
    contiguous,
    copy,
    create_schedule,
    expand,
    flip,
    gather,
    kernels,
    matmul,
    pad,
    permute,
    reduce,
    reshape,
    row,
    run,
    scatter,
    shrink,
    target_of,
    tensor,
    total,
    window,
    write,
)  # fmt: skip


def mean(x: UOp, axis: int) -> UOp:
    return total(x, axis, keep=True) * (1.0 / x.shape[axis])


def relu(x: UOp) -> UOp:
    return x.maximum(0)


def columns(v: UOp, rows: int) -> UOp:
    return expand(reshape(v, 1, v.shape[0]), rows, v.shape[0])


def softmax(x: UOp) -> UOp:
    e = (x - row(reduce(x, Op.MAX, 1, keep=True), x.shape[1])).exp()
    return e.fdiv(row(total(e, 1, keep=True), x.shape[1]))


def log_softmax(x: UOp) -> UOp:
    z = x - row(reduce(x, Op.MAX, 1, keep=True), x.shape[1])
    return z - row(total(z.exp(), 1, keep=True).log(), x.shape[1])


def layer_norm(x: UOp, weight: UOp, bias: UOp) -> UOp:
    rows, size = x.shape
    d = x - row(mean(x, 1), size)
    y = d.fdiv(row((mean(d * d, 1) + 1e-5).sqrt(), size))
    return y * columns(weight, rows) + columns(bias, rows)


def conv(x: UOp, weight: UOp, bias: UOp) -> UOp:
    n, c, h, w = x.shape
    f, _, k, _ = weight.shape
    padded = reshape(pad(x, (0, 0), (0, 0), (1, 1), (1, 1)), n, 1, c, h + 2, w + 2, 1, 1)
    windows = window(window(expand(padded, n, f, c, h + 2, w + 2, k, k), 3, 5, 1, 1, h), 4, 6, 1, 1, w)
    weights = expand(reshape(weight, 1, f, c, 1, 1, k, k), n, f, c, h, w, k, k)
    return total(windows * weights, 2, 5, 6) + expand(reshape(bias, 1, f, 1, 1), n, f, h, w)


def sgd() -> list[UOp]:
    p, g, b = tensor(16, 32), tensor(16, 32), tensor(16, 32)
    moment = write(b, b, b * 0.9 + g)
    return [moment, write(p, p, p - moment * 0.1)]


def adam() -> list[UOp]:
    p, g, m, v = [tensor(16, 32) for _ in range(4)]
    rate = expand(tensor(1, 1), 16, 32)
    first = write(m, m, m * 0.9 + g * 0.1)
    second = write(v, v, v * 0.99 + (g * g) * 0.01)
    return [first, second, write(p, p, p - rate * first.fdiv((second * second).sqrt() + 1e-8))]


def batch_norm(x: UOp) -> list[UOp]:
    n, c, h, w = x.shape
    count = 1.0 / (n * h * w)

    def spread(v: UOp) -> UOp:
        return expand(reshape(v, 1, c, 1, 1), n, c, h, w)

    m = total(x, 0, 2, 3) * count
    d = x - spread(m)
    v = total(d * d, 0, 2, 3) * count
    return [d.fdiv(spread((v + 1e-5).sqrt())), m, v]


def chain() -> list[UOp]:
    x, y = tensor(8, 16), tensor(8, 16)
    for _ in range(10):
        x = (x + y) * 0.5
    return [x]


def mean_and_variance() -> list[UOp]:
    x = tensor(8, 16)
    m = mean(x, 1)
    d = x - row(m, 16)
    return [m, mean(d * d, 1)]


def sums() -> list[UOp]:
    x = tensor(8, 16)
    return [total(x, 1), total(x * x, 1)]


def matmul_bias_relu() -> list[UOp]:
    return [relu(matmul(tensor(16, 24), tensor(24, 20)) + columns(tensor(20), 16))]


def three_outputs() -> list[UOp]:
    s = total(tensor(8, 16) * 2.0, 1)
    return [s.exp(), s * s, s + 1]


PROGRAMS = {
    "chain of element-wise ops": (chain, 1),
    "softmax": (lambda: [softmax(tensor(32, 64))], 1),
    "log softmax": (lambda: [log_softmax(tensor(32, 64))], 1),
    "layer norm": (lambda: [layer_norm(tensor(32, 64), tensor(64), tensor(64))], 1),
    "mean and variance": (mean_and_variance, 1),
    "two sums of one pass": (sums, 1),
    "three outputs of one sum": (three_outputs, 1),
    "SGD with momentum": (lambda: sgd() + sgd(), 2),
    "Adam": (lambda: adam() + adam(), 2),
    "batch norm": (lambda: batch_norm(tensor(4, 8, 6, 6)), 1),
    "matmul, bias, relu": (matmul_bias_relu, 1),
    "two matmuls": (lambda: [matmul(relu(matmul(tensor(8, 12), tensor(12, 10))), tensor(10, 6))], 2),
    "conv, bias, relu": (lambda: [relu(conv(tensor(2, 3, 6, 6), tensor(4, 3, 3, 3), tensor(4)))], 1),
    "embedding": (lambda: [gather(tensor(100, 16), tensor(50, dtype=dtypes.int32))], 1),
    "attention": (
        lambda: [matmul(softmax(matmul(tensor(32, 16), tensor(16, 32))), tensor(32, 16))], 1,
    ),
    "transpose and add": (lambda: [total(permute(tensor(8, 6), 1, 0) + tensor(6, 8), 1)], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    build, expected = PROGRAMS[name]
    assert kernels(check(build())) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_without_fusion(name: str) -> None:
    build, fused = PROGRAMS[name]
    with Context(FUSE=0):
        assert kernels(check(build())) >= fused


def test_equal_kernels_are_one_node() -> None:
    first, second = [create_schedule([softmax(tensor(4, 8))], target_of).calls[0] for _ in range(2)]
    assert first.ast is second.ast and first.buffers != second.buffers


def test_sum_of_many_elements_uses_all_cores() -> None:
    schedule = create_schedule([total(tensor(2048, 2048), 0, 1)], target_of)
    assert kernels(schedule) == 2
    assert schedule.calls[0].buffers[0].arg.size >= 4


def test_movement_of_a_buffer_needs_no_kernel() -> None:
    x = tensor(4, 6)
    schedule = check([flip(permute(x, 1, 0), 0)])
    assert not schedule.calls
    assert kernels(check([contiguous(permute(x, 1, 0))])) == 1


def test_constant_root_is_stored() -> None:
    three = expand(reshape(UOp.const(dtypes.float32, 3), 1, 1), 2, 5)
    assert kernels(check([three])) == 1


def test_empty_results_need_no_kernel() -> None:
    x = tensor(0, 4)
    assert kernels(check([x * 2.0])) == 0
    assert kernels(check([total(x * 2.0, 0) + 1])) == 1


def test_copy_between_devices() -> None:
    x = tensor(4, 6)
    schedule = check([copy(permute(x * 2.0, 1, 0), "OTHER") + 1])
    # The product, its transpose as a whole buffer, the copy, the sum.
    assert [type(c) for c in schedule.calls] == [KernelCall, KernelCall, CopyCall, KernelCall]
    copied = next(c for c in schedule.calls if isinstance(c, CopyCall))
    assert copied.source.arg.device == "CPU" and copied.destination.arg.device == "OTHER"
    assert schedule.calls[-1].device == "OTHER"


def test_variables_are_parameters() -> None:
    x = tensor(8)

    def build(name: str, value: int) -> UOp:
        variable = mk(Op.VARIABLE, dtypes.int32, (), VariableArg(name, 1, 9))
        bound = mk(Op.BIND, dtypes.int32, (variable, UOp.const(dtypes.int32, value)), None)
        return x * mk(Op.CAST, dtypes.float32, (expanded(bound),), None)

    def expanded(node: UOp) -> UOp:
        return expand(reshape(node, 1), 8)

    first, second = check([build("i", 3)]), check([build("j", 5)])
    assert first.calls[0].ast is second.calls[0].ast
    assert list(second.values.values()) == [5]
    with pytest.raises(ArgumentError, match="'i' is bound to 3 and to 4"):
        create_schedule([build("i", 3), build("i", 4)], target_of)


def test_deep_chain_is_cut_into_equal_kernels() -> None:
    x, y = tensor(4), tensor(4)
    for _ in range(10_000):
        x = x + y
    schedule = create_schedule([x], target_of)
    assert 10 <= kernels(schedule) <= 40
    memory = contents([x])
    start = memory.copy()
    after = run(schedule, memory)
    got = evaluate([schedule.results[x]], after)[0]
    first, second = start.values()
    np.testing.assert_allclose(got, first + 10_000 * second, rtol=1e-2)


def test_scatter_adds_every_index() -> None:
    target, index, rows = tensor(6, 3), tensor(20, dtype=dtypes.int32), tensor(20, 3)
    assert kernels(check([scatter(target, index, rows, Op.ADD)])) == 2  # a copy of the target, then the additions
    assert kernels(check([write(target, target, scatter(target, index, rows, Op.ADD))])) == 1


def test_gather_reads_a_computed_table_from_memory() -> None:
    table = total(expand(reshape(tensor(10, 4), 10, 4, 1), 10, 4, 8), 2)
    assert kernels(check([gather(table, tensor(5, dtype=dtypes.int32))])) == 2


def test_slice_of_a_lazy_value_is_a_select() -> None:
    x = tensor(4, 6)
    lazy = x * 2.0
    assert kernels(check([write(lazy, shrink(lazy, (1, 3), (0, 6)), UOp.const(dtypes.float32, 7))])) == 1
