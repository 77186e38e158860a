"""Matrix products of integers of 8 and 16 bits go by words that hold several of them.

`a.cast(int32) @ b.cast(int32)` would convert every element each time that it is used and multiply words. Packed along
the contracted axis, four bytes or two halves to a word, the factors take a quarter of the memory, and `DOT` or `DOT16`
multiplies and adds as many at once. Both wrap around as sums in int32 do, so results are equal in every bit.

`DOT` takes bytes without a sign times bytes with one. Where both factors have a sign, 128 is added to one of them and
128 times the sum of the other subtracted at the end; where none has one, the other way round. Machines without an
instruction for it multiply halves, which are exact in pairs: bytes in pairs would saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import MOVEMENT, AxesArg, Op, PadArg, ReduceAxesArg, ShrinkArg
from gradlet.schedule.clean import REDUCES, find_devices, rebuild
from gradlet.schedule.layout import contracted_last, in_strips, strip_columns
from gradlet.schedule.moves import expand_to, replay, reshape
from gradlet.target.target import Target

# Elements that are used less often are not worth a copy.
MIN_USES: Final = 16
# Multiply-adds of a product below which two more kernels cost more than they save.
MIN_WORK: Final = 1 << 18
_NEEDED: Final = 1 << Op.REDUCE_AXES | 1 << Op.CAST
_TOTALS: Final = (dtypes.int32, dtypes.uint32)
_BYTES: Final = (dtypes.int8, dtypes.uint8)
_NARROW: Final = (*_BYTES, dtypes.int16)
_SIGNS: Final = -0x7F7F7F80  # the highest bit of every byte: 128 more or less


class _Factor(NamedTuple):
    """A factor in its own type, with axes of size 1 where it does not change, and its axis of columns last but one."""

    value: UOp
    is_signed: bool


def pack_products(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with large products of narrow integers as dots of words, on machines that have them."""
    if root.mask & _NEEDED != _NEEDED:
        return root
    order = toposort((root,))
    if not any(n.op is Op.CAST and n.dtype in _TOTALS and n.src[0].dtype in _NARROW for n in order):
        return root
    devices = find_devices(order)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        same = mk(node.op, node.dtype, src, node.arg)
        if node.dtype not in _TOTALS or node.arg.op is not Op.ADD:
            return None
        product = src[0]
        if product.op is not Op.MUL or node.arg.limited or prod(product.shape) < MIN_WORK:
            return None
        target = target_of(devices.get(node, default_device))
        if target.kind != "cpu" or not (target.dot8 or multiplies_halves(target)):
            return None
        rank = len(product.shape)
        turned = same if node.arg.axes == (rank - 1,) else contracted_last(same)
        made = None if turned is None else _packed(turned.src[0], target)
        return None if made is None else reshape(made, same.shape).cast(node.dtype)

    return rebuild(root, change, REDUCES, order)


def multiplies_halves(target: Target) -> bool:
    """Whether an instruction multiplies shorts and adds their products in pairs."""
    return target.triple.startswith(("x86_64", "wasm32"))


def _packed(product: UOp, target: Target) -> UOp | None:
    """The sum of a product over its last axis, from packed factors."""
    shape = product.shape
    factors = [_factor(f) for f in product.src]
    if len(shape) < 3 or factors[0] is None or factors[1] is None:
        return None
    left, right = factors if factors[0].value.shape[-2] == 1 else factors[::-1]
    assert left is not None and right is not None
    sizes = (left.value.shape[-2:], right.value.shape[-2:])
    if sizes != ((1, shape[-1]), shape[-2:]) or shape[-2] == 1:
        return None
    if any(prod(f.value.shape) * MIN_USES > prod(shape) for f in (left, right)):
        return None
    if target.dot8 and left.value.dtype in _BYTES and right.value.dtype in _BYTES:
        return _by_bytes(left, right, shape, target)
    if not multiplies_halves(target):
        return None
    return _sum_of_dots(Op.DOT16, _halves(left.value), _halves(right.value), shape, target)


