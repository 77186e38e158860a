"""Factors of large matrix products in strips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.rules.sets import simplify
from gradlet.schedule.context import sink
from gradlet.schedule.layout import lay_out_operands
from gradlet.target.target import Target
from tests.schedule.helpers import target_of


def without_scratch(device: str) -> Target:
    """A machine whose cores have no room for copies of their own."""
    return replace(target_of(device), scratch_bytes=0)


def copies(product: Tensor, machine: Callable[[str], Target] = without_scratch) -> int:
    """How many factors a product has copied, after checking that its value stays the same."""
    node: UOp = simplify(product.uop)  # as the pass before has it
    changed = lay_out_operands(sink([node]), machine, "CPU").src[0]
    assert changed.shape == node.shape
    buffers = {
        n: np.random.default_rng(n.arg.number).standard_normal(n.arg.size).astype(np.float32)
        for n in toposort((node,))
        if n.op is Op.BUFFER
    }
    got, wanted = evaluate([changed, node], buffers)
    np.testing.assert_array_equal(got, wanted)
    return sum(n.op is Op.CONTIGUOUS for n in toposort((changed,)))


def memory(*shape: int) -> Tensor:
    return Tensor.empty(*shape)


def test_large_right_factor_is_copied_either_way_round() -> None:
    assert copies(memory(64, 256) @ memory(256, 1024)) == 1
    assert copies(memory(64, 256) @ memory(1024, 256).T) == 1


def test_factor_in_memory_is_left_to_the_kernel_of_the_product_where_a_core_has_room() -> None:
    right, turned = memory(256, 1024), memory(1024, 256)
    assert copies(memory(64, 256) @ right, target_of) == 0
    assert copies(memory(64, 256) @ turned.T, target_of) == 0
    assert copies(memory(64, 256) @ (right * 2.0), target_of) == 1  # it is computed once
    assert copies(memory(64, 9000) @ memory(9000, 200), target_of) == 1  # too deep
    assert copies(memory(64, 5000) @ memory(5000, 60), target_of) == 1  # too narrow
    assert copies(memory(4, 16, 256) @ right, target_of) == 1  # no axis with enough rows
    assert copies((memory(64, 256) @ right).softmax(), target_of) == 1  # rows block by block, which all read the copy
    assert copies(memory(64, 256).softmax() @ right, target_of) == 1
    assert copies((memory(64, 256) @ right).relu() + 1.0, target_of) == 0


def test_smaller_right_factor_is_copied_where_its_columns_are_not_contiguous() -> None:
    assert copies(memory(64, 256) @ memory(256, 320)) == 0
    assert copies(memory(64, 256) @ memory(320, 256).T) == 1


def test_columns_that_are_no_whole_strips_are_padded() -> None:
    assert copies(memory(64, 333) @ memory(333, 1021)) == 1
    assert copies(memory(70, 333) @ memory(555, 333).T) == 1
    assert copies(memory(64, 9000) @ memory(9000, 17)) == 1
    assert copies(memory(64, 9000) @ memory(9000, 15)) == 0


@pytest.mark.slow
def test_transposed_left_factor_is_copied_where_it_is_large_too() -> None:
    assert copies(memory(256, 1024).T @ memory(256, 1024)) == 2
    assert copies(memory(256, 64).T @ memory(256, 1024)) == 1


def test_computed_left_factor_in_the_order_of_memory_is_not_copied() -> None:
    """The gradient of `h` in `h @ w.T`: the gradient of the product is stored once, for both factors' gradients."""
    h, w, g = memory(128, 256), memory(4096, 256), memory(128, 4096)
    (grad,) = (h @ w.T).gradient(h, gradient=g * 2.0)
    assert copies(grad) == 1


def test_leading_axes_of_the_left_factor() -> None:
    assert copies(memory(2, 40, 256) @ memory(256, 1024)) == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((63, 256), (256, 1024)),  # too few rows
        ((64, 9000), (9000, 15)),  # narrower than a strip
        ((64, 64), (64, 64)),  # fits a near cache
        ((3, 64, 256), (3, 256, 1024)),  # every product has a right factor of its own
        ((256,), (256, 1024)),  # a vector
    ],
)
def test_others_are_left_alone(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert copies(memory(*left) @ memory(*right)) == 0


def test_other_types_are_left_alone() -> None:
    assert copies(memory(64, 256).cast("int32") @ memory(256, 1024).cast("int32")) == 0


def test_border_is_not_seen() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((65, 130), (2051, 130)))
    product = Tensor(x) @ Tensor(w).T
    np.testing.assert_allclose((product + 1).numpy(), x @ w.T + 1, atol=1e-4)
    np.testing.assert_allclose(product.sum(1).numpy(), (x @ w.T).sum(1), atol=1e-3)


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_products_on_the_device(transposed: tuple[bool, bool]) -> None:
    generator = np.random.default_rng(0)
    a = generator.standard_normal((512, 1024)).astype(np.float32)
    b = generator.standard_normal((1024, 640)).astype(np.float32)
    left = Tensor(np.ascontiguousarray(a.T)).T if transposed[0] else Tensor(a)
    right = Tensor(np.ascontiguousarray(b.T)).T if transposed[1] else Tensor(b)
    np.testing.assert_allclose((left @ right).relu().numpy(), np.maximum(a @ b, 0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "left", "right", "expected"),
    [
        ((4, 64), 128, 1024, 1),  # the right factor in strips
        pytest.param((8, 128), 1024, 1024, 2, marks=pytest.mark.slow),  # the left one is large too
        ((4, 64), 1024, 1000, 2),  # no whole strips
        ((4, 16), 128, 64, 0),  # small
    ],
)
def test_gradient_of_a_weight(rows: tuple[int, ...], left: int, right: int, expected: int) -> None:
    x, g = memory(*rows, left), memory(*rows, right)
    axes = tuple(range(len(rows)))
    assert copies((x.unsqueeze(-1) * g.unsqueeze(-2)).sum(axes)) == expected


def test_sum_of_products_is_laid_out_product_by_product() -> None:
    a, b = memory(64, 256), memory(256, 1024)
    c, d = memory(64, 256), memory(256, 1024)

    def factors(x: Tensor, w: Tensor) -> Tensor:
        return x.unsqueeze(1) * w.T.unsqueeze(0)

    assert copies((factors(a, b) + factors(c, d)).sum(-1)) == 2
