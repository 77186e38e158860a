"""Arrays of NumPy: npy files and npz archives, with headers that are checked before anything is allocated."""

from __future__ import annotations

import io
import os
import zipfile
from typing import Any, BinaryIO, Final

from gradlet.base.errors import FileFormatError
from gradlet.io.files import path_text, short
from gradlet.tensor.tensor import Tensor

NPY_MAGIC: Final = b"\x93NUMPY"
MAX_HEADER: Final = 10_000
KINDS: Final = "biuf"  # of NumPy's types: truth values, integers, floats


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The arrays of an npz archive by name.

    Raises:
        FileFormatError: truncated, inconsistent, or with arrays that are not numbers.
        ArgumentError: `path` is no path.
        OSError: the file cannot be opened.
    """
    where = path_text(path)
    found: dict[str, Tensor] = {}
    try:
        with zipfile.ZipFile(where) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                with archive.open(info) as file:
                    found[name] = _array(file, info.file_size, f"{where}: array {name!r}")
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise FileFormatError(f"{where}: no zip file that can be read ({error}); truncated?") from None
    return found


def load_array(path: str | os.PathLike[str]) -> Tensor:
    """The array of an npy file.

    Raises:
        FileFormatError: as for `load`.
    """
    where = path_text(path)
    with open(where, "rb") as file:
        return _array(file, os.fstat(file.fileno()).st_size, where)


def _array(file: Any, size: int, where: str) -> Tensor:
    import numpy as np
    from numpy.lib import format as npy

    start = file.read(8)
    if start[:6] != NPY_MAGIC or len(start) < 8:
        raise FileFormatError(f"{where} begins with {start[:6]!r}; not an array of NumPy")
    wide = start[6] > 1
    length_bytes = file.read(4 if wide else 2)
    length = int.from_bytes(length_bytes, "little")
    if start[6] not in (1, 2, 3) or length > MAX_HEADER or length > size:
        raise FileFormatError(f"{where} has a header of {length} bytes of version {start[6]}")
    header: BinaryIO = io.BytesIO(length_bytes + file.read(length))
    try:
        read = npy.read_array_header_2_0 if wide else npy.read_array_header_1_0
        shape, by_columns, dtype = read(header, max_header_size=MAX_HEADER)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise FileFormatError(f"{where} has a header that cannot be read ({short(str(error))})") from None
    if dtype.kind not in KINDS or dtype.itemsize > 8:
        raise FileFormatError(f"{where} is of type {dtype}, not of numbers that gradlet has")
    needed = dtype.itemsize
    for axis in shape:
        needed *= axis
        if axis < 0 or needed >= 2**63:
            raise FileFormatError(f"{where} has the impossible shape {short(shape)}")
    room = size - len(start) - len(length_bytes) - length
    if needed != room:
        raise FileFormatError(f"{where}: shape {short(shape)} of {dtype} needs {needed} bytes, has {room}; truncated?")
    data = file.read(needed)
    if len(data) != needed:
        raise FileFormatError(f"{where} became shorter while it was read")
    values = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
    return Tensor(values.reshape(shape, order="F" if by_columns else "C"))
