"""The tensors of a model by name: collect, load, save."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.io import safetensors
from gradlet.tensor.tensor import Tensor


def get_state_dict(obj: Any, prefix: str = "", tensor_type: type[Tensor] = Tensor) -> dict[str, Tensor]:
    """Every tensor inside an object, by its path: attribute names, list positions and dict keys joined by dots.

    Args:
        obj: a model: any object, list, tuple or dict that holds tensors, directly or deeper.
        prefix: put before every name, with a dot.
        tensor_type: what counts as a tensor.

    >>> from gradlet import nn
    >>> list(nn.state.get_state_dict([nn.Linear(2, 3)]))
    ['0.weight', '0.bias']
    """
    return dict(_walk(obj, prefix.strip("."), tensor_type, ()))


def get_parameters(obj: Any) -> list[Tensor]:
    """Every tensor inside an object, in the order of `get_state_dict`.

    >>> from gradlet import nn
    >>> [p.shape for p in nn.state.get_parameters(nn.Linear(2, 3))]
    [(3, 2), (3,)]
    """
    return list(get_state_dict(obj).values())


def _walk(obj: Any, path: str, tensor_type: type[Tensor], parents: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(obj, tensor_type):
        yield path, obj
        return
    if id(obj) in parents:
        return  # an object that holds itself, for example by a link to its parent
    for name, item in _children(obj):
        yield from _walk(item, f"{path}.{name}" if path else name, tensor_type, (*parents, id(obj)))


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, tuple) and hasattr(obj, "_asdict"):
        yield from obj._asdict().items()
    elif isinstance(obj, (list, tuple)):
        yield from ((str(number), item) for number, item in enumerate(obj))
    elif isinstance(obj, Mapping):
        yield from ((str(name), item) for name, item in obj.items())
    elif hasattr(obj, "__dict__") and not isinstance(obj, type):
        yield from vars(obj).items()


def load_state_dict(
    model: Any, state_dict: dict[str, Tensor], strict: bool = True, verbose: bool = True, consume: bool = False,
    realize: bool = True,
) -> list[Tensor]:  # fmt: skip
    """Give the tensors of a model the values of a state dict. Everything is checked before anything is changed.

    Args:
        model: as for `get_state_dict`.
        state_dict: tensors by name, for example from `safe_load`.
        strict: names must agree on both sides; else only names that both have are loaded.
        verbose: accepted for compatibility; nothing is printed.
        consume: take loaded tensors out of `state_dict`, so that it holds no memory.
        realize: load the data now instead of on first use.

    Returns:
        The model's tensors that were loaded.

    Raises:
        ArgumentError: names are missing or unexpected.
        ShapeError: a shape differs.
        DTypeError: a dtype differs.

    >>> from gradlet import nn
    >>> one, other = nn.Linear(2, 3), nn.Linear(2, 3)
    >>> _ = nn.state.load_state_dict(one, nn.state.get_state_dict(other))
    >>> one.weight.tolist() == other.weight.tolist()
    True
    """
    if not isinstance(state_dict, dict):
        raise ArgumentError(f"state_dict: expected tensors by name in a dict, got {type(state_dict).__name__}")
    own = get_state_dict(model)
    missing = [name for name in own if name not in state_dict]
    unexpected = [name for name in state_dict if name not in own]
    if strict and (missing or unexpected):
        parts = [f"missing {_names(missing)}"] * bool(missing) + [f"unexpected {_names(unexpected)}"] * bool(unexpected)
        raise ArgumentError(f"state_dict: {'; '.join(parts)}; strict=False loads the names that agree")
    shared = [name for name in own if name in state_dict]
    for name in shared:
        _check(name, own[name], state_dict[name])
    values = {name: state_dict[name].to(own[name].device) for name in shared}
    if realize and values:
        first, *rest = values.values()
        first.realize(*rest)
    for name in shared:
        own[name].replace(values[name])
        if consume:
            del state_dict[name]
    return [own[name] for name in shared]


def _check(name: str, own: Tensor, given: Any) -> None:
    if not isinstance(given, Tensor):
        raise ArgumentError(f"state_dict[{name!r}]: expected a Tensor, got {type(given).__name__}")
    if given.shape != own.shape:
        raise ShapeError(f"state_dict[{name!r}] has shape {given.shape}, the model's has {own.shape}")
    if given.dtype is not own.dtype:
        raise DTypeError(
            f"state_dict[{name!r}] is {given.dtype}, the model's is {own.dtype}; cast it first, for example "
            f"state_dict[{name!r}].cast({own.dtype})"
        )


def _names(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def safe_save(
    tensors: dict[str, Tensor], fn: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file; an existing one is replaced only when the new one is complete.

    Raises:
        ArgumentError: a name or metadata that the format cannot hold.
        OSError: the file cannot be written.

    >>> import tempfile
    >>> from gradlet import Tensor, nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nn.state.safe_save({"w": Tensor([1.0, 2.0])}, f"{folder}/w.safetensors", {"made by": "me"})
    ...     nn.state.safe_load(f"{folder}/w.safetensors")["w"].tolist()
    ...     nn.state.safe_load_metadata(f"{folder}/w.safetensors")
    [1.0, 2.0]
    {'made by': 'me'}
    """
    safetensors.save(tensors, fn, metadata)


def safe_load(fn: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, read when they are used; see `safe_save` for an example.

    Raises:
        FileFormatError: truncated, inconsistent, or with a dtype that gradlet lacks.
        OSError: the file cannot be opened.
    """
    return safetensors.load(fn)


def safe_load_metadata(fn: str | os.PathLike[str]) -> dict[str, str]:
    """The text that was saved with a safetensors file; see `safe_save` for an example.

    Raises:
        FileFormatError: as for `safe_load`.
    """
    return safetensors.load_metadata(fn)
