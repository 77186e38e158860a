"""What a merge gains at most: never less than what its price says it gains, and it saves most of the prices."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.graph.node import UOp
from gradlet.schedule.fuse import MAX_BETWEEN, Search
from gradlet.schedule.price import IMPOSSIBLE
from gradlet.target.target import NVPTX
from tests.schedule.helpers import target_of
from tests.schedule.test_repeats import build, build_training, random_stack, steps_of, weight


def bottlenecks() -> list[UOp]:
    """Two stages of blocks of a residual network, and the gradients."""
    x = given = weight(4, 4, 8, 8)
    parameters = [given]
    for stage in range(2):
        for _ in range(4):
            y = x
            for size, (outputs, inputs) in zip((1, 3, 1), ((4, 4), (4, 4), (4, 4)), strict=True):
                kernel, scale, shift = weight(outputs, inputs, size, size), weight(outputs), weight(outputs)
                parameters += [kernel, scale, shift]
                y = y.conv2d(kernel, padding=size // 2)
                mean = y.mean((0, 2, 3))
                spread = ((y - mean.reshape(1, -1, 1, 1)) ** 2).mean((0, 2, 3))
                y = y.batchnorm(scale, shift, mean, (spread + 1e-5).rsqrt()).relu()
            x = x + y
        if not stage:
            x = x.max_pool2d(2)
    loss = (x * x).mean()
    return [t.uop for t in (loss, *loss.gradient(*parameters))]


def large() -> list[UOp]:
    """Values of some size: copies to other orders of memory, products, reductions along both axes."""
    x, w = Tensor.empty(256, 192).realize(), Tensor.empty(192, 256).realize()
    turned = x.transpose().contiguous()
    product = (turned @ w.transpose()).relu()
    rows = (product * 2).sum(0) + turned.sum(1)
    return [t.uop for t in (product, rows, (w * 3).transpose().contiguous() + x, turned.exp().max(0))]


PROGRAMS = {
    "transformer": lambda: build("transformer", 3),
    "convolution": lambda: build("convolution", 3),
    "training": lambda: build_training(2),
    "bottlenecks": bottlenecks,
    "large": large,
    **{f"random {seed}": lambda seed=seed: random_stack(seed, 4) for seed in range(4)},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", list(PROGRAMS))
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.slow)])
def test_no_merge_gains_more(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every merge that is thought of, priced or not."""
    seen = 0
    target = NVPTX if device == "gpu" else target_of("CPU")
    most_gain = Search.most_gain

    def checked(self: Search, first: int, second: int) -> int:
        nonlocal seen
        seen += 1
        found = most_gain(self, first, second)
        a, b = self.kernels[first], self.kernels[second]
        cells, stored, verdict = self.joined([*a.cells, *b.cells])
        made = self.make(first, second)
        assert made.price == verdict.price and [cells[p] for p in made.stored] == stored
        assert found >= min(0, a.price + b.price - verdict.price)
        if verdict.price < IMPOSSIBLE:
            assert found >= a.price + b.price - verdict.price
        return found

    monkeypatch.setattr(Search, "most_gain", checked)
    Search(steps_of(PROGRAMS[name]()), lambda device: target).run()
    assert seen > 5


def test_few_merges_are_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a residual network: fewer prices than merges that were thought of, and no impossible ones."""
    counts = {"thought of": 0, "priced": 0, "impossible": 0}
    most_gain, make = Search.most_gain, Search.make

    def thought(self: Search, first: int, second: int) -> int:
        counts["thought of"] += 1
        return most_gain(self, first, second)

    def priced(self: Search, first: int, second: int) -> object:
        made = make(self, first, second)
        assert self.graph.between(first, second, MAX_BETWEEN) is not None, "too many kernels between them to join"
        counts["priced"] += 1
        counts["impossible"] += made.price >= IMPOSSIBLE
        return made

    monkeypatch.setattr(Search, "most_gain", thought)
    monkeypatch.setattr(Search, "make", priced)
    search = Search(steps_of(bottlenecks()), target_of)
    search.run()
    assert counts["priced"] * 2 < counts["thought of"] * 1.5
    assert counts["impossible"] * 20 < counts["priced"]
    assert search.steps.work.prices < 3 * len(search.cells)
