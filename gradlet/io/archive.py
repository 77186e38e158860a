"""Zip files whose large members lie uncompressed on whole cache lines, so that they are used where they are mapped."""

from __future__ import annotations

import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gradlet.base.errors import FileFormatError
from gradlet.io.safetensors import replacing

ALIGN: Final = 64
_LOCAL: Final = struct.Struct("<4s22xHH")  # the header before a member: lengths of its name and of its extra field
_PADDING: Final = 0xD935  # the id of an extra field that only takes space
_LONG: Final = 20  # bytes of the extra field with sizes of 64 bits
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # equal contents make equal files


def write(
    path: str | os.PathLike[str], packed: Mapping[str, bytes], plain: Mapping[str, Sequence[bytes | memoryview]]
) -> None:
    """Write a zip file. It appears complete or not at all.

    Args:
        path: the file.
        packed: members that are compressed.
        plain: members that are not, piece by piece.
    """
    with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, content in packed.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
        for name, pieces in plain.items():
            info = zipfile.ZipInfo(name, _DATE)
            behind = file.tell() + 30 + len(name.encode()) + _LONG + 4
            padding = -behind % ALIGN
            info.extra = struct.pack("<HH", _PADDING, padding) + bytes(padding)
            with archive.open(info, "w", force_zip64=True) as member:
                for piece in pieces:
                    member.write(piece)


class Archive:
    """A zip file that is open for reading and mapped into memory: changes of that memory never reach the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open it.

        Raises:
            FileFormatError: not a zip file, or a truncated one.
            OSError: it cannot be opened.
        """
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            try:
                self._memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
                with zipfile.ZipFile(file) as archive:
                    self._members = {info.filename: info for info in archive.infolist()}
            except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
                raise FileFormatError(f"{self.path}: is no whole zip file ({error}); truncated?") from None

    @property
    def names(self) -> Iterable[str]:
        """The members."""
        return self._members

    def _info(self, name: str) -> zipfile.ZipInfo:
        found = self._members.get(name)
        if found is None:
            raise FileFormatError(f"{self.path}: member {name} is missing")
        return found

    def read(self, name: str, most: int) -> bytes:
        """The content of a small member.

        Raises:
            FileFormatError: missing, damaged, or of more than `most` bytes.
        """
        info = self._info(name)
        if info.file_size > most:
            raise FileFormatError(
                f"{self.path}: member {name} says it has {info.file_size} bytes, at most {most} are read"
            )
        raw = self._bytes(info)
        try:
            content = bytes(raw)
            if info.compress_type == zipfile.ZIP_DEFLATED:
                content = zlib.decompressobj(-15).decompress(raw, info.file_size + 1)
            elif info.compress_type != zipfile.ZIP_STORED:
                raise FileFormatError(f"{self.path}: member {name} is compressed in a way that is not read")
        except zlib.error as error:
            raise FileFormatError(f"{self.path}: member {name} is damaged ({error})") from None
        if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
            raise FileFormatError(f"{self.path}: member {name} is damaged: its checksum is another one")
        return content

    def view(self, name: str) -> memoryview:
        """The memory of a member that is not compressed.

        Raises:
            FileFormatError: missing, compressed or truncated.
        """
        info = self._info(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise FileFormatError(f"{self.path}: member {name} is compressed; it has to be stored")
        return self._bytes(info)

    def _bytes(self, info: zipfile.ZipInfo) -> memoryview:
        """The member as it lies in the file."""
        begin = info.header_offset
        if begin + 30 > len(self._memory):
            raise FileFormatError(f"{self.path}: member {info.filename} lies behind the end; file truncated?")
        mark, name, extra = _LOCAL.unpack_from(self._memory, begin)
        begin += 30 + name + extra
        end = begin + info.compress_size
        if mark != b"PK\x03\x04" or end > len(self._memory):
            raise FileFormatError(f"{self.path}: member {info.filename} is not where it should be; file truncated?")
        return self._memory[begin:end]
