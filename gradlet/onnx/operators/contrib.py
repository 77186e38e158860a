"""Operators of the domain com.microsoft that real exports use: fused layers, quantized products, attention.

Source: the page "Contrib Operators" of the ONNX Runtime documentation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.onnx.operators.attention import rotated
from gradlet.onnx.operators.normalization import layer_normalization, rms_normalization
from gradlet.onnx.operators.quantization import (
    dequantize_linear,
    dynamic_quantize_linear,
    integer_matmul,
    quantize_linear,
)
from gradlet.onnx.operators.recurrent import lstm_layer
from gradlet.onnx.operators.tensor import gather_nd
from gradlet.onnx.operators.window import conv
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Ints, Value
from gradlet.tensor.tensor import Tensor

MS = "com.microsoft"

operator("QuantizeLinear", MS)(quantize_linear)
operator("DequantizeLinear", MS)(dequantize_linear)
operator("GatherND", MS)(gather_nd)


# activations
@operator("FastGelu", MS)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gelu by tanh, of the input plus a bias."""
    return (x if bias is None else x + bias).gelu("tanh")


@operator("BiasGelu", MS)
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Gelu of the input plus a bias."""
    return (x + bias).gelu("none")


@operator("QuickGelu", MS)
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """`x * sigmoid(alpha * x)`."""
    return x * (x * alpha).sigmoid()


@operator("BiasSplitGelu", MS)
def bias_split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """The first half of the last axis times gelu of the second, after a bias."""
    both = x + bias
    half = both.shape[-1] // 2
    return both[..., :half] * both[..., half:].gelu("none")


# layers
@operator("SkipLayerNormalization", MS)
def skip_layer_normalization(
    x: Tensor, skip: Tensor, gamma: Tensor, beta: Tensor | None = None, bias: Tensor | None = None, *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A layer normalization of a sum; mean, 1 / deviation, and the sum itself."""
    total = x + skip if bias is None else x + skip + bias
    return *layer_normalization(total, gamma, beta, epsilon=epsilon), total


@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", MS)
def simplified_layer_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """Divided by the root of the mean square, then scaled."""
    return rms_normalization(x, scale, axis=axis, epsilon=epsilon)


