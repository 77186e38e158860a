"""Each pass of the kernel pipeline on one small kernel: the graph before and after, as text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.graph.node import UOp
from gradlet.graph.passes import Pass
from gradlet.graph.text import to_text
from gradlet.ops.op import AxisKind, KernelArg, Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.target.target import AVX512
from tests.codegen import kernels
from tests.codegen.check import check_linear

F32 = dtypes.float32


def scheduled(kernel: kernels.Kernel, *opts: Opt) -> kernels.Kernel:
    return kernel._replace(sink=kernel.sink.replace(arg=KernelArg(kernel.sink.arg.name, opts)))


def divided() -> kernels.Kernel:
    """An element number written with division and modulo that bounds take apart."""
    b = kernels.Builder()
    out, x = b.param(0, 12), b.param(1, 12)
    i, j = b.range(3), b.range(4)
    at = i * 4 + j
    b.store(out, (at // 4) * 4 + at % 4, b.load(x, at, at < 12) + 1.0)
    a = kernels.random(12)
    return kernels.Kernel(b.sink("divided"), [kernels.empty(12), a], {0: a + 1})


def strips() -> kernels.Kernel:
    """Columns that are kept in strips of sixteen, read one after another."""
    b = kernels.Builder()
    out, x = b.param(0, 32), b.param(1, 64)
    i = b.range(32)
    b.store(out, i, b.load(x, i // 16 * 32 + i % 16))
    a = kernels.random(64)
    return kernels.Kernel(b.sink("strips"), [kernels.empty(32), a], {0: a.reshape(2, 32)[:, :16].reshape(32)})


def positions() -> kernels.Kernel:
    """Places of elements, as values of high and low digits."""
    b = kernels.Builder()
    out = b.param(0, 12)
    i, j = b.range(3), b.range(4)
    b.store(out, i * 4 + j, (i.cast(dtypes.int32) * 4 + j.cast(dtypes.int32)).cast(F32))
    return kernels.Kernel(b.sink("positions"), [kernels.empty(12)], {0: np.arange(12, dtype=np.float32)})


def windows() -> kernels.Kernel:
    """Two rows of four windows of two columns each, and a value for each window."""
    b = kernels.Builder()
    out, x, pooled = b.param(0, 16), b.param(1, 16), b.param(2, 8)
    row, column, place = b.range(2), b.range(4), b.range(2)
    at = row * 8 + column * 2 + place
    b.store(out, at, b.load(x, at) * b.load(pooled, row * 4 + column))
    a, few = kernels.random(16), kernels.random(8)
    return kernels.Kernel(b.sink("windows"), [kernels.empty(16), a, few], {0: a * few.repeat(2)})


def guarded_maximum() -> kernels.Kernel:
    """A select on the guard of a load."""
    b = kernels.Builder()
    out, x = b.param(0, 6), b.param(1, 4)
    i = b.range(6)
    inside = i < 4
    b.store(out, i, inside.where(b.load(x, i, inside), UOp.const(F32, -1.0)))
    a = kernels.random(4)
    expected = kernels.empty(6)
    expected[:4], expected[4:] = a, -1
    return kernels.Kernel(b.sink("guarded_maximum"), [kernels.empty(6), a], {0: expected})


def guarded_columns() -> kernels.Kernel:
    """Transpositions of a matrix, the last one of zeros."""
    b = kernels.Builder()
    out, x = b.param(0, 3 * 8 * 4), b.param(1, 4 * 8)
    k, i, j = b.range(3), b.range(8), b.range(4)
    b.store(out, (k * 8 + i) * 4 + j, b.load(x, j * 8 + i, k < 2))
    a = kernels.random(4, 8)
    return kernels.Kernel(b.sink("guarded_columns"), [kernels.empty(3, 8, 4), a], {0: np.stack([a.T, a.T, 0 * a.T])})


def exponential() -> kernels.Kernel:
    b = kernels.Builder()
    out, x = b.param(0, 4), b.param(1, 4)
    i = b.range(4)
    b.store(out, i, b.load(x, i).exp2())
    a = kernels.random(4)
    return kernels.Kernel(b.sink("exponential"), [kernels.empty(4), a], {0: 2**a})


def half_product() -> kernels.Kernel:
    b = kernels.Builder()
    half = dtypes.float16
    out, x = b.param(0, 4, half), b.param(1, 4, half)
    i = b.range(4)
    b.store(out, i, b.load(x, i) * b.load(x, i))
    a = kernels.random(4).astype("float16")
    return kernels.Kernel(b.sink("half_product"), [kernels.empty(4, dtype="float16"), a], {0: a * a})


# A kernel for each pass on which the pass has something to do.
SUBJECTS: dict[str, Callable[[], kernels.Kernel]] = {
    "simplify index math": divided,
    "merge nested reduces": lambda: kernels.nested_guarded_sum(6, 3),
    "widen accumulators": lambda: kernels.half_sum(2, 4),
    "cut loops at divisions": strips,
    "count in indices": positions,
    "merge adjacent ranges": lambda: kernels.contiguous_3d((2, 3, 4)),
    "join windows": windows,
    "give each loop its own range": lambda: kernels.softmax(2, 3, same_range=True),
    "apply schedule": lambda: scheduled(kernels.row_reduce(2, 10), Opt(OptKind.VECTORIZE, 1, 4, Tail.MASK)),
    "simplify splits": lambda: scheduled(kernels.two_dimensional(4, 8), Opt(OptKind.SPLIT, 0, 2)),
    "expand unrolled ranges": lambda: scheduled(kernels.row_reduce(2, 4), Opt(OptKind.UNROLL, 1, 4)),
    "simplify copies": lambda: scheduled(kernels.padded(2, 1, 1), Opt(OptKind.UNROLL, 0, 4)),
    "vectorise": lambda: scheduled(kernels.two_dimensional(2, 8), Opt(OptKind.VECTORIZE, 1, 4)),
    "settle guards": guarded_maximum,
    "transpose in registers": lambda: scheduled(
        guarded_columns(), Opt(OptKind.VECTORIZE, 2, 4), Opt(OptKind.UNROLL, 1, 4)
    ),
    "compute narrow floats in float32": half_product,
    "decompose ops": exponential,
    "simplify lanes": lambda: scheduled(kernels.padded(6, 1, 1), Opt(OptKind.VECTORIZE, 0, 4)),
    "separate scheduled loops": lambda: scheduled(kernels.layer_norm(2, 3), Opt(OptKind.REORDER, 0, 1)),
    "order sums": lambda: scheduled(kernels.matmul(4, 3, 5), Opt(OptKind.SPLIT, 0, 2)),
    "narrow vector indices": lambda: scheduled(kernels.iota_float(8), Opt(OptKind.VECTORIZE, 0, 4)),
    "join byte dots": lambda: kernels.byte_dots(8),
    "form multiply-adds": lambda: kernels.elementwise(8),
}


def test_every_pass_has_a_subject() -> None:
    assert [row.name for row in pipeline.PIPELINE.passes] == list(SUBJECTS)


@pytest.mark.parametrize("name", SUBJECTS)
def test_pass(name: str, golden: Callable[..., None]) -> None:
    kernel = SUBJECTS[name]()
    seen: list[tuple[UOp, UOp]] = []

    def observe(row: Pass, before: UOp, after: UOp, seconds: float) -> None:
        if row.name == name:
            seen.append((before, after))

    with scope(NOOPT=1):
        pipeline.lower(kernel.sink, AVX512, [observe])
        check_linear(kernel, AVX512)
    [(before, after)] = seen
    assert before is not after, "the pass had nothing to do"
    golden(f"before:\n{to_text(before)}\nafter:\n{to_text(after)}\n")


def test_lanes_and_copies_are_gone_after_their_passes() -> None:
    """No UNROLL or VECTOR range is left in a program."""
    for make in kernels.ALL:
        program = pipeline.lower(make().sink, AVX512)
        kinds = {n.arg.kind for n in program.uops if n.op is Op.RANGE}
        assert not kinds & {AxisKind.UNROLL, AxisKind.VECTOR}
