"""Windows joined to rows of the image: which ranges become one, what lanes load then, and that values stay right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradlet import Tensor
from gradlet.base.settings import scope
from gradlet.codegen.windows import join_windows
from gradlet.graph.node import toposort
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op
from gradlet.target.target import AVX2, AVX512, NEON, NVPTX, SSE, Target
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear

TARGETS = pytest.mark.parametrize(
    "target", [AVX2, *[pytest.param(t, marks=pytest.mark.slow) for t in (AVX512, SSE, NEON)]], ids=lambda t: t.name
)
SHAPES = [(4, 4, 2, 2), (10, 10, 2, 2), (3, 3, 2, 2), (2, 2, 2, 2), (5, 2, 1, 4), (7, 3, 3, 3), (3, 1, 2, 2)]


def spread(windows: tuple[int, int, int, int], total: bool, images: int = 3) -> kernels.Kernel:
    """Each window's value times the image, or the sum of that for every image."""
    rows, columns, high, wide = windows
    height, width = rows * high, columns * wide
    b = kernels.Builder()
    kind = AxisKind.REDUCE if total else AxisKind.LOOP
    out = b.param(0, images if total else images * height * width)
    x, pooled, mask = b.param(1, images * height * width), b.param(2, images * rows * columns), b.param(3, high * wide)
    n = b.range(images)
    r, a, c, w = [b.range(size, kind) for size in (rows, high, columns, wide)]
    pixel = n * (height * width) + (r * high + a) * width + c * wide + w
    value = b.load(x, pixel) * b.load(pooled, n * (rows * columns) + r * columns + c) * b.load(mask, a * wide + w)
    if total:
        b.store(out, n, b.reduce(Op.ADD, value, r, a, c, w))
    else:
        b.store(out, pixel, value)
    image, few, tap = (
        kernels.random(images, height, width),
        kernels.random(images, rows, columns),
        kernels.random(4 * 4),
    )
    tap = tap[: high * wide].reshape(high, wide)
    expected = image * few.repeat(high, 1).repeat(wide, 2) * np.tile(tap, (rows, columns))
    if total:
        expected = expected.sum((1, 2))
    return kernels.Kernel(b.sink("spread"), [kernels.empty(expected.size), image, few, tap], {0: expected})


def sizes(kernel: kernels.Kernel, target: Target) -> list[int]:
    found = [n for n in toposort((join_windows(kernel.sink, target),)) if n.op is Op.RANGE]
    return sorted(int(n.src[0].arg) for n in found)


def gathered(program: LinearProgram) -> int:
    return sum(n.op is Op.LOAD and n.dtype.count == 1 for n in program.uops)


@TARGETS
@pytest.mark.parametrize("total", [False, True], ids=["image", "sum"])
@pytest.mark.parametrize("windows", SHAPES, ids=str)
def test_values(windows: tuple[int, int, int, int], total: bool, target: Target) -> None:
    kernel = spread(windows, total)
    check_kernel(kernel, join_windows(kernel.sink, target))
    check_linear(kernel, target)


@pytest.mark.parametrize("total", [False, True], ids=["image", "sum"])
@pytest.mark.parametrize("windows", [(4, 4, 2, 2), (2, 2, 2, 2), (3, 3, 2, 2)], ids=str)
def test_small_images_are_read_in_whole_vectors(windows: tuple[int, int, int, int], total: bool) -> None:
    assert gathered(check_linear(spread(windows, total), AVX2)) == 0


def test_ranges() -> None:
    assert sizes(spread((4, 4, 2, 2), False), AVX2) == [192]  # rows of one vector, images one after another
    assert sizes(spread((3, 3, 2, 2), False), AVX2) == [3, 36]  # few enough to be written out
    assert sizes(spread((10, 10, 2, 2), False), AVX2) == [2, 3, 10, 20]  # a vector would end in the middle of a row
    assert sizes(spread((8, 8, 2, 2), True), AVX512) == [3, 256]
    assert sizes(spread((40, 40, 3, 3), False), AVX2) == [3, 3, 3, 40, 40]  # every vector begins elsewhere in a window
    assert sizes(spread((4, 4, 2, 2), False), NVPTX) == [2, 2, 3, 4, 4]


def test_sums_in_order_keep_their_loops() -> None:
    with scope(STRICT_FLOAT=1):
        assert sizes(spread((4, 4, 2, 2), True), AVX2) == [2, 2, 3, 4, 4]


def test_channels_shuffled_to_pixels_keep_their_loops() -> None:
    """Each place in the window has an image of its own, far away."""
    b = kernels.Builder()
    out, x = b.param(0, 64), b.param(1, 64)
    r, a, c, w = [b.range(size) for size in (4, 2, 4, 2)]
    b.store(out, (r * 2 + a) * 8 + c * 2 + w, b.load(x, (a * 2 + w) * 16 + r * 4 + c))
    assert join_windows(b.sink("shuffled"), AVX2) is b.sink("shuffled")


@pytest.mark.slow
@pytest.mark.parametrize("strict", [0, 1])
@pytest.mark.parametrize(
    ("shape", "window", "stride"),
    [((3, 5, 8, 8), 2, 2), ((5, 3, 6, 6), 2, 2), ((2, 4, 20, 20), 2, 2), ((2, 3, 7, 9), 2, 2), ((2, 3, 9, 9), 3, 3),
     ((2, 2, 9, 8), 3, 2), ((1, 1, 2, 2), 2, 2)],
    ids=str,
)  # fmt: skip
def test_gradients_through_pooling_and_batch_norm(
    shape: tuple[int, ...], window: int, stride: int, strict: int
) -> None:
    rng = np.random.default_rng(7)
    data, scale = rng.standard_normal(shape).astype(np.float32), rng.random(shape[1]).astype(np.float32)
    for pool in ("max_pool2d", "avg_pool2d"):
        x, s = torch.tensor(data, requires_grad=True), torch.tensor(scale, requires_grad=True)
        normal = (x - x.mean((0, 2, 3), keepdim=True)) * s[:, None, None]
        pooled = getattr(torch.nn.functional, pool)(normal.relu(), window, stride)
        (pooled * pooled).sum().backward()
        with scope(STRICT_FLOAT=strict):
            y, t = Tensor(data), Tensor(scale)
            mine = (y - y.mean((0, 2, 3), keepdim=True)) * t[:, None, None]
            kept = getattr(mine.relu(), pool)((window, window), stride)
            (kept * kept).sum().backward()
            np.testing.assert_allclose(y.grad.numpy(), x.grad.numpy(), rtol=2e-4, atol=2e-4)  # type: ignore[union-attr]
            np.testing.assert_allclose(t.grad.numpy(), s.grad.numpy(), rtol=2e-4, atol=2e-4)  # type: ignore[union-attr]
