"""Factors of large products on matrix units that do not lie as these read them are copied once to where they do.

A copy engine brings parts of rows of 128 bytes. Where rows of memory begin at multiples of that each part is one line;
elsewhere each part is two, and the engine takes a fifth longer for the whole product (measured on an H200: products of
5000 by 5000 at 517 TFLOP/s, at 631 with rows of 5056). Rows that do not even begin at multiples of 16 bytes it cannot
bring at all. So a factor that is used often enough is copied once, into rows that are a little longer. Factors of
8 and of 32 bits have to lie along the sum, whatever brings them: others are turned by the copy.
"""

from __future__ import annotations

from math import prod
from typing import Final

from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxesArg, Op, PadArg, ShapeArg, ShrinkArg
from gradlet.schedule.affineviews import AffineView, affine_view
from gradlet.target.matrixcore import FACTORS
from gradlet.target.rotation import UNIT_COLUMNS

LINE: Final = 128  # bytes
PIECE: Final = 16  # bytes, what the engine can begin at
# A copy reads and writes a factor once: what it saves of a product grows with the uses of each element.
USES_OF_LINES: Final = 4096
USES_OF_PIECES: Final = 64
SHORTEST: Final = 64  # elements of a row, and results along an axis, from which on matrix units are used


def align_rows(value: UOp, summed: frozenset[int], engine: bool) -> UOp:
    """A product of two factors that a sum adds up and matrix units multiply, with rows copied where that pays.

    Args:
        value: the product.
        summed: the axes of the sum.
        engine: whether a copy engine brings rows.
    """
    return mk(Op.MUL, value.dtype, tuple([_aligned(side, value.shape, summed, engine) for side in value.src]))


def _aligned(side: UOp, shape: tuple[int, ...], summed: frozenset[int], engine: bool) -> UOp:
    """One factor: a view of a copy whose rows are multiples of a line apart."""
    if side.shape != shape:
        return side
    narrow = narrow_of(side)
    view = affine_view(narrow)
    axes = _axes_of(view)
    if axes is None or view.base.dtype is not narrow.dtype:
        return side
    itemsize = narrow.dtype.itemsize
    pitch = _pitch(view) * itemsize
    uses = prod(shape) // prod([shape[axis] for axis in axes])
    if engine and uses in UNIT_COLUMNS and _is_weight(view.base):
        return side
    along = [axis for axis in axes if axis in summed]
    if not FACTORS[narrow.dtype].turns and along != [axes[-1]]:
        if len(along) != 1 or uses < USES_OF_PIECES:
            return side
        axes = (*[axis for axis in axes if axis not in summed], *along)
    else:
        needed = USES_OF_PIECES if pitch % PIECE else USES_OF_LINES
        if pitch % (LINE if engine else PIECE) == 0 or uses < needed or shape[axes[-1]] < SHORTEST:
            return side
    first = ShrinkArg(tuple([(0, n if a in axes else 1) for a, n in enumerate(shape)]))
    plain = mk(Op.SHRINK, narrow.dtype, (narrow,), first)
    copy = _shown(_copied(plain, axes, LINE // itemsize), shape)
    return mk(Op.CAST, side.dtype, (copy,)) if side is not narrow else copy


def narrow_of(side: UOp) -> UOp:
    """A factor as it is read from memory: below its conversion, if it has one."""
    return side.src[0] if side.op is Op.CAST else side


def _is_weight(node: UOp) -> bool:
    """Whether a factor is a softmax: attention goes over it in registers (`rotation`)."""
    while node.op in (Op.CAST, Op.FDIV, Op.CONTIGUOUS):
        node = node.src[0]
    return node.op is Op.EXP


def axis_steps(view: AffineView) -> dict[int, int] | None:
    """Elements of memory that a step along each axis is; None where a view is not of all of an array."""
    steps: dict[int, int] = {}
    for number, place in enumerate(view.places):
        if place.inside is not None:
            return None
        beyond = prod(view.base.shape[number + 1 :])
        for axis, step in place.terms:
            if axis in steps or step <= 0:
                return None
            steps[axis] = step * beyond
    return steps


def _axes_of(view: AffineView) -> tuple[int, ...] | None:
    """The axes along which a factor changes, the one along memory last; None where it is no plain array of rows."""
    steps = axis_steps(view)
    if steps is None:
        return None
    axes = tuple(sorted(steps, key=lambda axis: -steps[axis]))
    if len(axes) < 2 or steps[axes[-1]] != 1:
        return None
    return axes


def _pitch(view: AffineView) -> int:
    """From the beginning of one row in memory to that of the next, in elements."""
    last = view.places[-1]
    if len(last.terms) > 1:
        return min(step for _, step in last.terms if step > 1)
    return view.base.shape[-1]


def _copied(plain: UOp, axes: tuple[int, ...], line: int) -> UOp:
    """An array with elements along some axes in memory that has its rows multiples of a line apart, as it was."""
    shape = plain.shape
    order = (*[a for a in range(len(shape)) if a not in axes], *axes)
    turned = mk(Op.PERMUTE, plain.dtype, (plain,), AxesArg(order))
    pads = tuple([(0, 0)] * (len(shape) - 1) + [(0, -shape[axes[-1]] % line)])
    copy = mk(Op.CONTIGUOUS, plain.dtype, (mk(Op.PAD, plain.dtype, (turned,), PadArg(pads)),))
    cut = mk(Op.SHRINK, plain.dtype, (copy,), ShrinkArg(tuple([(0, n) for n in turned.shape])))
    return mk(Op.PERMUTE, plain.dtype, (cut,), AxesArg(tuple([order.index(a) for a in range(len(shape))])))


def _shown(node: UOp, shape: tuple[int, ...]) -> UOp:
    return node if node.shape == shape else mk(Op.EXPAND, node.dtype, (node,), ShapeArg(shape))
