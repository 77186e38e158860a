"""Long graphs, wide joins, and memory that goes when tensors go."""

from __future__ import annotations

import gc

import numpy as np

from gradlet import Tensor
from gradlet.graph import node as graph_node
from gradlet.ops.op import Op


def counts() -> tuple[int, int, int]:
    gc.collect()
    nodes = sum(len(table) for table in graph_node._tables)
    return nodes, graph_node.count_nodes(Op.BUFFER), len(Tensor.all_live())


def test_nothing_is_left_after_steps() -> None:
    w = Tensor(np.ones((4, 4), np.float32)).realize()

    def step(i: int) -> None:
        x = Tensor(np.full((2, 4), i, np.float32))
        loss = (x @ w).relu().sum()
        (g,) = loss.gradient(w)
        w.assign(w - g * 0.001)
        w.realize(loss)

    for i in range(5):
        step(i)
    before = counts()
    for i in range(20):
        step(i)
    after = counts()
    assert after[2] == before[2]
    assert after[1] <= before[1] + 1
    assert after[0] <= before[0] + 50


def test_a_long_chain_builds_and_computes_its_shape() -> None:
    x = Tensor([1.0])
    y = x
    for _ in range(20_000):
        y = y + x
    assert y.shape == (1,)
    assert len(y.uop.toposort()) > 20_000
    del y


def test_joining_many() -> None:
    parts = [Tensor(np.full((1, 2), i, np.int32)) for i in range(100)]
    joined = Tensor.cat(*parts)
    np.testing.assert_array_equal(joined.numpy()[:, 0], np.arange(100))


def test_views_of_views_of_dead_tensors() -> None:
    x = Tensor(np.arange(8, dtype=np.int32))
    for _ in range(20):
        x = x.reshape(2, 4).reshape(8)
    x[0] = 7
    assert x.tolist() == [7, 1, 2, 3, 4, 5, 6, 7]
