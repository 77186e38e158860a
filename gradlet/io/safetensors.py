"""The safetensors format: lazy loading through a memory map, atomic saving, and a header check that trusts nothing.

A file is 8 bytes (header length, little-endian), a JSON header {name: {dtype, shape, data_offsets}}, and the data.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EISDIR, ENOENT
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, NoReturn

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.engine.execute import base_buffer
from gradlet.io.files import host_tensor, path_text, short
from gradlet.ops.op import Op
from gradlet.runtime.buffer import buffer_of
from gradlet.runtime.device import Device
from gradlet.tensor.tensor import Tensor

MAX_HEADER: Final = 100_000_000  # bytes; the format's own limit
ALIGNMENT: Final = 64  # our files start their data on a multiple of this, so that mapped tensors are aligned
METADATA: Final = "__metadata__"
MAX_AXES: Final = 64  # as many as numpy has; a header with more is hostile

DTYPE_OF: Final[dict[str, DType]] = {
    "BOOL": dtypes.bool,
    "U8": dtypes.uint8,
    "I8": dtypes.int8,
    "U16": dtypes.uint16,
    "I16": dtypes.int16,
    "U32": dtypes.uint32,
    "I32": dtypes.int32,
    "U64": dtypes.uint64,
    "I64": dtypes.int64,
    "F8_E4M3": dtypes.float8_e4m3fn,
    "F8_E4M3FNUZ": dtypes.float8_e4m3fnuz,
    "F8_E5M2": dtypes.float8_e5m2,
    "F8_E5M2FNUZ": dtypes.float8_e5m2fnuz,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
}
NAME_OF: Final[dict[DType, str]] = {dtype: name for name, dtype in DTYPE_OF.items()}


class Entry(NamedTuple):
    """One tensor of a file: `begin` and `end` are byte offsets into the data."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return (self.end - self.begin) // self.dtype.itemsize


class Header(NamedTuple):
    """A checked header: the tensors in order of their data, free text, and where in the file the data begins."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]
    data_start: int


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file by name. Nothing is read until a tensor is used.

    The file is mapped into memory; on the CPU tensors are that memory itself, without a copy. Writing into a loaded
    tensor never changes the file. Data that does not lie on a multiple of its element size is copied.

    Raises:
        FileFormatError: truncated, inconsistent, or with a dtype that gradlet lacks.
        ArgumentError: `path` is no path.
        OSError: the file cannot be opened.
    """
    with open(path_text(path), "rb") as file:
        header = read_header(file, str(path))
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return _tensors(header, mapped, Device.DEFAULT)


def load_from(content: memoryview, path: str) -> dict[str, Tensor]:
    """The tensors of a file that is in memory, which they share. `path` is for messages.

    Raises:
        FileFormatError: as for `load`.
    """
    head = 8 + int.from_bytes(content[:8], "little")
    with io.BytesIO(content[: min(head, 8 + MAX_HEADER)]) as file:
        return _tensors(read_header(file, path, content.nbytes), content, "CPU")


def _tensors(header: Header, content: memoryview, device: str) -> dict[str, Tensor]:
    data = content[header.data_start :]
    return {entry.name: _tensor(entry, data[entry.begin : entry.end], device) for entry in header.entries}


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The free text that was saved with a file.

    Raises:
        FileFormatError: as for `load`.
    """
    with open(path_text(path), "rb") as file:
        return read_header(file, str(path)).metadata


def save(
    tensors: Mapping[str, Tensor], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a file. It appears complete or not at all: an existing file is replaced only at the end.

    Raises:
        ArgumentError: a name, value or metadata that the format cannot hold.
        OSError: the file cannot be written; nothing is left behind.
    """
    write_file(path_text(path), encoded(tensors, metadata))


