"""Kernels as images: object code linked once, when it is compiled, then only copied to where it runs.

What a kernel's object files hold keeps its distances wherever it lies, and it needs nothing from outside. So nearly all
that a linker does is done before the code goes to disk; what is left is to add the address to the few words that hold
one. LLVM's linker takes most of a millisecond to load a small kernel, this takes hundredths of one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gradlet.base.errors import RenderError

# An image: the header, names of functions with a 0 byte after each, their offsets, words that hold an address as
# (place, offset), and the code itself. Raise the digit when this changes.
MAGIC: Final = b"\x00image1\x00"
_HEADER: Final = struct.Struct("<8sIIII")  # magic, bytes of names, functions, words, bytes of code
_WORD: Final = struct.Struct("<II")

# Of ELF, what an object file of LLVM has for x86-64.
_ELF: Final = b"\x7fELF\x02\x01"  # 64 bits, little endian
_X86_64: Final = 62
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QIIq")
_SYMBOLS, _STRINGS_OF_ALL, _RELOCATIONS, _NO_BITS, _RELOCATIONS_WITHOUT_ADDENDS = 2, 3, 4, 8, 9
_WRITTEN, _IN_MEMORY, _CODE, _OF_THREAD = 1, 2, 4, 0x400
_UNDEFINED, _RESERVED = 0, 0xFF00
_GLOBAL, _FUNCTION = 1, 2
_ALIGN: Final = 64  # bytes; a line of the cache, and the widest vector that code may read
_ADDRESS, _DISTANCES = 1, (2, 4)  # R_X86_64_64; R_X86_64_PC32 and R_X86_64_PLT32
_WRITTEN_BY_LINKER: Final = b".data.rel.ro"


class _Section(NamedTuple):
    """A header of a section, fields as in ELF."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class Piece(NamedTuple):
    """An object file, or what stands in one section of it: functions whose names begin alike."""

    code: bytes
    section: str = ""
    prefix: str = ""


class _UnfitError(Exception):
    """The object has something that images have not: imports, memory that is written, another machine."""


def image_of(code: bytes | Piece, others: Mapping[str, bytes | Piece] = MappingProxyType({})) -> bytes | None:
    """The image of an object file; None where only a real linker can load it.

    Args:
        code: the object file. Its functions are those that the image has for others.
        others: files that have one function each, which it calls by these names.
    """
    pieces = [file if isinstance(file, Piece) else Piece(file) for file in (code, *others.values())]
    if not is_supported() or not all(_is_elf(piece.code) for piece in pieces):
        return None
    try:
        image, words = bytearray(), list[tuple[int, int]]()
        first, *rest = [_Object(piece, image, words) for piece in pieces]
        outside: dict[bytes, int] = {}
        for name, other in zip(others, rest, strict=True):
            (outside[name.encode()],) = other.functions().values()
        for one in (first, *rest):
            one.relocate(outside)
        functions = {name.decode(): place for name, place in first.functions().items()}
        return put_together(Parts(functions, words, bytes(image)))
    except _UnfitError:
        return None


def _is_elf(code: bytes) -> bool:
    return code.startswith(_ELF) and struct.unpack_from("<H", code, 18)[0] == _X86_64