def _factor(node: UOp) -> _Factor | None:
    """What is converted to words, if every step of that keeps the value."""
    chain: list[UOp] = []
    while node.op in MOVEMENT or node.op is Op.CAST:
        if node.op is Op.CAST:
            source = node.src[0].dtype
            wraps = node.dtype in _TOTALS
            if source.kind not in "iu" or source.bits > node.dtype.bits:
                return None
            if not wraps and source.kind == "i" and node.dtype.kind == "u":
                return None
        elif node.op is Op.LIMIT:
            return None
        else:
            chain.append(node)
        if node.dtype in _NARROW:
            break
        node = node.src[0]
    else:
        if node.dtype not in _NARROW:
            return None
    if node.op in MOVEMENT and chain and chain[-1] is node:
        chain.pop()
    moved = replay(chain, node)
    while moved.op is Op.EXPAND:
        moved = moved.src[0]
    return _Factor(moved, node.dtype.kind == "i")


def _by_bytes(left: _Factor, right: _Factor, shape: tuple[int, ...], target: Target) -> UOp:
    """Four bytes a word. One factor without a sign, one with; `more` is what the sums lack or have too much."""
    lifted = left.is_signed and right.is_signed
    lowered = not left.is_signed and not right.is_signed
    one, other = _bytes(left.value), _bytes(right.value)
    if lifted:
        one = one ^ _SIGNS
        more = _times_128(right.value, -128)
    elif lowered:
        other = other ^ _SIGNS
        more = _times_128(left.value, 128)
    else:
        return _sum_of_dots(Op.DOT, one, other, shape, target, swapped=left.is_signed)
    return _sum_of_dots(Op.DOT, one, other, shape, target) + expand_to(more, shape[:-1])


def _times_128(value: UOp, factor: int) -> UOp:
    wide = value.cast(dtypes.int32)
    return mk(Op.REDUCE_AXES, wide.dtype, (wide,), ReduceAxesArg(Op.ADD, (len(wide.shape) - 1,))) * factor


def _sum_of_dots(
    op: Op, left: UOp, right: UOp, shape: tuple[int, ...], target: Target, swapped: bool = False
) -> UOp:  # fmt: skip
    """The dots of packed factors added up; both are kept in the order in which a register tile walks them."""
    rank, words = len(shape), left.shape[-1]
    full = (*shape[:-1], words)
    left = mk(Op.CONTIGUOUS, left.dtype, (left,), None)
    strip = strip_columns(left, target)
    if all(size == 1 for size in right.shape[:-2]) and right.shape[-2] >= strip:
        right = in_strips(right, strip)
    else:
        turn = AxesArg((*range(rank - 2), rank - 1, rank - 2))
        stored = mk(Op.CONTIGUOUS, right.dtype, (mk(Op.PERMUTE, right.dtype, (right,), turn),), None)
        right = mk(Op.PERMUTE, right.dtype, (stored,), turn)
    factors = expand_to(left, full), expand_to(right, full)
    zero = UOp.const(dtypes.int32, 0)
    dots = mk(op, dtypes.int32, (*(factors[::-1] if swapped else factors), zero))
    return mk(Op.REDUCE_AXES, dtypes.int32, (dots,), ReduceAxesArg(Op.ADD, (rank - 1,)))


def _bytes(value: UOp) -> UOp:
    """Four neighbours along the last axis in a word, the first one lowest."""
    unsigned = value if value.dtype is dtypes.uint8 else mk(Op.BITCAST, dtypes.uint8, (value,), None)
    return _words(unsigned.cast(dtypes.int32), 4)


def _halves(value: UOp) -> UOp:
    """Two neighbours along the last axis in a word, with their signs."""
    return _words(value.cast(dtypes.int32), 2)


def _words(value: UOp, count: int) -> UOp:
    """Words of `count` values each: only the bits of the last one reach above its place."""
    *outer, depth = value.shape
    missing = -depth % count
    if missing:
        pads = (*[(0, 0) for _ in outer], (0, missing))
        value = mk(Op.PAD, value.dtype, (value,), PadArg(pads))
    words = (depth + missing) // count
    parts = reshape(value, (*outer, words, count))
    total: UOp | None = None
    for place in range(count):
        bounds = ShrinkArg((*[(0, size) for size in (*outer, words)], (place, place + 1)))
        part = reshape(mk(Op.SHRINK, value.dtype, (parts,), bounds), (*outer, words))
        if count == 2 and place == 0:
            part = part & 0xFFFF
        if place:
            part = part << place * (32 // count)
        total = part if total is None else total | part
    assert total is not None
    return total
