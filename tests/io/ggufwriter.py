"""GGUF files for tests, written from the description of the format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "MXFP4": 39, "I32": 26}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(item: Any) -> bytes:
    """A typed value: type, then content."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<IQ" if item >= 2**31 else "<II", 10 if item >= 2**31 else 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + text(item)
    kinds = {str: 8, bool: 7, int: 5, float: 6}
    kind = kinds[type(item[0])] if item else 4
    content = [text(one) if kind == 8 else struct.pack({7: "<?", 5: "<i", 6: "<f"}[kind], one) for one in item]
    return struct.pack("<IIQ", 9, kind, len(item)) + b"".join(content)


def row(name: str, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
    """An entry of the table; sizes with the fastest axis first, as the format has them."""
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def header(metadata: dict[str, Any], rows: list[bytes], version: int = 3, alignment: int = 32) -> bytes:
    start = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(metadata))
    start += b"".join(text(key) + value(item) for key, item in metadata.items()) + b"".join(rows)
    return start + bytes(-len(start) % alignment)


def write(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...], Any]]) -> Path:
    """A whole file; a tensor is its type, its shape (slowest axis first) and its data."""
    rows, data = [], b""
    for name, (kind, shape, content) in tensors.items():
        rows.append(row(name, tuple(reversed(shape)), TYPES[kind], len(data)))
        data += np.ascontiguousarray(content).tobytes()
        data += bytes(-len(data) % 32)
    path.write_bytes(header(metadata, rows) + data)
    return path