class _Object:
    """One object file whose sections lie in an image, where the distances between them are settled.

    Of a piece these are the section of its functions, and those of constants that they read.
    """

    def __init__(self, piece: Piece, image: bytearray, words: list[tuple[int, int]]) -> None:
        self.piece, self.code, self.image, self.words = piece, piece.code, image, words
        code = piece.code
        start, count, strings = *struct.unpack_from("<Q", code, 40), *struct.unpack_from("<HH", code, 60)
        self.sections = [_Section(*_SECTION.unpack_from(code, start + i * _SECTION.size)) for i in range(count)]
        self.strings = self.sections[strings]
        table = next(s for s in self.sections if s.type == _SYMBOLS)
        self.symbols = list(_SYMBOL.iter_unpack(self._bytes(table)))
        self.names = self.sections[table.link]
        self.places: dict[int, int] = {}  # where each section lies in the image
        for number in self._wanted() if piece.section else range(count):
            section = self.sections[number]
            if section.flags & _IN_MEMORY and section.size:
                self._lay_out(number, section)

    def _wanted(self) -> list[int]:
        """The section of the piece, and those of constants that it refers to."""
        name = self.piece.section.encode()
        wanted = {
            i for i, s in enumerate(self.sections) if s.flags & _CODE and self._name(self.strings, s.name) == name
        }
        for section in self.sections:
            if section.type == _RELOCATIONS and section.info in wanted:
                read = {self.symbols[row[2]][3] for row in _RELOCATION.iter_unpack(self._bytes(section))}
                wanted |= {i for i in read if i < len(self.sections) and not self.sections[i].flags & _CODE}
        return sorted(wanted)

    def _is_code(self, number: int) -> bool:
        return number < len(self.sections) and bool(self.sections[number].flags & _CODE)

    def relocate(self, outside: Mapping[bytes, int]) -> None:
        """Settle the distances, also those to functions outside by their places in the image."""
        for section in self.sections:
            if section.type == _RELOCATIONS_WITHOUT_ADDENDS:
                raise _UnfitError
            if section.type == _RELOCATIONS and section.info in self.places:
                self._relocate(section, outside)

    def functions(self) -> dict[bytes, int]:
        """The places of functions that others may call."""
        start = len(self.piece.prefix)
        return {
            self._name(self.names, symbol[0])[start:]: self._place(symbol)
            for symbol in self.symbols
            if symbol[1] == _GLOBAL << 4 | _FUNCTION and symbol[3] != _UNDEFINED
            if symbol[3] in self.places or not self.piece.section
        }

    def _bytes(self, section: _Section) -> bytes:
        return self.code[section.offset : section.offset + section.size]

    def _name(self, strings: _Section, start: int) -> bytes:
        begin = strings.offset + start
        return self.code[begin : self.code.index(b"\0", begin)]

    def _lay_out(self, number: int, section: _Section) -> None:
        is_written = section.flags & _WRITTEN and self._name(self.strings, section.name) != _WRITTEN_BY_LINKER
        if is_written or section.flags & _OF_THREAD or section.type == _NO_BITS:
            raise _UnfitError
        self.image += bytes(-len(self.image) % max(section.alignment, 1))
        self.places[number] = len(self.image)
        self.image += self._bytes(section)

    def _place(self, symbol: tuple[int, ...], outside: Mapping[bytes, int] = MappingProxyType({})) -> int:
        """Where a symbol lies in the image."""
        section, value = symbol[3], symbol[4]
        if section not in self.places and outside:
            found = outside.get(self._name(self.names, symbol[0]))
            if found is not None:
                return found
        if section == _UNDEFINED or section >= _RESERVED or section not in self.places:
            raise _UnfitError
        return self.places[section] + value

    def _relocate(self, section: _Section, outside: Mapping[bytes, int]) -> None:
        begin = self.places[section.info]
        constants = bool(self.piece.section) and not self.sections[section.info].flags & _CODE
        for offset, kind, number, addend in _RELOCATION.iter_unpack(self._bytes(section)):
            symbol = self.symbols[number]
            if constants and symbol[3] not in self.places and self._is_code(symbol[3]):
                continue  # it tells functions of other pieces where to go on
            place, target = begin + offset, self._place(symbol, outside) + addend
            if kind in _DISTANCES and -(1 << 31) <= target - place < 1 << 31:
                struct.pack_into("<i", self.image, place, target - place)
            elif kind == _ADDRESS and 0 <= target < 1 << 32:
                self.words.append((place, target))
            else:
                raise _UnfitError


class Parts(NamedTuple):
    """An image taken apart: where each function begins, words that hold an address as (place, offset), the code."""

    functions: dict[str, int]
    words: list[tuple[int, int]]
    code: bytes


