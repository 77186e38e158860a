"""What a model file is, without parsing it: a name for all of it but the data of large weights, and where these lie.

The file is walked as messages of protocol buffers: numbers of fields and lengths. Source: the page "Encoding" of the
protocol buffers documentation, and `onnx.proto` for the fields.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from gradlet.base.errors import FileFormatError

# Data of fewer bytes is part of the name: it may decide what a model computes, as the data of a shape does.
LARGE: Final = 1 << 16

# Fields by number.
_MODEL_GRAPH: Final = 7
_GRAPH_INITIALIZER: Final = 5
_TENSOR_NAME: Final = 8
_TENSOR_RAW: Final = 9
_TENSOR_EXTERNAL: Final = 13


class Outline(NamedTuple):
    """A model file.

    Attributes:
        name: of everything but the data of large weights.
        stored: where the data of large weights lies: first byte and the one behind the last, by the weights' names.
    """

    name: str
    stored: dict[str, tuple[int, int]]


class OddFileError(ValueError):
    """A file that is no model, or one that has to be parsed to be understood."""


def outline(data: Any) -> Outline | None:
    """The outline of the bytes of a file; None where only parsing tells what it is."""
    view = memoryview(data)
    try:
        stored = _stored(view)
    except (OddFileError, UnicodeDecodeError, IndexError):
        return None
    digest = hashlib.blake2b(digest_size=20)
    end = 0
    for begin, behind in stored.values():  # in order of the file
        digest.update(view[end:begin])
        end = behind
    digest.update(view[end:])
    digest.update(repr(list(stored.values())).encode())
    return Outline(digest.hexdigest(), stored)


def _stored(view: memoryview) -> dict[str, tuple[int, int]]:
    """Where the data of large weights lies, in order of the file."""
    graphs = [field for field in _fields(view, 0, len(view)) if field[0] == _MODEL_GRAPH]
    if len(graphs) != 1:
        raise OddFileError("several graphs become one")
    found: dict[str, tuple[int, int]] = {}
    names: set[str] = set()
    for number, begin, end in _fields(view, *graphs[0][1:]):
        if number != _GRAPH_INITIALIZER:
            continue
        name, raw = "", (0, 0)
        times = 0
        for inner, first, behind in _fields(view, begin, end):
            if inner == _TENSOR_NAME:
                name, times = bytes(view[first:behind]).decode(), times + 1
            elif inner == _TENSOR_RAW:
                raw, times = (first, behind), times + 1
            elif inner == _TENSOR_EXTERNAL:
                raise OddFileError("data in other files")
        if name in names or times > 2:
            raise OddFileError("a name or data that stands twice")
        names.add(name)
        if raw[1] - raw[0] >= LARGE:
            found[name] = raw
    return found


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, first byte and the byte behind the last of every field with a length; other fields are passed over."""
    while at < end:
        key = view[at]
        at += 1
        if key >= 0x80:
            key, at = _varint(view, at - 1)
        kind = key & 7
        if kind == 2:
            size = view[at]
            at += 1
            if size >= 0x80:
                size, at = _varint(view, at - 1)
            if at + size > end:
                raise OddFileError("truncated")
            yield key >> 3, at, at + size
            at += size
        elif kind == 0:
            at = _varint(view, at)[1]
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise OddFileError("groups")
    if at != end:
        raise OddFileError("truncated")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """A number of as many bytes as it needs, and where it ends."""
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise OddFileError("a number of more than 64 bits")


class Source:
    """The bytes of a model: given, or those of a file, which is mapped and watched."""

    def __init__(self, source: bytes | str | Path) -> None:
        """Open it.

        Raises:
            OSError: there is no such file.
            ValueError: an empty file.
        """
        self.folder: Path | None = None
        self._file = -1
        if isinstance(source, (str, Path)):
            self.folder = Path(source).parent
            self._file = os.open(source, os.O_RDONLY)
            self._written = self._when()
            self.data: Any = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        else:
            self.data = source
        self.outline = outline(self.data)

    def read(self, begin: int, target: memoryview) -> None:
        """Copy bytes from somewhere on; of a file without mapping its pages one by one.

        Raises:
            FileFormatError: the file is not what it was.
        """
        done = 0
        while self._file >= 0 and done < len(target):
            count = os.preadv(self._file, [target[done:]], begin + done) if self.is_same else 0
            if not count:
                raise FileFormatError(
                    "the model's file was written to after it was opened, and weights were not yet read; open it again"
                )
            done += count
        if self._file < 0:
            target[:] = memoryview(self.data)[begin : begin + len(target)]

    @property
    def is_same(self) -> bool:
        """Whether the file is as it was when it was opened."""
        return self._file < 0 or self._when() == self._written

    def _when(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
