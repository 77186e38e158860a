"""Results of a warp go through shared memory: 128 bytes of every row at a time, which the copy engine stores as a box.

A lane has two results beside each other, in two rows; pieces of a row are exchanged as the engine reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import Op, SpecialArg, WaitArg
from gradlet.optimize.analysis import affine
from gradlet.rules.sets import INDEX_MATH

WARP: Final = 32
ROW: Final = 128  # bytes of a row in shared memory
ROOM, ALL_ROOM = -2, -3  # as what is waited for: a buffer for results, all buffers for results


class Part(NamedTuple):
    """128 bytes of every row of one result.

    Attributes:
        box: the first box of the result.
        local: where a warp gathers two of them.
        number: which of the parts of this result it is.
        many: how many there are.
        column: its first column.
        end: the column after its last one.
        stores: half of a tile's rows, column in the part, and what is stored there.
    """

    box: UOp
    local: UOp
    number: int
    many: int
    column: int
    end: int
    stores: list[tuple[int, int, UOp]]


def parts_of(stores: Sequence[UOp], box: UOp, local: UOp) -> list[Part]:
    """The parts of one result, from left to right."""
    arg, row = box.arg, ROW // box.dtype.itemsize
    # The second row of a lane is eight further along one axis, or the next along another.
    rows = [(step, part) for step, part in zip(arg.strides[1:], arg.box[1:], strict=True) if part > 1]
    down = 8 * rows[0][0] if len(rows) == 1 else rows[-1][0]
    forms = [affine(s.src[0].src[1]) for s in stores]
    base = min(f.constant for f in forms)
    if any(f.terms != forms[0].terms for f in forms):
        raise CompilerError("results of a lane lie no constant distances apart")
    parts: dict[int, list[tuple[int, int, UOp]]] = {}
    for form, store in zip(forms, stores, strict=True):
        half, column = divmod(form.constant - base, down)
        parts.setdefault(column // row, []).append((half, column % row, store))
    order = sorted(parts)
    return [
        Part(box, local, number, len(order), part * row, (part + 1) * row, parts[part])
        for number, part in enumerate(order)
    ]


def gather(part: Part, threads: int, number: int, emit: Callable[[UOp], object]) -> None:
    """Store a part of a result; its values are in the program.

    Args:
        part: which.
        threads: lanes that compute.
        number: makes the wait another than those before.
        emit: puts a node, and what it needs, into the program.
    """
    box, local = part.box, part.local
    lane = mk(Op.SPECIAL, dtypes.index, (), SpecialArg("thread", threads))
    room, row = prod(box.arg.box), ROW // box.dtype.itemsize
    near, four = lane // 4 % 8, lane % 4
    piece = 16 // box.dtype.itemsize
    turn = lane // WARP * (2 * room) + part.number % 2 * room
    pending = ALL_ROOM if part.number == 0 and part.many % 2 else ROOM
    emit(mk(Op.WAIT, dtypes.void, (), WaitArg(1 + number, pending)))
    for half, column, store in part.stores:
        along = four * 2 + column
        at = turn + (near + half * 8) * row + (along // piece ^ near) * piece + along % piece
        place = mk(Op.INDEX, box.dtype, (local, rewrite(at, INDEX_MATH)))
        emit(mk(Op.STORE, dtypes.void, (place, store.src[1])))
    along = box.src[1] + part.column if part.column else box.src[1]
    one = rewrite(mk(Op.BOX, box.dtype, (box.src[0], along, *box.src[2:]), box.arg), INDEX_MATH)
    place = mk(Op.INDEX, box.dtype, (local, rewrite(turn, INDEX_MATH)))
    emit(mk(Op.STORE_BOX, dtypes.void, (place, one)))
