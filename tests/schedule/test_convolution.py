"""Images of convolutions are copied where that spares guards and gathers; values stay the same."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gradlet import Context, Tensor
from gradlet.codegen.divisions import cut_at_divisions
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.optimize.analysis import KernelFacts
from gradlet.rules.sets import simplify
from gradlet.schedule.context import sink
from gradlet.schedule.convolution import stage_convolutions
from gradlet.schedule.pipeline import KernelCall
from gradlet.schedule.pull import pull_sums
from tests.schedule.helpers import target_of


def copies(product: Tensor, settled: Collection[UOp] = ()) -> list[tuple[int, ...]]:
    """The shapes of the copies that a product reads, after checking that its value stays the same."""
    node: UOp = simplify(pull_sums(simplify(product.uop)))  # as the passes before have it
    changed = stage_convolutions(sink([node]), target_of, "CPU", settled=settled).src[0]
    assert changed.shape == node.shape
    buffers = {
        n: np.random.default_rng(n.arg.number).integers(-4, 5, n.arg.size).astype(np.float32)
        for n in toposort((node,))
        if n.op is Op.BUFFER
    }
    got, wanted = evaluate([changed, node], buffers)
    np.testing.assert_array_equal(got, wanted)
    return [n.shape for n in toposort((changed,)) if n.op is Op.CONTIGUOUS]


def memory(*shape: int) -> Tensor:
    return Tensor.empty(*shape)


def sorted_copies(product: Tensor, settled: Collection[UOp] = ()) -> list[tuple[int, ...]]:
    """Without the axes of one element, the smallest copy first."""
    return sorted([tuple([n for n in shape if n > 1]) for shape in copies(product, settled)], key=np.prod)


def test_padded_image_is_copied_with_its_zeros_and_its_channels_last() -> None:
    """Beside it the weights in strips of lanes, and the result with its channels last."""
    found = sorted_copies(memory(1, 4, 16, 16).conv2d(memory(64, 4, 3, 3), padding=1))
    assert found == [(18, 18, 4), (4, 3, 3, 4, 16), (16, 16, 64)]
    assert sorted_copies(memory(1, 4, 16, 16).conv2d(memory(10, 4, 3, 3), padding=1)) == [(18, 4, 18)]


def test_weights_that_are_used_a_few_times_stay_where_they_are() -> None:
    assert sorted_copies(memory(1, 4, 7, 7).conv2d(memory(64, 4, 3, 3), padding=1)) == [(4, 3, 9, 7)]
    assert len(sorted_copies(memory(8, 4, 7, 7).conv2d(memory(64, 4, 3, 3), padding=1))) == 3


def test_weights_that_stay_are_copied_however_seldom_they_are_used() -> None:
    image, weight = memory(1, 4, 7, 7), memory(64, 4, 3, 3)
    leaves = [[n for n in toposort((t.uop,)) if n.op is Op.BUFFER] for t in (image, weight)]
    product = image.conv2d(weight, padding=1)
    assert len(sorted_copies(product, leaves[1])) == 3
    assert sorted_copies(product, leaves[0]) == [(4, 3, 9, 7)]
    assert len(sorted_copies(image.conv2d(weight * 2, padding=1), leaves[1])) == 3
    assert sorted_copies(image.conv2d(weight * image.sum(), padding=1), leaves[1]) == [(4, 3, 9, 7)]


def test_order_of_sums_is_kept_where_it_has_to_be() -> None:
    with Context(STRICT_FLOAT=1):
        assert sorted_copies(memory(1, 4, 16, 16).conv2d(memory(64, 4, 3, 3), padding=1)) == [(18, 4, 18)]


def test_image_without_zeros_whose_rows_fill_the_lanes_is_read_in_place() -> None:
    assert copies(memory(1, 4, 18, 18).conv2d(memory(60, 4, 3, 3))) == []


def test_strided_image_is_copied_in_phases_where_pixels_are_lanes() -> None:
    assert copies(memory(1, 4, 32, 32).conv2d(memory(12, 4, 3, 3), stride=2, padding=1)) == [(1, 17, 4, 2, 2, 17)]
    found = sorted_copies(memory(1, 4, 32, 32).conv2d(memory(16, 4, 3, 3), stride=2, padding=1))
    assert found == [(3, 3, 4, 16), (16, 16, 16), (33, 33, 4)]


def test_only_pixels_that_are_read_are_copied_for_a_strided_point() -> None:
    assert [np.prod(s) for s in copies(memory(1, 8, 12, 12).conv2d(memory(64, 8, 1, 1), stride=2))] == [8 * 6 * 6]


def test_narrow_image_gets_a_plane_for_each_tap_of_its_rows() -> None:
    assert copies(memory(1, 4, 7, 7).conv2d(memory(256, 4, 3, 3), padding=1)) == [(1, 4, 1, 3, 9, 7)]


def test_windows_that_touch_are_copied_apart() -> None:
    assert copies(memory(2, 3, 16, 16).conv2d(memory(64, 3, 4, 4), stride=4)) == [(2, 3, 4, 4, 4, 4)]


def test_too_few_uses_do_not_pay_for_a_copy() -> None:
    assert copies(memory(1, 4, 16, 16).conv2d(memory(4, 1, 3, 3), padding=1, groups=4)) == []
    assert copies(memory(1, 8, 9, 9).conv2d(memory(2, 8, 1, 1), padding=1)) == []


def test_products_of_matrices_and_points_are_left_alone() -> None:
    assert copies(memory(8, 32, 64) @ memory(64, 128)) == []
    assert copies(memory(64, 32) @ memory(128, 32).T) == []
    assert copies(memory(2, 4, 32, 32) @ memory(2, 4, 32, 64)) == []
    assert copies(memory(2, 16, 8, 8).conv2d(memory(64, 16, 1, 1))) == []
    assert copies(memory(2, 64, 8, 8).conv2d(memory(16, 64, 1, 1))) == []


def test_gradient_of_the_image_is_a_staged_convolution_too() -> None:
    x, w, g = memory(1, 8, 16, 16), memory(32, 8, 3, 3), memory(1, 32, 16, 16)
    assert len(copies(x.conv2d(w, padding=1).gradient(x, gradient=g)[0])) == 3  # and its weights, and its sums


def test_gradient_of_the_weight_has_its_channels_side_by_side() -> None:
    """The image, read at any stride, gets its zeros and nothing else."""
    x, w, g = memory(2, 8, 17, 17), memory(32, 8, 3, 3), memory(2, 32, 9, 9)
    found = copies(x.conv2d(w, padding=1, stride=2).gradient(w, gradient=g)[0])
    assert sorted(np.prod(shape) for shape in found) == [2 * 32 * 9 * 9, 2 * 8 * 19 * 19]
    assert any(shape[-1] == 16 for shape in found)
    valid = copies(x.conv2d(w, stride=2).gradient(w, gradient=memory(2, 32, 8, 8))[0])
    assert len(valid) == 1


def test_sum_over_many_pixels_is_made_in_parts() -> None:
    x, w, g = memory(8, 4, 66, 66), memory(16, 4, 3, 3), memory(8, 16, 64, 64)
    (gradient,) = x.conv2d(w).gradient(w, gradient=g)
    assert len(copies(gradient)) == 1
    (product,) = contractions(gradient)
    parts, rest = divmod(product.src[0].src[0].src[0].arg.size, 16 * 4 * 3 * 3)
    assert parts > 1 and rest == 0  # how many, the lanes and the second cache of this machine say


def contractions(result: Tensor) -> Iterator[UOp]:
    """The kernels of a schedule that multiply and add."""
    for call in result.schedule().calls:
        if isinstance(call, KernelCall):
            bodies = [n for n in toposort((call.ast,)) if n.op is Op.SINK and n.src and n.src[0].op is Op.STORE]
            yield from [b for b in bodies if any(n.op is Op.REDUCE and n.src[0].op is Op.MUL for n in toposort((b,)))]


CLASSES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    ((1, 64, 56, 56), (128, 64, 3, 3), {"padding": 1, "stride": 2}),
    ((1, 3, 224, 224), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    ((1, 256, 14, 14), (256, 256, 3, 3), {"padding": 1}),
    ((1, 256, 14, 14), (512, 256, 1, 1), {"stride": 2}),
    ((2, 64, 28, 28), (64, 64, 3, 3), {"padding": 2, "dilation": 2}),
    ((1, 128, 56, 56), (256, 32, 3, 3), {"padding": 1, "groups": 4, "stride": 2}),
    ((1, 3, 224, 224), (96, 3, 4, 4), {"stride": 4}),
    ((1, 32, 3000), (64, 32, 3), {"padding": 1, "stride": 2}),
    ((1, 16, 8, 28, 28), (32, 16, 3, 3, 3), {"padding": 1, "stride": 2}),
]


@pytest.mark.parametrize(("image", "weight", "options"), CLASSES)
def test_inner_loops_have_no_guards_and_lanes_are_neighbours(
    image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    found = list(contractions(memory(*image).conv2d(memory(*weight), **options)))
    assert len(found) == 1
    facts = KernelFacts(cut_at_divisions(found[0]))  # what is kept in strips is read with a loop over strips
    pixels = facts.loops[max(i for i, r in enumerate(facts.loops) if r in facts.ranges[facts.stores[0]])]
    loads = [a for a in facts.accesses if not a.is_store]
    assert all(len(a.address.src) == 2 for a in loads)
    assert all(facts.stride(a, pixels) in (0, 1) for a in facts.accesses)


def check(image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any], dtype: str, seed: int) -> None:
    """Value and both gradients against torch in float64."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(image).astype(np.float32), rng.standard_normal(weight).astype(np.float32)
    ours = [Tensor(a).cast(dtype).realize() for a in (x, w)]
    theirs = [torch.tensor(t.cast("float64").numpy(), requires_grad=True) for t in ours]
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(image) - 2]
    wanted = convolve(*theirs, **options)
    g = rng.standard_normal(tuple(wanted.shape)).astype(np.float32)
    gradient = Tensor(g).cast(dtype).realize()
    got = ours[0].conv2d(ours[1], **options)
    wanted.backward(torch.tensor(gradient.cast("float64").numpy()))
    pairs = [(got, wanted.detach())]
    pairs += [(t, p.grad) for t, p in zip(got.gradient(*ours, gradient=gradient), theirs, strict=True)]
    tolerance = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    for one, other in pairs:
        scale = float(other.abs().max()) + 1e-9
        np.testing.assert_allclose(one.cast("float64").numpy() / scale, other.numpy() / scale, atol=tolerance)


