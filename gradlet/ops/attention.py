"""Composed mixin: attention: scaled dot products, and many heads between projections."""

from __future__ import annotations

import math
from typing import Any, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import axis_number, fraction, integer
from gradlet.ops.create import on_or_below
from gradlet.ops.movement import operand
from gradlet.ops.neural import NeuralMixin


class AttentionMixin(NeuralMixin):
    """Attention (Vaswani et al. 2017, "Attention Is All You Need")."""

    __slots__ = ()

    def safe_softmax(self, axis: int = -1, dtype: Any = None) -> Self:
        """`softmax`, but zeros where all of a row is -inf: a query that may see no key.

        >>> Tensor([[0.0, 0.0], [-math.inf, -math.inf]]).safe_softmax().tolist()
        [[0.5, 0.5], [0.0, 0.0]]
        """
        x = self.same_float("safe_softmax") if dtype is None else self.cast(dtype)
        along = axis_number(axis, x.ndim, "safe_softmax")
        if 0 in x.shape:
            return x
        wide = x.cast(accumulator(x.dtype))
        top = wide.detach().max(along, True)
        nothing = top.eq(-math.inf)
        power = wide.sub(nothing.where(0.0, top)).exp()
        return power.fdiv(nothing.where(1.0, power.sum(along, True))).cast(x.dtype)

    def softmax_backward(self, output: Self, axis: int = -1, dtype: Any = None) -> Self:
        """The gradient behind a softmax: `output * (self - sum(self * output))`, this being the gradient of its output.

        Args:
            output: what softmax gave.
            axis: the axis of the softmax.
            dtype: type of the result.

        Raises:
            ShapeError: shapes that differ.

        >>> Tensor([1.0, 0.0]).softmax_backward(Tensor([0.5, 0.5])).tolist()
        [0.25, -0.25]
        """
        if operand(output, "softmax_backward", "output").shape != self.shape:
            raise ShapeError(f"softmax_backward: output of shape {output.shape}, the gradient has shape {self.shape}")
        along = axis_number(axis, self.ndim, "softmax_backward")
        wide = output.cast(accumulator(output.dtype))
        result = wide.mul(self.sub(self.mul(wide).sum(along, True)))
        return result.cast(self.dtype if dtype is None else dtype)

    def scaled_dot_product_attention(
        self, key: Self, value: Self, attn_mask: Self | None = None, dropout_p: float = 0.0, is_causal: bool = False,
        enable_gqa: bool = False, scale: float | None = None,
    ) -> Self:  # fmt: skip
        """Attention of queries (this) `[..., L, E]` over keys `[..., S, E]` and values `[..., S, D]`.

        `softmax(self @ key.T * scale + attn_mask) @ value`

        Args:
            attn_mask: bool (False hides) or a float that is added, broadcast against `[..., L, S]`; a query that may
                see no key gets zeros.
            dropout_p: dropped share of the weights while training.
            is_causal: hide keys after the query's own place.
            enable_gqa: repeat the heads of keys and values (third last axis) to those of the queries.
            scale: factor of the scores; `1 / sqrt(E)` when None.

        Raises:
            ArgumentError: both `attn_mask` and `is_causal`.
            ShapeError: shapes that do not fit.

        >>> q = Tensor.ones(1, 2, 4)
        >>> q.scaled_dot_product_attention(q, q).shape
        (1, 2, 4)
        """
        key, value = operand(key, "attention", "key"), operand(value, "attention", "value")
        if self.ndim < 2 or key.ndim < 2 or value.ndim < 2 or key.shape[-2] != value.shape[-2]:
            raise ShapeError(
                f"attention: queries {self.shape}, keys {key.shape} and values {value.shape} need the shapes "
                "[..., L, E], [..., S, E] and [..., S, D]"
            )
        if enable_gqa:
            if min(self.ndim, key.ndim, value.ndim) < 3:
                raise ShapeError(
                    f"attention: enable_gqa needs an axis of heads before the last two, got shapes {self.shape}, "
                    f"{key.shape} and {value.shape}"
                )
            if self.shape[-3] % key.shape[-3] or self.shape[-3] % value.shape[-3]:
                raise ShapeError(
                    f"attention: {self.shape[-3]} query heads must be a multiple of {key.shape[-3]} key heads and of "
                    f"{value.shape[-3]} value heads"
                )
            key = key.repeat_interleave(self.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(self.shape[-3] // value.shape[-3], -3)
        if is_causal and attn_mask is not None:
            raise ArgumentError("attention: give attn_mask or is_causal, not both")
        weights = self._attention_weights(key, attn_mask, is_causal, scale)
        return weights.cast(self.dtype).dropout(dropout_p).dot(value)

    def _attention_weights(self, key: Self, mask: Self | None, is_causal: bool, scale: float | None) -> Self:
        """How much each query takes of each key."""
        factor = 1 / math.sqrt(self.shape[-1]) if scale is None else scale
        scores = self.dot(key.transpose(-2, -1), dtype=accumulator(self.dtype))
        scores = scores if factor == 1 else scores.mul(factor)
        if is_causal:
            return on_or_below(scores, 0).where(scores, -math.inf).softmax(-1)
        if mask is None:
            return scores.softmax(-1)
        if operand(mask, "attention", "attn_mask").dtype is dtypes.bool:
            return mask.where(scores, -math.inf).safe_softmax(-1)
        if not mask.dtype.is_float:
            raise DTypeError(f"attention: attn_mask must be bool or a float, got {mask.dtype}; cast it")
        return scores.add(mask).safe_softmax(-1)

    def multi_head_attention_forward(
        self, key: Self, value: Self, embed_dim_to_check: int, num_heads: int, in_proj_weight: Self | None,
        in_proj_bias: Self | None, bias_k: Self | None, bias_v: Self | None, add_zero_attn: bool, dropout_p: float,
        out_proj_weight: Self, out_proj_bias: Self | None, training: bool = True,
        key_padding_mask: Self | None = None, need_weights: bool = True, attn_mask: Self | None = None,
        use_separate_proj_weight: bool = False, q_proj_weight: Self | None = None,
        k_proj_weight: Self | None = None, v_proj_weight: Self | None = None, static_k: Self | None = None,
        static_v: Self | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Self, Self | None]:  # fmt: skip
        """Attention of `num_heads` heads between projections, with everything that torch's function of the name has.

        Args:
            key, value: `[S, N, ...]`, this one `[L, N, E]`, or all without the batch N.
            embed_dim_to_check: E.
            in_proj_weight: `[3 E, E]`, the projections of queries, keys and values; None with separate ones.
            in_proj_bias: `[3 E]`.
            bias_k, bias_v: one more key and value, of E elements.
            add_zero_attn: one more key and value of zeros.
            dropout_p: dropped share of the weights when `training`.
            out_proj_weight, out_proj_bias: `[E, E]` and `[E]`.
            key_padding_mask: `[N, S]`, bool (True hides) or a float that is added.
            need_weights: also return the weights, averaged over heads if `average_attn_weights`.
            attn_mask: `[L, S]` or `[N * heads, L, S]`, bool (True hides) or a float that is added.
            use_separate_proj_weight: use `q_proj_weight`, `k_proj_weight`, `v_proj_weight`.
            static_k, static_v: projected keys and values, `[N * heads, S, E / heads]`, instead of the projections.
            is_causal: says that `attn_mask`, which must be given, is causal.

        Returns:
            `[L, N, E]` and the weights `[N, L, S]` (`[N, heads, L, S]` when not averaged), or None.

        Raises:
            ShapeError: shapes that do not fit.
            ArgumentError: heads that do not divide E, or projections that are missing.

        >>> x, w = Tensor.ones(2, 1, 4), Tensor.ones(12, 4)
        >>> out, weights = x.multi_head_attention_forward(
        ...     x, x, 4, 2, w, None, None, None, False, 0.0, Tensor.eye(4), None
        ... )
        >>> out.shape, weights.tolist()
        ((2, 1, 4), [[[0.5, 0.5], [0.5, 0.5]]])
        """
        what = "multi_head_attention_forward"
        key, value = operand(key, what, "key"), operand(value, what, "value")
        if self.ndim not in (2, 3) or key.ndim != self.ndim or value.ndim != self.ndim:
            raise ShapeError(
                f"{what}: queries {self.shape}, keys {key.shape} and values {value.shape} need 3 axes, or all 2"
            )
        batched = self.ndim == 3
        query = self if batched else self.unsqueeze(1)
        key, value = (key, value) if batched else (key.unsqueeze(1), value.unsqueeze(1))
        if not batched and key_padding_mask is not None:
            key_padding_mask = operand(key_padding_mask, what, "key_padding_mask").unsqueeze(0)
        length, batch, width = query.shape
        heads = integer(num_heads, what, "num_heads", 1)
        if width != embed_dim_to_check or width % heads:
            raise ArgumentError(
                f"{what}: queries {self.shape} have {width} features; they must be embed_dim_to_check, "
                f"{embed_dim_to_check}, and a multiple of num_heads, {heads}"
            )
        if key.shape[:2] != value.shape[:2] or key.shape[1] != batch:
            raise ShapeError(f"{what}: keys {key.shape} and values {value.shape} must be [S, {batch}, ...]")
        if is_causal and attn_mask is None:
            raise ArgumentError(f"{what}: is_causal only describes attn_mask; give it")
        fraction(dropout_p, what, "dropout_p")
        together = None if use_separate_proj_weight else in_proj_weight
        weights = (q_proj_weight, k_proj_weight, v_proj_weight) if together is None else together.chunk(3)
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        if any(w is None for w in weights):
            raise ArgumentError(f"{what}: give in_proj_weight, or all of q_, k_ and v_proj_weight")
        query = _projected(query, weights[0], biases[0], what)
        key, value = _projected(key, weights[1], biases[1], what), _projected(value, weights[2], biases[2], what)
        more = 0
        if bias_k is not None and bias_v is not None:
            key = key.cat(bias_k.reshape(1, 1, width).expand(1, batch, width))
            value = value.cat(bias_v.reshape(1, 1, width).expand(1, batch, width))
            more += 1
        key = key._by_heads(heads) if static_k is None else static_k.reshape(batch, heads, -1, width // heads)
        value = value._by_heads(heads) if static_v is None else static_v.reshape(batch, heads, -1, width // heads)
        if add_zero_attn:
            key, value = key.pad((0, 0, 0, 1)), value.pad((0, 0, 0, 1))
            more += 1
        mask = _joined_mask(attn_mask, key_padding_mask, (batch, heads, length, key.shape[2] - more), what)
        if mask is not None and more:
            mask = mask.pad((0, more))
        query = query.mul(math.sqrt(heads / width))._by_heads(heads)
        shares = query._attention_weights(key, mask, False, 1.0)
        dropped = shares.cast(self.dtype)._thinned(dropout_p if training else 0.0)
        mixed = dropped.dot(value).permute(2, 0, 1, 3).reshape(length, batch, width)
        result = _projected(mixed, out_proj_weight, out_proj_bias, what)
        result = result if batched else result.squeeze(1)
        if not need_weights:
            return result, None
        dropped = dropped.mean(1) if average_attn_weights else dropped
        return result, dropped if batched else dropped.squeeze(0)

    def _by_heads(self, heads: int) -> Self:
        """`[S, N, E]` as `[N, heads, S, E / heads]`."""
        steps, batch, width = self.shape
        return self.reshape(steps, batch, heads, width // heads).permute(1, 2, 0, 3)

    def _thinned(self, p: float) -> Self:
        """Dropout whether or not `Tensor.training`."""
        if p == 0:
            return self
        if p == 1:
            return self.mul(0)
        keep = self.rand(*self.shape, dtype=dtypes.float32, device=self.place).lt(1.0 - p)
        return keep.where(self.mul(1.0 / (1.0 - p)), 0)


def _projected(x: Any, weight: Any, bias: Any, what: str) -> Any:
    """`x @ weight.T + bias`."""
    if operand(weight, what, "a projection").ndim != 2 or weight.shape[1] != x.shape[-1]:
        raise ShapeError(
            f"{what}: a projection of shape {weight.shape} does not fit {x.shape[-1]} features; "
            "give [outputs, features]"
        )
    result = x.dot(weight.transpose(0, 1))
    return result if bias is None else result.add(bias)


def _joined_mask(mask: Any, padding: Any, shape: tuple[int, int, int, int], what: str) -> Any:
    """Both masks as one float that is added, `[N or 1, heads or 1, L or 1, S]`; None where there is none."""
    batch, heads, length, steps = shape
    joined: Any = None
    if mask is not None:
        if mask.shape not in ((length, steps), (batch * heads, length, steps)):
            raise ShapeError(
                f"{what}: attn_mask of shape {mask.shape} must be {(length, steps)} or {(batch * heads, length, steps)}"
            )
        joined = _added(mask, what)
        joined = joined.reshape((1, 1, length, steps) if mask.ndim == 2 else shape)
    if padding is not None:
        if padding.shape != (batch, steps):
            raise ShapeError(f"{what}: key_padding_mask of shape {padding.shape} must be {(batch, steps)}")
        other = _added(padding, what).reshape(batch, 1, 1, steps)
        joined = other if joined is None else joined.add(other)
    return joined


def _added(mask: Any, what: str) -> Any:
    """A mask as a float that is added to scores; True hides."""
    if mask.dtype is dtypes.bool:
        return mask.where(-math.inf, 0.0)
    if not mask.dtype.is_float:
        raise DTypeError(f"{what}: masks must be bool or floats, got {mask.dtype}; cast them")
    return mask
