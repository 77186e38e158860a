"""Arguments of torch as ours, and results of ours as torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gradlet import Tensor, dtypes
from gradlet.base.dtype import DType

# Keywords about where and how torch stores a result.
DROPPED = {"device", "layout", "memory_format", "requires_grad", "generator", "pin_memory"}

_DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, d.name): d for d in dtypes.all() if isinstance(getattr(torch, d.name, None), torch.dtype)
}


class Conversion:
    """The arguments of one call. A tensor that occurs twice stays one tensor.

    Attributes:
        pairs: torch's tensor and ours, for those that ask for gradients.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[torch.Tensor, Tensor]] = {}

    @property
    def pairs(self) -> list[tuple[torch.Tensor, Tensor]]:
        return [(theirs, ours) for theirs, ours in self._seen.values() if theirs.requires_grad]

    def ours(self, value: Any) -> Any:
        """A value of torch, containers included, as ours."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._seen:
                self._seen[id(value)] = (value, to_ours(value))
            return self._seen[id(value)][1]
        if isinstance(value, torch.dtype):
            if value not in _DTYPES:
                raise NotImplementedError(f"we have no type {value}")
            return _DTYPES[value]
        if isinstance(value, torch.device):
            return "CPU"
        if isinstance(value, (torch.layout, torch.memory_format, torch.Generator)):
            return None
        if isinstance(value, torch.Size):
            return tuple(value)
        if isinstance(value, slice):
            return slice(self.ours(value.start), self.ours(value.stop), self.ours(value.step))
        if isinstance(value, (list, tuple)):
            return type(value)([self.ours(v) for v in value])
        if isinstance(value, dict):
            return {k: self.ours(v) for k, v in value.items()}
        return value

    def keywords(self, values: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments without those that only say where torch stores a result."""
        return {name: self.ours(value) for name, value in values.items() if name not in DROPPED}


def to_ours(value: torch.Tensor) -> Tensor:
    """A tensor of torch as one of ours."""
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    if plain.layout is not torch.strided or plain.dtype not in _DTYPES:
        raise NotImplementedError(f"we have no {plain.layout} tensors of {plain.dtype}")
    if plain.dtype in (torch.bfloat16,):
        return Tensor(plain.float().numpy()).cast(_DTYPES[plain.dtype])
    return Tensor(np.ascontiguousarray(plain.numpy()).reshape(tuple(plain.shape)))


def to_theirs(value: Tensor) -> torch.Tensor:
    """A tensor of ours as one of torch's."""
    dtype = next(theirs for theirs, ours in _DTYPES.items() if ours is value.dtype)
    return torch.from_numpy(np.array(value.numpy())).to(dtype)


def leaves(value: Any) -> list[Any]:
    """The tensors and numbers of a result, in order."""
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in leaves(v)]
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in leaves(v)]
    return [value]
