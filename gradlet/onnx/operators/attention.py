"""Attention and rotary positions.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

import math
from typing import Any

from gradlet.base.dtype import dtypes
from gradlet.onnx.elements import dtype_of
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.tensor.tensor import Tensor


def _heads(x: Tensor, heads: int | None) -> Tensor:
    """[batch, heads, sequence, size] of what may be packed in three axes."""
    if x.ndim == 4:
        return x
    return x.reshape(x.shape[0], x.shape[1], heads or 1, -1).permute(0, 2, 1, 3)


@operator("Attention", since=23)
def attention(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, past_k: Tensor | None = None,
    past_v: Tensor | None = None, lengths: Tensor | None = None, *, is_causal: int = 0,
    kv_num_heads: int | None = None, left_window_size: int = -1, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, right_window_size: int = -1, scale: float | None = None, softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Any:  # fmt: skip
    """`softmax(q @ k.T * scale + mask) @ v` with groups of heads, a cache, causal and windowed masks."""
    packed = q.ndim == 3
    query, key, value = _heads(q, q_num_heads), _heads(k, kv_num_heads), _heads(v, kv_num_heads)
    if past_k is not None and past_v is not None:
        key, value = past_k.cat(key, dim=2), past_v.cat(value, dim=2)
    present = key, value
    batch, heads, rows, size = query.shape
    columns = key.shape[2]
    groups = heads // key.shape[1]
    if groups > 1:
        key, value = (
            t.unsqueeze(2).expand(batch, t.shape[1], groups, *t.shape[2:]).reshape(batch, heads, *t.shape[2:])
            for t in (key, value)
        )
    root = math.sqrt(1 / math.sqrt(size) if scale is None else scale)
    scores = (query * root).matmul((key * root).transpose(2, 3))
    raw = scores
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    capped = scores
    allowed, added = _masks(
        q.device, mask, lengths, batch, rows, columns, 0 if past_k is None else past_k.shape[2], bool(is_causal),
        left_window_size, right_window_size,
    )  # fmt: skip
    if added is not None:
        scores = scores + added.cast(scores.dtype)
    if allowed is not None:
        scores = allowed.where(scores, float("-inf"))
    biased = scores
    kind = scores.dtype if softmax_precision is None else dtype_of(softmax_precision, "Attention")
    shares = scores.cast(kind)
    top = shares.max(3, True)
    powers = (shares - (top == float("-inf")).where(0.0, top)).exp()
    total = powers.sum(3, True)
    shares = (powers / (total == 0).where(1.0, total)).cast(q.dtype)
    result = shares.matmul(value)
    if packed:
        result = result.permute(0, 2, 1, 3).reshape(batch, rows, -1)
    stages = {0: raw, 1: capped, 2: biased, 3: shares} if call.version >= 24 or call.wants(3) else {0: raw}
    return result, *present, stages.get(qk_matmul_output_mode, raw)


def _masks(
    device: Any, mask: Tensor | None, lengths: Tensor | None, batch: int, rows: int, columns: int, past: int,
    causal: bool, left: int, right: int,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Which keys a query may see, and what is added to its scores."""
    allowed, added = None, None
    if mask is not None:
        short = columns - mask.shape[-1]
        sides = [(0, 0)] * (mask.ndim - 1) + [(0, short)]
        if mask.dtype is dtypes.bool:
            allowed = mask.pad(sides, value=False) if short else mask
        else:
            added = mask.pad(sides, value=float("-inf")) if short else mask
    places = Tensor.arange(columns, dtype="int64", device=device)
    if lengths is not None:
        valid = places.reshape(1, 1, 1, -1) < lengths.reshape(-1, 1, 1, 1)
        allowed = valid if allowed is None else allowed & valid
    if causal or left >= 0 or right >= 0:
        row = Tensor.arange(rows, dtype="int64", device=device).reshape(-1, 1)
        if lengths is not None:
            row = row + (lengths.reshape(-1, 1, 1, 1) - rows)
        else:
            row = row + past
        for limit in ([0] if causal else []) + ([right] if right >= 0 else []):
            seen = places <= row + limit
            allowed = seen if allowed is None else allowed & seen
        if left >= 0:
            seen = places >= row - left
            allowed = seen if allowed is None else allowed & seen
    return allowed, added


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None = None, *, interleaved: int = 0,
    num_heads: int | None = None, rotary_embedding_dim: int = 0,
) -> Tensor:  # fmt: skip
    """Pairs of features turned by angles that belong to positions (Su et al. 2021)."""
    return rotated(x, cosines, sines, positions, bool(interleaved), num_heads, rotary_embedding_dim)


def rotated(
    x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None, interleaved: bool, heads: int | None, deep: int
) -> Tensor:
    """Rotary positions for [batch, heads, sequence, size] or [batch, sequence, heads * size]."""
    source = x.permute(0, 2, 1, 3) if x.ndim == 4 else x.reshape(x.shape[0], x.shape[1], heads or 1, -1)
    size = source.shape[3]
    deep = deep or size
    turned, kept = source[..., :deep], source[..., deep:]
    if positions is not None:
        flat = positions.reshape(-1)
        cosines, sines = (t.index_select(0, flat).reshape(*positions.shape, t.shape[-1]) for t in (cosines, sines))
    c, s = cosines.unsqueeze(2), sines.unsqueeze(2)
    half = deep // 2
    if interleaved:
        pairs = turned.reshape(*turned.shape[:3], half, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        first, second = c * a - s * b, s * a + c * b
        turned = first.stack(second, dim=4).reshape(turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = (c * a - s * b).cat(s * a + c * b, dim=3)
    result = turned.cat(kept, dim=3) if deep < size else turned
    return result.permute(0, 2, 1, 3) if x.ndim == 4 else result.reshape(x.shape)
