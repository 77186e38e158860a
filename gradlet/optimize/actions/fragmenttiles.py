"""Tiles that the copy engine brings for matrix units, and ranges for what lanes have of products in registers.

A tile is an array in shared memory that loops fill: one of rows that stay, or a block of what goes by, in one of
several buffers in turn. Its rows are 128 bytes, in as many blocks as the factor's rows need, pieces of 16 bytes
exchanged by row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize.actions.near import NearArrays
from gradlet.optimize.actions.share import Rows
from gradlet.optimize.analysis import make_range, range_size
from gradlet.target.rotation import WARP_ROWS

INDEX: Final = dtypes.index
NARROW: Final = (dtypes.bfloat16, dtypes.float16)


class Fragment(NamedTuple):
    """The columns of a product as registers have them: groups of eight, four pairs a group, two of a pair."""

    at: UOp
    group: UOp
    four: UOp
    pair: UOp

    @property
    def loops(self) -> tuple[UOp, UOp, UOp]:
        return self.group, self.four, self.pair


def fragment_of(group: UOp, four: UOp, pair: UOp) -> Fragment:
    """The columns that ranges make."""
    return Fragment(group * 8 + four * 2 + pair, group, four, pair)


def narrow_load(node: UOp) -> UOp | None:
    """The load of 16-bit floats that a factor is, converted to float32."""
    load = node.src[0] if node.op is Op.CAST else node
    return load if load.op is Op.LOAD and load.dtype in NARROW and node.dtype is dtypes.float32 else None


def with_guard(load: UOp, guard: UOp) -> UOp:
    """A load that reads nothing where the guard does not hold; other values of it do not matter."""
    index = load.src[0]
    both = index.src[2] & guard if len(index.src) > 2 else guard
    other = load.src[1] if len(load.src) > 1 else UOp.const(load.dtype, 0)
    return mk(Op.LOAD, load.dtype, (mk(Op.INDEX, index.dtype, (*index.src[:2], both)), other))


class FragmentTiles(NearArrays):
    """What makes a kernel with such tiles.

    Attributes:
        number: of the next range.
        rows: of a block that stays, in the ranges warps, half and eight.
        keys: the range of what goes by, `size` in all.
        amount: of these in a block.
        block: the block, in turn.
        begin: where it begins.
        buffers: of a block.
    """

    number: int
    rows: int
    warps: UOp
    half: UOp
    eight: UOp
    keys: UOp
    size: int
    amount: int
    block: UOp
    begin: UOp
    buffers: int

    def tile_that_stays(self, load: UOp, depth: UOp) -> UOp:
        """The array with the factor of the rows."""
        length = range_size(depth) or 0
        rows = self._rows_that_stay(depth)
        own = {r: self.range_of(range_size(r) or 1) for r in (self.warps, self.half, self.eight)}
        own[depth] = self.range_of(length)
        local = self._local(self.rows * length, load.dtype)
        return self._filled(local, ((rows.element(own), load.substitute(own)),), *own.values())

    def of_tile_that_stays(self, tile: UOp, depth: UOp, row: UOp, at: UOp) -> UOp:
        """An element of it: of one of the two rows of a lane."""
        here = {self.warps: self.warps, self.half: row, self.eight: self.eight, depth: at}
        return self._load(tile, self._rows_that_stay(depth).element(here))

    def _rows_that_stay(self, depth: UOp) -> Rows:
        across = {self.half: 8, self.warps: WARP_ROWS, self.eight: 1}
        return Rows({depth: 1}, across, range_size(depth) or 0, self.rows)

    def tile_that_goes_by(self, load: UOp, columns: UOp | Fragment) -> UOp:
        """The arrays with a block of another factor, zeros behind the last key."""
        own = self.range_of(self.amount)
        loops = columns.loops if isinstance(columns, Fragment) else (columns,)
        fresh = [self.range_of(range_size(r) or 1) for r in loops]
        at = fragment_of(*fresh).at if isinstance(columns, Fragment) else fresh[0]
        length = self._length(columns)
        value = load.substitute({self.keys: self.begin + own, **dict(zip(loops, fresh, strict=True))})
        value = with_guard(value, self.is_seen(own))
        local = self._local(self.buffers * self.amount * length, load.dtype)
        return self._filled(local, ((self._near_place(own, at, length), value),), own, *fresh)

    def of_tile_that_goes_by(self, tile: UOp, place: UOp, at: UOp, length: int) -> UOp:
        """An element of the block in turn."""
        return self._load(tile, self._near_place(place, at, length))

    def _length(self, columns: UOp | Fragment) -> int:
        if isinstance(columns, Fragment):
            return 8 * (range_size(columns.group) or 0)
        return range_size(columns) or 0

    def _near_place(self, place: UOp, at: UOp, length: int) -> UOp:
        row, column = self.keys, self.half  # only as names
        rows = Rows({column: 1}, {row: 1}, length, self.amount)
        begin = self.block % self.buffers * (self.amount * length)
        return begin + rows.element({column: at, row: place})

    def is_seen(self, place: UOp) -> UOp:
        """Whether a place of a block is a key at all."""
        return self.begin + place < UOp.const(INDEX, self.size)

    # ranges
    def range_of(self, size: int | UOp, kind: AxisKind = AxisKind.LOOP) -> UOp:
        """A range of its own."""
        self.number += 1
        return make_range(size if isinstance(size, UOp) else UOp.const(INDEX, size), self.number - 1, kind)

    def both_rows(self) -> UOp:
        """The two rows of a lane."""
        return self.range_of(2, AxisKind.UNROLL)

    def fragment(self, columns: int, four: UOp | None = None) -> Fragment:
        """The columns of a product; `four`: the range of its lanes."""
        group, four = self.range_of(columns // 8, AxisKind.UNROLL), four or self.range_of(4, AxisKind.THREAD)
        return fragment_of(group, four, self.range_of(2, AxisKind.VECTOR))
