"""The comparison with every library: its rows exist, its verdicts say what the figures say."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(BENCHMARKS))


def verdict(kernels: ModuleType, harness: ModuleType, ours: tuple[float, ...], **peers: tuple[float, ...]) -> Any:
    timings = {"gradlet": harness.Timing(ours)} | {n: harness.Timing(t) for n, t in peers.items()}
    return kernels.Verdict(harness.Row("row", 1, 10**9, 0, timings), kernels.Wanted(("torch", "numpy"), 0.9, 1.1))


def test_every_row_is_a_case_with_peers_that_exist(load: Any) -> None:
    kernels, catalog = load("kernels"), load("catalog")
    peers = {"torch", *load("peers").PEERS}
    for name, wanted in kernels.ROWS.items():
        assert name in catalog.CASES
        assert set(wanted.peers) <= peers and wanted.goal <= wanted.floor
    assert set(kernels.HEAVY) <= set(kernels.ROWS)


def test_ratio_is_to_the_fastest_peer_and_marks_follow_from_it(load: Any) -> None:
    kernels, harness = load("kernels"), load("harness")
    good = verdict(kernels, harness, (0.8, 0.9, 1.5), torch=(2.0, 3.0, 2.0), numpy=(1.0, 1.0, 1.2))
    assert (good.best_peer, good.ratio(), good.ratio(of_minima=True), good.mark()) == ("numpy", 0.9, 0.8, "")
    assert verdict(kernels, harness, (1.0,), torch=(1.0,)).mark() == "misses the goal"
    assert verdict(kernels, harness, (1.2,), torch=(1.0,)).mark() == "**MISSES THE FLOOR**"
    assert verdict(kernels, harness, (1.2,)).mark() == "**not measured**"
    lines = kernels.table([good]).splitlines()
    assert lines[2].startswith("| row | 1 | 900.0 (800.0) | 1.1 GFLOP/s | numpy | 1000.0 (1000.0) | 0.90 | 0.80 |")
    assert lines[2].endswith("| torch 2000 |")


def test_rows_are_chosen_by_how_they_begin(load: Any) -> None:
    kernels = load("kernels")
    assert kernels.chosen("conv_1x1,vec") == ["vecmat", "conv_1x1"]
    assert kernels.chosen("") == list(kernels.ROWS)


def test_torch_and_gradlet_compute_the_same_in_a_small_case(load: Any) -> None:
    frameworks = load("frameworks")
    x = np.random.default_rng(0).random((8, 33), dtype=np.float32)
    for compute in (lambda api, a: api.softmax(a), lambda api, a: api.top_k(a, 3), lambda api, a: api.stored(a.T)):
        results = []
        for api in (frameworks.TorchApi(), frameworks.TensorApi("gradlet")):
            run = api.function(lambda a, api=api, compute=compute: compute(api, a), x)
            results.append(api.values(run()))
        np.testing.assert_allclose(*results, rtol=1e-5)
