"""Random programs whose launches are made by chance: every legal launch gives the values of the plain graph.

The evaluator runs blocks and segments of a stage from last to first and fills scratch memory with NaN, so an order that
nobody asked for shows. A part of the programs also runs on the CPU, on several threads.
"""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.settings import Context
from gradlet.engine import execute
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp
from gradlet.graph.numeric import storage_type
from gradlet.runtime.buffer import buffer_of
from gradlet.schedule.moves import root_of
from tests.schedule.helpers import contents, create_schedule, run
from tests.schedule.launch_programs import Program, any_launch, odd_target


def check_launches(seed: int, counts: dict[str, int]) -> None:
    """One program, by the evaluator."""
    roots = Program(seed).roots
    buffers = contents(roots, seed)
    with any_launch(seed, counts), Context(SCHEDULE_CACHE=0), np.errstate(all="ignore"):
        expected = evaluate(roots, buffers)
        schedule = create_schedule(roots, odd_target(seed))
        try:
            memory = run(schedule, buffers)
        except (RuntimeError, ValueError) as error:
            if "dimension" in str(error):
                return  # numpy has no arrays of as many axes as the kernel has loops
            raise
        got = evaluate([schedule.results[root] for root in roots], memory)
    compare(got, expected, seed)


def check_on_cpu(seed: int, threads: int) -> None:
    """One program, by the CPU. Rounding may decide a comparison, hardly so in float64 as well."""
    if seed % 2:
        try:
            check_type_on_cpu(seed, threads, "float32")
            return
        except AssertionError:
            pass
    check_type_on_cpu(seed, threads, "float64")


def check_type_on_cpu(seed: int, threads: int, dtype: str) -> None:
    """One program with values of one type."""
    roots: list[UOp] = Program(seed, dtype).roots
    buffers = contents(roots, seed)
    with np.errstate(all="ignore"):
        expected = evaluate(roots, buffers)
        for node, array in buffers.items():
            buffer_of(node).allocate().copyin(array)
        with any_launch(seed), Context(SCHEDULE_CACHE=0, NUM_THREADS=threads):
            results = execute.realize(roots)
        memory = {}
        for result in results.values():
            node = root_of(result)
            memory[node] = np.empty(node.arg.size, storage_type(node.dtype))
            buffer_of(node).copyout(memory[node])
        got = evaluate([results[root] for root in roots], memory)
    compare(got, expected, seed)


def compare(got: list[np.ndarray], expected: list[np.ndarray], seed: int) -> None:
    for number, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=2e-4, atol=2e-4, err_msg=f"program {seed}, result {number}")


def assert_as_decided(counts: dict[str, int], programs: int) -> None:
    """Every way to merge launches was taken often, and lowering agreed with the decision."""
    assert min(counts.get(way, 0) for way in ("region", "tail", "staging", "launches")) >= programs // 4, counts
    apart = {reason: count for reason, count in counts.items() if reason.startswith("apart")}
    assert sum(apart.values()) * 500 <= counts["launches"], counts


@pytest.mark.parametrize("part", range(4))
def test_any_legal_launch_is_right(part: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(part * 40, part * 40 + 40):
        check_launches(seed, counts)
    assert_as_decided(counts, 40)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_launches_are_right_on_the_cpu(threads: int) -> None:
    for seed in range(1000 + threads * 10, 1004 + threads * 10):
        check_on_cpu(seed, threads)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_legal_launches_are_right(part: int) -> None:
    counts: dict[str, int] = {}
    for seed in range(100_000 + part * 500, 100_500 + part * 500):
        check_launches(seed, counts)
    assert_as_decided(counts, 500)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_many_launches_are_right_on_the_cpu(threads: int) -> None:
    for seed in range(200_000 + threads * 100, 200_050 + threads * 100):
        check_on_cpu(seed, threads)


# Programs that once gave wrong values, or whose launches could not be lowered as they were decided.
@pytest.mark.parametrize("seed", [129, 552, 1631, 40045, 40469, 300182, 602035])
def test_programs_that_failed_once(seed: int) -> None:
    counts: dict[str, int] = {}
    check_launches(seed, counts)
    assert not any(reason.startswith("apart") for reason in counts), counts
