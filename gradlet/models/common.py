"""What several networks share: attention with heads, and integers as tensors."""

from __future__ import annotations

from typing import Any

from gradlet.tensor.tensor import Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, tokens, heads * features] as [batch, heads, tokens, features]."""
    return x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[batch, heads, tokens, features] as [batch, tokens, heads * features]."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, heads: int, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attention of [batch, tokens, width] in `heads` parts; `mask` is True where a query may look.

    >>> attention(Tensor.ones(1, 2, 4), Tensor.ones(1, 3, 4), Tensor.ones(1, 3, 4), heads=2).shape
    (1, 2, 4)
    """
    parts = [split_heads(x, heads) for x in (queries, keys, values)]
    return join_heads(parts[0].scaled_dot_product_attention(parts[1], parts[2], attn_mask=mask, is_causal=causal))


def divisible(value: float, by: int = 8) -> int:
    """A width rounded to a multiple of `by`, never more than a tenth below it: how mobile networks are scaled.

    >>> divisible(32 * 1.1), divisible(11)
    (32, 16)
    """
    rounded = max(by, int(value + by / 2) // by * by)
    return rounded + by if rounded < 0.9 * value else rounded


def as_ids(ids: Any) -> Tensor:
    """Token numbers as an integer tensor [batch, tokens]."""
    tensor = ids if isinstance(ids, Tensor) else Tensor(ids, dtype="int32")
    return tensor.reshape(1, -1) if tensor.ndim == 1 else tensor
