"""Small tables in vector registers, read by lanes of numbers, as LLVM instructions: shuffles of the register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gradlet.render.llvmtext import Value, Writer, integer, lanes_of, scalar_of, vector_type
from gradlet.target.target import Target

_X86_BYTES: Final = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}
_X86_WORDS: Final = {8: "llvm.x86.avx2.permd", 16: "llvm.x86.avx512.permvar.si.512"}


class _Shuffle(NamedTuple):
    """How a machine picks by number: so many lanes at once out of tables of so many entries."""

    lanes: int
    entries: int
    pick: Callable[[Writer, Value, Value], Value]  # table and numbers, both of that many; only low bits count


def lookup(writer: Writer, target: Target, table: Value, index: Value) -> Value:
    """The elements of a vector whose numbers are the lanes of another one, integers of 32 bits."""
    count = lanes_of(index.type)
    scalar = scalar_of(table.type)
    if count == 1:
        return writer.emit(scalar, f"extractelement {table}, {index}")
    byte = scalar == "i8"
    shuffle = _shuffle(target, byte, count, lanes_of(table.type))
    if not byte and scalar != "i32":
        table = writer.convert("bitcast", table, vector_type(lanes_of(table.type), "i32"))
    parts: list[Value] = []
    for first in range(0, count, shuffle.lanes):
        picks = [min(first + i, count - 1) for i in range(shuffle.lanes)]
        numbers = index if count == shuffle.lanes else writer.lanes(index, picks)
        parts.append(_blocks(writer, shuffle, table, numbers))
    while len(parts) > 1:
        parts = [_joined(writer, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    result = parts[0]
    if lanes_of(result.type) != count:
        result = writer.lanes(result, list(range(count)))
    return result if scalar in ("i8", "i32") else writer.convert("bitcast", result, vector_type(count, scalar))


def _joined(writer: Writer, parts: list[Value]) -> Value:
    if len(parts) == 1:  # the rest has no lanes that are asked for
        return writer.lanes(parts[0], [*range(lanes_of(parts[0].type))] * 2)
    return writer.shuffle(parts[0], parts[1], range(2 * lanes_of(parts[0].type)))


def _blocks(writer: Writer, shuffle: _Shuffle, table: Value, numbers: Value) -> Value:
    """A table of more entries than can be picked from at once is taken block by block."""
    size, result = lanes_of(table.type), None
    for first in range(0, size, shuffle.entries):
        block = writer.lanes(table, [min(first + i, size - 1) for i in range(shuffle.entries)])
        picked = shuffle.pick(writer, block, numbers)
        if result is None:
            result = picked
        else:
            later = writer.compare("icmp sge", numbers, integer(first, numbers.type))
            result = writer.select(later, picked, result)
    assert result is not None
    return result


def _shuffle(target: Target, byte: bool, count: int, size: int) -> _Shuffle:
    x86, most = target.triple.startswith("x86_64"), target.vector_bits // 8
    if byte:
        lanes = most if x86 and count >= most else next((n for n in (16, 32, 64) if n >= min(count, most)), 16)
        names = {16: "llvm.aarch64.neon.tbl1.v16i8" if target.triple.startswith("aarch64") else "llvm.wasm.swizzle"}
        names = _X86_BYTES if x86 else names
        lanes = lanes if x86 else 16
        return _Shuffle(lanes, 16, lambda w, t, n: _by_bytes(w, names[lanes], t, _bytes_of(w, n)))
    if x86 and target.vector_bits >= 256:
        lanes = 16 if target.vector_bits >= 512 and (count > 8 or size > 8) else 8
        return _Shuffle(lanes, lanes, lambda w, t, n: w.call(t.type, _X86_WORDS[lanes], t, n))
    if target.triple.startswith("aarch64"):
        registers = next(n for n in (1, 2, 4) if 4 * n >= size)
        return _Shuffle(4, 4 * registers, _arm_words)
    name = _X86_BYTES[16] if x86 else "llvm.wasm.swizzle"
    return _Shuffle(4, 4, lambda w, t, n: _words_by_bytes(w, name, t, n))


def _bytes_of(writer: Writer, numbers: Value) -> Value:
    """Numbers of 16 entries as bytes whose other bits are 0: some instructions give 0 for larger ones."""
    kind = vector_type(lanes_of(numbers.type), "i8")
    return writer.convert("trunc", writer.binary("and", numbers, integer(15, numbers.type)), kind)


def _by_bytes(writer: Writer, name: str, table: Value, numbers: Value) -> Value:
    """A byte table of 16; wide registers have it in every 128 bits."""
    lanes = lanes_of(numbers.type)
    wide = table if lanes == 16 else writer.lanes(table, [i % 16 for i in range(lanes)])
    return writer.call(numbers.type, name, wide, numbers)


def _byte_numbers(writer: Writer, numbers: Value, entries: int) -> Value:
    """Which bytes make up the words of these numbers."""
    kind = numbers.type
    inside = writer.binary("and", numbers, integer(entries - 1, kind))
    first = writer.binary("mul", inside, integer(0x04040404, kind))
    return writer.convert("bitcast", writer.binary("add", first, integer(0x03020100, kind)), "<16 x i8>")


def _words_by_bytes(writer: Writer, name: str, table: Value, numbers: Value) -> Value:
    picked = writer.call(
        "<16 x i8>", name, writer.convert("bitcast", table, "<16 x i8>"), _byte_numbers(writer, numbers, 4)
    )  # fmt: skip
    return writer.convert("bitcast", picked, "<4 x i32>")


def _arm_words(writer: Writer, table: Value, numbers: Value) -> Value:
    entries = lanes_of(table.type)
    rows = [writer.lanes(table, list(range(i, i + 4))) if entries > 4 else table for i in range(0, entries, 4)]
    registers = [writer.convert("bitcast", row, "<16 x i8>") for row in rows]
    name = f"llvm.aarch64.neon.tbl{len(registers)}.v16i8"
    picked = writer.call("<16 x i8>", name, *registers, _byte_numbers(writer, numbers, entries))
    return writer.convert("bitcast", picked, "<4 x i32>")
