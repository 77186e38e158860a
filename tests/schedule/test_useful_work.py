"""Programs do the work that their task needs: counted operations on values are at most twice the ideal.

The ideal counts are of the best known way, an element at a time, and are explained beside each program. What is counted
is arithmetic on values as it is lowered (comparisons, sums, bit operations; not addresses, selects or conversions).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fusion import build, schedule
from fusion_programs import PROGRAMS

from gradlet import Tensor
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.traffic import traffic_of

# A key that is ordered like a float: is it zero, is it NaN, the sign spread over the bits (shift, or, exclusive or).
# It is then shifted and joined with its place, so that it is like no other.
KEY = 7


class Task(NamedTuple):
    """A program of the benchmark: what it needs, and how many bodies and launches it may be."""

    ideal: int
    bodies: int
    launches: int


TASKS = {
    # An addition for each of 512 rows of 256, an index test a row both ways; clearing the table is no arithmetic.
    "embedding, gradient": Task(512 * 256 + 2 * 2 * 512, 3, 2),
    # An addition a value, and a test (both ends, joined) whether its place exists.
    "scatter_add in rows": Task(1024 * 64 * 4, 2, 1),
    # An addition an element.
    "cumsum over rows": Task(64 * 1024, 1, 1),
    # An addition an element, and one more for the totals of blocks: so that several cores work, memory is read twice.
    "cumsum of 262144": Task(2 * 262144, 2, 2),
    # n log2 n comparisons of keys; the places come out of the keys by a mask and a difference.
    "sort of 1024": Task(1024 * (KEY + 10 + 3), 10, 1),
    # Each key once, each compared once with what was found so far.
    "top 8 of 1024": Task(64 * 1024 * (KEY + 1), 5, 2),
    # A comparison an element for the maxima; going back: who equals it (or is NaN), how many, a share a window.
    "max_pool 2x2, gradient": Task(16 * 64 * 32 * 32 * 5 + 16 * 64 * 16 * 16, 1, 1),
    # An index test (both ends) a row: nothing is multiplied.
    "one_hot @ W": Task(512 * 3, 1, 1),
}


def held(array: np.ndarray[Any, Any]) -> Tensor:
    return Tensor(array).contiguous().realize()


def operations(*results: Tensor) -> int:
    """Operations of all kernels of a schedule."""
    calls = results[0].schedule(*results[1:]).calls
    return sum(traffic_of(call).operations for call in calls if isinstance(call, KernelCall))


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("name", TASKS)
def test_no_more_than_twice_the_ideal(name: str) -> None:
    program, task = PROGRAMS[name], TASKS[name]
    calls = schedule(build(program, program.inputs(np.random.default_rng(0)))).calls
    assert all(isinstance(call, KernelCall) for call in calls)
    done = sum(traffic_of(call).operations for call in calls if isinstance(call, KernelCall))
    assert task.ideal // 2 <= done <= 2 * task.ideal, done / task.ideal
    assert len(calls) <= task.launches
    assert sum(1 if c.ast.src[0].op.name == "STORE" else len(c.ast.src) for c in calls) <= task.bodies


def test_a_sample_is_looked_up_not_compared_with_all_weights() -> None:
    weights = held(np.ones(4096, np.float32))
    few, many = [operations(weights.multinomial(n, replacement=True)) for n in (64, 1088)]
    assert many - few < 1024 * 400  # random bits, and a few steps for each of the 13 halvings


GROWTH: dict[str, tuple[Callable[[Tensor], list[Tensor]], float]] = {
    "cumsum": (lambda x: [x.cumsum(0)], 2.0),
    "cumprod with its gradient": (lambda x: x.cumprod(0).gradient(x, gradient=x), 2.0),
    "cummax with its gradient": (lambda x: x.cummax(0)[0].gradient(x, gradient=x), 2.0),
    "logcumsumexp": (lambda x: [x.logcumsumexp(0)], 2.0),
    "logcumsumexp with its gradient": (lambda x: x.logcumsumexp(0).gradient(x, gradient=x), 2.0),
    "sort": (lambda x: list(x.sort(0)), 2.2),
    "selection": (lambda x: list(x.topk(4, 0)), 2.0),
    "gathering back": (lambda x: x.sort(0)[0].gradient(x, gradient=x), 2.2),
}


@pytest.mark.parametrize("name", GROWTH)
def test_work_grows_with_the_elements(name: str) -> None:
    """Twice the elements are little more than twice the work; by comparing all pairs they would be four times."""
    build_results, factor = GROWTH[name]
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    small, large = [operations(*build_results(held(x[:size]))) for size in (2048, 4096)]
    assert 1.5 * small < large <= 1.05 * factor * small


def test_a_reduction_that_is_read_through_padding_is_computed_once() -> None:
    """The condition under which an element is no padding is not one of the loop over the row."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(2):
            gap = x - (x * 2).exp().max(1, True)
            x = gap.pad(((0, 0), (1, 0))).shrink((None, (0, x.shape[1])))
        return x.max(1)

    small, large = [operations(chain(held(np.ones((4, size), np.float32)))) for size in (64, 128)]
    assert large <= 2.5 * small


def test_a_transposed_convolution_without_overlap_multiplies_once() -> None:
    """Windows as wide as they are apart lie side by side: no element of the result is a sum of several."""
    x, w = held(np.ones((1, 6, 8, 10), np.float32)), held(np.ones((6, 5, 2, 2), np.float32))
    assert operations(x.conv_transpose2d(w, stride=2)) <= 2 * 6 * 5 * 4 * 80
