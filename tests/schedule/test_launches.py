"""Launches of several kernels: right, never dearer than a launch a cell, the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradlet.base.settings import Context
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, ScanArg
from gradlet.schedule.fuse import Search
from gradlet.schedule.launches import Draft, LaunchSearch, partition
from gradlet.schedule.partition import Launch
from gradlet.schedule.price import IMPOSSIBLE
from gradlet.schedule.steps import Steps
from gradlet.target.target import AVX2
from tests.schedule.helpers import check, contiguous, expand, flip, matmul, target_of, tensor, total, write
from tests.schedule.test_fuse import random_graph
from tests.schedule.test_repeats import steps_of

ROOT = Path(__file__).resolve().parent.parent.parent


def assert_never_dearer(steps: Steps) -> None:
    """Every level of the search costs at most what the one before did, and every step is computed."""
    search = Search(steps, target_of)
    cells = sum(k.price for k in search.kernels)
    search.run()
    fused = sum(k.price for k in search.kernels if k.alive)
    launches = LaunchSearch(search)
    result = launches.run()
    packed = sum(d.price for d in launches.drafts.values() if d.alive)
    assert packed <= fused <= cells < IMPOSSIBLE
    assert {m for launch in result for m in launch.members} == set(steps.order)
    stored = [o for launch in result for o in (*launch.outputs, *launch.scratch)]
    assert len(stored) == len(set(stored)) and set(steps.forced) <= set(stored)


@pytest.mark.parametrize("part", range(4))
def test_never_dearer_than_a_launch_a_cell(part: int) -> None:
    for seed in range(part * 100, part * 100 + 100):
        assert_never_dearer(steps_of(random_graph(seed)))


@pytest.mark.slow
def test_many_random_graphs_are_never_dearer_and_right() -> None:
    for seed in range(20_000, 23_000):
        roots: list[UOp] = random_graph(seed)
        assert_never_dearer(steps_of(roots))
        for level in (2, 1):
            with Context(FUSE=level):
                check(roots, seed=seed)


def buffers_of(*roots: UOp) -> list[UOp]:
    return [n for n in toposort(roots) if n.op is Op.BUFFER]


def test_what_settled_memory_makes_has_launches_and_memory_of_its_own() -> None:
    x, weights = tensor(64, 48), [tensor(48, 48) for _ in range(3)]
    y = x
    for weight in weights:
        y = matmul(y, contiguous(flip(weight, 0))) + 1
    settled = frozenset(buffers_of(*weights))
    first, *others = check([y], settled=settled).calls
    assert settled <= set(first.buffers) and len(first.written) == 3
    assert all(settled.isdisjoint(call.buffers) for call in others)
    assert not set(check([y], settled=settled).memory.places) & set(first.buffers)
    assert any(settled & set(call.buffers) for call in check([y]).calls[1:])  # otherwise copies are stages


def test_random_graphs_with_settled_memory_are_right() -> None:
    for seed in range(40):
        roots = random_graph(seed + 900)
        buffers = buffers_of(*roots)
        check(roots, seed=seed, settled=frozenset(buffers[seed % 2 :: 2]))
        check(roots, seed=seed, settled=frozenset(buffers))


def test_results_do_not_depend_on_the_level() -> None:
    for seed in range(300, 340):
        roots = random_graph(seed)
        for level in (2, 1, 0):
            with Context(FUSE=level):
                check(roots, seed=seed)


# Of the programs whose kernels are counted, those that are quick to schedule and differ most.
PROGRAM = """
import sys
sys.path.insert(0, "benchmarks")
import numpy as np
import fusion
from fusion_programs import PROGRAMS
from gradlet.graph.text import to_text
from gradlet.schedule.calls import KernelCall
words = ("softmax", "layer norm", "attention", "GRU", "GPT", "ResNet", "max_pool", "cumsum", "KV", "SwiGLU", "dropout")
for name, program in PROGRAMS.items():
    if not any(word in name for word in words):
        continue
    plan = fusion.schedule(fusion.build(program, program.inputs(np.random.default_rng(0))))
    numbers = {}
    print(name, plan.memory.arenas, sorted(plan.memory.places.values()))
    for call in plan.calls:
        buffers = call.buffers if isinstance(call, KernelCall) else (call.destination, call.source)
        print([numbers.setdefault(b, len(numbers)) for b in buffers])
        if isinstance(call, KernelCall):
            print(call.written, to_text(call.ast))
"""


def test_same_launches_in_every_process() -> None:
    running = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment, cwd=ROOT,
            )
        )  # fmt: skip
    texts = []
    for process in running:
        text, error = process.communicate()
        assert process.returncode == 0, error
        texts.append(text)
    assert texts[0] == texts[1] and len(texts[0]) > 100_000


# structure
def launches_of(*roots: UOp) -> list[Launch]:
    """The launches of a graph as they were decided."""
    return partition(steps_of(list(roots)), target_of)


def shapes(launch: Launch) -> list[list[list[int]]]:
    """Stages of regions of bodies: how many steps each body has."""
    return [[[len(body.outputs) for body in region.bodies] for region in stage] for stage in launch.stages]


def test_small_independent_kernels_are_one_launch() -> None:
    (launch,) = launches_of(*[tensor(rows, 5) * 2 for rows in (3, 4, 6)])
    assert shapes(launch) == [[[1], [1], [1]]]


def test_what_reads_before_a_write_is_in_a_launch_before() -> None:
    x = tensor(64, 64)
    old = total(x, 0, 1)
    new = write(x, flip(x, 0), tensor(64, 64) * 2)
    order = [o for launch in launches_of(old, new) for o in launch.outputs]
    assert order and check([old, new])


def test_a_tail_runs_after_what_it_needs() -> None:
    parts = contiguous(total(tensor(64, 32, 256), 1))
    (launch,) = launches_of(total(parts, 0, 1), parts)
    assert len(launch.stages) == 2 and len(launch.stages[1]) == 1


def test_stages_before_wait_for_each_other_where_a_write_has_readers() -> None:
    """A stage that overwrites memory runs after the stage that reads the old values."""
    x = tensor(1, 2)
    old = x * 2.0
    new = write(x, x, expand(tensor(1, 1), 1, 2))
    steps = steps_of([mk(Op.SCAN, old.dtype, (new + old, UOp.const(old.dtype, 0)), ScanArg(Op.ADD, 1)), old])
    search = Search(steps, target_of)
    launches = LaunchSearch(search)
    drafts = {d.main[0].cells[0].root: d.main[0] for d in launches.drafts.values()}
    reader = next(k for root, k in drafts.items() if root in {r for first in steps.before.values() for r in first})
    writer = next(k for root, k in drafts.items() if root in steps.versions)
    stages = launches.staged([Draft([], 0, [reader, writer])])
    assert [[r.bodies[0].outputs[0] for r in stage] for stage in stages] == [
        [reader.cells[0].root],
        [writer.cells[0].root],
    ]


def test_a_launch_keeps_to_the_number_of_arguments() -> None:
    few = replace(AVX2, max_args=8)
    found = partition(steps_of([tensor(4, 5) * tensor(4, 5) for _ in range(9)]), lambda device: few)
    assert all(len(launch.outputs) * 3 <= 8 for launch in found) and len(found) == 5
    with Context(SCHEDULE_CACHE=0):
        check([tensor(4, 5) * tensor(4, 5) for _ in range(9)])