def take_apart(image: bytes) -> Parts:
    """The parts of an image.

    Raises:
        RenderError: it is damaged.
    """
    try:
        magic, name_bytes, functions, words, size = _HEADER.unpack_from(image)
        start = _HEADER.size + name_bytes
        names = image[_HEADER.size : start].decode().split("\0")[:-1]
        offsets = struct.unpack_from(f"<{functions}I", image, start)
        start += 4 * functions
        begin = start + _WORD.size * words
        if magic != MAGIC or len(names) != functions or len(image) != begin + size:
            raise RenderError("a kernel's image is damaged")
    except (struct.error, UnicodeDecodeError):
        raise RenderError("a kernel's image is damaged") from None
    return Parts(dict(zip(names, offsets, strict=True)), list(_WORD.iter_unpack(image[start:begin])), image[begin:])


def put_together(parts: Parts) -> bytes:
    """The image of these parts."""
    names = b"".join(name.encode() + b"\0" for name in parts.functions)
    header = _HEADER.pack(MAGIC, len(names), len(parts.functions), len(parts.words), len(parts.code))
    offsets = struct.pack(f"<{len(parts.functions)}I", *parts.functions.values())
    return header + names + offsets + b"".join([_WORD.pack(*word) for word in parts.words]) + parts.code


def joined(images: Sequence[bytes]) -> Parts:
    """Several images as one; function `f` of image number 3 is called `3:f`."""
    functions: dict[str, int] = {}
    words: list[tuple[int, int]] = []
    code = bytearray()
    for number, image in enumerate(images):
        parts = take_apart(image)
        code += bytes(-len(code) % _ALIGN)
        begin = len(code)
        functions.update({f"{number}:{name}": begin + offset for name, offset in parts.functions.items()})
        words += [(begin + place, begin + offset) for place, offset in parts.words]
        code += parts.code
    return Parts(functions, words, bytes(code))


@cache
def is_supported() -> bool:
    """Whether this system lets a process make memory executable by the calls that POSIX has for it."""
    return os.name == "posix" and sys.platform != "darwin"


@cache
def _calls() -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """`mmap`, `mprotect` and `munmap`."""
    system = ctypes.CDLL(None, use_errno=True)
    word, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    system.mmap.argtypes, system.mmap.restype = (word, size, number, number, number, ctypes.c_long), word
    system.mprotect.argtypes = (word, size, number)
    system.munmap.argtypes = (word, size)
    return system.mmap, system.mprotect, system.munmap


class Mapped:
    """An image in memory of its own, executable and no longer writable. Dropping it gives the memory back."""

    def __init__(self, image: bytes) -> None:
        """Copy the image.

        Raises:
            RenderError: it is damaged, or the system gives no memory or allows no code in it.
        """
        functions, words, code = take_apart(image)
        size = len(code)
        map_memory, protect, self._unmap = _calls()
        self._bytes = size
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        address = map_memory(None, size, writable, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            self._bytes = 0
            raise RenderError(f"no memory for a kernel of {size} bytes: {os.strerror(ctypes.get_errno())}")
        self.address = int(address)
        if words:
            placed = bytearray(code)
            for place, offset in words:
                struct.pack_into("<Q", placed, place, self.address + offset)
            code = bytes(placed)
        ctypes.memmove(self.address, code, size)
        if protect(self.address, size, mmap.PROT_READ | mmap.PROT_EXEC):
            reason = os.strerror(ctypes.get_errno())
            self.unmap()
            raise RenderError(f"this system lets no process run code that it has made: {reason}")
        self.addresses = {name: self.address + offset for name, offset in functions.items()}

    def keep_forever(self) -> None:
        """Never give the memory back."""
        self._bytes = 0

    def unmap(self) -> None:
        """Give the memory back now."""
        size, self._bytes = self._bytes, 0
        if size:
            self._unmap(self.address, size)
