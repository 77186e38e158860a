"""Composed mixin: normalisation: over layers, groups of channels, instances, the batch, neighbouring channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from gradlet.base.dtype import accumulator
from gradlet.base.errors import ShapeError
from gradlet.ops.arguments import axis_numbers, integer, number, sizes
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.reduce import Axis
from gradlet.ops.stats import StatsMixin

T = TypeVar("T", bound=StatsMixin)
# 2 ** -52 and so on: the distance of 1 to the next number, what torch adds under the root of `rms_norm` by default.
EPSILON = {"float64": 2.0**-52}


class NormalizationMixin(StatsMixin):
    """Normalisation."""

    __slots__ = ()

    def assign(self, x: Any) -> Self:
        """Take the value of `x`."""
        raise NotImplementedError

    # without parameters, as tinygrad names them
    def layernorm(self, axis: Axis = -1, eps: float = 1e-5) -> Self:
        """`(self - mean) / sqrt(variance + eps)` with statistics over `axis`.

        Args:
            axis: one axis or several.
            eps: added to the variance.

        >>> [round(v, 3) for v in Tensor([1.0, 3.0]).layernorm().tolist()]
        [-1.0, 1.0]
        """
        return self._standardized(axis, eps, "layernorm")[0].cast(self.same_float("layernorm").dtype)

    def _standardized(self, axis: Axis, eps: float, what: str) -> tuple[Self, Self, Self]:
        """Wide: this without its mean, with variance 1; the mean, and what was multiplied by."""
        source = self.same_float(what)
        wide = source.cast(accumulator(source.dtype))
        mean = wide.mean(axis, True)
        gap = wide.sub(mean)
        factor = gap.mul(gap).mean(axis, True).add(number(eps, what, "eps")).rsqrt()
        return gap.mul(factor), mean, factor

    def rmsnorm(self, axis: Axis = -1, eps: float = 1e-6) -> Self:
        """`self / sqrt(mean(self ** 2) + eps)` with the mean over `axis`.

        >>> [round(v, 3) for v in Tensor([3.0, 3.0]).rmsnorm().tolist()]
        [1.0, 1.0]
        """
        source = self.same_float("rmsnorm")
        wide = source.cast(accumulator(source.dtype))
        return wide.mul(wide.mul(wide).mean(axis, True).add(eps).rsqrt()).cast(source.dtype)

    def batchnorm(
        self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self, axis: int | tuple[int, ...] = 1
    ) -> Self:
        """`(self - mean) * invstd * weight + bias`, with statistics of the size of `axis`.

        Raises:
            ShapeError: statistics that do not fit `axis`.

        >>> one = Tensor([1.0])
        >>> Tensor([[3.0]]).batchnorm(None, None, one, one).item()
        2.0
        """
        axes = axis_numbers(axis, self.ndim, "batchnorm")
        shape = tuple([s if a in axes else 1 for a, s in enumerate(self.shape)])
        optional = [(name, value) for name, value in (("weight", weight), ("bias", bias)) if value is not None]
        for name, value in (("mean", mean), *optional):
            count = operand(value, "batchnorm", name).numel()
            if count != math.prod(shape):
                raise ShapeError(f"batchnorm: {name} has {count} entries, axis {axis} has {math.prod(shape)}")
        invstd = operand(invstd, "batchnorm", "invstd")
        result = self.sub(mean.reshape(shape))
        if weight is not None:
            result = result.mul(weight.reshape(shape))
        # invstd may have more axes than the statistics, or as many.
        result = result.mul(invstd.reshape(shape) if invstd.numel() == math.prod(shape) else invstd)
        return result if bias is None else result.add(bias.reshape(shape))

    # with parameters, as torch names them
    def layer_norm(
        self, normalized_shape: int | Sequence[int], weight: Self | None = None, bias: Self | None = None,
        eps: float = 1e-5,
    ) -> Self:  # fmt: skip
        """`(self - mean) / sqrt(variance + eps) * weight + bias` with statistics over the last axes.

        Source: Ba et al. 2016, "Layer Normalization".

        Args:
            normalized_shape: sizes of the axes that are normalised together, the last of this one's shape.
            weight, bias: of that shape.

        Raises:
            ShapeError: shapes that do not fit.

        >>> [round(v, 3) for v in Tensor([1.0, 3.0]).layer_norm(2, weight=Tensor([2.0, 2.0])).tolist()]
        [-2.0, 2.0]
        """
        return self._layer_norm("layer_norm", normalized_shape, weight, bias, eps)[0]

    def native_layer_norm(
        self, normalized_shape: int | Sequence[int], weight: Self | None, bias: Self | None, eps: float
    ) -> tuple[Self, Self, Self]:
        """`layer_norm`, and what it used: the mean and `1 / sqrt(variance + eps)`, normalised axes of size 1.

        Raises:
            ShapeError: shapes that do not fit.

        >>> Tensor([[1.0, 3.0]]).native_layer_norm(2, None, None, 1e-5)[1].tolist()
        [[2.0]]
        """
        return self._layer_norm("native_layer_norm", normalized_shape, weight, bias, eps)

    def _layer_norm(
        self, what: str, normalized_shape: int | Sequence[int], weight: Self | None, bias: Self | None, eps: float
    ) -> tuple[Self, Self, Self]:
        axes = self._last_axes(what, normalized_shape, (("weight", weight), ("bias", bias)))
        source = self.same_float(what)
        if 0 in self.shape:
            kept = tuple([1 if a in axes else size for a, size in enumerate(self.shape)])
            return source, source.constant_like(0, kept), source.constant_like(0, kept)
        result, mean, factor = self._standardized(axes, eps, what)
        return _scaled(result, weight, bias).cast(source.dtype), mean, factor

    def _last_axes(
        self, what: str, normalized_shape: int | Sequence[int], parameters: Sequence[tuple[str, Self | None]]
    ) -> tuple[int, ...]:
        """The axes that are normalised together."""
        shape = sizes((normalized_shape,), f"{what}: normalized_shape")
        count = len(shape)
        if not count or self.shape[max(0, self.ndim - count) :] != shape:
            raise ShapeError(f"{what}: normalized_shape {shape} must be the last sizes of shape {self.shape}")
        for name, value in parameters:
            if value is not None and operand(value, what, name).shape != shape:
                raise ShapeError(f"{what}: {name} of shape {value.shape} must have shape {shape}")
        return tuple(range(self.ndim - count, self.ndim))

    def rms_norm(
        self, normalized_shape: int | Sequence[int], weight: Self | None = None, eps: float | None = None
    ) -> Self:
        """`self / sqrt(mean(self ** 2) + eps) * weight` with the mean over the last axes.

        Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".

        Args:
            normalized_shape: sizes of the axes that are normalised together, the last of this one's shape.
            weight: of that shape.
            eps: the distance of 1 to the next float when None.

        Raises:
            ShapeError: shapes that do not fit.

        >>> [round(v, 3) for v in Tensor([3.0, 3.0]).rms_norm(2).tolist()]
        [1.0, 1.0]
        """
        axes = self._last_axes("rms_norm", normalized_shape, (("weight", weight),))
        source = self.same_float("rms_norm")
        if 0 in self.shape:
            return source
        wide = source.cast(accumulator(source.dtype))
        result = wide.rmsnorm(axes, EPSILON.get(wide.dtype.name, 2.0**-23) if eps is None else eps)
        return _scaled(result, weight, None).cast(source.dtype)

    def group_norm(
        self, num_groups: int, weight: Self | None = None, bias: Self | None = None, eps: float = 1e-5
    ) -> Self:
        """`(self - mean) / sqrt(variance + eps) * weight + bias` with statistics of each group of channels (axis 1).

        Source: Wu and He 2018, "Group Normalization".

        Args:
            num_groups: divides the number of channels.
            weight, bias: an entry a channel.

        Raises:
            ShapeError: shapes that do not fit.

        >>> [round(v, 3) for v in Tensor([[1.0, 3.0]]).group_norm(1).flatten().tolist()]
        [-1.0, 1.0]
        """
        return self._group_norm("group_norm", num_groups, weight, bias, eps)[0]

    def native_group_norm(
        self, weight: Self | None, bias: Self | None, N: int, C: int, HxW: int, group: int, eps: float
    ) -> tuple[Self, Self, Self]:
        """`group_norm`, and what it used: the mean and `1 / sqrt(variance + eps)` of each group, `[N, group]`.

        Args:
            N, C, HxW: the batch, the channels and the product of the other sizes.

        Raises:
            ShapeError: shapes that do not fit.

        >>> Tensor([[1.0, 3.0]]).native_group_norm(None, None, 1, 2, 1, 1, 1e-5)[1].tolist()
        [[2.0]]
        """
        if self.ndim < 2 or (N, C) != self.shape[:2] or N * C * HxW != self.numel():
            raise ShapeError(
                f"native_group_norm: shape {self.shape} is not N={N} samples of C={C} channels of HxW={HxW} elements"
            )
        return self._group_norm("native_group_norm", group, weight, bias, eps)

    def _group_norm(
        self, what: str, groups: int, weight: Self | None, bias: Self | None, eps: float
    ) -> tuple[Self, Self, Self]:
        groups = integer(groups, what, "num_groups", 1)
        if self.ndim < 2 or self.shape[1] % groups:
            raise ShapeError(
                f"{what}: shape {self.shape} must be [N, C, ...] with channels that {groups} groups divide"
            )
        _check_channels(what, self.shape[1], (("weight", weight), ("bias", bias)))
        source = self.same_float(what)
        if 0 in self.shape:
            none = source.constant_like(0, (self.shape[0], groups))
            return source, none, none
        rows = source.reshape(self.shape[0], groups, self.numel() // (self.shape[0] * groups))
        result, mean, factor = rows._standardized(-1, eps, what)
        result = _scaled(result.reshape(self.shape), _per_channel(weight, self.ndim), _per_channel(bias, self.ndim))
        return result.cast(source.dtype), mean.squeeze(-1), factor.squeeze(-1)

    def instance_norm(
        self, running_mean: Self | None = None, running_var: Self | None = None, weight: Self | None = None,
        bias: Self | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Self:  # fmt: skip
        """`(self - mean) / sqrt(variance + eps) * weight + bias` with statistics of each channel of each sample.

        Source: Ulyanov et al. 2016, "Instance Normalization".

        Args:
            running_mean, running_var: an entry a channel; moved by `momentum` towards the statistics (the variance
                with n - 1), averaged over the batch.
            use_input_stats: whether statistics are those of this, else the running ones.

        Raises:
            ShapeError: shapes that do not fit, or one element a channel, which has no variance.

        >>> [round(v, 3) for v in Tensor([[[1.0, 3.0]]]).instance_norm().flatten().tolist()]
        [-1.0, 1.0]
        """
        what = "instance_norm"
        if self.ndim < 3 and use_input_stats:
            raise ShapeError(f"{what}: shape {self.shape} must be [N, C, ...] with at least one more axis")
        if not use_input_stats:
            return self.batch_norm(running_mean, running_var, weight, bias, False, momentum, eps)
        channels = self.shape[1]
        running = (("running_mean", running_mean), ("running_var", running_var))
        _check_channels(what, channels, (*running, ("weight", weight), ("bias", bias)))
        count = math.prod(self.shape[2:])
        if count == 1:
            raise ShapeError(f"{what}: shape {self.shape} has one element a channel, whose variance is 0")
        source = self.same_float(what)
        if 0 in self.shape:
            return source
        axes = tuple(range(2, self.ndim))
        result, mean, _ = source._standardized(axes, eps, what)
        if running_mean is not None or running_var is not None:
            variance = source.cast(mean.dtype).detach().var(axes).mean(0)
            _move_towards(running_mean, mean.detach().reshape(self.shape[:2]).mean(0), momentum)
            _move_towards(running_var, variance, momentum)
        return _scaled(result, _per_channel(weight, self.ndim), _per_channel(bias, self.ndim)).cast(source.dtype)

    def batch_norm(
        self, running_mean: Self | None, running_var: Self | None, weight: Self | None = None,
        bias: Self | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Self:  # fmt: skip
        """`(self - mean) / sqrt(variance + eps) * weight + bias` with statistics of each channel (axis 1).

        Source: Ioffe and Szegedy 2015, "Batch Normalization".

        Args:
            running_mean, running_var: an entry a channel: the statistics when not `training`; when training they are
                moved by `momentum` towards those of the batch (the variance with n - 1) and may be None.
            weight, bias: an entry a channel.
            training: whether statistics are those of the batch.

        Raises:
            ShapeError: shapes that do not fit, or training with one element a channel, which has no variance.

        >>> x, mean, variance = Tensor([[1.0], [3.0]]), Tensor([0.0]), Tensor([1.0])
        >>> x.batch_norm(mean, variance, training=True, momentum=1.0).tolist()
        [[-0.9999949932098389], [0.9999949932098389]]
        >>> mean.item(), variance.item()
        (2.0, 2.0)
        """
        if training and self.ndim > 1 and self.numel() == self.shape[1] > 0:
            raise ShapeError(f"batch_norm: shape {self.shape} has one element a channel, whose variance is 0")
        return self._batch_norm("batch_norm", weight, bias, running_mean, running_var, training, momentum, eps)[0]

    def native_batch_norm(
        self, weight: Self | None, bias: Self | None, running_mean: Self | None, running_var: Self | None,
        training: bool, momentum: float, eps: float,
    ) -> tuple[Self, Self, Self]:  # fmt: skip
        """`batch_norm`, and what it used when training: the mean and `1 / sqrt(variance + eps)` (else nothing).

        Raises:
            ShapeError: shapes that do not fit.

        >>> Tensor([[1.0], [3.0]]).native_batch_norm(None, None, None, None, True, 0.1, 1e-5)[1].tolist()
        [2.0]
        """
        return self._batch_norm("native_batch_norm", weight, bias, running_mean, running_var, training, momentum, eps)

    def _batch_norm(
        self, what: str, weight: Self | None, bias: Self | None, running_mean: Self | None,
        running_var: Self | None, training: bool, momentum: float, eps: float,
    ) -> tuple[Self, Self, Self]:  # fmt: skip
        if not self.ndim:
            raise ShapeError(f"{what}: needs an axis of channels, got a tensor without axes")
        axis = min(1, self.ndim - 1)
        channels = self.shape[axis]
        running = (("running_mean", running_mean), ("running_var", running_var))
        _check_channels(what, channels, (*running, ("weight", weight), ("bias", bias)))
        source = self.same_float(what)
        wide = source.cast(accumulator(source.dtype))
        empty = wide.constant_like(0, (0,))
        if not training:
            if running_mean is None or running_var is None:
                raise ShapeError(f"{what}: needs running_mean and running_var when not training")
            factor = running_var.cast(wide.dtype).add(eps).rsqrt()
            result = wide.sub(_per_channel(running_mean, self.ndim, axis)).mul(_per_channel(factor, self.ndim, axis))
            mean = factor = empty
        elif 0 in self.shape:
            result, mean, factor = wide, wide.constant_like(0, (channels,)), wide.constant_like(0, (channels,))
        else:
            axes = tuple([a for a in range(self.ndim) if a != axis])
            result, mean, factor = wide._standardized(axes, eps, what)
            mean, factor = mean.reshape(channels), factor.reshape(channels)
            _move_towards(running_mean, mean.detach(), momentum)
            if running_var is not None:
                _move_towards(running_var, wide.detach().var(axes), momentum)
        weight, bias = _per_channel(weight, self.ndim, axis), _per_channel(bias, self.ndim, axis)
        return _scaled(result, weight, bias).cast(source.dtype), mean, factor

    def local_response_norm(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Self:
        """`self / (k + alpha * m) ** beta`, m the mean square over `size` neighbouring channels (axis 1).

        Zeros stand beside the first and last channel. Source: Krizhevsky et al. 2012, "ImageNet Classification with
        Deep Convolutional Neural Networks".

        Raises:
            ShapeError: fewer than 3 axes.
            ArgumentError: a size below 1.

        >>> Tensor([[[1.0]]]).local_response_norm(1, alpha=1.0, beta=1.0).item()
        0.5
        """
        size = integer(size, "local_response_norm", "size", 1)
        if self.ndim < 3:
            raise ShapeError(f"local_response_norm: shape {self.shape} must be [N, C, ...] with at least 3 axes")
        source = self.same_float("local_response_norm")
        if 0 in self.shape:
            return source
        wide = source.cast(accumulator(source.dtype))
        squares = wide.mul(wide).pad([(size // 2, (size - 1) // 2) if a == 1 else (0, 0) for a in range(self.ndim)])
        views = squares.unsqueeze(-1).expand(squares.shape + (size,)).window(1, self.ndim)
        mean = views.reduce_over(Op.ADD, -1, False, "local_response_norm").mul(1 / size)
        return wide.fdiv(mean.mul(alpha).add(k).pow(beta)).cast(source.dtype)


def _scaled(result: T, weight: Any, bias: Any) -> T:
    """Times the weight plus the bias, where there are any."""
    result = result if weight is None else result.mul(weight)
    return result if bias is None else result.add(bias)


def _per_channel(value: Any, ndim: int, axis: int = 1) -> Any:
    """An entry a channel, shaped to meet `ndim` axes; None stays None."""
    return None if value is None else value.reshape([value.numel() if a == axis else 1 for a in range(ndim)])


def _check_channels(what: str, channels: int, parameters: Sequence[tuple[str, Any]]) -> None:
    for name, value in parameters:
        if value is not None and operand(value, what, name).shape != (channels,):
            raise ShapeError(f"{what}: {name} of shape {value.shape} must have shape {(channels,)}, one a channel")


def _move_towards(running: Any, value: Any, momentum: float) -> None:
    """A running average takes in a new value."""
    if running is not None:
        running.assign(running.mul(1 - momentum).add(value.mul(momentum)).cast(running.dtype))
