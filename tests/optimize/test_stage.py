"""STAGE: copies near the core keep the result wherever they are allowed, and are refused with reasons elsewhere."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, KernelArg, Op
from gradlet.optimize.actions.language import apply
from gradlet.optimize.opttext import parse_opts
from gradlet.runtime.device import Device
from gradlet.target.target import AVX2, AVX512, NVPTX
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear
from tests.codegen.kernels import Kernel


def with_opts(sink: UOp, text: str) -> UOp:
    return sink.replace(arg=KernelArg(sink.arg.name, parse_opts(text)))


def check(kernel: Kernel, text: str) -> None:
    """The result of both evaluators, every graph on the way checked against its spec."""
    with scope(SPEC=1, NOOPT=1):
        check_linear(kernel, AVX512, with_opts(kernel.sink, text))
        check_kernel(kernel, apply(kernel.sink, parse_opts(text), AVX512))


# Panels of B: columns in blocks of 16 inside blocks of 32 or 48, rows of A in tiles of 4.
PANELS = """
REORDER(range 1, 0), SPLIT(range 0, {0}, MASK), SPLIT(range 3, 16), REORDER(range 3, 1)
STAGE(range 0, slot=2, order=(1, 3, 4), pad={1})
VECTORIZE(range 4, 8), UNROLL(range 4, 2), UNROLL(range 2, 4, MASK), VECTORIZE(range 7, 8), UNROLL(range 7, 2)
"""
SCHEDULES = {
    "rows of A": "STAGE(range 0, slot=1)",
    "all of B, transposed": "STAGE(range 0, slot=2, order=(2, 1), pad=3)",
    "a column of B": "STAGE(range 1, slot=2)",
    "both": "STAGE(range 0, slot=1), STAGE(range 0, slot=2)",
    "parts of a sum": "SPLIT(range 2, 4, MASK), STAGE(range 2, slot=1), STAGE(range 2, slot=2)",
    "after lanes and copies": "VECTORIZE(range 1, 8, MASK), UNROLL(range 0, 2, MASK), STAGE(range 1, slot=1)",
    "lanes inside": "VECTORIZE(range 1, 8, MASK), STAGE(range 0, slot=2, order=(1, 2, 3))",
    "threads": "PARALLEL(range 0), STAGE(range 0, slot=2), STAGE(range 0, slot=1)",
    "split after": "STAGE(range 0, slot=2), SPLIT(range 0, 3, MASK), SPLIT(range 1, 4, MASK), SPLIT(range 2, 3, MASK)",
    "guarded copy": "STAGE(range 0, slot=2), UNROLL(range 3, 3, MASK), VECTORIZE(range 4, 4, MASK)",
    "balanced rows": "STAGE(range 0, slot=2), UNROLL(range 0, 4, BALANCE), VECTORIZE(range 1, 8, MASK)",
    "rows in pieces of their own": "UNROLL(range 0, 4, PEEL), STAGE(range 1, slot=1), STAGE(range 1, slot=1)",
    "blocks of a sum": "SPLIT(range 0, 2, MASK), SPLIT(range 2, 4, MASK), STAGE(range 0, slot=2)",
    "moved copy": "STAGE(range 0, slot=2), REORDER(range 4, 1)",
    "panels": PANELS.format(32, 0),
    "padded panels": PANELS.format(32, 5),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("shape", [(6, 40, 8), (5, 33, 7), (1, 16, 1)])
def test_staged_products(name: str, shape: tuple[int, int, int]) -> None:
    kernel = kernels.matmul(*shape)
    try:
        check(kernel, SCHEDULES[name])
    except ArgumentError as error:  # a range of one iteration is no range
        assert shape[0] == 1, error


@pytest.mark.parametrize("order", [
    "SPLIT(range 0, 3), ACCUMULATE(range 2, 4), REORDER(range 2, 0), STAGE(range 0, slot=2), STAGE(range 1, slot=1)",
    "STAGE(range 0, slot=2), ACCUMULATE(range 2, 2), REORDER(range 2, 0), VECTORIZE(range 2, 8)",
])  # fmt: skip
def test_blocks_of_a_sum_outside_of_the_outputs(order: str) -> None:
    """Each block's part of B is copied once for all rows."""
    check(kernels.matmul(6, 24, 8), order)


