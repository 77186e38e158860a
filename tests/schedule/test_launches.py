"""Launches of several kernels: right, never dearer than a launch a cell, the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradlet.base.settings import Context
from gradlet.graph.node import UOp
from gradlet.schedule.fuse import Search
from gradlet.schedule.launches import LaunchSearch
from gradlet.schedule.price import IMPOSSIBLE
from gradlet.schedule.steps import Steps
from tests.schedule.helpers import check, target_of
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
