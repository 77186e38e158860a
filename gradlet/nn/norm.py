"""Normalisation layers: over the batch, over a layer, over groups of channels, by the root mean square."""

from __future__ import annotations

from math import prod

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.nn.parameter import filled
from gradlet.ops.arguments import integer, sizes
from gradlet.ops.movement import operand
from gradlet.tensor.recipes import composed
from gradlet.tensor.tensor import Tensor


def _per_channel(value: Tensor, x: Tensor) -> Tensor:
    """A vector with an entry a channel, shaped to meet (batch, channels, ...)."""
    return value.reshape(1, -1, *(1,) * (x.ndim - 2))


class BatchNorm:
    """Normalises every channel of a (batch, channels, ...) input by its mean and variance.

    While `Tensor.training` the statistics are the batch's, and running averages of them are kept; else the running
    averages are used.

    Args:
        sz: number of channels.
        eps: added to the variance.
        affine: whether to learn a scale and a shift a channel.
        track_running_stats: whether to keep running averages.
        momentum: weight of a new batch in the running averages.

    >>> from gradlet import Tensor, nn
    >>> nn.BatchNorm(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    def __init__(
        self, sz: int, eps: float = 1e-5, affine: bool = True, track_running_stats: bool = True, momentum: float = 0.1
    ) -> None:
        self.sz = sz
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self.weight = filled(1.0, (sz,)) if affine else None
        self.bias = filled(0.0, (sz,)) if affine else None
        if track_running_stats:
            self.num_batches_tracked = filled(0, (), dtypes.int64)
            self.running_mean = filled(0.0, (sz,))
            self.running_var = filled(1.0, (sz,))

    def calc_stats(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and (biased) variance a channel: the batch's while training, else the running ones."""
        if self.track_running_stats and not Tensor.training:
            return self.running_mean, self.running_var
        return _statistics(x)

    def __call__(self, x: Tensor) -> Tensor:
        if operand(x, "BatchNorm", "x").ndim < 2 or x.shape[1] != self.sz:
            raise ShapeError(f"BatchNorm({self.sz}): x has shape {x.shape}, axis 1 must have {self.sz} channels")
        if self.track_running_stats and Tensor.training and type(self).calc_stats is BatchNorm.calc_stats:
            operands = (x, self.weight, self.bias, self.running_mean, self.running_var)
            result, mean, variance = composed(_normalised, operands, self.eps, self.momentum)
            self._track(mean, variance)
            return result  # type: ignore[no-any-return]
        mean, variance = self.calc_stats(x)
        if self.track_running_stats and Tensor.training:
            self._track(*_averages(x, mean, variance, self.running_mean, self.running_var, self.momentum))
        return x.batchnorm(self.weight, self.bias, mean, (variance + self.eps).rsqrt()).cast(x.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        self.running_mean.assign(mean)
        self.running_var.assign(variance)
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance a channel."""
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    wide = x.cast(accumulator(x.dtype))
    mean = wide.mean(axes)
    centred = wide - _per_channel(mean, x)
    return mean, (centred * centred).mean(axes)


def _averages(
    x: Tensor, mean: Tensor, variance: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> tuple[Tensor, Tensor]:
    """New running averages."""
    count = x.numel() // x.shape[1]
    unbiased = variance.detach() * (count / max(1, count - 1))
    old, new = 1 - momentum, momentum
    return (
        (running_mean * old + mean.detach() * new).cast(running_mean.dtype),
        (running_var * old + unbiased * new).cast(running_var.dtype),
    )


def _normalised(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, eps: float,
    momentum: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The result while training, and new running averages."""
    mean, variance = _statistics(x)
    result = x.batchnorm(weight, bias, mean, (variance + eps).rsqrt()).cast(x.dtype)
    return result, *_averages(x, mean, variance, running_mean, running_var, momentum)


BatchNorm2d = BatchNorm3d = BatchNorm


class GroupNorm:
    """Normalises groups of channels of a (batch, channels, ...) input, each sample by itself.

    Args:
        num_groups: how many groups; divides `num_channels`.
        num_channels: number of channels.
        eps: added to the variance.
        affine: whether to learn a scale and a shift a channel.

    >>> from gradlet import Tensor, nn
    >>> nn.GroupNorm(2, 4)(Tensor.ones(1, 4, 3, 3)).shape
    (1, 4, 3, 3)
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        integer(num_channels, "GroupNorm", "num_channels", 0)
        if integer(num_groups, "GroupNorm", "num_groups") < 1 or num_channels % num_groups:
            raise ArgumentError(f"GroupNorm: num_groups={num_groups} must divide num_channels={num_channels}")
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.weight = filled(1.0, (num_channels,)) if affine else None
        self.bias = filled(0.0, (num_channels,)) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        if operand(x, "GroupNorm", "x").ndim < 2 or x.shape[1] != self.num_channels:
            raise ShapeError(f"GroupNorm: x has shape {x.shape}, axis 1 must have {self.num_channels} channels")
        count = prod(x.shape[1:]) // self.num_groups
        groups = x.reshape(x.shape[0], self.num_groups, count).layernorm(eps=self.eps)
        result = groups.reshape(*x.shape)
        if self.weight is None or self.bias is None:
            return result
        return result * _per_channel(self.weight, x) + _per_channel(self.bias, x)


class InstanceNorm:
    """Normalises every channel of every sample by itself.

    Args:
        num_features: number of channels.
        eps: added to the variance.
        affine: whether to learn a scale and a shift a channel.

    >>> from gradlet import Tensor, nn
    >>> nn.InstanceNorm(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        self.num_features = num_features
        self.eps = eps
        self.weight = filled(1.0, (num_features,)) if affine else None
        self.bias = filled(0.0, (num_features,)) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        if operand(x, "InstanceNorm", "x").ndim < 3 or x.shape[1] != self.num_features:
            raise ShapeError(
                f"InstanceNorm: x has shape {x.shape}; (batch, {self.num_features} channels, ...) is needed"
            )
        result = x.reshape(x.shape[0], self.num_features, prod(x.shape[2:])).layernorm(eps=self.eps).reshape(*x.shape)
        if self.weight is None or self.bias is None:
            return result
        return result * _per_channel(self.weight, x) + _per_channel(self.bias, x)


class LayerNorm:
    """Normalises the trailing axes of every sample.

    Args:
        normalized_shape: sizes of the trailing axes, a number for one axis.
        eps: added to the variance.
        elementwise_affine: whether to learn a scale and a shift an element.

    >>> from gradlet import Tensor, nn
    >>> nn.LayerNorm(8)(Tensor.ones(2, 8)).shape
    (2, 8)
    """

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5, elementwise_affine: bool = True
    ) -> None:
        self.normalized_shape = sizes((normalized_shape,), "LayerNorm: normalized_shape")
        self.axis = tuple(-1 - i for i in range(len(self.normalized_shape)))
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.weight = filled(1.0, self.normalized_shape) if elementwise_affine else None
        self.bias = filled(0.0, self.normalized_shape) if elementwise_affine else None

    def __call__(self, x: Tensor) -> Tensor:
        if operand(x, "LayerNorm", "x").shape[-len(self.normalized_shape) :] != self.normalized_shape:
            raise ShapeError(f"LayerNorm: x has shape {x.shape}, it must end in {self.normalized_shape}")
        result = x.layernorm(axis=self.axis, eps=self.eps)
        if self.weight is None or self.bias is None:
            return result
        return result * self.weight + self.bias


class LayerNorm2d(LayerNorm):
    """LayerNorm over the channels of a (batch, channels, height, width) input.

    >>> from gradlet import Tensor, nn
    >>> nn.LayerNorm2d(3)(Tensor.ones(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    def __call__(self, x: Tensor) -> Tensor:
        if operand(x, "LayerNorm2d", "x").ndim != 4:
            raise ShapeError(f"LayerNorm2d: x has shape {x.shape}, four axes are needed")
        return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm:
    """Divides the last axis by its root mean square.

    Args:
        dim: size of the last axis.
        eps: added to the mean square.
        elementwise_affine: whether to learn a scale an element.

    >>> from gradlet import Tensor, nn
    >>> nn.RMSNorm(8)(Tensor.ones(2, 8)).shape
    (2, 8)
    """

    def __init__(self, dim: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        self.dim = dim
        self.eps = eps
        self.weight = filled(1.0, (dim,)) if elementwise_affine else None

    def __call__(self, x: Tensor) -> Tensor:
        if operand(x, "RMSNorm", "x").shape[-1:] != (self.dim,):
            raise ShapeError(f"RMSNorm: x has shape {x.shape}, it must end in {self.dim}")
        wide = x.cast(accumulator(x.dtype))
        result = (wide * ((wide * wide).mean(-1, keepdim=True) + self.eps).rsqrt()).cast(x.dtype)
        return result if self.weight is None else result * self.weight
