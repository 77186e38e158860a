"""`load`: tensors from a file of any known format, which is told by its content and never by its name."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, Final

from gradlet.base.errors import FileFormatError
from gradlet.io import gguf, npz, safetensors, sharded, torch_file
from gradlet.io.files import path_text

KNOWN: Final = "safetensors, an index of safetensors files, GGUF, a checkpoint of torch, npz, npy"


def load(path: str | os.PathLike[str]) -> Any:
    """What a file holds: tensors by name; one tensor for npy; for torch whatever containers it has.

    A folder is read through its index file or its one safetensors file. Data is read when it is used, as far as the
    format allows; quantised tensors become float32 where they are used.

    Raises:
        FileFormatError: no known format, or a file that is damaged.
        ArgumentError: `path` is no path.
        OSError: the file cannot be opened.
    """
    where = path_text(path)
    if os.path.isdir(where):
        return load(_in_folder(Path(where)))
    with open(where, "rb") as file:
        start = file.read(16)
    if start[:4] == gguf.MAGIC:
        return gguf.load(where)
    if start[:6] == npz.NPY_MAGIC:
        return npz.load_array(where)
    if start[: len(torch_file.LEGACY_START)] == torch_file.LEGACY_START:
        return torch_file.load(where)
    if start[:4] == torch_file.ZIP_MAGIC or zipfile.is_zipfile(where):
        return torch_file.load(where) if _is_checkpoint(where) else npz.load(where)
    if start.lstrip()[:1] == b"{":
        return sharded.load(where)
    if start[8:9] == b"{":
        return safetensors.load(where)
    raise FileFormatError(f"{where}: begins with {start[:8]!r}, which is no known format; known: {KNOWN}")


def _in_folder(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise FileFormatError(f"{folder}: a folder with {len(found)} safetensors files and no index; name the file")
    return found[0]


def _is_checkpoint(where: str) -> bool:
    try:
        with zipfile.ZipFile(where) as archive:
            return any(name.rpartition("/")[2] == "data.pkl" for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise FileFormatError(f"{where}: no zip file that can be read ({error}); truncated?") from None
