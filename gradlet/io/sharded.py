"""Tensors that lie in several safetensors files, and the index file that says which is where."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from gradlet.base.errors import FileFormatError
from gradlet.io import safetensors
from gradlet.io.files import path_text, short
from gradlet.tensor.tensor import Tensor

MAX_INDEX: Final = 100_000_000  # bytes


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors that an index file names, from the files beside it; read when they are used.

    Raises:
        FileFormatError: the index is damaged, names a file elsewhere, or a tensor that its file does not have.
        ArgumentError: `path` is no path.
        OSError: a file cannot be opened.
    """
    where = path_text(path)
    if os.path.getsize(where) > MAX_INDEX:
        raise FileFormatError(f"{where}: an index of more than {MAX_INDEX} bytes is not read")
    try:
        content = json.loads(Path(where).read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where}: the index is not valid JSON ({error})") from None
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict):
        raise FileFormatError(f"{where}: the index has no weight_map")
    folder = Path(where).parent
    shards: dict[str, dict[str, Tensor]] = {}
    found: dict[str, Tensor] = {}
    for name, file in places.items():
        # A file's name, not a path: an index must not reach elsewhere.
        if not isinstance(file, str) or file in ("", ".", "..") or os.path.basename(file) != file or "\\" in file:
            raise FileFormatError(f"{where}: tensor {short(name)!r} is in {short(file)!r}, which is no file beside it")
        if file not in shards:
            if not (folder / file).is_file():
                raise FileFormatError(f"{where}: the file {file!r} with tensor {short(name)!r} is missing")
            shards[file] = safetensors.load(folder / file)
        if name not in shards[file]:
            raise FileFormatError(f"{where}: tensor {short(name)!r} is not in {file!r}")
        found[name] = shards[file][name]
    return found