@pytest.mark.parametrize("seed", range(3))
def test_staged_in_machine_code(seed: int) -> None:
    """Panels of B on this machine, at sizes that no block divides."""
    choose = random.Random(seed)
    m, n, k = choose.randrange(5, 40), choose.randrange(33, 120), choose.randrange(2, 90)
    kernel = kernels.matmul(m, n, k)
    backend = Device["CPU"]
    with scope(NOOPT=1):
        program = pipeline.lower(with_opts(kernel.sink, PANELS.format(32, choose.randrange(9))), backend.target)
        arrays = [kernels.empty(m, n), *kernel.arrays[1:]]
        run_native(program, arrays)
    np.testing.assert_allclose(arrays[0], kernel.expected[0].reshape(m, n), rtol=1e-4, atol=1e-4)


def run_native(program: LinearProgram, arrays: list[kernels.Array]) -> None:
    from gradlet.runtime.buffer import Buffer

    backend = Device["CPU"]
    loaded = backend.load(program.name, backend.compile(program), program)
    buffers = []
    for array in arrays:
        buffer = Buffer("CPU", dtypes.float32, array.size)
        buffer.copyin(memoryview(np.ascontiguousarray(array)).cast("B"))
        buffers.append(buffer)
    loaded(buffers, [], True)
    arrays[0][...] = np.frombuffer(buffers[0].memory(), np.float32).reshape(arrays[0].shape)


def test_narrow_values_are_converted_on_the_way() -> None:
    """A half-precision factor: the copy is in float32, and the sum reads it without conversions."""
    b = kernels.Builder()
    m, n, k = 5, 16, 6
    out, x, y = b.param(0, m * n), b.param(1, m * k), b.param(2, k * n, dtypes.float16)
    i, j, r = b.range(m), b.range(n), b.reduce_range(k)
    product = b.load(x, i * k + r) * b.load(y, r * n + j).cast(dtypes.float32)
    b.store(out, i * n + j, b.reduce(Op.ADD, product, r))
    p, q = kernels.random(m, k), kernels.random(k, n).astype(np.float16)
    kernel = Kernel(b.sink("halves"), [kernels.empty(m, n), p, q], {0: p @ q.astype(np.float32)})
    text = "STAGE(range 0, slot=2, converted=1)"
    check(kernel, text)
    (local,) = [n for n in apply(kernel.sink, parse_opts(text), AVX512).toposort() if n.op is Op.LOCAL]
    assert local.dtype is dtypes.float32
    check(kernel, "STAGE(range 0, slot=2)")


def test_guards_stay_in_the_copy() -> None:
    """The mask of a split guards the copy's load and the store of the result, not what the sum reads."""
    text = "SPLIT(range 1, 16, MASK), STAGE(range 1, slot=2), VECTORIZE(range 3, 8)"
    sink = apply(kernels.matmul(6, 20, 8).sink, parse_opts(text), AVX512)
    guarded = [n for n in sink.toposort() if n.op is Op.LOAD and len(n.src[0].src) > 2]
    assert [n.src[0].src[0].arg.slot for n in guarded] == [2]


def test_where_the_copy_stands() -> None:
    """A copy that does not change in its level moves outwards by itself; elements are counted, padding too."""
    program = pipeline.lower(with_opts(kernels.matmul(6, 20, 8).sink, "STAGE(range 0, slot=2, pad=4)"), AVX2)
    order = [n for n in program.uops if n.op in (Op.RANGE, Op.END)]
    assert [(n.op, (n if n.op is Op.RANGE else n.src[0]).arg.number) for n in order[:5]] == [
        (Op.RANGE, 3), (Op.RANGE, 4), (Op.END, 4), (Op.END, 3), (Op.RANGE, 0),
    ]  # fmt: skip
    (local,) = [n for n in program.uops if n.op is Op.LOCAL]
    assert local.arg.size == 20 * (8 + 4)
    text = Device["NULL:avx2"].render(program)
    head = text[: text.index("br label")]
    assert "alloca [240 x float], align 64" in head  # in the first block: not again in every iteration


def refused(kernel: Kernel, text: str, reason: str, target: object = AVX512) -> None:
    with pytest.raises(ArgumentError, match=reason):
        apply(kernel.sink, parse_opts(text), target)


