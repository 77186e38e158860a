"""Affine maps of random chains of movement ops, against the evaluator."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxesArg, Op, PadArg, ShapeArg, ShrinkArg, StrideArg, WindowArg
from gradlet.schedule.affineviews import AffineView, affine_view
from gradlet.tensor.tensor import Tensor


def shown(view: AffineView, base: np.ndarray) -> np.ndarray:
    """The elements that the map says the view has."""
    result = np.zeros(view.shape, base.dtype)
    for index in product(*[range(size) for size in view.shape]):
        at = []
        for place, size in zip(view.places, base.shape, strict=True):
            where = place.offset + sum(step * index[axis] for axis, step in place.terms)
            low, high = place.inside if place.inside is not None else (0, size)
            at.append(where if max(low, 0) <= where < min(high, size) else None)
        result[index] = 0 if None in at else base[tuple(at)]
    return result


def random_step(rng: random.Random, node: UOp) -> UOp:
    shape = node.shape
    axis = rng.randrange(len(shape))
    kind = rng.choice(["permute", "pad", "shrink", "flip", "stride", "window", "unwindow", "split", "join", "expand"])
    if kind == "permute":
        return mk(Op.PERMUTE, node.dtype, (node,), AxesArg(tuple(rng.sample(range(len(shape)), len(shape)))))
    if kind == "pad":
        pads = [(rng.randrange(2), rng.randrange(2)) if a == axis else (0, 0) for a in range(len(shape))]
        return mk(Op.PAD, node.dtype, (node,), PadArg(tuple(pads)))
    if kind == "shrink" and shape[axis] > 1:
        low = rng.randrange(shape[axis] - 1)
        bounds = [(low, n) if a == axis else (0, n) for a, n in enumerate(shape)]
        return mk(Op.SHRINK, node.dtype, (node,), ShrinkArg(tuple(bounds)))
    if kind == "flip":
        return mk(Op.FLIP, node.dtype, (node,), AxesArg((axis,)))
    if kind == "stride":
        return mk(Op.STRIDE, node.dtype, (node,), StrideArg(tuple([2 if a == axis else 1 for a in range(len(shape))])))
    if kind in ("window", "unwindow") and len(shape) < 6:
        taps, step, spread = rng.randrange(1, 3), rng.randrange(1, 3), rng.randrange(1, 3)
        reach = spread * (taps - 1)
        wide = mk(Op.RESHAPE, node.dtype, (node,), ShapeArg((*shape, 1)))
        wide = mk(Op.EXPAND, node.dtype, (wide,), ShapeArg((*shape, taps))) if taps > 1 else wide
        if kind == "unwindow":
            size = (shape[axis] - 1) * step + reach + 1
            return mk(Op.UNWINDOW, node.dtype, (wide,), WindowArg(axis, len(shape), step, spread, size))
        if shape[axis] > reach:
            size = (shape[axis] - reach - 1) // step + 1
            return mk(Op.WINDOW, node.dtype, (wide,), WindowArg(axis, len(shape), step, spread, size))
    if kind == "split" and shape[axis] % 2 == 0:
        new = (*shape[:axis], shape[axis] // 2, 2, *shape[axis + 1 :])
        return mk(Op.RESHAPE, node.dtype, (node,), ShapeArg(new))
    if kind == "join" and axis + 1 < len(shape):
        new = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        return mk(Op.RESHAPE, node.dtype, (node,), ShapeArg(new))
    if kind == "expand":
        wide = mk(Op.RESHAPE, node.dtype, (node,), ShapeArg((*shape[:axis], 1, *shape[axis:])))
        return mk(Op.EXPAND, node.dtype, (wide,), ShapeArg((*shape[:axis], 2, *shape[axis:])))
    return node


@pytest.mark.parametrize("seed", range(60))
def test_random_chains(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice([(4, 3), (2, 6), (2, 3, 4), (8,)])
    node = Tensor.empty(int(np.prod(sizes))).uop
    buffer = node
    node = mk(Op.RESHAPE, node.dtype, (node,), ShapeArg(sizes)) if len(sizes) > 1 else node
    for _ in range(rng.randrange(1, 7)):
        if np.prod(node.shape) < 2000:
            node = random_step(rng, node)
    data = np.arange(1, 1 + np.prod(sizes), dtype=np.float32)
    for most in (1, 2, 9):
        view = affine_view(node, most)
        wanted, base = evaluate([node, view.base], {buffer: data})
        np.testing.assert_array_equal(shown(view, base), wanted)


def test_windows_of_a_padded_image_reach_the_image() -> None:
    image = Tensor.empty(2, 6, 9, 9).uop
    windows = Tensor.of_node(image).pad(((0, 0), (0, 0), (1, 1), (1, 1))).windows((3, 3), (2, 2), (1, 1))
    view = affine_view(windows.uop)
    assert view.base is image
    assert view.places[2] == (((2, 2), (4, 1)), -1, (0, 9))
