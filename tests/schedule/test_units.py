"""Products that matrix units compute: gradients are some, each with its own kernel, and fit into a multiprocessor."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.codegen.pipeline import lower
from gradlet.ops.opt import OptKind
from gradlet.render import cuda
from gradlet.target.target import SM_90


def programs(*results: Tensor) -> list:
    return [lower(call.ast, SM_90) for call in results[0].schedule(*results[1:]).calls]


def narrow(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=dtypes.bfloat16, device="NULL:sm_90")


def uses_units(program) -> bool:
    return any(opt.kind is OptKind.TENSORIZE for opt in program.opts)


@pytest.mark.parametrize("activation", [Tensor.square, Tensor.silu])
def test_a_layer_and_both_its_gradients_are_three_products(activation):
    x, w = narrow(4, 256, 512), narrow(384, 512)
    loss = (activation(x @ w.transpose(0, 1)).cast(dtypes.float32) * 3).sum()
    found = programs(*loss.gradient(x, w))
    assert len([p for p in found if uses_units(p)]) == 3
    assert all(cuda.shared_bytes(p) <= SM_90.shared_bytes and p.threads <= SM_90.max_threads for p in found)


def test_a_product_with_two_results_fits_into_shared_memory():
    x, w, y = narrow(1024, 512), narrow(512, 2048), narrow(1024, 2048)
    total = (x @ w).cast(dtypes.float32)
    found = programs((total + y).cast(dtypes.bfloat16), (total * y).cast(dtypes.bfloat16))
    product = next(p for p in found if uses_units(p))
    assert len(product.params) == 5 and cuda.shared_bytes(product) <= SM_90.shared_bytes


def test_lanes_of_results_with_different_loops_are_no_more_than_a_workgroup_has():
    x, y = Tensor.empty(4, 512, device="NULL:sm_90"), Tensor.empty(4, 512, 64, device="NULL:sm_90")
    factor = (x * 3 + 1).contiguous()
    found = programs(factor, (y + factor.reshape(4, 512, 1)).contiguous())
    assert all(p.threads <= SM_90.max_threads for p in found)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_gradients_of_narrow_products_add_up_in_float32(device):
    count = 3000  # ones of bfloat16 would stop at 256
    x = Tensor(np.ones((count, 1), np.float32), device=device).cast(dtypes.bfloat16).realize()
    w = Tensor(np.ones((1, 2), np.float32), device=device).cast(dtypes.bfloat16).realize()
    (gradient,) = (x @ w).cast(dtypes.float32).sum().gradient(w)
    np.testing.assert_allclose(gradient.cast(dtypes.float32).numpy(), count, rtol=1 / 256)


def test_gradients_of_narrow_convolutions_add_up_in_float32():
    x = Tensor(np.ones((2, 1, 40, 40), np.float32)).cast(dtypes.float16).realize()
    w = Tensor(np.full((1, 1, 3, 3), 2, np.float32)).cast(dtypes.float16).realize()
    image, weights = x.conv2d(w, padding=1).cast(dtypes.float32).sum().gradient(x, w)
    assert image.cast(dtypes.float32).numpy()[0, 0, 5, 5] == 18
    assert weights.cast(dtypes.float32).numpy()[0, 0, 1, 1] == 3200


def test_lanes_of_one_of_two_results_and_lanes_of_both_are_those_of_one_workgroup():
    x, y = Tensor.empty(4, 64, 256, 64, device="NULL:sm_90"), Tensor.empty(4, 8, 64, 256, 64, device="NULL:sm_90")
    scale = Tensor.empty(256, 1, device="NULL:sm_90")
    found = programs((x * scale).contiguous(), (y * (x * scale).reshape(4, 1, 64, 256, 64)).contiguous())
    assert all(p.threads <= SM_90.max_threads for p in found)
