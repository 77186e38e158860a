"""Narrow factors of products are converted where there are fewest, and stored where a product uses them often."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.rules.sets import simplify
from gradlet.schedule.context import sink
from gradlet.schedule.widen import convert_before_repeating, convert_once, is_conversion
from tests.schedule.helpers import target_of


def stored(value: Tensor) -> list[tuple[int, ...]]:
    """Shapes of the conversions that are stored."""
    node: UOp = simplify(value.uop)
    changed = convert_once(convert_before_repeating(sink([node])), target_of, "CPU").src[0]
    assert changed.shape == node.shape
    found = [n.src[0] for n in toposort((changed,)) if n.op is Op.CONTIGUOUS]
    assert all(is_conversion(n) for n in found)
    return [n.shape for n in found]


def memory(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor.empty(*shape, dtype=dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_factors_of_a_matrix_product_are_stored(dtype: str) -> None:
    assert len(stored(memory(128, 64, dtype=dtype) @ memory(64, 128, dtype=dtype))) == 2
    assert len(stored(memory(128, 64, dtype=dtype) @ memory(128, 64, dtype=dtype).T)) == 2


def test_one_narrow_factor_of_two() -> None:
    assert len(stored(memory(128, 64).cast("float32") @ memory(64, 128, dtype="float32"))) == 1


def test_few_uses_are_converted_in_the_loop() -> None:
    assert stored(memory(1024, 1024) @ memory(1024)) == []
    assert len(stored(memory(8, 1024) @ memory(1024, 1024))) == 1
    assert stored(memory(16, 16) @ memory(16, 16)) == []


def test_padded_images_are_stored_without_their_border() -> None:
    shapes = stored(memory(2, 16, 20, 20).conv2d(memory(32, 16, 3, 3), padding=1))
    assert sorted(map(np.prod, shapes)) == [32 * 16 * 9, 2 * 16 * 400]


def test_wide_factors_and_elementwise_products_stay() -> None:
    assert stored(memory(128, 64, dtype="float32") @ memory(64, 128, dtype="float32")) == []
    assert stored((memory(512, 1024) * memory(512, 1024)).sum()) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("m", "k", "n"), [(70, 65, 90), (128, 256, 130), (5, 300, 400), (1, 700, 513)])
@pytest.mark.parametrize("transposed", [False, True])
def test_values(dtype: str, m: int, k: int, n: int, transposed: bool) -> None:
    """Against float64 on the rounded factors: sums are in float32 and rounded once."""
    r = np.random.default_rng(m * k * n)
    x = Tensor(r.standard_normal((m, k)).astype(np.float32)).cast(dtype).realize()
    w = Tensor(r.standard_normal((n, k) if transposed else (k, n)).astype(np.float32)).cast(dtype).realize()
    got = (x @ (w.T if transposed else w)).cast("float32").numpy()
    one, other = (t.cast("float32").numpy().astype(np.float64) for t in (x, w))
    wanted = one @ (other.T if transposed else other)
    exact = (x.cast("float32") @ (w.T if transposed else w).cast("float32")).numpy()
    np.testing.assert_allclose(exact, wanted, rtol=0, atol=1e-5 * k)
    digits = 8 if dtype == "bfloat16" else 11
    np.testing.assert_allclose(got, wanted, rtol=2.0**-digits * 1.01, atol=1e-5 * k)
