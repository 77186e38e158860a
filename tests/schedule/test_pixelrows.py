"""Convolutions for matrix units: all their products are on units, in one order of memory, and stay the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradlet import Tensor, dtypes
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import lower
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.ops.opt import OptKind
from gradlet.rules.sets import simplify
from gradlet.schedule import pixelrows
from gradlet.schedule.context import sink
from gradlet.schedule.pixelrows import keep_pixels_as_rows
from gradlet.schedule.pull import pull_sums
from gradlet.target.target import AVX2, SM_80, SM_90
from tests.schedule.helpers import contents

DEVICE = "NULL:sm_90"


def narrow(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=dtypes.bfloat16, device=DEVICE)


def normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Batch norm in training, in float32."""
    y = x.cast(dtypes.float32)
    mean = y.mean((0, 2, 3))
    deviation = (y - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3)) + 1e-5
    return y.batchnorm(scale, shift, mean, deviation.rsqrt()).cast(x.dtype)


def block(images: int, inputs: int, channels: int, side: int, stride: int) -> list[Tensor]:
    """A residual block with a shortcut of its own, and the gradients of the image and of all weights."""
    weights: list[Tensor] = []

    def convolve(x: Tensor, results: int, window: int, step: int = 1) -> Tensor:
        shape = (results, x.shape[1], window, window)
        own = [Tensor.empty(*shape, device=DEVICE), *[Tensor.empty(results, device=DEVICE) for _ in range(2)]]
        weights.extend(own)
        return normed(x.conv2d(own[0].cast(x.dtype), stride=step, padding=window // 2), own[1], own[2])

    x = narrow(images, inputs, side, side)
    y = convolve(convolve(x, channels, 1).relu(), channels, 3, stride).relu()
    result = (convolve(y, 4 * channels, 1) + convolve(x, 4 * channels, 1, stride)).relu()
    return [result, *(result * narrow(*result.shape)).sum().gradient(x, *weights)]


def programs(results: list[Tensor]) -> list:
    return [lower(call.ast, SM_90) for call in results[0].schedule(*results[1:]).calls]


def on_units(program) -> bool:
    return any(opt.kind is OptKind.TENSORIZE for opt in program.opts)


@pytest.mark.parametrize(
    ("images", "inputs", "channels", "side", "stride"),
    [(64, 64, 64, 56, 1), (64, 256, 128, 28, 2), (32, 1024, 256, 14, 1), (32, 512, 512, 7, 1), (20, 96, 80, 13, 2)],
)
def test_all_products_of_a_block_and_its_gradients_are_on_matrix_units(images, inputs, channels, side, stride):
    found = programs(block(images, inputs, channels, side, stride))
    assert sum(map(on_units, found)) == 4 * 3
    others = [p for p in found if not on_units(p)]
    elements = images * 4 * channels * side * side
    assert all(p.flops < 300 * elements for p in others), "a product is left to lanes"
    assert all(p.grid >= SM_90.cores // 4 for p in others if p.bytes > 1 << 24), "multiprocessors are idle"


def test_an_image_of_three_channels_is_copied_with_its_windows():
    x, w = narrow(16, 3, 64, 64), narrow(64, 3, 7, 7)
    y = x.conv2d(w, stride=2, padding=3)
    found = programs([y, *(y.cast(dtypes.float32).square()).sum().gradient(w)])
    assert sum(map(on_units, found)) == 2


def test_results_have_their_channels_last():
    x, w = narrow(8, 64, 28, 28), narrow(96, 64, 3, 3)
    y = x.conv2d(w, padding=1)
    plan = (y.relu() * 2).schedule()
    (result,) = [r for r in plan.results.values() if r.shape == (8, 96, 28, 28)]
    assert result.op is Op.PERMUTE and result.arg.axes == (0, 3, 1, 2)


def test_elementwise_work_reads_float16_not_its_conversion():
    found = block(64, 256, 64, 56, 1)[0].schedule()
    large = [b for call in found.calls for b in call.buffers if b.arg.size >= 64 * 56 * 56 * 64]
    assert large and all(b.dtype is dtypes.bfloat16 for b in large)


def bits(values: np.ndarray) -> np.ndarray:
    """Float32 as bfloat16, cut off."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widened(raw: np.ndarray) -> np.ndarray:
    """What is stored of a tensor, as numbers."""
    return (raw.astype(np.uint32) << 16).view(np.float32) if raw.dtype == np.uint16 else raw


def as_nodes(results: list[Tensor]) -> list[UOp]:
    return [simplify(pull_sums(sink([simplify(r.uop)])).src[0]) for r in results]


CASES = [
    (2, 5, 8, 6, 7, 3, 1, 1),
    (3, 4, 6, 9, 8, 3, 2, 1),
    (2, 8, 3, 5, 5, 1, 1, 0),
    (2, 6, 4, 8, 8, 1, 2, 0),
    (1, 3, 5, 11, 9, 5, 2, 2),
]


@pytest.mark.parametrize(("images", "inputs", "results", "rows", "columns", "window", "stride", "padding"), CASES)
@pytest.mark.parametrize("channels", [1, 32])
def test_a_convolution_and_its_gradients_are_those_of_torch(
    images, inputs, results, rows, columns, window, stride, padding, channels, monkeypatch
):
    monkeypatch.setattr(pixelrows, "MIN_WORK", 0)
    monkeypatch.setattr(pixelrows, "MIN_CHANNELS", channels)
    x, w, after = (
        narrow(images, inputs, rows, columns),
        narrow(results, inputs, window, window),
        narrow(3, results, 3, 3),
    )
    y = x.conv2d(w, stride=stride, padding=padding).relu()
    z = y.conv2d(after, padding=1).cast(dtypes.float32)  # a convolution with windows, so that those without count
    factor = Tensor.empty(*z.shape, device=DEVICE)
    wanted = [z, *(z * factor).sum().gradient(x, w, after)]
    nodes = as_nodes(wanted)
    rng = np.random.default_rng(3)
    arrays = {
        node: bits(rng.standard_normal(node.arg.size)) if node.dtype is dtypes.bfloat16 else array
        for node, array in contents(nodes).items()
    }
    changed = keep_pixels_as_rows(sink(nodes), lambda _: SM_90, DEVICE)
    assert changed is not sink(nodes) and [n.shape for n in changed.src] == [n.shape for n in nodes]
    found = evaluate(changed.src, arrays)
    buffers = {t: arrays[next(n for n in toposort((t.uop,)) if n.op is Op.BUFFER)] for t in (x, w, after, factor)}

    def of(t: Tensor) -> torch.Tensor:
        values = widened(buffers[t]).astype(np.float64).reshape(t.shape)
        return torch.tensor(values, requires_grad=True)

    tx, tw, ta, tf = map(of, (x, w, after, factor))
    ty = torch.nn.functional.conv2d(tx, tw, stride=stride, padding=padding).relu()
    tz = torch.nn.functional.conv2d(ty, ta, padding=1)
    (tz * tf).sum().backward()
    for have, want in zip(found, (tz, tx.grad, tw.grad, ta.grad), strict=True):
        want = want.detach().numpy()
        assert np.sqrt(np.square(widened(have) - want).mean()) < 0.02 * np.sqrt(np.square(want).mean()) + 1e-6


@pytest.mark.parametrize("target", [AVX2, SM_80])
def test_machines_without_a_copy_engine_keep_their_graph(target):
    y = narrow(8, 64, 28, 28).conv2d(narrow(64, 64, 3, 3), padding=1)
    node = sink([simplify(y.uop)])
    assert keep_pixels_as_rows(node, lambda _: target, DEVICE) is node


def test_sums_that_must_keep_their_order_and_networks_without_windows_are_left_alone():
    y = sink([simplify(narrow(8, 64, 28, 28).conv2d(narrow(64, 64, 3, 3), padding=1).uop)])
    with scope(STRICT_FLOAT=1):
        assert keep_pixels_as_rows(y, lambda _: SM_90, DEVICE) is y
    z = sink([simplify((narrow(4, 256, 512) @ narrow(512, 384)).uop)])
    assert keep_pixels_as_rows(z, lambda _: SM_90, DEVICE) is z