@operator("SkipSimplifiedLayerNormalization", MS)
def skip_simplified_layer_normalization(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> tuple[Any, ...]:
    """A sum divided by the root of its mean square; the sum is the fourth output."""
    total = x + skip if bias is None else x + skip + bias
    return rms_normalization(total, gamma, epsilon=epsilon), None, None, total


@operator("EmbedLayerNormalization", MS)
def embed_layer_normalization(
    ids: Tensor, segments: Tensor | None, words: Tensor, places: Tensor, kinds: Tensor | None, gamma: Tensor,
    beta: Tensor, mask: Tensor | None = None, positions: Tensor | None = None, *, epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Embeddings of words, places and segments added up and normalized; how long each row is; the sum."""
    batch, length = ids.shape
    total = words.index_select(0, ids.reshape(-1)).reshape(batch, length, -1)
    if positions is None:
        total = total + places[:length]
    else:
        total = total + places.index_select(0, positions.reshape(-1)).reshape(*positions.shape, -1)
    if segments is not None and kinds is not None:
        total = total + kinds.index_select(0, segments.reshape(-1)).reshape(batch, length, -1)
    rows = Tensor.zeros(batch, dtype=dtypes.int32, device=ids.device) if mask is None else mask.sum(1)
    return layer_normalization(total, gamma, beta, epsilon=epsilon)[0], rows.cast(dtypes.int32), total


@operator("FusedConv", MS)
def fused_conv(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, z: Tensor | None = None, *,
    activation: str = "", activation_params: list[float] | None = None, auto_pad: str = "NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """A convolution, another tensor added, and an activation."""
    result = conv(x, weight, bias, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides)
    if z is not None:
        result = result + z
    a, b = [*(activation_params or ()), 0.0, 0.0][:2]
    if activation == "LeakyRelu":
        return (result < 0).where(result * a, result)
    if activation == "Clip":
        return result.clamp(a, b)
    if activation == "HardSigmoid":
        return result.hardsigmoid(a, b)
    plain: dict[str, Any] = {"": Tensor.positive, "Relu": Tensor.relu, "Tanh": Tensor.tanh, "Sigmoid": Tensor.sigmoid}
    if activation not in plain:
        raise call.error(f"activation {activation!r} is not one of {', '.join(plain)}, LeakyRelu, Clip, HardSigmoid")
    return plain[activation](result)


@operator("FusedMatMul", MS)
def fused_matmul(
    a: Tensor, b: Tensor, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:  # fmt: skip
    """`alpha * A @ B`, with transposed factors; a batch transposition brings the second to last axis to the front."""
    left, right = _arranged(a, transA, transBatchA), _arranged(b, transB, transBatchB)
    result = left.matmul(right)
    return result if alpha == 1.0 else result * alpha


def _arranged(x: Tensor, transposed: int, batch: int) -> Tensor:
    if batch:
        x = x.permute(*range(1, x.ndim - 1), 0, x.ndim - 1)
    return x.transpose(x.ndim - 2, x.ndim - 1) if transposed and x.ndim > 1 else x


# quantized numbers
def _scaled(total: Tensor, a_scale: Tensor, b_scale: Tensor, bias: Tensor | None) -> Tensor:
    result = total.cast(dtypes.float32) * (a_scale * b_scale)
    return result if bias is None else result + bias


@operator("MatMulIntegerToFloat", MS)
def matmul_integer_to_float(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """A matrix product of integers, scaled, plus a bias."""
    return _scaled(integer_matmul(a, b, a_zero, b_zero), a_scale, b_scale, bias)


@operator("DynamicQuantizeMatMul", MS)
def dynamic_quantize_matmul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """A matrix product whose first factor is quantized here."""
    quantized, scale, zero = dynamic_quantize_linear(a)
    return _scaled(integer_matmul(quantized, b, zero, b_zero), scale, b_scale, bias)


@operator("MatMulNBits", MS)
def matmul_n_bits(
    call: Call, a: Tensor, b: Tensor, scales: Tensor, zeros: Tensor | None = None, groups: Tensor | None = None,
    bias: Tensor | None = None, *, K: int, N: int, accuracy_level: int = 0, bits: int = 4, block_size: int,
) -> Tensor:  # fmt: skip
    """A product with a matrix of few bits: rows in blocks along K, each with a scale and a zero point."""
    if groups is not None or bits not in (2, 4, 8):
        raise call.error("only matrices of 2, 4 or 8 bits without group indices are supported")
    blocks = -(-K // block_size)
    codes = _unpacked(b.reshape(N, blocks, -1), bits)
    if zeros is None:
        offset: Any = float(1 << (bits - 1))
    elif zeros.dtype.is_float:
        offset = zeros.reshape(N, blocks, 1)
    else:
        offset = _unpacked(zeros.reshape(N, -1), bits)[:, :blocks].reshape(N, blocks, 1)
    weight = (codes - offset) * scales.reshape(N, blocks, 1)
    result = a.matmul(weight.reshape(N, -1)[:, :K].cast(a.dtype).transpose())
    return result if bias is None else result + bias


def _unpacked(x: Tensor, bits: int) -> Tensor:
    """Codes that lie several in a byte, the first in the lowest bits, as floats."""
    if bits == 8:
        return x.cast(dtypes.float32)
    parts = [x.rshift(s).bitwise_and((1 << bits) - 1) for s in range(0, 8, bits)]
    flat = parts[0].stack(*parts[1:], dim=x.ndim)
    return flat.reshape(*x.shape[:-1], -1).cast(dtypes.float32)


@operator("DynamicQuantizeLSTM", MS)
def dynamic_quantize_lstm(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Ints | None = None,
    initial_h: Tensor | None = None, initial_c: Tensor | None = None, p: Tensor | None = None,
    w_scale: Tensor | None = None, w_zero: Tensor | None = None, r_scale: Tensor | None = None,
    r_zero: Tensor | None = None, *, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None, activations: list[str] | None = None, clip: float | None = None,
    direction: str = "forward", hidden_size: int, input_forget: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """An LSTM with quantized weights. What meets them stays float here, which is nearer to what was quantized."""
    left, right = _dequantized(w, w_scale, w_zero), _dequantized(r, r_scale, r_zero)
    return lstm_layer(
        call, x, right, b, lengths, initial_h, initial_c, p, activation_alpha, activation_beta, activations, clip,
        direction, input_forget, 0, lambda d, source: source.matmul(left[d]), lambda d, h: h.matmul(right[d]),
        hidden_size,
    )  # fmt: skip


def _dequantized(x: Tensor, scale: Tensor | None, zero: Tensor | None) -> Tensor:
    """[direction, in, out] weights, with a scale for each direction or each of its columns."""
    wide = x.cast(dtypes.float32)
    if zero is not None:
        wide = wide - _per_direction(zero.cast(dtypes.float32), x)
    return wide if scale is None else wide * _per_direction(scale, x)


def _per_direction(scale: Tensor, x: Tensor) -> Tensor:
    return scale.reshape(x.shape[0], 1, -1) if scale.numel() > 1 else scale.reshape(())


def _real(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    wide = x.cast(dtypes.float32)
    return (wide if zero is None else wide - zero.cast(dtypes.float32)) * scale


def _quantized(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    rounded = (x / scale).round()
    moved = rounded if zero is None else rounded + zero.cast(dtypes.float32)
    return moved.clamp(int(dtype.min), int(dtype.max)).cast(dtype)


def _quantized_pair(name: str, function: Any) -> None:
    @operator(name, MS)
    def apply(
        a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor, b_scale: Tensor, b_zero: Tensor | None,
        c_scale: Tensor, c_zero: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return _quantized(function(_real(a, a_scale, a_zero), _real(b, b_scale, b_zero)), c_scale, c_zero, a.dtype)


_quantized_pair("QLinearAdd", Tensor.add)
_quantized_pair("QLinearMul", Tensor.mul)


@operator("QLinearSigmoid", MS)
def qlinear_sigmoid(
    x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor, y_zero: Tensor | None = None
) -> Tensor:
    """The sigmoid of quantized numbers, quantized again."""
    return _quantized(_real(x, x_scale, x_zero).sigmoid(), y_scale, y_zero, x.dtype)


@operator("QLinearLeakyRelu", MS)
def qlinear_leaky_relu(
    x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor, y_zero: Tensor | None = None, *,
    alpha: float = 0.01,
) -> Tensor:  # fmt: skip
    """LeakyRelu of quantized numbers, quantized again."""
    real = _real(x, x_scale, x_zero)
    return _quantized((real < 0).where(real * alpha, real), y_scale, y_zero, x.dtype)


@operator("QLinearGlobalAveragePool", MS)
def qlinear_global_average_pool(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, y_scale: Tensor, y_zero: Tensor, *, channels_last: int = 0
) -> Tensor:
    """The average of each channel of quantized numbers, quantized again."""
    axes = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    return _quantized(_real(x, x_scale, x_zero).mean(axes, True), y_scale, y_zero, x.dtype)


@operator("QLinearConcat", MS)
def qlinear_concat(call: Call, y_scale: Tensor, y_zero: Tensor, *data: Tensor, axis: int) -> Tensor:
    """Quantized tensors, each with its scale and zero point, joined in one scale."""
    if len(data) % 3:
        raise call.error("every input needs a scale and a zero point")
    parts = [_real(*data[i : i + 3]) for i in range(0, len(data), 3)]
    return _quantized(parts[0].cat(*parts[1:], dim=axis), y_scale, y_zero, y_zero.dtype)


# attention
def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None, bias: Any, unidirectional: bool) -> Tensor:
    """`softmax(q @ k.T * scale + bias) @ v` for [batch, heads, sequence, size]."""
    factor = scale if scale else 1 / math.sqrt(q.shape[3])
    scores = q.matmul(k.transpose(2, 3)) * factor
    if bias is not None:
        scores = scores + bias
    if unidirectional:
        rows, columns = scores.shape[2:]
        row = Tensor.arange(rows, device=q.device).reshape(-1, 1) + (columns - rows)
        scores = (Tensor.arange(columns, device=q.device) <= row).where(scores, float("-inf"))
    return scores.softmax(3).matmul(v)


def _padding(mask: Tensor | None, lowest: float) -> Any:
    """What a mask of keys (1 to see, 0 not to) adds to scores."""
    if mask is None:
        return None
    shape = {2: (mask.shape[0], 1, 1, mask.shape[-1]), 3: (mask.shape[0], 1, *mask.shape[1:])}.get(mask.ndim)
    seen = mask.reshape(shape) if shape else mask
    return (seen != 0).where(0.0, lowest)


@operator("Attention", MS)
def packed_attention(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    past: Tensor | None = None, added: Tensor | None = None, *, num_heads: int, unidirectional: int = 0,
    mask_filter_value: float = -10000.0, qkv_hidden_sizes: list[int] | None = None, scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Self-attention that projects its input to queries, keys and values first."""
    if mask is not None and mask.ndim == 1:
        raise call.error("masks that are lengths are not supported")
    both = x.matmul(weight)
    both = both if bias is None else both + bias
    sizes = qkv_hidden_sizes or [weight.shape[1] // 3] * 3
    parts, begin = [], 0
    for size in sizes:
        part = both[..., begin : begin + size]
        parts.append(part.reshape(x.shape[0], x.shape[1], num_heads, -1).permute(0, 2, 1, 3))
        begin += size
    q, k, v = parts
    if past is not None:
        k, v = past[0].cat(k, dim=2), past[1].cat(v, dim=2)
    offset = _padding(mask, mask_filter_value)
    if added is not None:
        offset = added if offset is None else offset + added
    result = _attend(q, k, v, scale, offset, bool(unidirectional))
    return result.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[1], -1), k.stack(v, dim=0)


@operator("MultiHeadAttention", MS)
def multi_head_attention(
    call: Call, q: Tensor, k: Tensor | None = None, v: Tensor | None = None, bias: Tensor | None = None,
    mask: Tensor | None = None, added: Tensor | None = None, past_k: Tensor | None = None,
    past_v: Tensor | None = None, *, num_heads: int, mask_filter_value: float = -10000.0, scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Attention between [batch, sequence, heads * size] tensors."""
    if k is None or v is None or k.ndim != 3 or v.ndim != 3:
        raise call.error("only queries, keys and values in three tensors of three axes are supported")
    if mask is not None and mask.ndim == 1:
        raise call.error("masks that are lengths are not supported")
    heads, begin = [], 0
    for x in (q, k, v):
        if bias is not None:
            x = x + bias[begin : begin + x.shape[-1]]
            begin += x.shape[-1]
        heads.append(x.reshape(x.shape[0], x.shape[1], num_heads, -1).permute(0, 2, 1, 3))
    query, key, value = heads
    if past_k is not None and past_v is not None:
        key, value = past_k.cat(key, dim=2), past_v.cat(value, dim=2)
    offset = _padding(mask, mask_filter_value)
    if added is not None:
        offset = added if offset is None else offset + added
    result = _attend(query, key, value, scale, offset, bool(unidirectional))
    return result.permute(0, 2, 1, 3).reshape(q.shape[0], q.shape[1], -1), key, value


@operator("RotaryEmbedding", MS)
def rotary_embedding(
    call: Call, x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor, *, interleaved: int = 0,
    is_packed_batching: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """Pairs of features turned by angles that belong to positions."""
    batch, length = (x.shape[0], x.shape[2]) if x.ndim == 4 else x.shape[:2]
    if positions.ndim == 1 and positions.shape[0] == 1:
        first = Tensor.arange(length, dtype="int64", device=x.device)
        positions = (positions.reshape(1, 1) + first).expand(batch, length)
    size = x.shape[3] if x.ndim == 4 else 2 * cosines.shape[1] if not rotary_embedding_dim else x.shape[2] // num_heads
    heads = num_heads or (None if x.ndim == 4 else x.shape[2] // size)
    return rotated(x, cosines, sines, positions, bool(interleaved), heads, rotary_embedding_dim)


@operator("Inverse", MS)
def inverse(x: Tensor) -> Tensor:
    """Inverse matrices."""
    return x.inverse()


@operator("ExpandDims", MS)
def expand_dims(call: Call, x: Value, axis: Ints) -> Tensor:
    """A new axis of size 1."""
    return call.tensor(x).unsqueeze(axis[0])


@operator("Trilu", MS)
def trilu(x: Tensor, k: Ints | None = None, *, upper: int = 1) -> Tensor:
    """The upper or lower triangle of matrices."""
    at = k[0] if k else 0
    return x.triu(at) if upper else x.tril(at)


@operator("NGramRepeatBlock", MS)
def n_gram_repeat_block(ids: Value, scores: Tensor, *, ngram_size: int) -> Tensor:
    """Scores without the tokens that would repeat an n-gram."""
    rows = ids.array()
    blocked = np.zeros(scores.shape, bool)
    for r, row in enumerate(rows):
        tail = list(row[len(row) - ngram_size + 1 :])
        for at in range(len(row) - ngram_size + 1):
            if list(row[at : at + ngram_size - 1]) == tail:
                blocked[r, row[at + ngram_size - 1]] = True
    return Tensor(blocked, scores.device).where(float("-inf"), scores)
