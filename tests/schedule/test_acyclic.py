"""Merging kernels against a plain search for paths."""

from __future__ import annotations

import random

import pytest

from gradlet.base.errors import CompilerError
from gradlet.schedule.acyclic import Acyclic


def reaches(edges: set[tuple[int, int]], start: int, goal: int) -> bool:
    seen, stack = {start}, [start]
    while stack:
        node = stack.pop()
        for a, b in edges:
            if a == node and b not in seen:
                seen.add(b)
                stack.append(b)
    return goal in seen - {start}


def would_cycle(edges: set[tuple[int, int]], a: int, b: int) -> bool:
    merged = {(a if x == b else x, a if y == b else y) for x, y in edges} - {(a, a)}
    return any(reaches(merged, n, n) for n in {x for x, _ in merged}) or any(
        (y, x) in merged or reaches(merged, y, x) for x, y in merged
    )


@pytest.mark.parametrize("seed", range(30))
def test_random_merges(seed: int) -> None:
    rng = random.Random(seed)
    count = 12
    edges = {(a, b) for a in range(count) for b in range(a + 1, count) if rng.random() < 0.2}
    graph = Acyclic(count, sorted(edges))
    alive = list(range(count))
    for _ in range(15):
        a, b = rng.sample(alive, 2)
        cyclic = would_cycle(edges, a, b)
        assert graph.merge(a, b) is not cyclic
        if not cyclic:
            edges = {(a if x == b else x, a if y == b else y) for x, y in edges} - {(a, a)}
            alive.remove(b)
            if len(alive) < 2:
                break
        assert {(x, y) for x in alive for y in graph.after[x]} == edges
        assert {(y, x) for x in alive for y in graph.before[x]} == edges
        assert all(graph.position[x] < graph.position[y] for x, y in edges)


def test_users_take_over_what_a_copied_kernel_waited_for() -> None:
    graph = Acyclic(4, [(0, 1), (1, 2), (1, 3)])
    graph.hand_down(1)
    assert list(graph.after[0]) == [2, 3] and list(graph.before[3]) == [0]


def test_a_cycle_from_the_start_is_an_error() -> None:
    with pytest.raises(CompilerError, match="wait for each other"):
        Acyclic(2, [(0, 1), (1, 0)])


def test_between() -> None:
    graph = Acyclic(7, [(0, 1), (1, 2), (0, 3), (3, 2), (0, 4), (5, 2), (2, 6)])
    assert set(graph.between(0, 2, 2) or ()) == set(graph.between(2, 0, 3) or ()) == {1, 3}
    assert graph.between(0, 1, 2) == graph.between(4, 5, 2) == []
    assert graph.between(0, 2, 1) is graph.between(2, 0, 0) is None
    assert [graph.merge(0, n) for n in (*(graph.between(0, 2, 2) or ()), 2)] == [True, True, True]


@pytest.mark.parametrize("seed", range(20))
def test_between_random_kernels(seed: int) -> None:
    rng = random.Random(seed)
    count = 14
    edges = {(a, b) for a in range(count) for b in range(a + 1, count) if rng.random() < 0.15}
    graph = Acyclic(count, sorted(edges))
    for _ in range(30):
        a, b = sorted(rng.sample(range(count), 2), key=graph.position.__getitem__)
        expected = [n for n in range(count) if n not in (a, b) and reaches(edges, a, n) and reaches(edges, n, b)]
        most = rng.randrange(4)
        found = graph.between(*rng.sample([a, b], 2), most)
        assert (found is None) == (len(expected) > most)
        if found is not None:
            assert sorted(found) == expected
            assert found == sorted(found, key=graph.position.__getitem__)
