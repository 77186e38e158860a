"""Graphs of launches on the CPU: the same as launching one after another, from one table of words."""

from __future__ import annotations

import pytest

from gradlet.base.settings import scope
from gradlet.device.cpu import launching
from gradlet.device.cpu.graph import CpuGraph
from gradlet.engine.compile import build_kernel
from gradlet.runtime.device import GraphLaunch
from tests.codegen import launches
from tests.device.cpu.test_launch import contents, memory


@pytest.mark.parametrize("make", launches.ALL[::4], ids=launches.names()[::4])
def test_launches_as_graphs(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "INLINE_SECONDS", 1e-12)
    first, second = make(), make()
    with scope(NUM_THREADS=2):
        program = build_kernel(first.sink, "CPU").program
        count = len(first.arrays)
        values = list(first.variables)
        # Two launches on other memory; their words lie the other way round.
        size = 2 * count + len(values)
        words = list(range(size))[::-1]
        shared = words[2 * count :]
        graph = CpuGraph(
            [
                GraphLaunch(program, (*words[:count], *shared)),
                GraphLaunch(program, (*words[count : 2 * count], *shared)),
            ],
            size,
        )
        buffers = [*memory(first), *memory(second)]
        for word, content in zip(words, [*[b.address for b in buffers], *values], strict=True):
            graph.words[word] = content
        graph.run()
        launches.compare(first, contents(first, buffers[:count]))
        launches.compare(second, contents(second, buffers[count:]))
        assert graph.runs == 1