def encoded(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> list[bytes | memoryview]:
    """The content of a file with these tensors, piece by piece.

    Raises:
        ArgumentError: as for `save`.
    """
    _check_arguments(tensors, metadata)
    dense = {name: tensor if _is_dense(tensor) else tensor.contiguous() for name, tensor in tensors.items()}
    if dense:
        first, *rest = dense.values()
        first.realize(*rest)
    # Wide elements first: then every tensor starts on a multiple of its element size.
    order = sorted(dense, key=lambda name: (-dense[name].dtype.itemsize, name))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor = dense[name]
        begin, end = end, end + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": NAME_OF[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise ArgumentError(f"tensors: the header would take {len(text)} bytes, the format allows {MAX_HEADER}")
    return [len(text).to_bytes(8, "little"), text, *[_memory(dense[name]) for name in order]]


# reading
def read_header(file: Any, path: str, size: int | None = None) -> Header:
    """Read and check the header of an open binary file; `size` is that of the file where only its header is there.

    Raises:
        FileFormatError: naming the file, the tensor and the problem.
    """
    file.seek(0, os.SEEK_END)
    size = file.tell() if size is None else size
    file.seek(0)
    prefix = file.read(8)
    if len(prefix) < 8:
        raise FileFormatError(f"{path}: {size} bytes are too few for a safetensors file; the file is truncated")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER:
        raise FileFormatError(
            f"{path}: header length {length} is over the limit of {MAX_HEADER}; not a safetensors file?"
        )
    if 8 + length > size:
        raise FileFormatError(f"{path}: header length {length} reaches past the end ({size} bytes); file truncated?")
    text = file.read(length)
    if len(text) != length:
        raise FileFormatError(f"{path}: the file became shorter while it was read")
    content = _parse_json(text, path)
    metadata = _check_metadata(content.pop(METADATA, None), path)
    data_size = size - 8 - length
    entries = [_check_entry(name, row, data_size, path) for name, row in content.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_layout(entries, data_size, path)
    return Header(tuple(entries), metadata, 8 + length)


def _parse_json(text: bytes, path: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise FileFormatError(f"{path}: name {twice!r} occurs twice in the header")
        return result

    def refuse(name: str) -> NoReturn:
        raise FileFormatError(f"{path}: the header holds {name}, which is not JSON")

    try:
        content = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: the header is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: the header is not a JSON object")
    return content


def _check_metadata(value: Any, path: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise FileFormatError(f"{path}: {METADATA} must map text to text")
    return value


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63  # a JSON true is no number


def _check_entry(name: str, row: Any, data_size: int, path: str) -> Entry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(row, dict) or not {"dtype", "shape", "data_offsets"} <= set(row):
        raise FileFormatError(f"{where}: needs dtype, shape and data_offsets")
    dtype = DTYPE_OF.get(row["dtype"]) if isinstance(row["dtype"], str) else None
    if dtype is None:
        raise FileFormatError(f"{where}: unknown dtype {row['dtype']!r}; known: {', '.join(DTYPE_OF)}")
    shape, offsets = row["shape"], row["data_offsets"]
    if isinstance(shape, list) and len(shape) > MAX_AXES:
        raise FileFormatError(f"{where}: {len(shape)} axes are more than the {MAX_AXES} that are read")
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise FileFormatError(f"{where}: shape {short(shape)} is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise FileFormatError(f"{where}: data_offsets {short(offsets)} are not two offsets")
    begin, end = offsets
    if begin > end:
        raise FileFormatError(f"{where}: begins at {begin}, after its end {end}")
    if end > data_size:
        raise FileFormatError(f"{where}: ends at {end}, but the file has {data_size} bytes of data; file truncated?")
    needed = dtype.itemsize
    for size in shape:
        needed *= size
        if needed >= 2**64:
            raise FileFormatError(f"{where}: shape {short(shape)} overflows")
    if end - begin != needed:
        raise FileFormatError(
            f"{where}: shape {short(shape)} of {row['dtype']} needs {needed} bytes, has {end - begin}"
        )
    return Entry(name, dtype, tuple(shape), begin, end)


def _check_layout(entries: Sequence[Entry], data_size: int, path: str) -> None:
    """The tensors cover the data exactly: no overlap, no hole (bytes that nobody accounts for may hide anything)."""
    reached = 0
    for entry in entries:
        if entry.begin < reached:
            raise FileFormatError(f"{path}: tensor {entry.name!r} at {entry.begin} overlaps the one before it")
        if entry.begin > reached:
            raise FileFormatError(f"{path}: bytes {reached} to {entry.begin} before {entry.name!r} belong to no tensor")
        reached = entry.end
    if reached != data_size:
        raise FileFormatError(f"{path}: {data_size - reached} bytes after the last tensor belong to none")


def _tensor(entry: Entry, data: memoryview, device: str) -> Tensor:
    return host_tensor(data, entry.dtype, device).reshape(*entry.shape)


# writing
def _check_arguments(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> None:
    if not isinstance(tensors, Mapping):
        raise ArgumentError(f"tensors: expected tensors by name in a dict, got {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == METADATA:
            raise ArgumentError(f"tensors: {name!r} cannot be a tensor's name")
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"tensors[{name!r}]: expected a Tensor, got {type(tensor).__name__}")
        if any(not isinstance(size, int) for size in tensor.shape):
            raise ArgumentError(
                f"tensors[{name!r}]: shape {tensor.shape} has a size that is known only at launch, which the format "
                "cannot hold; save Tensor(x.numpy())"
            )
    for name, text in (metadata or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ArgumentError(f"metadata[{name!r}]: the format holds text only; convert it with str()")


def write_file(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file that appears complete or not at all.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    with replacing(path) as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` at the end of the block, and is gone if that raises.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(EISDIR, "is a folder, not a file to write", str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(ENOENT, "there is no such folder to write to", str(target.parent))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _is_dense(tensor: Tensor) -> bool:
    """Whether the tensor is the whole of a buffer, in order."""
    node = tensor.uop
    while node.op is Op.RESHAPE:
        node = node.src[0]
    return node.op is Op.BUFFER


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a realised dense tensor."""
    return buffer_of(base_buffer(tensor.uop)).memory()
