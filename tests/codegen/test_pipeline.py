"""Every hand-built kernel through the whole pipeline, for several targets, with and without the heuristic."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.graph.evaluate import run_linear
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import AxisKind, KernelArg, Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize import analysis
from gradlet.target.target import AVX2, AVX512, NEON, NVPTX, SSE, Target
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear

EACH = pytest.mark.parametrize("number", range(len(kernels.ALL)), ids=kernels.names())


@EACH
def test_hand_built_kernel_is_right(number: int) -> None:
    check_kernel(kernels.ALL[number]())


@EACH
def test_plain_loops(number: int) -> None:
    with scope(NOOPT=1):
        program = check_linear(kernels.ALL[number](), AVX512)
    assert program.opts == ()
    assert not any(n.dtype.count > 1 for n in program.uops)


@EACH
@pytest.mark.parametrize("target", [AVX512, AVX2, SSE, NVPTX], ids=lambda t: t.name)
def test_heuristic(number: int, target: Target) -> None:
    check_linear(kernels.ALL[number](), target)


@EACH
def test_strict_float(number: int) -> None:
    with scope(STRICT_FLOAT=1):
        program = check_linear(kernels.ALL[number](), AVX512)
    special = kernels.ALL[number]().sink.arg.name in ("special_functions", "softmax", "attention")
    if not special:  # polynomials are made of multiply-adds whatever the setting
        assert not any(n.op is Op.MULADD for n in program.uops)


def test_neon_is_a_target_too() -> None:
    check_linear(kernels.matmul(), NEON)


@pytest.mark.parametrize("value", [1, 2, 37, 63, 64])
@pytest.mark.parametrize("opts", [
    (Opt(OptKind.PARALLEL, 0, 0),),
    (Opt(OptKind.VECTORIZE, 0, 4, Tail.MASK), Opt(OptKind.PARALLEL, 0, 0)),
], ids=["alone", "with lanes"])  # fmt: skip
def test_parts_of_a_range_known_at_launch_run_every_iteration_once(value: int, opts: tuple[Opt, ...]) -> None:
    kernel = kernels.symbolic(value)
    program = pipeline.lower(kernel.sink.replace(arg=KernelArg("symbolic", opts)), AVX512)
    assert program.grid == (64 if len(opts) == 1 else 16)
    for cuts in ([0, program.grid], [0, 3, 4, 11, program.grid], list(range(program.grid + 1))):
        arrays = [a.copy() for a in kernel.arrays]
        done = np.zeros(64, int)
        for begin, end in zip(cuts, cuts[1:]):
            arrays[0][:] = 99
            run_linear(program, arrays, kernel.variables, begin, end)
            done += arrays[0] != 99
            np.testing.assert_array_equal(arrays[0][arrays[0] != 99], kernel.expected[0][arrays[0] != 99])
        np.testing.assert_array_equal(done, np.arange(64) < value)


def test_parallel_parts_make_the_whole() -> None:
    kernel = kernels.matmul(64, 512, 256)
    program = pipeline.lower(kernel.sink, AVX512)
    assert program.grid > 1
    arrays = [a.copy() for a in kernel.arrays]
    # Only a slice of the work: the first and the last block of the parallel range.
    run_linear(program, arrays, {}, 0, 1)
    first = arrays[0].copy()
    run_linear(program, arrays, {}, program.grid - 1, program.grid)
    assert (first != 99).any() and (first == 99).any()
    assert (arrays[0] != 99).sum() > (first != 99).sum()
    np.testing.assert_allclose(arrays[0][arrays[0] != 99], kernel.expected[0][arrays[0] != 99], rtol=1e-3, atol=1e-3)


def test_facts_of_a_program() -> None:
    kernel = kernels.matmul(11, 35, 9)
    program = pipeline.lower(kernel.sink, AVX512)
    assert program.name == "matmul_nn"
    assert [p.arg.slot for p in program.params] == [0, 1, 2]
    assert program.written == (0,)
    assert program.flops == 2 * 11 * 35 * 9
    assert program.bytes == 4 * (11 * 35 + 11 * 9 + 35 * 9)
    assert program.opts == pipeline.lower(kernel.sink, AVX512).opts != ()


def test_lowering_is_deterministic() -> None:
    from gradlet.render.llvmir import render

    texts = {render(pipeline.lower(kernels.conv2d().sink, AVX512), AVX512) for _ in range(3)}
    assert len(texts) == 1


def test_a_reduce_keeps_one_accumulator_a_copy() -> None:
    program = pipeline.lower(kernels.matmul(24, 128, 40).sink, AVX512)
    accumulators = [n for n in program.uops if n.op is Op.ACC]
    loops = [n for n in program.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.REDUCE]
    assert len(accumulators) == 24  # a tile of 6 x 4 vectors
    assert all(a.dtype.count == 16 for a in accumulators)
    assert len(loops) == 1  # all in one loop


def test_a_chain_of_many_operations() -> None:
    """Nothing recurses on depth."""
    b = kernels.Builder()
    out, x = b.param(0, 4), b.param(1, 4)
    i = b.range(4)
    value = b.load(x, i)
    for step in range(20_000):
        value = value.maximum(float(-step)) if step % 2 else value + 1.0
    b.store(out, i, value)
    with scope(NOOPT=1, SPEC=0):
        program = pipeline.lower(b.sink("chain"), AVX512)
    arrays = [np.zeros(4, np.float32), np.zeros(4, np.float32)]
    run_linear(program, arrays, {})
    np.testing.assert_array_equal(arrays[0], np.full(4, 10_000, np.float32))


def test_passes_that_change_nothing_do_not_walk_the_kernel_again(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[UOp] = []

    def counted(roots: tuple[UOp, ...]) -> list[UOp]:
        walked.extend(roots)
        return toposort(roots)

    monkeypatch.setattr(analysis, "toposort", counted)
    for case in kernels.ALL:
        walked.clear()
        program = pipeline.lower(case().sink, AVX2)
        assert all(one is not other for one, other in zip(walked, walked[1:]))
        # Opts, every one of which is a pass of its own, and those of the passes that did something.
        assert len(walked) <= 14 + 2 * len(program.opts)
    assert analysis._remembered.sink is None  # nothing is kept alive


def test_open_ranges_of_nodes_are_found_once() -> None:
    sink = kernels.ALL[0]().sink
    order = toposort((sink,))
    first, second = analysis.open_ranges(order), analysis.open_ranges(order)
    assert first == second
    assert all(first[n] is second[n] for n in order if n.op is not Op.RANGE)
