"""Long short-term memory in layers. Names as torch's LSTM: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0` and so on."""

from __future__ import annotations

from typing import Any

from gradlet import nn
from gradlet.base.errors import ShapeError
from gradlet.tensor.tensor import Tensor

State = list[tuple[Tensor, Tensor]]
TOGETHER = 16  # steps that are computed as one graph, while nothing is differentiated


class LSTM:
    """[batch, time, inputs] to [batch, time, width], and what every layer remembers at the end.

    Args:
        inputs: size of the last axis.
        width: of every layer.
        layers: how many.

    >>> results, state = LSTM(3, 5, layers=2)(Tensor.zeros(1, 4, 3))
    >>> results.shape, state[1][0].shape
    ((1, 4, 5), (1, 5))
    """

    def __init__(self, inputs: int, width: int, layers: int = 1) -> None:
        self.inputs, self.width, self.layers = inputs, width, layers
        for number in range(layers):
            cell = nn.LSTMCell(width if number else inputs, width)
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(self, f"{part}_l{number}", getattr(cell, part))

    def __call__(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if x.ndim != 3 or x.shape[2] != self.inputs:
            raise ShapeError(f"LSTM: [batch, time, {self.inputs}] is needed, not {x.shape}")
        ends: State = []
        for number in range(self.layers):
            x, end = self._layer(x, number, None if state is None else state[number])
            ends.append(end)
        return x, ends

    def _layer(
        self, x: Tensor, number: int, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        def part(name: str) -> Any:
            return getattr(self, f"{name}_l{number}")

        # The inputs' share of the gates for all times is one product.
        gates = x.linear(part("weight_ih").transpose(), part("bias_ih") + part("bias_hh")).contiguous()
        if state is None:
            zeros = Tensor.zeros(x.shape[0], self.width, dtype=x.dtype, device=x.device)
            state = zeros, zeros
        hidden, cell = state
        recurrent = part("weight_hh").transpose()
        results = []
        for first in range(0, x.shape[1], TOGETHER):
            some = gates[:, first : first + TOGETHER]
            if not Tensor.training:
                # A long text is computed in parts, which all but the first find their schedule for.
                some = some.contiguous().realize()
            for time in range(some.shape[1]):
                enter, forget, new, leave = (some[:, time] + hidden @ recurrent).chunk(4, dim=-1)
                cell = (forget.sigmoid() * cell + enter.sigmoid() * new.tanh()).contiguous()
                hidden = (leave.sigmoid() * cell.tanh()).contiguous()
                results.append(hidden)
            if not Tensor.training:
                cell.realize(*results[first:])
        return Tensor.stack(*results, dim=1), (hidden, cell)
