"""Normalizations, and losses.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from math import prod
from typing import Any

from gradlet.base.dtype import dtypes
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.tensor.tensor import Tensor


def _channels(x: Tensor, like: Tensor) -> Tensor:
    """A number a channel, for tensors with channels on axis 1."""
    return x.reshape(1, -1, *(1,) * (like.ndim - 2))


@operator("BatchNormalization")
def batch_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9, spatial: int = 1, training_mode: int = 0, is_test: int = 1,
) -> Any:  # fmt: skip
    """Channels moved and scaled by statistics: running ones, or in training those of the batch."""
    if not spatial and call.version < 9:
        shaped = [t.reshape(1, *x.shape[1:]) for t in (mean, var, scale, bias)]
        return (x - shaped[0]) * (shaped[1] + epsilon).rsqrt() * shaped[2] + shaped[3]
    if not training_mode:
        factor = scale.cast(var.dtype) * (var + epsilon).rsqrt()
        shift = bias.cast(var.dtype) - mean * factor
        return (x.cast(var.dtype) * _channels(factor, x) + _channels(shift, x)).cast(x.dtype)
    axes = (0, *range(2, x.ndim))
    wide = x.cast(mean.dtype)
    batch_mean = wide.mean(axes)
    batch_var = (wide - _channels(batch_mean, x)).square().mean(axes)
    factor = _channels((batch_var + epsilon).rsqrt() * scale.cast(mean.dtype), x)
    result = (wide - _channels(batch_mean, x)) * factor + _channels(bias.cast(mean.dtype), x)
    running = [old * momentum + new * (1 - momentum) for old, new in ((mean, batch_mean), (var, batch_var))]
    return result.cast(x.dtype), *running


@operator("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Each channel of each image made to mean 0 and variance 1, then scaled and moved."""
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axes, True)
    normal = centred * (centred.square().mean(axes, True) + epsilon).rsqrt()
    return (normal * _channels(scale, x) + _channels(bias, x)).cast(x.dtype)


@operator("GroupNormalization")
def group_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """Groups of channels made to mean 0 and variance 1; scales are those of groups before version 21."""
    wide = x.cast(dtypes.float32) if x.dtype.is_narrow_float and stash_type == 1 else x
    rows = wide.reshape(x.shape[0], num_groups, -1)
    centred = rows - rows.mean(2, True)
    normal = centred * (centred.square().mean(2, True) + epsilon).rsqrt()
    if call.version < 21:
        return (normal * scale.reshape(1, -1, 1) + bias.reshape(1, -1, 1)).reshape(x.shape).cast(x.dtype)
    return (normal.reshape(x.shape).cast(x.dtype) * _channels(scale, x) + _channels(bias, x)).cast(x.dtype)


@operator("LayerNormalization")
def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """The axes from `axis` on made to mean 0 and variance 1, then scaled and moved; mean and 1 / deviation."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.cast(dtypes.float32) if x.dtype.is_narrow_float else x
    mean = wide.mean(axes, True)
    centred = wide - mean
    inverse = (centred.square().mean(axes, True) + epsilon).rsqrt()
    result = (centred * inverse).cast(x.dtype) * scale
    return result if bias is None else result + bias, mean, inverse


@operator("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """Divided by the root of the mean square of the axes from `axis` on, then scaled."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.cast(dtypes.float32) if x.dtype.is_narrow_float else x
    return (wide * (wide.square().mean(axes, True) + epsilon).rsqrt()).cast(x.dtype) * scale


@operator("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Divided by the p-norm along an axis; zeros stay zeros."""
    norm = x.abs().sum(axis, True) if p == 1 else x.square().sum(axis, True).sqrt()
    return (norm == 0).where(0.0, x / norm).cast(x.dtype)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: list[int] | None = None) -> Tensor:
    """Mean 0 and deviation 1 over the axes."""
    along = tuple(axes or (0, 2, 3))
    mean = x.mean(along, True)
    deviation = (x.square().mean(along, True) - mean.square()).sqrt()
    return (x - mean) / (deviation + 1e-9)


# losses
def _reduced(loss: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.mean() if weight is None else loss.sum() / weight.sum()


def _negative_log(
    scores: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int | None, reduction: str
) -> Tensor:
    """`-scores[target] * weight[target]`, without the targets that are to be ignored."""
    n, classes = scores.shape[:2]
    rest = prod(scores.shape[2:])
    flat, place = scores.reshape(n, classes, rest), target.reshape(n, 1, rest)
    kept = None if ignore_index is None else place != ignore_index
    safe = place if kept is None else kept.where(place, 0)
    safe = safe.cast(dtypes.int64)
    loss = flat.gather(1, safe).neg()
    share = None
    if weight is not None:
        share = weight.reshape(1, classes, 1).expand(n, classes, rest).gather(1, safe)
    if kept is not None:
        share = kept.cast(scores.dtype) if share is None else kept.where(share, 0.0)
    if share is not None:
        loss = loss * share
    return _reduced(loss.reshape(target.shape), share, reduction).cast(scores.dtype)


@operator("NegativeLogLikelihoodLoss")
def nll_loss(
    scores: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative log-probability of the target."""
    return _negative_log(scores, target, weight, ignore_index, reduction)


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The negative log-probability of the target by softmax, and the log-probabilities."""
    logs = scores.log_softmax(1)
    return _negative_log(logs, target, weight, ignore_index, reduction), logs
