"""Axes of a reduction cut in blocks: where elements, rows and the results of blocks are then."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import SCALAR_LEAVES, Op, PadArg, ReduceAxesArg, identity_element
from gradlet.schedule.moves import expand_scalar, expand_to, reshape


@dataclass
class BlockCut:
    """Every reduced axis is two: which block, and where in the block.

    Attributes:
        shape: what is reduced.
        axes: the reduced axes, sorted.
        blocks: how many blocks each of them has.
        sizes: the size of a block along each. The last block of an axis may be part empty.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    blocks: tuple[int, ...]
    sizes: tuple[int, ...]
    _elements: dict[UOp, UOp] = field(default_factory=dict)

    @cached_property
    def full(self) -> tuple[int, ...]:
        """The shape of the elements, cut."""
        pairs = dict(zip(self.axes, zip(self.blocks, self.sizes, strict=True), strict=True))
        return tuple([n for a, size in enumerate(self.shape) for n in pairs.get(a, (size,))])

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """The axes of `full` inside a block."""
        return tuple([axis + position + 1 for position, axis in enumerate(self.axes)])

    @cached_property
    def outer(self) -> tuple[int, ...]:
        """The axes of `full` that count blocks."""
        return tuple([axis - 1 for axis in self.inner])

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The shape of one value a row and block."""
        return tuple([1 if a in self.inner else size for a, size in enumerate(self.full)])

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The shape of the results."""
        return tuple([size for a, size in enumerate(self.shape) if a not in self.axes])

    @cached_property
    def count_blocks(self) -> int:
        """Blocks of one row."""
        return prod(self.blocks)

    @cached_property
    def reduced_size(self) -> int:
        """Elements of one row."""
        return prod([self.shape[a] for a in self.axes])

    @cached_property
    def is_even(self) -> bool:
        """Whether all blocks are full."""
        return all(b * s == self.shape[a] for a, b, s in zip(self.axes, self.blocks, self.sizes, strict=True))

    # elements
    def element(self, node: UOp) -> UOp:
        """A value an element, cut; zeros where the last block is empty. Scalars stay."""
        if node.op in SCALAR_LEAVES:
            return node
        found = self._elements.get(node)
        if found is None:
            found = self._elements[node] = reshape(self._padded(node, range(len(self.shape))), self.full)
        return found

    def _padded(self, node: UOp, axes: range) -> UOp:
        if self.is_even:
            return node
        wanted = {a: b * s for a, b, s in zip(self.axes, self.blocks, self.sizes, strict=True)}
        pads = tuple([(0, wanted.get(a, self.shape[a]) - self.shape[a]) for a in axes])
        return mk(Op.PAD, node.dtype, (node,), PadArg(pads))

    @cached_property
    def valid(self) -> UOp:
        """Whether an element exists."""
        everything = expand_scalar(UOp.const(dtypes.bool, True), self.shape)
        return reshape(self._padded(everything, range(len(self.shape))), self.full)

    # rows
    def is_row(self, node: UOp) -> bool:
        """Whether a node has one value for each result, whatever axes of size 1 it has."""
        return node.op in SCALAR_LEAVES or (
            [n for n in node.shape if n != 1] == [n for n in self.rows if n != 1]
        )  # fmt: skip

    def row(self, node: UOp) -> UOp:
        """A row's value for each of its blocks."""
        if node.op in SCALAR_LEAVES:
            return expand_scalar(node, self.kept)
        ones = tuple([1 if a in self.inner or a in self.outer else size for a, size in enumerate(self.full)])
        return expand_to(reshape(node, ones), self.kept)

    def lifted(self, node: UOp) -> UOp:
        """A value a row and block that may be a scalar, in its full shape."""
        return expand_scalar(node, self.kept) if node.op in SCALAR_LEAVES else node

    # reductions
    def reduced(self, op: Op, element: UOp) -> UOp:
        """Elements combined inside each block."""
        if element.op in SCALAR_LEAVES:
            element = expand_scalar(element, self.full)
        if not self.is_even:
            nothing = UOp.const(element.dtype, identity_element(op, element.dtype))
            element = self.valid.where(element, nothing)
        made = mk(Op.REDUCE_AXES, element.dtype, (element,), ReduceAxesArg(op, self.inner))
        return reshape(made, self.kept)

    def combined(self, op: Op, blocks: UOp) -> UOp:
        """The values of all blocks combined, shaped like the results."""
        made = mk(Op.REDUCE_AXES, blocks.dtype, (blocks,), ReduceAxesArg(op, self.outer))
        return reshape(made, self.rows)

    def count(self, dtype: DType) -> UOp:
        """The number of elements of each block."""
        if self.is_even:
            return UOp.const(dtype, prod(self.sizes))
        return self.reduced(Op.ADD, UOp.const(dtype, 1))

    def rows_per_block(self, dtype: DType) -> UOp:
        """How many times as many elements as the block the row has."""
        if self.is_even:
            return UOp.const(dtype, self.count_blocks)
        whole = UOp.const(dtype, self.reduced_size)
        return mk(Op.FDIV, dtype, (self.lifted(whole), self.count(dtype)), None)