def random_convolution(seed: int) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    spatial = int(rng.choice([1, 2, 2, 2, 3]))
    groups = int(rng.choice([1, 1, 2, 4]))
    inside, outside = groups * int(rng.integers(1, 5)), groups * int(rng.choice([1, 3, 8, 16, 17, 24]))
    kernel = tuple([int(k) for k in rng.integers(1, 5, spatial)])
    options: dict[str, Any] = {"groups": groups}
    for name, low, high in (("stride", 1, 4), ("dilation", 1, 3), ("padding", 0, 3)):
        options[name] = tuple([int(n) for n in rng.integers(low, high, spatial)])
    reach = [d * (k - 1) + 1 for d, k in zip(options["dilation"], kernel, strict=True)]
    most = {1: 90, 2: 16, 3: 6}[spatial]
    sizes = tuple([int(r + rng.integers(0, most)) for r in reach])
    return (int(rng.integers(1, 4)), inside, *sizes), (outside, inside // groups, *kernel), options


@pytest.mark.parametrize("seed", range(8))
def test_random_convolutions(seed: int) -> None:
    check(*random_convolution(seed), dtype=["float32", "float64", "float16", "bfloat16"][seed % 4], seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_more_random_convolutions(seed: int) -> None:
    check(*random_convolution(seed), dtype=["float32", "float64", "float16", "bfloat16"][seed % 4], seed=seed)
