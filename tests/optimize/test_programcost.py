"""The cost model ranks schedules as a machine does: compared with recorded times, and where the order is certain."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gradlet.base.errors import ArgumentError
from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.graph.node import UOp
from gradlet.ops.op import KernelArg
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize.opttext import parse_opts
from gradlet.optimize.programcost import Estimate, estimate
from gradlet.target.target import AVX2, AVX512, SSE, Target
from tests.codegen import kernels
from tests.optimize.recorded import KERNELS

K = OptKind
# The machine of the recording: one core.
RECORDED = replace(
    AVX2, cores=1, l1_bytes=32 << 10, l2_bytes=512 << 10, llc_bytes=32 << 20, bytes_per_second=10_000_000_000,
    flops_per_second=AVX2.flops_per_second // 4, l2_bytes_per_second=AVX2.l2_bytes_per_second // 4,
)  # fmt: skip


def cost(sink: UOp, *opts: Opt, target: Target = RECORDED) -> Estimate:
    return estimate(pipeline.lower(sink.replace(arg=KernelArg("k", opts)), target), target)


def ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0.0] * len(values)
    for rank, i in enumerate(order):
        found[i] = rank
    return found


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    return statistics.correlation(ranks(first), ranks(second))


def recorded(name: str) -> list[tuple[float, float]]:
    """Estimated and measured times of the schedules that the language still has."""
    rows = json.loads((Path(__file__).parent / "recorded.json").read_text())[name]
    found = []
    with scope(SPEC=0):
        for text, measured in rows:
            try:
                found.append((cost(KERNELS[name](), *parse_opts(text)).seconds, measured))
            except ArgumentError:
                continue
    assert len(found) >= 8
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_it_ranks_as_the_machine_did(name: str) -> None:
    rows = recorded(name)
    assert correlation([e for e, _ in rows], [m for _, m in rows]) >= 0.7
    # Pruning at twice the best estimate keeps whatever is really fast.
    best = min(e for e, _ in rows)
    fastest = min(rows, key=lambda row: row[1])
    assert fastest[0] <= 1.3 * best


def test_lanes_and_copies_pay() -> None:
    sink = kernels.matmul(64, 64, 64).sink
    plain, lanes = cost(sink), cost(sink, Opt(K.VECTORIZE, 1, 8))
    tile = cost(sink, Opt(K.VECTORIZE, 1, 8), Opt(K.UNROLL, 0, 8))
    assert plain.compute > 3 * lanes.compute > 6 * tile.compute
    assert tile.spills == 0


def test_too_many_accumulators_are_spilled() -> None:
    sink = kernels.matmul(64, 64, 64).sink
    tile = (Opt(K.VECTORIZE, 1, 8), Opt(K.UNROLL, 0, 8))
    large = (Opt(K.VECTORIZE, 1, 8), Opt(K.UNROLL, 0, 32))
    assert cost(sink, *large).spills > 0
    assert cost(sink, *large).compute > cost(sink, *tile).compute
    assert cost(sink, *large, target=AVX512).spills < cost(sink, *large, target=SSE).spills


def test_one_chain_waits_for_itself() -> None:
    sink = kernels.row_reduce(4, 4096).sink
    one, four = (Opt(K.VECTORIZE, 1, 8),), (Opt(K.VECTORIZE, 1, 8), Opt(K.GROUP, 1, 4))
    assert cost(sink, *one).compute > 2 * cost(sink, *four).compute


def test_walking_columns_costs_memory() -> None:
    sink = kernels.column_sum(4000, 3000).sink
    outer = cost(sink)
    blocks = cost(sink, Opt(K.VECTORIZE, 0, 8), Opt(K.UNROLL, 0, 4, Tail.MASK))
    assert outer.memory > 2 * blocks.memory


def test_a_kernel_in_the_caches_moves_nothing() -> None:
    assert cost(kernels.elementwise(1000).sink).memory == 0
    assert cost(kernels.elementwise(10_000_000).sink).memory > 0


def test_threads_share_what_can_be_shared_evenly() -> None:
    target = replace(RECORDED, cores=4, flops_per_second=4 * RECORDED.flops_per_second)
    sink = kernels.matmul(400, 64, 256).sink
    alone = cost(sink, target=target).seconds
    shared = cost(sink, Opt(K.PARALLEL, 0, 0), target=target).seconds
    uneven = cost(sink, Opt(K.SPLIT, 0, 80), Opt(K.PARALLEL, 0, 0), target=target).seconds  # five blocks, four cores
    assert shared < 0.3 * alone < 0.9 * uneven < alone


def test_guards_cost() -> None:
    sink = kernels.elementwise(1001).sink
    masked = cost(sink, Opt(K.VECTORIZE, 0, 8, Tail.MASK))
    shifted = cost(sink, Opt(K.VECTORIZE, 0, 8, Tail.SHIFT))
    assert masked.compute > shifted.compute


@pytest.mark.parametrize("number", range(len(kernels.ALL)), ids=kernels.names())
def test_every_kernel_has_an_estimate(number: int) -> None:
    sink = kernels.ALL[number]().sink
    for target in (AVX2, AVX512):
        found = estimate(pipeline.lower(sink, target), target)
        assert 0 < found.seconds < math.inf and found.compute > 0 and found.memory >= 0
