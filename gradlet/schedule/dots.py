"""Sums of four byte products become dot products of words.

Integers of 8 bits are kept four to a word. What a program writes as

    (a & 255) * (b << 24 >> 24) + (a >> 8 & 255) * (b << 16 >> 24) + (a >> 16 & 255) * (b << 8 >> 24) + ...

is `DOT(a, b, 0)`: the bytes of `a` without a sign, those of `b` with one. Machines have it as an
instruction, or in a few. Likewise

    (a & 65535) * (b << 16 >> 16) + (a >> 16) * (b >> 16)

is `DOT16(a, b, 0)`, the sum of two products of integers of 16 bits, where a mask clears the signs of the halves of `a`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import DOTS, Op
from gradlet.schedule.moves import chain_to, replay, root_of

BYTES: Final = 4
BYTE: Final = 255
HALF: Final = 65535
_HALF_SIGNS: Final = 0x80008000
SHORT_SUM: Final = 8  # words of a block at most: its sum is straight code
_SHIFTS: Final = 1 << Op.SHR
_WORDS: Final = (dtypes.int32, dtypes.uint32)


def form_dots(sink: UOp) -> UOp:
    """Replace every sum that has all four byte products of two words in it."""
    if not sink.mask & _SHIFTS:
        return sink
    order = toposort((sink,))
    if not any(n.op is Op.SHR and n.dtype is dtypes.int32 for n in order):
        return sink
    uses = Counter(s for n in order for s in n.src)
    inside = {s for n in order if n.op is Op.ADD for s in n.src if s.op is Op.ADD and uses[s] == 1}
    new: dict[UOp, UOp] = {}
    for node in order:
        src = tuple([new.get(s, s) for s in node.src])
        made = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
        if node.op is Op.ADD and node.dtype is dtypes.int32 and node not in inside:
            made = _with_half_dots(_with_dots(made))
        if made is not node:
            new[node] = made
    return new.get(sink, sink)


def _with_dots(total: UOp) -> UOp:
    terms = _terms(total)
    products: dict[tuple[UOp, UOp], dict[int, UOp]] = {}
    low: dict[UOp, list[tuple[UOp, UOp]]] = {}  # signed word -> (term, factor) of products with its lowest byte
    for term in terms:
        if term.op is not Op.MUL:
            continue
        for one, other in (term.src, term.src[::-1]):
            signed = signed_byte(other)
            if signed is None:
                continue
            word, place = signed
            if place == 0:
                low.setdefault(word, []).append((term, one))
            elif (unsigned := unsigned_byte(one, place)) is not None:
                products.setdefault((unsigned, word), {})[place] = term
    used: set[UOp] = set()
    dots: list[tuple[UOp, UOp]] = []
    for (unsigned, word), found in products.items():
        first = next(
            (t for t, factor in low.get(word, ()) if is_lowest(factor, unsigned, BYTE) and t not in used), None
        )
        if first is None or len(found) != BYTES - 1:
            continue
        four = {first, *found.values()}
        if not used.isdisjoint(four):
            continue
        used |= four
        dots.append((unsigned, word))
    if not dots or len(used) != BYTES * len(dots):
        return total
    rest = [t for t in terms if t not in used]
    return _chain(Op.DOT, dots, rest)


def _chain(op: Op, dots: Sequence[tuple[UOp, UOp]], rest: Sequence[UOp]) -> UOp:
    """The sum of some dot products, and of what else there is."""
    result = UOp.const(dtypes.int32, 0)
    for unsigned, word in dots:
        result = mk(op, dtypes.int32, (unsigned.cast(dtypes.int32), word.cast(dtypes.int32), result))
    for term in rest:
        result = result + term
    return result


def _with_half_dots(total: UOp) -> UOp:
    if total.op is not Op.ADD:
        return total
    terms = _terms(total)
    upper: list[tuple[UOp, UOp, UOp]] = []  # term, unsigned word, signed word
    lower: dict[UOp, list[tuple[UOp, UOp]]] = {}  # signed word -> (term, factor) of products with its lower half
    for term in terms:
        if term.op is not Op.MUL:
            continue
        for one, other in (term.src, term.src[::-1]):
            word = lower_signed_half(other)
            if word is not None:
                lower.setdefault(word, []).append((term, one))
            unsigned, signed = upper_half(one), upper_half(other)
            if unsigned is not None and signed is not None and _clears_signs(unsigned):
                upper.append((term, unsigned, signed))
    used: set[UOp] = set()
    dots: list[tuple[UOp, UOp]] = []
    for term, unsigned, word in upper:
        first = next((t for t, f in lower.get(word, ()) if is_lowest(f, unsigned, HALF) and t not in used), None)
        if first is not None and term not in used:
            used |= {first, term}
            dots.append((unsigned, word))
    return _chain(Op.DOT16, dots, [t for t in terms if t not in used]) if dots else total


def is_block_sum(node: UOp | None) -> bool:
    """Whether a node sums DOTs over the few words of a block."""
    if node is None or node.op is not Op.REDUCE_AXES or root_of(node.src[0]).op not in DOTS:
        return False
    return prod(node.src[0].shape) <= SHORT_SUM * prod(node.shape)


def _terms(total: UOp) -> list[UOp]:
    pending, found = [total], []
    while pending:
        value = pending.pop()
        if value.op is Op.ADD:
            pending.extend((value.src[1], value.src[0]))
        else:
            found.append(value)
    return found if len(set(found)) == len(found) else []


def _shifted(node: UOp, op: Op) -> tuple[UOp, int]:
    """A word and by how much `op` shifts it; 0 where it does not."""
    if node.op is op and node.src[1].op is Op.CONST:
        return node.src[0], int(node.src[1].arg)
    return node, 0


def _moved(node: UOp, root: UOp, word: UOp) -> UOp:
    """`word` under the movement ops between `node` and `root`."""
    return replay(chain_to(node, root), word)


def _uncast(node: UOp) -> UOp:
    """Below conversions between the integers of 32 bits, which leave all bits."""
    while node.op is Op.CAST and node.dtype in _WORDS and node.src[0].dtype in _WORDS:
        node = node.src[0]
    return node


def signed_byte(node: UOp) -> tuple[UOp, int] | None:
    """The word and the place of a byte that is read with its sign: `w << (24 - 8 place) >> 24`."""
    root = root_of(node)
    if root.dtype is not dtypes.int32:
        return None
    shifted, right = _shifted(root, Op.SHR)
    if right != 24:
        return None
    word, left = _shifted(shifted, Op.SHL)
    return (_moved(node, root, word), 3 - left // 8) if left in (0, 8, 16, 24) else None


def unsigned_byte(node: UOp, place: int) -> UOp | None:
    """The word whose byte at a place above the lowest this is: `w >> 8 place & 255`."""
    node = _uncast(node)
    root = root_of(node)
    value = _uncast(root)
    masked = value.op is Op.AND and value.src[1].op is Op.CONST and int(value.src[1].arg) == 255
    word, right = _shifted(value.src[0] if masked else value, Op.SHR)
    if right != 8 * place or word.dtype not in _WORDS or not (masked or _is_top(word, place)):
        return None
    return _moved(node, root, word)


def _is_top(word: UOp, place: int) -> bool:
    return place == BYTES - 1 and word.dtype is dtypes.uint32


def lower_signed_half(node: UOp) -> UOp | None:
    """The word whose lower half is read with its sign: `w << 16 >> 16`."""
    root = root_of(node)
    shifted, right = _shifted(root, Op.SHR)
    word, left = _shifted(shifted, Op.SHL)
    return _moved(node, root, word) if left == right == 16 and root.dtype is dtypes.int32 else None


def upper_half(node: UOp) -> UOp | None:
    """The word whose upper half this is: `w >> 16`."""
    root = root_of(node)
    word, right = _shifted(root, Op.SHR)
    return _moved(node, root, word) if right == 16 and root.dtype is dtypes.int32 and word.op is not Op.SHL else None


def _clears_signs(word: UOp) -> bool:
    """Whether neither half of a word is negative: a mask says so."""
    root = root_of(word)
    return root.op is Op.AND and root.src[1].op is Op.CONST and not int(root.src[1].arg) & _HALF_SIGNS


def is_lowest(node: UOp, word: UOp, part: int) -> bool:
    """Whether this is `word & part`, also where that was folded into a mask which the word has already."""
    node = _uncast(node)
    root = root_of(node)
    value = _uncast(root)
    if value.op is not Op.AND or value.src[1].op is not Op.CONST or value.src[0].dtype not in _WORDS:
        return False
    mask, below = int(value.src[1].arg), _moved(node, root, value.src[0])
    if below is word:
        return mask == part
    other = root_of(word)
    if other.op is not Op.AND or other.src[1].op is not Op.CONST:
        return False
    return below is _moved(word, other, other.src[0]) and mask == int(other.src[1].arg) & part