def test_refusals_name_the_reason() -> None:
    matmul = kernels.matmul(12, 20, 8)
    refused(matmul, "STAGE(range 0, slot=3)", "no load 0: nothing is loaded from it")
    again = "STAGE(range 0, slot=2), STAGE(range 0, slot=2)"
    refused(matmul, again, "no load 0: nothing is loaded from it")  # what a copy loads has no number
    refused(matmul, "STAGE(range 0, slot=2, which=1)", "no load 1: loads from it are numbered 0 to 0")
    refused(matmul, "STAGE(range 2, slot=2)", "does not change inside")
    refused(matmul, "STAGE(range 9, slot=2)", "no range 9")
    several = "UNROLL(range 1, 5), UNROLL(range 0, 4, BALANCE), STAGE(range 2, slot=2)"
    refused(kernels.matmul(61, 60, 7), several, "range 2 stands in several loops")
    refused(matmul, "STAGE(range 0, slot=2, order=(2, 2))", "has the ranges .1, 2.; the order must name each")
    refused(matmul, "STAGE(range 0, slot=2, pad=-1)", "pad >= 0")
    refused(matmul, "STAGE(range 0, slot=2, converted=1)", "not simply converted")
    refused(matmul, "STAGE(range 0, slot=2)", "only a CPU's cores", NVPTX)
    refused(matmul, "UNROLL(range 0, 4), STAGE(range 3, slot=2)", "no loop that a copy can be made in")
    refused(matmul, "STAGE(range 1, slot=2), VECTORIZE(range 1, 4)", "split it before STAGE")
    refused(matmul, "STAGE(range 1, slot=2), UNROLL(range 1, 4)", "split it before STAGE")
    refused(matmul, "STAGE(range 1, slot=2), SPLIT(range 1, 3, BALANCE)", "split it before STAGE")
    refused(matmul, "STAGE(range 0, slot=2), SPLIT(range 3, 3, PEEL)", "the loop of a staged copy")
    refused(matmul, "STAGE(range 0, slot=2), PARALLEL(range 3)", "only independent output loops")
    refused(
        kernels.matmul(8, 512, 2048), "STAGE(range 0, slot=2)", "the copy takes 4194304 bytes, others 0, and a core"
    )
    refused(kernels.in_place(10), "STAGE(range 0, slot=0)", "the kernel stores to it")


def test_the_scheduler_makes_copies_for_all_cores() -> None:
    refused(kernels.matmul(12, 20, 8), "STAGE(range -1, slot=2)", "launch stage of the scheduler")


def test_kinds_of_copy_loops() -> None:
    sink = apply(kernels.matmul(6, 20, 8).sink, parse_opts("STAGE(range 0, slot=2)"), AVX512)
    (after,) = [n for n in sink.toposort() if n.op is Op.AFTER]
    assert [(r.arg.number, r.arg.kind) for r in after.src[2:]] == [(3, AxisKind.LOOP), (4, AxisKind.LOOP)]
    assert not after.ranges and [r.arg.number for r in after.src[1].ranges] == [3, 4]


TURNED = "STAGE(range 0, slot=2, order=(2, 1), transpose={0}, pad={1})"


@pytest.mark.parametrize(("amount", "pad"), [(8, 0), (4, 3)])
def test_copies_are_transposed_in_registers(amount: int, pad: int) -> None:
    """B lies row by row of its transposed form; the copy has columns side by side, by vectors that are exchanged."""
    kernel = kernels.matmul(6, 32, 24, False, True)
    text = TURNED.format(amount, pad)
    check(kernel, text)
    with scope(NOOPT=1):
        program = pipeline.lower(with_opts(kernel.sink, text), AVX2)
    shuffles = sum(n.op is Op.SHUFFLE for n in program.uops)
    assert shuffles == amount * (amount.bit_length() - 1)
    assert not any(n.op in (Op.EXTRACT, Op.VECTORIZE) and n.dtype.count == amount for n in program.uops)


def test_a_block_may_be_all_of_the_copy() -> None:
    check(kernels.matmul(5, 8, 8, False, True), TURNED.format(8, 0))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TURNED.format(3, 0), "a power of two"),
        ("STAGE(range 0, slot=2, order=(1, 2), transpose=8)", "neighbours in memory already"),
        (TURNED.format(16, 0), "no multiple of 16 long"),
        ("SPLIT(range 1, 5, MASK), STAGE(range 0, slot=2, order=(2, 1, 3), transpose=8)", "guarded"),
    ],
)
def test_refusals_of_transposed_copies(text: str, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        apply(kernels.matmul(6, 32, 24, False, True).sink, parse_opts(text), AVX2)
