"""Layers that are one matrix: Linear and Embedding."""

from __future__ import annotations

from gradlet.base.errors import DTypeError
from gradlet.nn.parameter import fan_in_uniform
from gradlet.ops.movement import operand
from gradlet.tensor.tensor import Tensor


class Linear:
    """`x @ weight.T + bias`.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the result.
        bias: whether a bias is added.

    >>> from gradlet import Tensor, nn
    >>> nn.Linear(3, 5)(Tensor.ones(2, 3)).shape
    (2, 5)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = fan_in_uniform(in_features, out_features, in_features)
        self.bias = fan_in_uniform(in_features, out_features) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return operand(x, "Linear", "x").linear(self.weight.transpose(), self.bias)


class Embedding:
    """A table of vectors, looked up by number; a number outside the table gives zeros.

    Args:
        vocab_size: rows of the table.
        embed_size: size of a vector.

    >>> from gradlet import Tensor, nn
    >>> nn.Embedding(10, 3)(Tensor([1, 2, 1])).shape
    (3, 3)
    """

    def __init__(self, vocab_size: int, embed_size: int) -> None:
        self.vocab_size = vocab_size
        self.embed_size = embed_size
        self.weight = Tensor.glorot_uniform(vocab_size, embed_size)

    def __call__(self, idx: Tensor) -> Tensor:
        if not operand(idx, "Embedding", "idx").dtype.is_int:
            raise DTypeError(f"Embedding: indices are integers, idx is {idx.dtype}; cast it, for example to int32")
        return self.weight[idx]
