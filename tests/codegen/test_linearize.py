"""Where nodes stand in a program: hoisted out of loops, loads before stores, loops in the order of need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradlet.base.errors import CompilerError
from gradlet.base.settings import scope
from gradlet.codegen.linearize import linearize
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.target.target import AVX512
from tests.codegen import kernels
from tests.codegen.check import check_linear
from tests.passes.test_codegen_passes import scheduled


def plain(kernel: kernels.Kernel) -> LinearProgram:
    with scope(NOOPT=1):
        return check_linear(kernel, AVX512)


def depths(program: LinearProgram) -> dict[UOp, int]:
    """How many loops stand around each node."""
    depth, result = 0, {}
    for node in program.uops:
        if node.op is Op.END:
            depth -= 1
        result[node] = depth
        if node.op is Op.RANGE:
            depth += 1
    return result


def in_text(program: LinearProgram) -> str:
    """The program, a node a line, bodies of loops indented."""
    number = {node: i for i, node in enumerate(program.uops)}
    lines, depth = [], 0
    for node in program.uops:
        depth -= node.op is Op.END
        sources = ", ".join(f"%{number[s]}" for s in node.src)
        arg = "" if node.arg is None else f" {node.arg}"
        lanes = f"x{node.dtype.count}" if node.dtype.count > 1 else ""
        lines.append(f"{'  ' * depth}%{number[node]} = {node.op.name} {node.dtype.name}{lanes} ({sources}){arg}")
        depth += node.op is Op.RANGE
    return "\n".join(lines) + "\n"


def test_what_does_not_depend_on_a_loop_stands_outside() -> None:
    program = plain(kernels.two_dimensional())
    found = depths(program)
    bias = next(n for n in program.uops if n.op is Op.LOAD and n.src[0].src[0].arg.slot == 2)
    matrix = next(n for n in program.uops if n.op is Op.LOAD and n.src[0].src[0].arg.slot == 1)
    assert (found[bias], found[matrix]) == (1, 2)


def test_loops_of_a_row_follow_each_other() -> None:
    program = plain(kernels.softmax(2, 3))
    found = depths(program)
    loops = [n for n in program.uops if n.op is Op.RANGE]
    assert [found[r] for r in loops] == [0, 1, 1, 1]
    accumulators = [n for n in program.uops if n.op is Op.ACC]
    assert [found[a] for a in accumulators] == [1, 1]


def test_load_stands_before_the_store_to_its_buffer() -> None:
    kernel = scheduled(kernels.in_place(16), Opt(OptKind.UNROLL, 0, 4))
    program = check_linear(kernel, AVX512)
    ops = [n.op for n in program.uops if n.op in (Op.LOAD, Op.STORE) and (n.src[0].src[0].arg.slot == 0)]
    assert ops == [Op.LOAD] * 4 + [Op.STORE] * 4


def test_load_of_an_ordered_store_stays_in_its_loop() -> None:
    program = plain(kernels.ordered_total())
    found = depths(program)
    assert all(found[n] == 1 for n in program.uops if n.op is Op.LOAD)


def test_an_in_place_row_is_read_in_full_before_it_is_written() -> None:
    b = kernels.Builder()
    x = b.param(0, 12)
    i, j, k = b.range(3), b.range(4), b.reduce_range(4)
    total = b.reduce(Op.ADD, b.load(x, i * 4 + k), k)
    b.store(x, i * 4 + j, b.load(x, i * 4 + j).fdiv(total))
    a = kernels.random(3, 4)
    plain(kernels.Kernel(b.sink("normalise"), [a.copy()], {0: a / a.sum(1, keepdims=True)}))


def test_a_store_waits_for_loads_in_other_loops() -> None:
    """The first store overwrites what the second store's loop still reads."""
    b = kernels.Builder()
    x, out = b.param(0, 5), b.param(1, 5)
    i, j = b.range(5), b.range(5)
    b.store(x, i, b.load(x, i) * 2.0)
    b.store(out, j, b.load(x, j) + 1.0)
    a = kernels.random(5)
    kernel = kernels.Kernel(b.sink("two_loops"), [a.copy(), kernels.empty(5)], {0: a * 2, 1: a + 1})
    program = plain(kernel)
    assert [n.src[0].src[0].arg.slot for n in program.uops if n.op is Op.STORE] == [1, 0]
    check_linear(kernel, AVX512)


def test_loops_that_wait_for_each_other_are_refused() -> None:
    """Each store overwrites what the other one's loop reads: no order is right."""
    b = kernels.Builder()
    x, y = b.param(0, 5), b.param(1, 5)
    i, j = b.range(5), b.range(5)
    b.store(x, i, b.load(y, i) * 2.0)
    b.store(y, j, b.load(x, j) + 1.0)
    with pytest.raises(CompilerError, match="wait for each other"):
        linearize(b.sink("circle"))


def test_unrolled_products_join_the_accumulator_one_by_one() -> None:
    kernel = scheduled(kernels.matmul(2, 3, 8), Opt(OptKind.UNROLL, 2, 4))
    program = check_linear(kernel, AVX512)
    fused = [n for n in program.uops if n.op is Op.MULADD]
    assert len(fused) == 4
    assert not any(n.op is Op.ADD and n.dtype.is_float for n in program.uops)


SUBJECTS: dict[str, Callable[[], kernels.Kernel]] = {
    "elementwise": lambda: kernels.elementwise(64),
    "matmul": lambda: scheduled(
        kernels.matmul(4, 16, 8), Opt(OptKind.VECTORIZE, 1, 8), Opt(OptKind.UNROLL, 0, 2), Opt(OptKind.PARALLEL, 0, 0)
    ),
    "row sum": lambda: scheduled(kernels.row_reduce(3, 20), Opt(OptKind.VECTORIZE, 1, 8, Tail.MASK)),
    "softmax": lambda: scheduled(kernels.softmax(2, 6)),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_program(name: str, golden: Callable[..., None]) -> None:
    golden(in_text(check_linear(SUBJECTS[name](), AVX512)))


def test_parallel_is_the_outermost_loop() -> None:
    kernel = scheduled(kernels.matmul(4, 16, 8), Opt(OptKind.PARALLEL, 1, 0))
    program = check_linear(kernel, AVX512)
    first = next(n for n in program.uops if n.op is Op.RANGE)
    assert first.arg.kind is AxisKind.PARALLEL and program.grid == 16
