"""Lowering of launches: every body becomes a right program for its place, and the facts about the whole are right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError, SpecError
from gradlet.base.settings import scope
from gradlet.codegen import launch as module
from gradlet.codegen import pipeline
from gradlet.codegen.launch import SharedBodies, lower_launch
from gradlet.graph.evaluate import run_linear
from gradlet.graph.program import LaunchProgram
from gradlet.graph.spec import check_program
from gradlet.ops.op import AxisKind, BodyUse, KernelArg, Op
from gradlet.ops.opt import Opt, OptKind
from gradlet.target.target import AVX2, AVX512, NVPTX, Target
from tests.codegen import launches
from tests.codegen.kernels import Array
from tests.codegen.launches import Launch


def run_programs(program: LaunchProgram, case: Launch) -> list[Array]:
    """Memory after the programs ran as a launch says, segments and blocks from last to first."""
    arrays = launches.copies(case)
    for stage, works in zip(program.stages, program.work, strict=True):
        for segment, work in reversed(list(zip(stage, works, strict=True))):
            for block in reversed(range(work.blocks)):
                scratch = [np.full(size, 0xFF, np.uint8) for size in program.scratch]
                for use in segment:
                    body = program.programs[use.body]
                    memory = [arrays[slot] if slot >= 0 else scratch[-1 - slot] for slot in use.slots]
                    memory = [m.view(np.uint8) for m in map(np.ravel, memory)]
                    values = dict(zip(body.variables, [case.variables[n] for n in use.variables], strict=True))
                    run_linear(body, memory, values, block, block + 1)
    return arrays


SMALL: list[Callable[[], Launch]] = [
    lambda: launches.pack((1, 7, 64)), lambda: launches.optimizer(7), lambda: launches.sum_with_tail(100, 4),
    launches.attention, lambda: launches.attention(2, 5, 7, 3, False), launches.mixed, launches.with_variables,
    launches.chain, launches.one_block,
]  # fmt: skip


@pytest.mark.parametrize("target", [AVX512, AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("make", SMALL)
@pytest.mark.parametrize("noopt", [0, 1])
def test_programs_compute_the_launch(make: Callable[[], Launch], target: Target, noopt: int) -> None:
    case = make()
    with scope(NOOPT=noopt):
        program = lower_launch(case.sink, target)
    for body in program.programs:
        check_program(body)
    launches.compare(case, run_programs(program, case))


@pytest.mark.parametrize("make", launches.ALL, ids=launches.names())
def test_bodies_of_regions_keep_their_block_range_and_get_no_other(make: Callable[[], Launch]) -> None:
    case = make()
    program = lower_launch(case.sink, AVX512)
    for stage in program.stages:
        for use in (use for segment in stage if len(segment) > 1 for use in segment):
            body, ast = program.programs[use.body], case.sink.src[use.body]
            assert all(opt.kind is not OptKind.PARALLEL for opt in body.opts)
            blocks = [n.src[0] for n in ast.toposort() if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL]
            kept = [n.src[0] for n in body.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL]
            assert kept == [size for size in blocks if size.arg > 1]


def test_the_other_ranges_of_a_region_are_tiled_as_usual() -> None:
    program = lower_launch(launches.attention(16, 32, 48, 16).sink, AVX512)
    for body in program.programs:
        assert any(n.op is Op.LOAD and n.dtype.count == 16 for n in body.uops), body.name
    assert all(any(opt.kind is OptKind.UNROLL for opt in p.opts) for p in (program.programs[0], program.programs[2]))


def test_facts_of_a_launch() -> None:
    case = launches.mixed()
    program = lower_launch(case.sink, AVX512)
    assert program.name == "mixed" and program.stages == case.sink.arg.stages and program.scratch == (36,)
    assert [(p.arg.slot, p.arg.size, p.dtype) for p in program.params] == [
        (slot, array.size, dtypes.float32) for slot, array in enumerate(case.arrays)
    ]
    assert program.written == (0, 1, 3, 5)
    assert program.variables == 0
    assert [[w.blocks for w in stage] for stage in program.work] == [[1, 5, 1], [1]]
    # Two scales of 40; 45 products, their sums are of integers; 40 differences (two operations each), their sum, 5
    # added up, and the sum of both sums.
    assert program.flops == 2 * 40 + 45 + 80 + 40 + 5 + 1
    # Scratch does not count: x is read, sums written, both twice 40 for each scale, and what the tail reads and writes.
    assert program.bytes == 4 * (45 + 5 + 4 * 40 + 5 + 2 * 40 + 1)


def test_a_region_does_everything_for_every_block() -> None:
    with_bias, without = (
        lower_launch(launches.attention(4, 6, 8, 5, bias).sink, AVX512).work[0][0] for bias in (True, False)
    )
    assert with_bias.blocks == without.blocks == 4
    # The same work but for the bias; the softmax of scratch arrays moves no bytes.
    assert with_bias.flops - without.flops == 4 * 6 * 8
    assert with_bias.bytes - without.bytes == 4 * 4


def test_params_have_the_largest_size_that_is_asked_for() -> None:
    bodies = [launches.scale_body(5), launches.scale_body(9)]
    sink = launches.launch("sizes", bodies, [[[BodyUse(1, (1, 0))]], [[BodyUse(0, (2, 1))]]])
    assert [p.arg.size for p in lower_launch(sink, AVX512).params] == [9, 9, 5]


def test_variables_are_counted() -> None:
    assert lower_launch(launches.with_variables().sink, AVX512).variables == 2


def test_a_gpu_runs_one_kernel_a_launch() -> None:
    with pytest.raises(CompilerError, match="launch pack holds several kernels.*schedule for nvptx without regions"):
        lower_launch(launches.pack().sink, NVPTX)


def test_a_bad_launch_is_refused_before_it_runs() -> None:
    with scope(SPEC=0), pytest.raises(SpecError, match="there is no body 1"):
        lower_launch(launches.launch("bad", [launches.scale_body(4)], [[[BodyUse(1, (0, 1))]]]), AVX512)


def test_opts_that_would_share_a_region_s_body_are_refused() -> None:
    case = launches.attention(bias=False)
    first, second, third = case.sink.src
    arg = KernelArg(second.arg.name, (Opt(OptKind.PARALLEL, 8, 0),))
    sink = case.sink.replace(src=(first, second.replace(arg=arg), third))
    with pytest.raises(CompilerError, match="share it between cores inside a region"):
        lower_launch(sink, AVX512)


def test_what_several_launches_have_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(module, "lower", lambda body, *rest: made.append(body.arg.name) or pipeline.lower(body, *rest))
    few, many = launches.pack((7, 64)), launches.pack((7, 64, 100))
    shared = SharedBodies([few.sink, many.sink, launches.attention().sink])
    programs = [lower_launch(case.sink, AVX2, (), shared) for case in (few, many)]
    assert made == ["scale_7", "scale_64", "scale_100"]
    assert [p.shared for p in programs] == [(0, 1), (0, 1)]
    for case, program in zip((few, many), programs, strict=True):
        launches.compare(case, run_programs(program, case))
    lower_launch(launches.pack((100,)).sink, AVX2, (), shared)  # which it was not told of
    assert made[3:] == ["scale_100"]
    for target in (AVX2, AVX512, AVX512):
        lower_launch(few.sink, target, (), shared)
    assert made[4:] == ["scale_7", "scale_64"]


def test_a_body_is_another_one_inside_a_region() -> None:
    body = launches.scale_body(64)
    alone = launches.launch("alone", [body], [[[BodyUse(0, (0, 1))]]])
    region = launches.launch("region", [body, launches.scale_body(8)], [[[BodyUse(0, (0, 1)), BodyUse(1, (2, 3))]]])
    again = launches.launch("again", [body], [[[BodyUse(0, (1, 0))]]])
    assert SharedBodies([alone, again]).has(body, True)
    assert not SharedBodies([alone, region]).has(body, True)
