"""Recurrent cells: one step in time a call."""

from __future__ import annotations

from math import sqrt

from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.nn.parameter import filled, uniform
from gradlet.ops.arguments import integer
from gradlet.ops.movement import operand
from gradlet.tensor.tensor import Tensor


class LSTMCell:
    """A long short-term memory cell.

    Args:
        input_size: size of the input's last axis.
        hidden_size: size of the hidden and the cell state.
        bias: whether biases are added.

    >>> from gradlet import Tensor, nn
    >>> hidden, cell = nn.LSTMCell(3, 5)(Tensor.ones(2, 3))
    >>> hidden.shape, cell.shape
    ((2, 5), (2, 5))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        bound = 1 / sqrt(integer(hidden_size, "LSTMCell", "hidden_size", 1))
        self.weight_ih = uniform(bound, hidden_size * 4, input_size)
        self.weight_hh = uniform(bound, hidden_size * 4, hidden_size)
        self.bias_ih = filled(0.0, (hidden_size * 4,)) if bias else None
        self.bias_hh = filled(0.0, (hidden_size * 4,)) if bias else None

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        features, width = self.weight_ih.shape[1], self.weight_hh.shape[1]
        if operand(x, "LSTMCell", "x").shape[-1:] != (features,):
            raise ShapeError(f"LSTMCell: x has shape {x.shape}, it must end in {features}")
        if hc is None:
            zeros = Tensor.zeros(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
            hc = (zeros, zeros)
        if not isinstance(hc, tuple | list) or len(hc) != 2:
            raise ArgumentError("LSTMCell: hc must be two tensors, the hidden and the cell state, or None")
        hidden, cell = (operand(state, "LSTMCell", "hc") for state in hc)
        for state in (hidden, cell):
            if state.shape != (*x.shape[:-1], width):
                raise ShapeError(f"LSTMCell: a state of shape {state.shape} must have shape {(*x.shape[:-1], width)}")
        gates = x.linear(self.weight_ih.transpose(), self.bias_ih)
        gates = gates + hidden.linear(self.weight_hh.transpose(), self.bias_hh)
        enter, forget, candidate, leave = gates.chunk(4, dim=-1)
        new_cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
        return leave.sigmoid() * new_cell.tanh(), new_cell
