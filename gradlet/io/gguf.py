"""The GGUF format, versions 2 and 3: metadata and tensors as they lie in the file, through a memory map.

A file is a magic number, counts, metadata (typed values by name), a table of tensors (name, sizes, type, offset) and
the data, where every tensor starts on a multiple of the alignment. Everything is checked before anything is allocated:
what a header says is never trusted. Quantised tensors stay the bytes they are until somebody computes with them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import FileFormatError
from gradlet.io import blocks
from gradlet.io.files import host_tensor, path_text, short
from gradlet.tensor.tensor import Tensor

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
ALIGNMENT: Final = 32  # where the metadata does not say
MAX_AXES: Final = 4  # as many as the format has
MAX_NAME: Final = 2**16 - 1
MAX_DEPTH: Final = 4  # of arrays in arrays

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_SCALARS: Final = {
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: Struct("<I"), 5: Struct("<i"),
    6: Struct("<f"), 7: Struct("<?"), 10: Struct("<Q"), 11: Struct("<q"), 12: Struct("<d"),
}  # fmt: skip
_TEXT: Final = 8
_ARRAY: Final = 9

PLAIN: Final[dict[int, DType]] = {
    0: dtypes.float32,
    1: dtypes.float16,
    24: dtypes.int8,
    25: dtypes.int16,
    26: dtypes.int32,
    27: dtypes.int64,
    28: dtypes.float64,
    30: dtypes.bfloat16,
}
QUANTIZED: Final[dict[int, str]] = {
    2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


class Entry(NamedTuple):
    """One tensor of a file: `shape` has the slowest axis first; `begin` and `end` are offsets into the file.

    Exactly one of `dtype` and `quantized`, the name of a block type, is given.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType | None
    quantized: str | None
    begin: int
    end: int


class Raw(NamedTuple):
    """A tensor of a file: its bytes, or its elements where the type is one that gradlet has.

    Attributes:
        data: [size] elements, or uint8 bytes of blocks.
        shape: of the tensor.
        quantized: the type of its blocks, or None.
    """

    data: Tensor
    shape: tuple[int, ...]
    quantized: str | None

    def tensor(self) -> Tensor:
        """The tensor; quantised ones in float32, as an expression that fuses into what uses it."""
        if self.quantized is None:
            return self.data.reshape(*self.shape)
        return blocks.dequantize(self.data, self.quantized).reshape(*self.shape)


