"""Gradients of poolings by maxima on a GPU: elements ask their windows, and get what they get elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradlet import Tensor
from gradlet.base.settings import scope
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import toposort
from gradlet.ops.op import Op
from gradlet.rules.sets import simplify
from gradlet.schedule.context import sink
from gradlet.schedule.windowplaces import ask_windows
from gradlet.target.target import AVX2, SM_90
from tests.schedule.helpers import contents

POOLINGS = [
    ((2, 3, 9, 12), {"kernel_size": (3, 3), "stride": 2, "padding": 1}),
    ((2, 2, 11, 7), {"kernel_size": (3, 2), "stride": (1, 2)}),
    ((1, 4, 10, 10), {"kernel_size": (2, 2), "stride": 3}),
    ((1, 2, 13, 13), {"kernel_size": (3, 3), "stride": 1, "padding": 1, "dilation": 2}),
    ((2, 3, 8, 9), {"kernel_size": (3, 3), "stride": 2, "ceil_mode": True}),
]


def scatters(node) -> int:
    return sum(n.op is Op.SCATTER for n in toposort((node,)))


@pytest.mark.parametrize(("shape", "how"), POOLINGS)
@pytest.mark.parametrize("values", ["numbers", "few numbers"])
def test_gradients_are_those_of_torch(shape, how, values):
    x = Tensor.empty(*shape)
    y = x.max_pool2d(**how)
    g = Tensor.empty(*y.shape)
    (gradient,) = (y * g).sum().gradient(x)
    node = sink([simplify(gradient.uop)])
    arrays = contents([node])
    buffers = {t: next(n for n in toposort((t.uop,)) if n.op is Op.BUFFER) for t in (x, g)}
    if values == "few numbers":  # the first of equal ones has the gradient
        arrays[buffers[x]] = np.random.default_rng(5).integers(0, 3, x.numel()).astype(np.float32)
    changed = ask_windows(node, lambda _: SM_90, "CPU")
    assert scatters(node) == 1 and scatters(changed) == 0
    (found,) = evaluate(changed.src, arrays)
    theirs = torch.tensor(arrays[buffers[x]].reshape(shape), requires_grad=True)
    torch.nn.functional.max_pool2d(theirs, **how).backward(torch.tensor(arrays[buffers[g]].reshape(y.shape)))
    np.testing.assert_allclose(found, theirs.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_other_additions_stay():
    x, places, values = Tensor.empty(4, 30), Tensor.empty(4, 10, dtype="int32"), Tensor.empty(4, 10)
    pooled = Tensor.empty(1, 1, 8, 8).max_pool2d((2, 2), stride=1)  # windows somewhere in the graph
    node = sink([simplify(x.scatter(1, places, values, reduce="add").uop), simplify(pooled.uop)])
    assert scatters(node) == 1 and ask_windows(node, lambda _: SM_90, "CPU") is node


def test_places_that_count_something_else_stay():
    x = Tensor.empty(2, 3, 9, 9)
    y, places = x.max_pool2d((3, 3), stride=2, return_indices=True)
    base = Tensor.zeros(2, 3, 81).contiguous()
    node = sink([simplify(base.scatter(2, (places * 2).reshape(2, 3, 16), y.reshape(2, 3, 16), reduce="add").uop)])
    assert scatters(node) == 1 and ask_windows(node, lambda _: SM_90, "CPU") is node


def test_processors_add_one_by_one_and_so_does_who_must_keep_the_order():
    x = Tensor.empty(2, 3, 9, 9)
    node = sink([simplify(x.max_pool2d((3, 3), stride=2).sum().gradient(x)[0].uop)])
    assert ask_windows(node, lambda _: AVX2, "CPU") is node
    with scope(STRICT_FLOAT=1):
        assert ask_windows(node, lambda _: SM_90, "CPU") is node
    assert ask_windows(node, lambda _: SM_90, "CPU") is not node
