"""Very deep matrix products in parts: right values, fixed order, and only where the partial products are few bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.codegen.pipeline import lower
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.ops.opt import OptKind
from gradlet.rules.sets import simplify
from gradlet.schedule import deep
from gradlet.schedule.context import sink
from gradlet.schedule.deep import cut_deep_products
from gradlet.target.target import AVX2, NVPTX, SM_90, Target
from tests.schedule.helpers import contents


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


@pytest.mark.parametrize(("images", "inputs", "results", "side", "window"), [(64, 64, 64, 56, 3), (32, 128, 96, 28, 1)])
def test_gradients_of_weights_have_parts_for_all_multiprocessors(images, inputs, results, side, window):
    x = Tensor.empty(images, inputs, side, side, device="NULL:sm_90")
    w = Tensor.empty(results, inputs, window, window, device="NULL:sm_90")
    y = x.conv2d(w, padding=window // 2)
    (gradient,) = (y * Tensor.empty(*y.shape, device="NULL:sm_90")).sum().gradient(w)
    programs = [lower(call.ast, SM_90) for call in gradient.schedule().calls]
    product = max(programs, key=lambda p: p.flops)
    assert product.flops == 2 * images * side**2 * inputs * results * window**2
    assert product.grid >= SM_90.cores * 3 // 4 and sum(o.kind is OptKind.STAGE for o in product.opts) == 2


@pytest.mark.parametrize("shape", [(8, 40, 48, 12, 9, 3), (6, 33, 65, 8, 8, 1), (12, 64, 32, 7, 7, 3)])
def test_parts_for_lanes_add_up_to_the_product(shape, monkeypatch):
    monkeypatch.setattr(deep, "MIN_DEPTH", 256)
    monkeypatch.setattr(deep, "MIN_LANES_PART", 64)
    images, inputs, results, rows, columns, window = shape
    x, w = Tensor.empty(images, inputs, rows, columns), Tensor.empty(results, inputs, window, window)
    y = x.conv2d(w, padding=window // 2)
    (gradient,) = (y * Tensor.empty(*y.shape)).sum().gradient(w)
    node = sink([simplify(gradient.uop)])
    changed = cut_deep_products(node, lambda _: SM_90, "CPU")
    assert changed is not node
    arrays = contents([node])
    (found,), (wanted,) = evaluate(changed.src, arrays), evaluate(node.src, arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_products_with_many_results_and_those_of_narrow_floats_stay_whole_on_a_gpu():
    large, long = Tensor.empty(16384, 4096), Tensor.empty(16384, 64, dtype="bfloat16")
    products = [
        large.T @ large,
        long.T.matmul(long, dtype="float32"),
        Tensor.empty(16384, 64).T @ Tensor.empty(16384, 3),
    ]
    node = sink([simplify(p.uop) for p in products])
    assert cut_deep_products(node, lambda _: SM_90, "CPU") is node
