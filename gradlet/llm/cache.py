"""Keys and values of the positions seen so far: memory that a step writes in place."""

from __future__ import annotations

from typing import Any

from gradlet.tensor.tensor import Tensor


class Cache:
    """Keys and values of one layer, [heads, positions, features]."""

    def __init__(self, heads: int, positions: int, features: int) -> None:
        self.keys = Tensor.zeros(heads, positions, features).contiguous().realize()
        self.values = Tensor.zeros(heads, positions, features).contiguous().realize()

    def append(self, keys: Tensor, values: Tensor, start: Any) -> tuple[Tensor, Tensor]:
        """Write some positions from `start` on, and return everything up to them.

        Positions after the last that counts may be written: whoever comes there writes them again before they are read.
        """
        stop = start + keys.shape[1]
        self.keys[:, start:stop] = keys
        self.values[:, start:stop] = values
        return self.keys[:, :stop], self.values[:, :stop]
