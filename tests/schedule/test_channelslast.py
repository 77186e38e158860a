"""What is computed from a convolution is stored in its order of memory, in its kernel; values stay the same."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gradlet import Tensor
from gradlet.base.settings import scope
from gradlet.codegen.divisions import cut_at_divisions
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.optimize.analysis import KernelFacts
from gradlet.schedule.pipeline import KernelCall


def bodies(result: Tensor) -> list[UOp]:
    """The kernels of a schedule."""
    return [
        n
        for call in result.schedule().calls
        if isinstance(call, KernelCall)
        for n in toposort((call.ast,))
        if n.op is Op.SINK and n.src and n.src[0].op is Op.STORE
    ]


def products(result: Tensor) -> list[UOp]:
    return [b for b in bodies(result) if any(n.op is Op.REDUCE and n.src[0].op is Op.MUL for n in toposort((b,)))]


def image(channels: int = 16, size: int = 18, count: int = 2) -> Tensor:
    return Tensor.empty(count, channels, size, size)


def convolve(x: Tensor, out: int, **options: Any) -> Tensor:
    return x.conv2d(Tensor.empty(out, x.shape[1], 3, 3), Tensor.empty(out), padding=1, **options)


def test_bias_and_activation_are_computed_in_the_product_s_kernel() -> None:
    (product,) = products(convolve(image(), 32).relu())
    assert len(product.src) == 1
    assert any(n.op is Op.WHERE for n in toposort((product,)))
    assert len(bodies(convolve(image(), 32).relu())) == 3  # beside the copies of weights and image


def test_residual_blocks_stay_in_one_order() -> None:
    """Every kernel but the copy of the first image reads and writes neighbours along its innermost loop."""
    y = convolve(image(32), 32).relu()
    z = convolve(convolve(y, 32).relu(), 32) + y
    turned = 0
    for body in bodies(convolve(z.relu(), 32)):
        facts = KernelFacts(cut_at_divisions(body))
        inner = facts.loops[max(i for i, r in enumerate(facts.loops) if r in facts.ranges[facts.stores[0]])]
        assert all(facts.stride(a, inner) == 1 for a in facts.accesses if a.is_store)
        is_image = not any(n.op is Op.REDUCE for n in facts.order) and any(
            len(a.address.src) > 2 for a in facts.accesses
        )
        turned += is_image and any(facts.stride(a, inner) not in (0, 1) for a in facts.accesses)
    assert turned == 1


def test_pooling_keeps_the_order() -> None:
    y = convolve(image(), 32).relu().max_pool2d((3, 3), stride=2, padding=1)
    assert y.shape == (2, 32, 9, 9)
    pooled = [b for b in bodies(y) if any(n.op is Op.REDUCE and n.arg.op is Op.MAX for n in toposort((b,)))]
    (kernel,) = pooled
    shown = np.asarray(y.numpy())
    assert shown.shape == y.shape
    assert len(kernel.src) == 1


def test_pooling_reads_the_border_in_its_own_kernel() -> None:
    """Nothing turns, as the image has its channels last too: no copy with a border is made."""
    pooled = convolve(image(), 32).relu().max_pool2d(3, 2, padding=1)
    kernels = bodies(convolve(pooled, 32))
    (kernel,) = [b for b in kernels if any(n.op is Op.REDUCE and n.arg.op is Op.MAX for n in toposort((b,)))]
    facts = KernelFacts(cut_at_divisions(kernel))
    assert [len(a.address.src) for a in facts.accesses if not a.is_store] == [3]  # guarded
    assert len(kernels) == 2 * 3 + 1  # beside it the products, and copies of weights and images


def test_points_of_an_image_with_its_channels_last_are_read_in_place() -> None:
    """A product with one tap behind such an image copies weights and nothing else; so does one of every other pixel."""
    x = image(16)
    alone = len(bodies(convolve(x, 32).relu()))
    behind = convolve(x, 32).relu().conv2d(Tensor.empty(48, 32, 1, 1))
    assert len(bodies(behind)) == alone + 2
    assert all(len(product.src) == 1 for product in products(behind))


def test_values_that_others_need_are_stored_where_they_are_asked_for() -> None:
    """A sum that is used twice is no value in passing."""
    x = image()
    y = convolve(x, 32)
    both = [y.exp(), y + 1]
    shapes = [t.realize().shape for t in both]
    assert shapes == [(2, 32, 18, 18)] * 2


NETWORKS: dict[str, Callable[[Any, Any, list[Any]], Any]] = {
    "chain": lambda f, x, w: f.conv(f.relu(f.conv(x, w[0], w[1], 1)), w[2], w[3], 1),
    "residual": lambda f, x, w: (lambda y: f.relu(f.conv(f.relu(y), w[2], w[3], 1) + y))(f.conv(x, w[0], w[1], 1)),
    "strided": lambda f, x, w: f.relu(f.conv(f.relu(f.conv(x, w[0], w[1], 2)), w[2], w[3], 2)),
    "pooled": lambda f, x, w: f.conv(f.pool(f.relu(f.conv(x, w[0], w[1], 1))), w[2], w[3], 1),
    "bottleneck": lambda f, x, w: f.relu(f.conv(f.relu(f.conv(x, w[0], w[1], 1)), w[2][:, :, 1:2, 1:2], w[3], 2, 0)),
    "points": lambda f, x, w: f.conv(f.conv(x, w[0][:, :, :1, :1], w[1], 2, 0), w[2][:, :, :1, :1], w[3], 1, 0),
    "means": lambda f, x, w: f.conv(x, w[0], w[1], 1).mean((2, 3)),
    "normalised": lambda f, x, w: (lambda y: (y - y.mean((0, 2, 3))[:, None, None]) * 0.5)(f.conv(x, w[0], w[1], 1)),
    "image in the order it came": lambda f, x, w: f.conv(x, w[0], w[1], 1) * x + x,
    "twice": lambda f, x, w: (lambda y: y * f.relu(y) + f.conv(y, w[2], w[3], 1))(f.conv(x, w[0], w[1], 1)),
}  # fmt: skip


class _Ours:
    conv = staticmethod(lambda x, w, b, stride, padding=1: x.conv2d(w, b, stride=stride, padding=padding))
    relu = staticmethod(lambda x: x.relu())
    pool = staticmethod(lambda x: x.max_pool2d((3, 3), stride=2, padding=1))


class _Theirs:
    conv = staticmethod(lambda x, w, b, stride, padding=1: F.conv2d(x, w, b, stride=stride, padding=padding))
    relu = staticmethod(F.relu)
    pool = staticmethod(lambda x: F.max_pool2d(x, 3, 2, 1))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    rng = np.random.default_rng(len(name))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((16, 16, 3, 3), (16,), (16, 16, 3, 3), (16,))]
    x = rng.standard_normal((2, 16, 13, 15)).astype(np.float32)
    for array in arrays[::2]:
        array /= prod(array.shape[1:]) ** 0.5
    got = NETWORKS[name](_Ours, Tensor(x), [Tensor(a) for a in arrays]).numpy()
    wanted = NETWORKS[name](_Theirs, torch.from_numpy(x), [torch.from_numpy(a) for a in arrays]).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5)


def normalised(x: Tensor) -> Tensor:
    centred = x - x.mean((0, 2, 3), keepdim=True)
    return centred / ((centred * centred).mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()


def test_channels_that_are_summed_have_their_pixels_side_by_side() -> None:
    """Batch norm reads the convolution's result pixel by pixel: the copy back is no part of its kernels."""
    summing = [
        b for b in bodies(normalised(convolve(image(), 32)).relu())
        if any(n.op is Op.REDUCE and n.src[0].op is not Op.MUL for n in toposort((b,)))
    ]  # fmt: skip
    assert summing
    for body in summing:
        facts = KernelFacts(cut_at_divisions(body))
        along = {r for n in facts.reduces for r in n.src[1:]}
        loads = [a for a in facts.accesses if not a.is_store and a.ranges & along]
        assert loads
        assert all(any(facts.stride(a, r) == 1 for r in along) for a in loads)


