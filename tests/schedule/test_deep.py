"""Very deep matrix products in parts: right values, fixed order, and only where the partial products are few bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.rules.sets import simplify
from gradlet.schedule.context import sink
from gradlet.schedule.deep import cut_deep_products
from gradlet.target.target import AVX2, NVPTX, Target


def sums(product: Tensor, target: Target = AVX2) -> int:
    """How many sums a product has become, after checking its value where something changed."""
    node: UOp = simplify(product.uop)
    changed = cut_deep_products(sink([node]), lambda device: target, "CPU").src[0]
    if changed is node:
        return sum(n.op is Op.REDUCE_AXES for n in toposort((node,)))
    assert changed.shape == node.shape
    generator = np.random.default_rng(0)
    buffers = {
        n: generator.standard_normal(n.arg.size).astype(np.float32) for n in toposort((node,)) if n.op is Op.BUFFER
    }
    got, wanted = evaluate([changed, node], buffers)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-2)
    return sum(n.op is Op.REDUCE_AXES for n in toposort((changed,)))


def memory(*shape: int) -> Tensor:
    return Tensor.empty(*shape)


@pytest.mark.parametrize("depth", [8192, 12000, 16384, 8209])
def test_cut_in_two_sums_where_the_depth_divides(depth: int) -> None:
    assert sums(memory(8, depth) @ memory(depth, 16)) == (1 if depth == 8209 else 2)


def test_the_gradient_of_a_weight_over_many_rows() -> None:
    x, g = memory(16384, 8), memory(16384, 16)
    assert sums((x.unsqueeze(-1) * g.unsqueeze(-2)).sum(0)) == 2


def test_left_alone() -> None:
    assert sums(memory(8, 4096) @ memory(4096, 16)) == 1  # not deep
    assert sums(memory(8, 8192) @ memory(8192, 16), NVPTX) == 1  # regions are for CPUs
    assert sums(memory(8, 8192) @ memory(8192, 16), replace(AVX2, l2_bytes=256)) == 1  # no part is large enough
    assert sums((memory(8192) * memory(8192)).sum()) == 1
    wide = memory(300, 8192) @ memory(8192, 400)
    assert sums(wide, replace(AVX2, l2_bytes=1 << 20)) == 1  # partial products would be more than the operands


def test_on_the_device() -> None:
    generator = np.random.default_rng(0)
    a = generator.standard_normal((24, 16000)).astype(np.float32)
    b = generator.standard_normal((16000, 32)).astype(np.float32)
    np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), a.astype(np.float64) @ b, rtol=1e-3, atol=1e-2)
