"""Bytes and operations of kernels and launches, counted by hand."""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import BodyUse, BufferArg, Op
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.traffic import Traffic, traffic_of
from tests.codegen import kernels, launches


def traffic(sink: UOp, slots: int) -> Traffic:
    buffers = tuple(mk(Op.BUFFER, dtypes.float32, (), BufferArg(i, 1, "CPU")) for i in range(slots))
    return traffic_of(KernelCall(sink, buffers, (), (), "CPU"))


def test_a_kernel() -> None:
    assert traffic(kernels.elementwise(1000).sink, 3) == (8000, 4000, 2000)
    assert traffic(kernels.row_reduce(9, 100).sink, 2) == (3600, 36, 900)
    assert traffic(kernels.matmul(11, 35, 9).sink, 3) == (4 * 9 * (11 + 35), 4 * 11 * 35, 2 * 9 * 11 * 35)


def test_segments_that_read_one_slot_read_it_once() -> None:
    bodies = [launches.scale_body(8), launches.scale_body(5)]
    sink = launches.launch("shared", bodies, [[[BodyUse(0, (0, 2))], [BodyUse(1, (1, 2))]]])
    assert traffic(sink, 3) == (32, 32 + 20, 13)


def test_what_a_stage_writes_and_the_next_reads_counts_both_ways() -> None:
    assert traffic(launches.sum_with_tail(1000, 16).sink, 3)[:2] == (4000 + 64, 64 + 4)


def test_scratch_does_not_count_and_blocks_do_everything_anew() -> None:
    heads, rows, keys, width = 3, 8, 20, 6
    found = traffic(launches.attention(heads, rows, keys, width, False).sink, 4)
    assert found.read == 4 * heads * width * (rows + 2 * keys)
    assert found.written == 4 * heads * width * rows
    products = 2 * 2 * rows * keys * width
    # A maximum, negated once a row; difference, exponential, sum; difference, exponential, quotient.
    softmax = rows * keys * (1 + 3 + 3) + rows
    assert found.operations == heads * (products + softmax)
