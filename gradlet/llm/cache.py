"""Keys and values of the positions seen so far: memory that a step writes in place."""

from __future__ import annotations

from typing import Any

from gradlet.engine.execute import base_buffer
from gradlet.runtime.buffer import buffer_of
from gradlet.tensor.tensor import Tensor


class Cache:
    """Keys and values of one layer, [heads, positions of all slots, features]: a slot is the memory of one text."""

    def __init__(self, heads: int, positions: int, features: int, slots: int = 1) -> None:
        self.positions = positions  # of a slot
        shape = heads, slots * positions, features
        if slots == 1:
            self.keys, self.values = _room(*shape), _room(*shape)  # what is read was written before
        else:
            self.keys, self.values = [Tensor.zeros(*shape).contiguous().realize() for _ in range(2)]

    def append(self, keys: Tensor, values: Tensor, start: Any, first: Any = None) -> tuple[Tensor, Tensor]:
        """Write some positions from `start` on, and return everything up to them.

        Positions after the last that counts may be written: whoever comes there writes them again before they are read.

        Args:
            keys: [heads, positions, features].
            values: as keys.
            start: the first position.
            first: where the slot's memory begins, a variable; None where there is one slot.
        """
        count = keys.shape[1]
        at = start if first is None else first + start
        self.keys[:, at : at + count] = keys
        self.values[:, at : at + count] = values
        return self.until(start + count, first)

    def until(self, stop: Any, first: Any = None) -> tuple[Tensor, Tensor]:
        """The keys and values of a slot's positions before `stop`."""
        if first is None:
            return self.keys[:, :stop], self.values[:, :stop]
        end = first + self.positions
        return self.keys[:, first:end][:, :stop], self.values[:, first:end][:, :stop]

    def write(self, keys: Tensor, values: Tensor, places: Tensor) -> None:
        """Write a position of each of several texts.

        Args:
            keys: [heads, texts, features].
            values: as keys.
            places: where in the memory of all slots each of them stands.
        """
        self.keys[:, places] = keys
        self.values[:, places] = values


def _room(*shape: int) -> Tensor:
    """Memory for positions to come. The system gives it page by page, since few texts come to the last position."""
    room = Tensor.empty(*shape)
    buffer_of(base_buffer(room.uop)).is_sparse = True
    return room