class File(Mapping[str, Raw]):
    """An open file: tensors by name, read on first use, and `metadata`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map a file and check all of its header.

        Raises:
            FileFormatError: naming the file, the tensor or key and the problem.
            ArgumentError: `path` is no path.
            OSError: the file cannot be opened.
        """
        self.path = path_text(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 24:
                raise FileFormatError(f"{self.path}: {size} bytes are too few for a GGUF file; the file is truncated")
            self._memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        reader = _Reader(self._memory, self.path)
        self.version, self.metadata, entries = reader.header()
        self.entries: dict[str, Entry] = {entry.name: entry for entry in entries}

    def __getitem__(self, name: str) -> Raw:
        entry = self.entries[name]
        part = self._memory[entry.begin : entry.end]
        return Raw(host_tensor(part, entry.dtype or dtypes.uint8), entry.shape, entry.quantized)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file by name; quantised ones in float32, which is computed where they are used.

    Raises:
        FileFormatError: naming the file, the tensor or key and the problem.
        ArgumentError: `path` is no path.
        OSError: the file cannot be opened.
    """
    return {name: raw.tensor() for name, raw in File(path).items()}


class _Reader:
    """Reads a header from the front; every read checks that it stays inside the file."""

    def __init__(self, memory: memoryview, path: str) -> None:
        self.memory, self.path, self.at, self.size = memory, path, 0, len(memory)

    def header(self) -> tuple[int, dict[str, Any], list[Entry]]:
        """Version, metadata and tensors."""
        magic = bytes(self.memory[:4])
        if magic != MAGIC:
            raise FileFormatError(f"{self.path}: begins with {magic!r}, not {MAGIC!r}; not a GGUF file")
        self.at = 4
        version = self.number(_U32, "version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            hint = "; its bytes are in big-endian order" if swapped else ""
            raise FileFormatError(f"{self.path}: GGUF version {version}, and versions 2 and 3 are read{hint}")
        tensors, keys = self.number(_U64, "number of tensors"), self.number(_U64, "number of keys")
        # A tensor takes 24 bytes of the table at least, a key 13: larger counts are wrong, whatever follows.
        if tensors * 24 + keys * 13 > self.size:
            raise FileFormatError(f"{self.path}: {tensors} tensors and {keys} keys do not fit into {self.size} bytes")
        metadata: dict[str, Any] = {}
        for number in range(keys):
            key = self.text(f"key {number}", MAX_NAME)
            if key in metadata:
                raise FileFormatError(f"{self.path}: key {key!r} occurs twice")
            metadata[key] = self.value(self.number(_U32, key), key)
        rows = [self.row(number) for number in range(tensors)]
        return version, metadata, self.placed(rows, self.alignment(metadata))

    def need(self, count: int, what: str) -> int:
        """The place of the next `count` bytes, which are then read."""
        begin = self.at
        if count > self.size - begin:
            raise FileFormatError(
                f"{self.path}: {short(what)} takes {count} bytes at {begin} and the file has {self.size}; truncated?"
            )
        self.at = begin + count
        return begin

    def number(self, form: Struct, what: str) -> Any:
        return form.unpack_from(self.memory, self.need(form.size, what))[0]

    def text(self, what: str, most: int | None = None) -> str:
        length = self.number(_U64, what)
        if most is not None and length > most:
            raise FileFormatError(f"{self.path}: the name of {what} has {length} bytes; at most {most} are read")
        begin = self.need(length, what)
        try:
            return str(self.memory[begin : begin + length], "utf-8")
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{self.path}: {short(what)} is not UTF-8 ({error.reason})") from None

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        form = _SCALARS.get(kind)
        if form is not None:
            return self.number(form, key)
        if kind == _TEXT:
            return self.text(key)
        if kind != _ARRAY:
            raise FileFormatError(f"{self.path}: key {key!r} has the unknown type {kind}")
        if depth == MAX_DEPTH:
            raise FileFormatError(f"{self.path}: key {key!r} nests arrays more than {MAX_DEPTH} deep")
        inner, count = self.number(_U32, key), self.number(_U64, key)
        form = _SCALARS.get(inner)
        if form is not None:
            begin = self.need(count * form.size, key)
            return [item for (item,) in form.iter_unpack(self.memory[begin : self.at])]
        least = 8 if inner == _TEXT else 12
        if count * least > self.size - self.at:
            raise FileFormatError(f"{self.path}: key {key!r} says {count} items, more than the file holds; truncated?")
        if inner == _TEXT:
            return self.texts(count, key)
        return [self.value(inner, key, depth + 1) for _ in range(count)]

    def texts(self, count: int, key: str) -> list[str]:
        """Many texts: a vocabulary has tens of thousands, so that the loop is written out."""
        # Slices of what lies under a view are bytes, which become texts faster.
        memory: Any = self.memory.obj
        at, size, unpack = self.at, self.size, _U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                begin = at + 8
                at = begin + unpack(memory, at)[0]
                if at > size:
                    break
                found.append(memory[begin:at].decode())
        except UnicodeDecodeError as error:
            raise FileFormatError(
                f"{self.path}: key {key!r}: item {len(found)} is not UTF-8 ({error.reason})"
            ) from None
        except Exception:  # no room for a length
            at = size + 1
        if at > size:
            raise FileFormatError(f"{self.path}: key {key!r}: item {len(found)} reaches past the end; file truncated?")
        self.at = at
        return found

    def alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment < 8 or alignment % 8 or alignment > 2**20:
            raise FileFormatError(
                f"{self.path}: general.alignment is {short(alignment)}, not a multiple of 8 up to 2^20"
            )
        return alignment

    def row(self, number: int) -> tuple[str, list[int], int, int]:
        name = self.text(f"tensor {number}", MAX_NAME)
        where = f"{self.path}: tensor {name!r}"
        axes = self.number(_U32, name)
        if axes > MAX_AXES:
            raise FileFormatError(f"{where}: {axes} axes are more than the {MAX_AXES} that the format has")
        sizes = [self.number(_U64, name) for _ in range(axes)]
        return name, sizes, self.number(_U32, name), self.number(_U64, name)

    def placed(self, rows: list[tuple[str, list[int], int, int]], alignment: int) -> list[Entry]:
        """Where the tensors lie: inside the file, each for itself."""
        start = -(-self.at // alignment) * alignment
        entries = [self.entry(*row, start, alignment) for row in rows]
        names = {entry.name for entry in entries}
        if len(names) < len(entries):
            twice = next(name for name in names if sum(entry.name == name for entry in entries) > 1)
            raise FileFormatError(f"{self.path}: tensor {twice!r} occurs twice")
        reached, before = 0, ""
        for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
            if entry.begin < reached and entry.begin < entry.end:
                raise FileFormatError(f"{self.path}: tensor {entry.name!r} overlaps tensor {before!r}")
            reached, before = max(reached, entry.end), entry.name
        return entries

    def entry(self, name: str, sizes: list[int], kind: int, offset: int, start: int, alignment: int) -> Entry:
        where = f"{self.path}: tensor {name!r}"
        dtype, quantized = PLAIN.get(kind), QUANTIZED.get(kind)
        if dtype is None and quantized is None:
            known = ", ".join([*(d.name for d in PLAIN.values()), *QUANTIZED.values()])
            raise FileFormatError(f"{where}: unknown type {kind}; known: {known}")
        count = 1
        for size in sizes:
            count *= size
            if count >= 2**63:
                raise FileFormatError(f"{where}: sizes {sizes} overflow")
        if dtype is not None:
            needed = count * dtype.itemsize
        else:
            assert quantized is not None
            form = blocks.FORMATS[quantized]
            if (sizes[0] if sizes else 1) % form.size:
                raise FileFormatError(
                    f"{where}: {quantized} has blocks of {form.size}, and rows of {sizes[0] if sizes else 1} are no "
                    "multiple of it"
                )
            needed = count // form.size * form.bytes
        begin = start + offset
        if offset % alignment:
            raise FileFormatError(f"{where}: its offset {offset} is no multiple of the alignment {alignment}")
        if needed and begin + needed > self.size:
            raise FileFormatError(
                f"{where}: ends at {begin + needed}, and the file has {self.size} bytes; file truncated?"
            )
        if not needed:
            begin = min(begin, self.size)
        return Entry(name, tuple(reversed(sizes)), dtype, quantized, begin, begin + needed)
