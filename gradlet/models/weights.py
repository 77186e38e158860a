"""Weights of public checkpoints: read from a file and brought to a model's names and types."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from gradlet.base.errors import ArgumentError
from gradlet.io import formats
from gradlet.nn import state
from gradlet.tensor.tensor import Tensor

Model = TypeVar("Model")
WRAPPERS: Final = ("state_dict", "model_state_dict", "model_state", "model")  # where checkpoints keep the weights


def read(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, of any format that `gradlet.io.load` reads, out of what they are wrapped in.

    Raises:
        ArgumentError: the file holds no tensors by name.
        FileFormatError: no known format, or a file that is damaged.
        OSError: the file cannot be opened.
    """
    found: Any = formats.load(path)
    while isinstance(found, Mapping):
        inner = [found[key] for key in WRAPPERS if isinstance(found.get(key), Mapping)]
        if not inner:
            break
        found = inner[0]
    if not isinstance(found, Mapping) or not any(isinstance(value, Tensor) for value in found.values()):
        raise ArgumentError(f"{path}: holds no tensors by name")
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def load(
    model: Model, source: str | os.PathLike[str] | Mapping[str, Tensor],
    rename: Callable[[str], str | None] | None = None,
) -> Model:  # fmt: skip
    """Give a model the weights of a checkpoint, and return it.

    A model class may say what files of its kind look like: `PREFIX`, with which names may begin, and `IGNORE`, patterns
    of names that hold no weights (positions, masks, parts for training) or that repeat others. Floats of another width
    are cast.

    Args:
        source: a file, or tensors by name.
        rename: the model's name for a name in the file, None for what to leave out.

    Raises:
        ArgumentError: names are missing or left over.
        ShapeError: a shape differs.
        FileFormatError: the file cannot be read.

    >>> from gradlet import nn
    >>> layer = nn.Linear(2, 3)
    >>> given = {"head.weight": Tensor.ones(3, 2), "head.bias": Tensor.zeros(3)}
    >>> load(layer, given, lambda name: name.removeprefix("head.")).weight.tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    given = source if isinstance(source, Mapping) else read(source)
    prefix, ignored = getattr(model, "PREFIX", ""), getattr(model, "IGNORE", ())
    own = state.get_state_dict(model)
    values: dict[str, Tensor] = {}
    for name, value in given.items():
        new = name if rename is None else rename(name)
        if new is None:
            continue
        if new not in own:
            new = new.removeprefix(prefix)
        if new not in own and any(re.search(pattern, new) for pattern in ignored):
            continue
        if new in own and own[new].dtype.is_float and value.dtype.is_float:
            value = value.cast(own[new].dtype)
        values[new] = value
    # A counter of batches, which older files lack, is of no use for what a network computes.
    for name, value in own.items():
        if name.endswith("num_batches_tracked") and name not in values:
            values[name] = value
    state.load_state_dict(model, values)
    return model


def parameter_count(model: object) -> int:
    """How many numbers are trained: all but what batch norm and its like keep of the data.

    >>> from gradlet import nn
    >>> parameter_count([nn.Linear(2, 3), nn.BatchNorm(3)])
    15
    """
    kept = ("running_mean", "running_var", "num_batches_tracked")
    # Layers may share a tensor.
    tensors = {id(t): t for name, t in state.get_state_dict(model).items() if name.rpartition(".")[2] not in kept}
    return sum(tensor.numel() for tensor in tensors.values())
