"""What scheduling does grows with the number of equal layers, no faster; kernels do not grow. Counts, no times."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest

from gradlet import Tensor
from gradlet.graph import node as graph_node
from gradlet.graph import rewrite as rewriting
from gradlet.graph.key import structural_key
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp, toposort
from gradlet.schedule import pipeline
from gradlet.schedule.calls import KernelCall
from tests.schedule.helpers import target_of

WIDTH, TOKENS, HEADS = 16, 8, 2
SLOPE = 1.1


def weight(*shape: int) -> Tensor:
    return Tensor.empty(*shape).realize()


def perceptron(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    first, second, scale = weight(WIDTH, 2 * WIDTH), weight(2 * WIDTH, WIDTH), weight(WIDTH)
    return x + (x.layernorm() * scale @ first).relu() @ second, [first, second, scale]


def attention(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    weights = [weight(WIDTH, WIDTH) for _ in range(4)]
    q, k, v = [(x @ w).reshape(-1, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2) for w in weights[:3]]
    scores = (q @ k.transpose(2, 3) * 0.25).softmax(-1)
    y, more = perceptron(x + (scores @ v).transpose(1, 2).reshape(*x.shape) @ weights[3])
    return y, [*weights, *more]


Layer = Callable[[Tensor], tuple[Tensor, list[Tensor]]]


def training_step(layer: Layer, count: int) -> list[UOp]:
    """The loss of so many layers, and new values of all weights."""
    x, weights = Tensor.empty(2, TOKENS, WIDTH).realize(), []
    for _ in range(count):
        x, more = layer(x)
        weights += more
    loss = x.square().mean()
    updated = [w.assign(w - 0.1 * g) for w, g in zip(weights, loss.gradient(*weights), strict=True)]
    return [loss.uop, *[w.uop for w in updated]]


@dataclass
class Counts:
    """What was done for one graph."""

    nodes: int  # of the graph
    calls: int = 0  # of Python functions, to schedule
    made: int = 0  # nodes
    visits: int = 0  # of nodes by rewrites
    rewrites: int = 0
    key: int = 0  # elements of its key
    launches: int = 0
    kernels: int = 0  # that differ


def counts(layer: Layer, count: int, monkeypatch: pytest.MonkeyPatch) -> Counts:
    roots = training_step(layer, count)
    found = Counts(len(toposort(roots)))
    found.key = len(structural_key(roots)[0])
    collect, run = rewriting._collect, rewriting._Fixpoint.run

    def collected(*arguments: Any) -> list[UOp]:
        nodes = collect(*arguments)
        found.visits += len(nodes)
        return nodes

    def ran(self: Any, roots: list[UOp]) -> list[UOp]:
        results = run(self, roots)
        found.rewrites += self.steps
        return results

    def called(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            found.calls += 1

    with monkeypatch.context() as patched:
        patched.setattr(rewriting, "_collect", collected)
        patched.setattr(rewriting._Fixpoint, "run", ran)
        before = graph_node._next_uid()
        profile = sys.getprofile()
        sys.setprofile(called)
        try:
            schedule = pipeline.make_schedule(roots, target_of)
        finally:
            sys.setprofile(profile)
        found.made = graph_node._next_uid() - before
    calls = [call for call in schedule.calls if isinstance(call, KernelCall)]
    found.launches = len(calls)
    # A launch may pack kernels of several layers: more layers make longer packs of the same kernels.
    found.kernels = len(
        {kernel for call in calls for kernel in (call.ast.src if is_launch(call.ast.arg) else [call.ast])}
    )
    return found


def slope(points: Sequence[tuple[int, int]]) -> float:
    """Of the logarithms, least squares: 1 is linear growth."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle = [sum(values) / len(logs) for values in zip(*logs)]
    top = sum((x - middle[0]) * (y - middle[1]) for x, y in logs)
    return top / sum((x - middle[0]) ** 2 for x, _ in logs)


def check_growth(layer: Layer, layers: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [counts(layer, count, monkeypatch) for count in layers]
    for name in asdict(found[0]):
        values = [getattr(one, name) for one in found]
        if name == "kernels":
            assert max(values) - min(values) <= 1, values  # few layers may pack what hangs on their ends otherwise
        else:
            assert slope(list(zip(layers, values, strict=True))) <= SLOPE, (name, values)


def test_a_few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    check_growth(perceptron, (4, 8, 16), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("layer", [perceptron, attention])
def test_up_to_128_layers(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    check_growth(layer, (8, 16, 32, 64, 128), monkeypatch)
