"""ACCUMULATE into an array of the core: what is allowed there, and that the sums are those of the plain kernel."""

from __future__ import annotations

import pytest

from gradlet.base.errors import ArgumentError
from gradlet.base.settings import scope
from gradlet.graph.node import UOp
from gradlet.ops.op import KernelArg, Op
from gradlet.optimize.actions.language import apply
from gradlet.optimize.opttext import parse_opts
from gradlet.target.target import AVX2, AVX512, NVPTX, Target
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear

PANELS = "SPLIT(range 1, 8), ACCUMULATE(range 2, 4, order=(1, 0, 3))"
SCHEDULES = {
    "whole": "ACCUMULATE(range 2, 3, order=(0, 1))",
    "transposed": "ACCUMULATE(range 2, 4, order=(1, 0))",
    "a column at a time": "REORDER(range 1, 0), ACCUMULATE(range 2, 6, order=(1,))",
    "panels": PANELS,
    "threads": "SPLIT(range 1, 16, SHIFT), PARALLEL(range 1), SPLIT(range 3, 8), "
    "ACCUMULATE(range 2, 4, order=(3, 0, 4))",
    "tile": PANELS + ", VECTORIZE(range 7, 8), UNROLL(range 8, 2), UNROLL(range 6, 3), VECTORIZE(range 3, 8)",
    "guarded tile": PANELS + ", VECTORIZE(range 7, 4), UNROLL(range 6, 4, MASK), UNROLL(range 8, 3, MASK)",
    "far elements": "ACCUMULATE(range 2, 4, far=1), REORDER(range 2, 0), VECTORIZE(range 2, 8), UNROLL(range 3, 4)",
    "far elements in an array": "ACCUMULATE(range 2, 3, order=(0, 1), far=1)",
    "a copy of a factor": PANELS + ", STAGE(range 4, slot=2)",
}  # fmt: skip


def with_opts(sink: UOp, text: str) -> UOp:
    return sink.replace(arg=KernelArg(sink.arg.name, parse_opts(text)))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("shape", [(6, 24, 12), (3, 32, 24)])
def test_sums_in_an_array_of_the_core(name: str, shape: tuple[int, int, int]) -> None:
    for kernel in (kernels.matmul(*shape), kernels.matmul_bias_relu(*shape)):
        with scope(SPEC=1, NOOPT=1):
            check_linear(kernel, AVX2, with_opts(kernel.sink, SCHEDULES[name]))
            check_kernel(kernel, apply(kernel.sink, parse_opts(SCHEDULES[name]), AVX512))


def test_largest_elements_wait_there_too() -> None:
    kernel = kernels.row_reduce(5, 24, Op.MAX)
    with scope(SPEC=1, NOOPT=1):
        check_linear(kernel, AVX2, with_opts(kernel.sink, "ACCUMULATE(range 1, 6, order=(0,))"))


@pytest.mark.parametrize(
    ("text", "reason", "target"),
    [
        ("ACCUMULATE(range 2, 5, order=(0, 1))", "not a multiple of the amount", AVX2),
        ("ACCUMULATE(range 0, 2, order=(1,))", "it takes a range that one reduce closes", AVX2),
        ("ACCUMULATE(range 2, 4, order=(0, 7))", "must name each of them once", AVX2),
        ("ACCUMULATE(range 2, 4, order=(0,))", "has no place for lies inside", AVX2),
        ("PARALLEL(range 0), ACCUMULATE(range 2, 4, order=(0, 1))", "range 0 is no loop of one known size", AVX2),
        ("VECTORIZE(range 1, 8), ACCUMULATE(range 2, 4, order=(0, 1))", "has no place for lies inside", AVX2),
        ("ACCUMULATE(range 2, 4, order=(0, 1)), ACCUMULATE(range 6, 2, order=(0, 1))", "run in order already", AVX2),
        ("ACCUMULATE(range 2, 4, order=(0, 1))", "only a CPU's cores have arrays", NVPTX),
    ],
)
def test_refused(text: str, reason: str, target: Target) -> None:
    with pytest.raises(ArgumentError, match=reason):
        apply(kernels.matmul(6, 24, 12).sink, parse_opts(text), target)


def test_an_array_beyond_the_near_cache_is_refused() -> None:
    with pytest.raises(ArgumentError, match="split the ranges inside"):
        apply(kernels.matmul(64, 4096, 8).sink, parse_opts("ACCUMULATE(range 2, 4, order=(0, 1))"), AVX2)


def test_strict_floats_keep_their_order() -> None:
    with scope(STRICT_FLOAT=1), pytest.raises(ArgumentError, match="in the order of the elements"):
        apply(kernels.matmul(6, 24, 12).sink, parse_opts("ACCUMULATE(range 2, 4, order=(0, 1))"), AVX2)
