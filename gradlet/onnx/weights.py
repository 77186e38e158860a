"""Tensors stored in a model or in files beside it, read with every size checked before anything is allocated.

Source: the messages `TensorProto` and `SparseTensorProto`, and the page "External Data" of the ONNX specification.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.base.errors import FileFormatError
from gradlet.onnx.elements import ELEMENTS, STRING, numpy_type
from gradlet.onnx.package import onnx_package
from gradlet.onnx.values import Value

MOST_BYTES = 1 << 40
BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}


def read_tensor(proto: Any, folder: Path | None, where: str, raw: memoryview | None = None) -> Value:
    """A stored tensor as a known value; data in files is mapped from `folder`; `raw` is the message's own data.

    Raises:
        FileFormatError: sizes that do not fit the data, an unknown type, or a file that may not be read.
    """
    what = f"{where}: tensor {proto.name!r}" if proto.name else f"{where}: a tensor without name"
    if proto.data_type not in ELEMENTS:
        raise FileFormatError(f"{what}: unknown element type {proto.data_type}")
    shape = tuple(proto.dims)
    if any(d < 0 for d in shape):
        raise FileFormatError(f"{what}: negative size in shape {shape}")
    count = prod(shape)
    if proto.data_type == STRING:
        if len(proto.string_data) != count:
            raise FileFormatError(f"{what}: shape {shape} needs {count} texts, there are {len(proto.string_data)}")
        texts = np.empty(count, dtype=object)
        for i, text in enumerate(proto.string_data):
            texts[i] = text.decode("utf-8", "replace")
        return Value.of_array(texts.reshape(shape), STRING)
    size = (count * BITS.get(proto.data_type, numpy_type(proto.data_type).itemsize * 8) + 7) // 8
    if size > MOST_BYTES:
        raise FileFormatError(f"{what}: shape {shape} is too large")
    if proto.data_location == onnx_package().TensorProto.EXTERNAL:
        raw = _external(proto, folder, size, what)
        return Value.of_array(_unpacked(raw, proto.data_type, count).reshape(shape), proto.data_type)
    if raw is not None or proto.HasField("raw_data"):
        stored = len(proto.raw_data) if raw is None else raw.nbytes
        if stored != size:
            raise FileFormatError(f"{what}: shape {shape} needs {size} bytes, there are {stored}")
    if raw is not None:
        copied = np.array(np.frombuffer(raw, np.uint8))
        return Value.of_array(_unpacked(copied, proto.data_type, count).reshape(shape), proto.data_type)
    try:
        return Value.of_array(onnx_package().numpy_helper.to_array(proto), proto.data_type)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise FileFormatError(f"{what}: its data does not fit shape {shape}: {error}") from None


def _unpacked(raw: Any, number: int, count: int) -> Any:
    """Elements of memory; those of 4 and 2 bits lie several in a byte, the first in the lowest bits."""
    bits = BITS.get(number)
    if bits is None:
        return raw.view(numpy_type(number))
    parts = np.stack([(raw >> s) & ((1 << bits) - 1) for s in range(0, 8, bits)], -1).reshape(-1)[:count]
    wanted = numpy_type(number)
    if number in (22, 26):
        return ((parts.astype(np.int8) << (8 - bits)) >> (8 - bits)).astype(wanted)
    return parts.view(wanted) if number == 23 else parts.astype(wanted)


def _external(proto: Any, folder: Path | None, size: int, what: str) -> Any:
    entries = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise FileFormatError(f"{what}: its data is in file {location!r}; load the model by its path")
    if not location or Path(location).is_absolute() or ".." in Path(location).parts or "\\" in location:
        raise FileFormatError(f"{what}: location {location!r} must be a file beside the model")
    root = folder.resolve()
    path = (root / location).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        raise FileFormatError(f"{what}: location {location!r} is no file beside the model")
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(size)))
    except ValueError:
        raise FileFormatError(f"{what}: offset or length is no number") from None
    if offset < 0 or length != size or offset + length > path.stat().st_size:
        raise FileFormatError(
            f"{what}: bytes {offset} to {offset + length} of {location!r}, which has {path.stat().st_size}; "
            f"its shape needs {size}"
        )
    if size == 0:
        return np.empty(0, np.uint8)
    return np.memmap(path, np.uint8, "r", offset, (size,))


def read_sparse(proto: Any, folder: Path | None, where: str) -> Value:
    """A sparse tensor as a dense known value.

    Raises:
        FileFormatError: indices outside the shape, or of another number than values.
    """
    values = read_tensor(proto.values, folder, where)
    places = read_tensor(proto.indices, folder, where).array()
    shape = tuple(proto.dims)
    if any(d < 0 for d in shape) or prod(shape) * 8 > MOST_BYTES:
        raise FileFormatError(f"{where}: sparse tensor of shape {shape}")
    if places.ndim == 2 and places.shape[1] == len(shape):
        inside = bool(((places >= 0) & (places < np.array(shape))).all())
        flat = np.ravel_multi_index(tuple(places.T), shape) if inside else places
    else:
        flat = places.reshape(-1)
        inside = bool(((flat >= 0) & (flat < prod(shape))).all())
    if not inside or flat.size != values.array().size:
        raise FileFormatError(f"{where}: sparse tensor of shape {shape} has indices that do not fit")
    dense = np.zeros(prod(shape), values.array().dtype)
    dense[flat.reshape(-1)] = values.array()
    return Value.of_array(dense.reshape(shape), values.elem)
