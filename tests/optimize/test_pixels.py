"""Tiles of pixels and channels: which range gives the rows, how evenly it is cut, where strips of channels stand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gradlet import Tensor
from gradlet.codegen.pipeline import lower, schedulable
from gradlet.device.common.llvm import emit_assembly
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import KernelArg, Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize import heuristic
from gradlet.optimize.analysis import KernelFacts
from gradlet.render.llvmir import render
from gradlet.schedule.create import create_schedule
from gradlet.schedule.pipeline import KernelCall
from gradlet.target.target import AVX2, AVX512, Target


def product(image: tuple[int, ...], weight: tuple[int, ...], target: Target, **options: int) -> UOp:
    """The kernel of a convolution that multiplies, as its schedule finds it."""
    result = Tensor.empty(*image).conv2d(Tensor.empty(*weight), **options)
    for call in create_schedule([result.uop], lambda device: target).calls:
        if isinstance(call, KernelCall):
            for n in toposort((call.ast,)):
                if n.op is Op.SINK and any(r.op is Op.REDUCE for r in toposort((n,))) and n.src[0].op is Op.STORE:
                    return schedulable(n, target)
    raise AssertionError("nothing is multiplied")


TWO = {"padding": 1, "stride": 2}


def tile(opts: tuple[Opt, ...]) -> list[tuple[int, Tail]]:
    return [(o.amount, o.tail) for o in opts if o.kind is OptKind.UNROLL]


@pytest.mark.parametrize(
    ("image", "weight", "rows"),
    [
        ((1, 64, 56, 56), (64, 64, 3, 3), (6, Tail.BALANCE)),
        ((1, 64, 30, 30), (64, 64, 3, 3), (6, Tail.EXACT)),
        ((1, 64, 14, 14), (64, 64, 3, 3), (5, Tail.BALANCE)),
        ((2, 64, 9, 601), (64, 64, 3, 3), (6, Tail.SHIFT)),  # long rows: threads may share them
        ((8, 64, 7, 7), (64, 64, 3, 3), (4, Tail.EXACT)),  # images, of which there are 8, and not columns, 7
        ((3, 64, 11, 11), (64, 64, 3, 3), (6, Tail.SHIFT)),  # two blocks that differ would be in registers at once
    ],
)
def test_rows_fill_the_tile(image: tuple[int, ...], weight: tuple[int, ...], rows: tuple[int, Tail]) -> None:
    kernel = product(image, weight, AVX2, padding=1)
    opts = heuristic.choose(kernel, AVX2)
    assert tile(opts) == [(2, Tail.EXACT), rows]


@pytest.mark.parametrize(
    ("target", "rows"), [(AVX2, [(2, Tail.EXACT), (6, Tail.BALANCE)]), (AVX512, [(4, Tail.EXACT), (6, Tail.BALANCE)])]
)
def test_tile_stays_in_registers(target: Target, rows: list[tuple[int, Tail]]) -> None:
    """Sums are never put into memory and back inside of the loops: no vector is stored but results."""
    kernel = product((1, 64, 8, 56), (64, 64, 3, 3), target, padding=1)
    opts = heuristic.choose(kernel, target)
    assert tile(opts) == rows
    program = lower(kernel.replace(arg=KernelArg("product", opts)), target)
    text = emit_assembly(render(program, target), target)
    wide = "%zmm" if target is AVX512 else "%ymm"
    spilled = [line for line in text.splitlines() if wide in line and "(%rsp)" in line]
    assert not spilled


def test_both_blocks_walk_the_sum_in_the_order_of_memory() -> None:
    """The run of taps and channels is the innermost loop, of 3 * 64 iterations, in blocks of 6 and of 5 pixels."""
    kernel = product((1, 64, 8, 56), (64, 64, 3, 3), AVX2, padding=1)
    program = lower(kernel.replace(arg=KernelArg("product", heuristic.choose(kernel, AVX2))), AVX2)
    loops = [n for n in program.uops if n.op in (Op.RANGE, Op.END)]
    inner = [int(a.src[0].arg) for a, b in itertools.pairwise(loops) if a.op is Op.RANGE and b.op is Op.END]
    assert inner == [192, 192]


def nesting(image: tuple[int, ...], weight: tuple[int, ...]) -> list[int]:
    """The sizes of the output loops, outermost first, before they are cut."""
    kernel = product(image, weight, AVX2, padding=1)
    opts = heuristic.choose(kernel, AVX2, parallel=False)
    order = list(KernelFacts(kernel).loops)
    for opt in opts:
        if opt.kind is OptKind.REORDER:
            order.insert(opt.amount, order.pop(opt.axis))
    return [int(r.src[0].arg) for r in order if r in KernelFacts(kernel).ranges[KernelFacts(kernel).stores[0]]]


def test_strips_stand_where_the_factors_are_read_least() -> None:
    few = nesting((8, 64, 56, 56), (64, 64, 3, 3))  # all weights stay in the second cache
    assert few.index(4) == 2
    many = nesting((2, 128, 28, 28), (128, 128, 3, 3))  # they do not, nor does an image beside some of them
    assert many.index(8) == 0


@pytest.mark.parametrize(
    ("image", "weight", "rows"),
    [
        ((8, 256, 14, 14), (512, 256, 3, 3), [2, 7]),  # half a strip: no pixel of the seven is computed twice
        ((8, 16, 14, 14), (512, 16, 3, 3), [4, 4, 3]),  # few weights, which stay in the nearest cache
        ((8, 256, 28, 28), (512, 256, 3, 3), [4, 5]),  # fourteen pixels make blocks of 5 and 4
    ],
)
def test_tiles_take_a_part_of_a_strip_where_pixels_would_be_computed_twice(
    image: tuple[int, ...], weight: tuple[int, ...], rows: list[int]
) -> None:
    opts = heuristic.choose(product(image, weight, AVX512, padding=1, stride=2), AVX512)
    assert [amount for amount, _ in tile(opts)] == rows


@pytest.mark.parametrize("channels", [256, 320])
def test_cores_share_strips_where_weights_are_more_than_the_image(channels: int) -> None:
    kernel = product((1, channels, 14, 14), (256, channels, 3, 3), AVX512, padding=1)
    opts = heuristic.choose(kernel, AVX512)
    order = list(KernelFacts(kernel).loops)
    for opt in opts:
        if opt.kind is OptKind.REORDER:
            order.insert(opt.amount, order.pop(opt.axis))
    (shared,) = [int(order[opt.axis].src[0].arg) for opt in opts if opt.kind is OptKind.PARALLEL]
    assert shared == 4  # strips of 64


@pytest.mark.parametrize(("channels", "asks"), [(512, [48]), (128, [])])
def test_weights_that_come_from_memory_are_asked_for_ahead(channels: int, asks: list[int]) -> None:
    """9.4 and 0.6 MB beside a last cache of 16: 48 iterations of 32 channels each."""
    opts = heuristic.choose(product((8, channels, 14, 14), (channels, channels, 3, 3), AVX512, **TWO), AVX512)
    assert [opt.amount for opt in opts if opt.kind is OptKind.PREFETCH] == asks


@pytest.mark.parametrize(("shape", "channels"), [((1, 96, 7, 7), 128), ((2, 80, 13, 7), 192)])
def test_parts_of_strips(shape: tuple[int, ...], channels: int) -> None:
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((channels, shape[1], 3, 3)).astype(np.float32)
    got = Tensor(x).conv2d(Tensor(w), padding=1).relu().numpy()
    wanted = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).relu().numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-3)


@pytest.mark.parametrize("shape", [(3, 24, 9, 17), (1, 16, 23, 5), (5, 16, 7, 7), (2, 16, 1, 40)])
@pytest.mark.parametrize("stride", [1, 2])
def test_odd_sizes(shape: tuple[int, ...], stride: int) -> None:
    rng = np.random.default_rng(sum(shape))
    x, w = rng.standard_normal(shape).astype(np.float32), rng.standard_normal((48, shape[1], 3, 3)).astype(np.float32)
    got = Tensor(x).conv2d(Tensor(w), padding=1, stride=stride).numpy()
    wanted = torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1, stride=stride).numpy()
    np.testing.assert_allclose(got, wanted, atol=2e-4)


def gradient(image: tuple[int, ...], weight: tuple[int, ...], target: Target) -> list[tuple[Opt, ...]]:
    """The opts of the products in the gradient of a convolution's weight."""
    x, w = Tensor.empty(*image), Tensor.empty(*weight)
    (x.conv2d(w) * Tensor.empty(*x.conv2d(w).shape)).sum().backward()
    assert w.grad is not None
    found = []
    for call in w.grad.schedule().calls:
        for n in toposort((call.ast,)) if isinstance(call, KernelCall) else ():
            if n.op is Op.SINK and n.src[0].op is Op.STORE:
                kernel = schedulable(n, target)
                if any(r.op is Op.REDUCE and r.src[0].op is Op.MUL for r in toposort((kernel,))):
                    found.append(heuristic.choose(kernel, target))
    return found


@pytest.mark.parametrize(("taps", "rows"), [(5, [5]), (3, [3, 2])])
def test_all_taps_of_a_row_are_rows_of_the_tile(taps: int, rows: list[int]) -> None:
    """The gradient of the weight: taps read the same lines of the image; channels fill what is left of the tile."""
    (opts,) = gradient((16, 32, 20, 20), (32, 32, taps, taps), AVX2)
    assert [amount for amount, _ in tile(opts)] == [2, *rows]