def test_a_copy_for_the_next_convolution_is_apart_from_the_sums() -> None:
    """Its channels are innermost, those of the sums outermost: in one kernel it would be written element by element."""
    x = normalised(image(32, 8, 4))
    for body in bodies(x.conv2d(Tensor.empty(64, 32, 3, 3), padding=1)):
        order = toposort((body,))
        summed = any(n.op is Op.REDUCE and n.src[0].op is not Op.MUL for n in order)
        assert not (summed and len(body.src) > 3)
        facts = KernelFacts(cut_at_divisions(body))
        if summed:
            big = [a for a in facts.accesses if a.is_store and a.param.arg.size >= 4 * 32 * 100]
            assert not big


@pytest.mark.slow
@pytest.mark.parametrize("strict", [0, 1])
@pytest.mark.parametrize(
    ("count", "channels", "size", "taps"), [(5, (3, 16, 32), 12, 3), (4, (8, 24, 16), 11, 5), (3, (1, 16, 48), 9, 3)]
)
def test_training_gradients(count: int, channels: tuple[int, int, int], size: int, taps: int, strict: int) -> None:
    """Two convolutions with batch norm, relu and pooling between them: loss and all gradients against torch."""
    rng = np.random.default_rng(count)
    arrays = [rng.standard_normal((count, channels[0], size, size)).astype(np.float32)]
    arrays += [rng.standard_normal((o, i, taps, taps)).astype(np.float32) * 0.2 for i, o in zip(channels, channels[1:])]

    def loss(norm: Any, pool: Any, x: Any, first: Any, second: Any) -> Any:
        y = pool(norm(x.conv2d(first, padding=1) if isinstance(x, Tensor) else F.conv2d(x, first, padding=1)).relu())
        z = y.conv2d(second, padding=1) if isinstance(y, Tensor) else F.conv2d(y, second, padding=1)
        return (norm(z).relu() * z).sum()

    def norm(x: Any) -> Any:
        centred = x - x.mean((0, 2, 3), keepdim=True)
        return centred / ((centred * centred).mean((0, 2, 3), keepdim=True) + 1e-3).sqrt()

    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    wanted = loss(norm, lambda t: F.max_pool2d(t, 2), *theirs)
    wanted.backward()
    with scope(STRICT_FLOAT=strict):
        mine = [Tensor(a) for a in arrays]
        got = loss(norm, lambda t: t.max_pool2d((2, 2)), *mine)
        got.backward()
        np.testing.assert_allclose(got.item(), wanted.item(), rtol=1e-3)
        for one, other in zip(mine, theirs, strict=True):
            expected = other.grad.numpy()  # type: ignore[union-attr]
            np.testing.assert_allclose(one.grad.numpy(), expected, atol=2e-3 * np.abs(expected).max())
