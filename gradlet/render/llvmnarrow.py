"""Masked loads of bytes and half-words as one load of a word, where a processor has none for such narrow lanes.

LLVM would make a branch of every lane. All lanes together are a word, though: it is loaded from where it lies inside of
the memory, as near as possible to where the vector begins, and shifted to its place. Lanes that a guard allows lie in
the memory; what the others get does not matter.
"""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import DType
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.render.llvmtext import Value, Writer, integer
from gradlet.target.target import Target

WORD: Final = 64
MASKED_BITS: Final = 512  # registers so wide have masks for lanes of every width


def is_narrow(dtype: DType, param: UOp, target: Target) -> bool:
    """Whether a vector is loaded so."""
    bits = 8 * dtype.scalar.itemsize
    whole = bits * dtype.count
    small = bits < 32 and dtype.count > 1 and whole <= WORD and whole.bit_count() == 1
    return small and target.kind == "cpu" and target.vector_bits < MASKED_BITS and param.arg.size >= dtype.count


def narrow_load(writer: Writer, memory: Value, element: Value, node: UOp, kind: str) -> Value:
    """The elements of a vector of this kind from an element number on, where they lie in the memory.

    Args:
        writer: gets the instructions.
        memory: the address of its first element.
        element: the number of the first lane's element.
        node: a LOAD.
        kind: the vector's type in memory.
    """
    index, dtype = node.src[0], node.dtype
    count, bits = dtype.count, 8 * dtype.scalar.itemsize
    last = int(index.src[0].arg.size) - count
    lowest, highest = bounds(index.src[1])
    begin = element
    if highest > last:
        begin = writer.call(element.type, f"llvm.smin.{element.type}", begin, integer(last, element.type))
    if lowest < 0:
        begin = writer.call(element.type, f"llvm.smax.{element.type}", begin, integer(0, element.type))
    address = writer.emit(memory.type, f"getelementptr i{bits}, {memory}, {begin}", "a")
    word = f"i{bits * count}"
    loaded = writer.emit(word, f"load {word}, {address}, align {bits // 8}")
    for operation, after, before, needed in (
        ("lshr", element, begin, highest > last),
        ("shl", begin, element, lowest < 0),
    ):
        if needed:
            moved = writer.binary("sub", after, before)
            # Further away than that no lane is allowed.
            moved = writer.call(moved.type, f"llvm.smin.{moved.type}", moved, integer(count - 1, moved.type))
            if lowest < 0 and highest > last:
                moved = writer.call(moved.type, f"llvm.smax.{moved.type}", moved, integer(0, moved.type))
            amount = writer.binary("mul", moved, integer(bits, moved.type))
            size = int(moved.type[1:])
            change = "trunc" if size > bits * count else "zext"
            loaded = writer.binary(operation, loaded, writer.convert(change, amount, word))
    return writer.emit(kind, f"bitcast {loaded} to {kind}")
