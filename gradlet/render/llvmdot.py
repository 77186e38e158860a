"""Dot products of bytes or halves in words, as LLVM instructions: one where the machine has it, else exact in a few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.render.llvmtext import Value, Writer, integer, lanes_of, vector_type
from gradlet.target.target import Target

# By bits of a vector: products of bytes summed in pairs, saturating; products of shorts summed in pairs.
_BYTE_PAIRS: Final = {
    128: "llvm.x86.ssse3.pmadd.ub.sw.128", 256: "llvm.x86.avx2.pmadd.ub.sw", 512: "llvm.x86.avx512.pmaddubs.w.512",
}  # fmt: skip
_SHORT_PAIRS: Final = {
    128: "llvm.x86.sse2.pmadd.wd", 256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512",
}  # fmt: skip
_SHORT_MAX: Final = 32767
_ALL_BITS: Final = 0xFFFFFFFF
_DOT: Final = Op.DOT  # members of an enum are slow to reach through their class
_MULTIPLES: Final = frozenset(1 << i for i in range(1, 15))


class Pair(NamedTuple):
    """Words to multiply byte by byte; `largest` is what a byte of the unsigned one can be at most."""

    unsigned: Value
    signed: Value
    largest: int


def dot(writer: Writer, target: Target, pairs: Sequence[Pair], start: Value | None) -> Value:
    """`start` plus the products of the bytes of all pairs, in every lane of 32 bits."""
    native = _native(target)
    if native is None:
        return _by_byte(writer, pairs, start)
    return _in_registers(writer, target, pairs, start, native, _by_byte)


def dot16(writer: Writer, target: Target, first: Value, second: Value, start: Value | None) -> Value:
    """`start` plus the products of the halves of two words, in every lane of 32 bits."""
    pair = Pair(first, second, 0)
    if _halves_name(target, 128) is None:
        return _by_half(writer, pair, start)

    def native(writer: Writer, target: Target, pairs: Sequence[Pair], start: Value | None) -> Value:
        (one,) = pairs
        kind = vector_type(2 * lanes_of(one.unsigned.type), "i16")
        shorts = [writer.convert("bitcast", v, kind) for v in (one.unsigned, one.signed)]
        name = _halves_name(target, 16 * lanes_of(kind))
        assert name is not None
        return _sum(writer, start, writer.call(one.unsigned.type, name, *shorts))

    return _in_registers(writer, target, (pair,), start, native, lambda w, pairs, s: _by_half(w, pairs[0], s))


_Plain = Callable[[Writer, Sequence[Pair], Value | None], Value]
_Native = Callable[[Writer, Target, Sequence[Pair], Value | None], Value]


def _native(target: Target) -> _Native | None:
    """Dot products of bytes in a vector register; None where plain arithmetic is as good."""
    if target.triple.startswith("x86_64"):
        return _x86
    return _arm if target.dot8 and target.triple.startswith("aarch64") else None


def _halves_name(target: Target, bits: int) -> str | None:
    """The instruction for products of shorts summed in pairs."""
    if target.triple.startswith("x86_64"):
        return _SHORT_PAIRS[bits]
    return "llvm.wasm.dot" if target.triple.startswith("wasm32") else None


def _in_registers(
    writer: Writer, target: Target, pairs: Sequence[Pair], start: Value | None, native: _Native, plain: _Plain
) -> Value:
    """Register by register; by plain arithmetic where lanes fill none."""
    count = lanes_of(pairs[0].unsigned.type)
    width = min(count, target.vector_bits // 32)
    if width < 4 or count % width:
        return plain(writer, pairs, start)
    if width == count:
        return native(writer, target, pairs, start)
    parts: list[Value] = []
    for first in range(0, count, width):
        picks = list(range(first, first + width))
        cut = [Pair(writer.lanes(p.unsigned, picks), writer.lanes(p.signed, picks), p.largest) for p in pairs]
        parts.append(native(writer, target, cut, None if start is None else writer.lanes(start, picks)))
    while len(parts) > 1:
        parts = [_joined(writer, one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _joined(writer: Writer, first: Value, second: Value) -> Value:
    count = 2 * lanes_of(first.type)
    picks = ", ".join(f"i32 {i}" for i in range(count))
    kind = vector_type(count, "i32")
    return writer.emit(kind, f"shufflevector {first}, {second}, <{count} x i32> <{picks}>")


def _sum(writer: Writer, first: Value | None, second: Value) -> Value:
    return second if first is None else writer.binary("add", first, second)


def _by_byte(writer: Writer, pairs: Sequence[Pair], start: Value | None) -> Value:
    """Plain arithmetic on words, for any machine."""
    total = start
    for pair in pairs:
        kind = pair.unsigned.type
        for place in range(4):
            one = writer.binary("lshr", pair.unsigned, integer(8 * place, kind))
            one = writer.binary("and", one, integer(255, kind))
            other = writer.binary("shl", pair.signed, integer(24 - 8 * place, kind))
            other = writer.binary("ashr", other, integer(24, kind))
            total = _sum(writer, total, writer.binary("mul", one, other))
    assert total is not None
    return total


def _by_half(writer: Writer, pair: Pair, start: Value | None) -> Value:
    """Plain arithmetic on words, for any machine."""
    half = integer(16, pair.unsigned.type)
    words = (pair.unsigned, pair.signed)
    low = [writer.binary("ashr", writer.binary("shl", word, half), half) for word in words]
    high = [writer.binary("ashr", word, half) for word in words]
    total = _sum(writer, start, writer.binary("mul", *low))
    return writer.binary("add", total, writer.binary("mul", *high))


def _arm(writer: Writer, target: Target, pairs: Sequence[Pair], start: Value | None) -> Value:
    """One instruction where bytes of both kinds can be multiplied. Else the unsigned ones are lowered by 128, and 128
    times the signed ones comes from the complements of those: they are below the negatives by 1.
    """
    kind = pairs[0].unsigned.type
    mixed = "+i8mm" in target.features
    total = Value("zeroinitializer", kind) if start is None else start
    for pair in pairs:
        if mixed:
            total = _arm_bytes(writer, "usdot", total, pair.unsigned, pair.signed)
            continue
        lowest = integer(-0x7F7F7F80, kind)  # -128 in every byte
        total = _arm_bytes(writer, "sdot", total, writer.binary("xor", pair.unsigned, lowest), pair.signed)
        total = _arm_bytes(writer, "sdot", total, lowest, writer.binary("xor", pair.signed, integer(-1, kind)))
        total = writer.binary("add", total, integer(-4 * 128, kind))
    return total


def _arm_bytes(writer: Writer, name: str, total: Value, first: Value, second: Value) -> Value:
    bytes_ = [writer.convert("bitcast", v, "<16 x i8>") for v in (first, second)]
    return writer.call(total.type, f"llvm.aarch64.neon.{name}.v4i32.v16i8", total, *bytes_)


def _x86(writer: Writer, target: Target, pairs: Sequence[Pair], start: Value | None) -> Value:
    if target.dot8:
        return _instruction(writer, pairs, start)
    total = ByteSum(writer, start)
    for pair in pairs:
        total.add(pair)
    return total.value()


class ByteSum:
    """A sum of byte products while it is written, in a register of x86 that has no instruction for it.

    Sums of pairs of products stay shorts as long as they cannot saturate.
    """

    def __init__(self, writer: Writer, start: Value | None) -> None:
        self.writer, self.total = writer, start
        self.group: Value | None = None  # sums of pairs of products as shorts
        self.largest = 0

    def add(self, pair: Pair) -> None:
        """Add the products of the bytes of two words."""
        bound = 2 * 128 * pair.largest
        if bound > _SHORT_MAX:
            self.total = _sum(self.writer, self.total, _by_shorts(self.writer, pair))
            return
        if self.group is not None and self.largest + bound > _SHORT_MAX:
            self.total = _sum(self.writer, self.total, _widened(self.writer, self.group))
            self.group, self.largest = None, 0
        self.group = _sum(self.writer, self.group, _byte_pairs(self.writer, pair))
        self.largest += bound

    def value(self, times: int = 1) -> Value:
        """The sum in words, multiplied by a power of two that a short can be."""
        if self.total is None and self.group is not None:
            return _widened(self.writer, self.group, times)
        if self.group is not None:
            self.total = _sum(self.writer, self.total, _widened(self.writer, self.group))
        assert self.total is not None
        return self.total if times == 1 else self.writer.binary("mul", self.total, integer(times, self.total.type))


class Sums:
    """The sums of byte products of a program that are written DOT by DOT, where a DOT is no instruction.

    Attributes:
        multiples: products of such a sum and a power of two, which cost nothing.
    """

    def __init__(self, uops: Sequence[UOp], target: Target) -> None:
        self.multiples: dict[UOp, UOp] = {}
        self._times: dict[UOp, int] = {}
        self._goes_on: set[UOp] = set()
        self._open: dict[UOp, ByteSum] = {}
        self._begun = False  # since code was last held in order
        self._halves: set[UOp] = set()  # sums of products of halves on which others go on
        self._lanes = target.vector_bits // 32 if target.triple.startswith("x86_64") and not target.dot8 else 0
        if not self._lanes or not any(map(self.has, uops)):
            return
        uses = Counter(s for node in uops for s in node.src)
        for node in uops:
            if self.has(node) and node.src[2].op is _DOT and uses[node.src[2]] == 1:
                self._goes_on.add(node.src[2])
            elif node.op is Op.MUL and self.has(node.src[0]) and uses[node.src[0]] == 1:
                times = _known(node.src[1])
                if times in _MULTIPLES:
                    self.multiples[node], self._times[node.src[0]] = node.src[0], times

    def has(self, node: UOp) -> bool:
        """Whether a node is a DOT of this kind: one that fills a register."""
        return node.op is _DOT and node.dtype.count == self._lanes

    def go_on(self, writer: Writer, node: UOp, value: Callable[[UOp], Value]) -> Value:
        """Write a DOT; what is returned is only its value where no other DOT goes on from it."""
        total = self._open.pop(node.src[2], None)
        if total is None:
            total = ByteSum(writer, None if is_zero(node.src[2]) else value(node.src[2]))
        total.add(Pair(value(node.src[0]), value(node.src[1]), largest_byte(node.src[0])))
        self._begun = True
        if node in self._goes_on:
            self._open[node] = total
            return Value("poison", vector_type(self._lanes, "i32"))
        return total.value(self._times.get(node, 1))

    def note_halves(self, node: UOp) -> None:
        """A DOT16 was written; others may go on from it."""
        if node.dtype.count == self._lanes:
            self._halves.discard(node.src[2])
            self._halves.add(node)
            self._begun = True

    def before_load(self, writer: Writer) -> None:
        """Keep the loads of each turn between the sums: LLVM's scheduler works within the code between two labels.

        It would load what many turns need early, and then has no registers for the sums.
        """
        if len(self._open) + len(self._halves) > 1 and self._begun:
            writer.call_void("llvm.codeview.annotation", Value("!0", "metadata"))
            self._begun = False


def _instruction(writer: Writer, pairs: Sequence[Pair], start: Value | None) -> Value:
    kind = pairs[0].unsigned.type
    count = lanes_of(kind)
    total = Value("zeroinitializer", kind) if start is None else start
    for pair in pairs:
        bytes_ = [writer.convert("bitcast", v, vector_type(4 * count, "i8")) for v in (pair.unsigned, pair.signed)]
        total = writer.call(kind, f"llvm.x86.avx512.vpdpbusd.{32 * count}", total, *bytes_)
    return total


def _byte_pairs(writer: Writer, pair: Pair) -> Value:
    """Sums of two neighbouring products as shorts; nothing saturates where the unsigned bytes are small."""
    count = lanes_of(pair.unsigned.type)
    bytes_ = [writer.convert("bitcast", v, vector_type(4 * count, "i8")) for v in (pair.unsigned, pair.signed)]
    return writer.call(vector_type(2 * count, "i16"), _BYTE_PAIRS[32 * count], *bytes_)


def _widened(writer: Writer, shorts: Value, times: int = 1) -> Value:
    """Sums of two neighbouring shorts as words."""
    return _short_pairs(writer, shorts, integer(times, shorts.type))


def _short_pairs(writer: Writer, first: Value, second: Value) -> Value:
    count = lanes_of(first.type) // 2
    return writer.call(vector_type(count, "i32"), _SHORT_PAIRS[32 * count], first, second)


def _by_shorts(writer: Writer, pair: Pair) -> Value:
    """Even and odd bytes as shorts: their products are exact, and so are the sums of two."""
    kind = vector_type(2 * lanes_of(pair.unsigned.type), "i16")
    one, other = (writer.convert("bitcast", v, kind) for v in (pair.unsigned, pair.signed))
    eight = integer(8, kind)
    even = _short_pairs(
        writer, writer.binary("and", one, integer(255, kind)),
        writer.binary("ashr", writer.binary("shl", other, eight), eight),
    )  # fmt: skip
    odd = _short_pairs(writer, writer.binary("lshr", one, eight), writer.binary("ashr", other, eight))
    return writer.binary("add", even, odd)


def largest_byte(node: UOp) -> int:
    """What a byte of a word is at most, read without its sign."""
    return max(possible_bits(node).to_bytes(4, "little"))


def possible_bits(node: UOp) -> int:
    """The bits of a word of 32 that may be set: masks and shifts say it."""
    while node.op is Op.VECTORIZE and all(s is node.src[0] for s in node.src):
        node = node.src[0]
    if node.op is Op.CONST:
        return int(node.arg) & _ALL_BITS
    if node.op is Op.AND:
        return possible_bits(node.src[0]) & possible_bits(node.src[1])
    if node.op in (Op.OR, Op.XOR):
        return possible_bits(node.src[0]) | possible_bits(node.src[1])
    if node.op is Op.SHL:
        amounts = node.src[1]
        while amounts.op is Op.VECTORIZE and all(s is amounts.src[0] for s in amounts.src):
            amounts = amounts.src[0]
        if amounts.op is Op.CONST and 0 <= amounts.arg < 32:
            return possible_bits(node.src[0]) << int(amounts.arg) & _ALL_BITS
    return _ALL_BITS


def joined_dots(uops: Sequence[UOp], target: Target) -> frozenset[UOp]:
    """The DOTs that are written where their only user is: the DOT that goes on from them, or a sum that they can."""
    if not any(node.op is _DOT for node in uops):
        return frozenset()
    uses = Counter(s for node in uops for s in node.src)
    found: set[UOp] = set()
    for node in uops:
        if node.op is Op.DOT and node.src[2].op is Op.DOT and uses[node.src[2]] == 1:
            found.add(node.src[2])
        elif node.op is Op.ADD and target.dot8:
            found.update([s for s in node.src if s.op is Op.DOT and uses[s] == 1 and _begins_with_zero(s)][:1])
    return frozenset(found)


def dot_chain(node: UOp) -> tuple[list[UOp], UOp | None]:
    """The DOTs that go on from one another, first one first, and what they begin with unless it is 0."""
    chain = [node]
    while chain[-1].src[2].op is Op.DOT:
        chain.append(chain[-1].src[2])
    start = chain[-1].src[2]
    return chain[::-1], None if is_zero(start) else start


def is_zero(node: UOp) -> bool:
    """Whether a node is 0 in every lane."""
    return _known(node) == 0


def _known(node: UOp) -> int | None:
    """The integer that every lane of a node is, if it is known."""
    while node.op is Op.VECTORIZE and all(s is node.src[0] for s in node.src):
        node = node.src[0]
    return int(node.arg) if node.op is Op.CONST else None


def _begins_with_zero(node: UOp) -> bool:
    return dot_chain(node)[1] is None
