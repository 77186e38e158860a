"""Neural network functions: convolutions, pooling, resizing, normalisation, losses, embeddings, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradlet import Tensor
from tests.parity.table import Entry

T = Tensor


def _without(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The function without keywords that say nothing here."""
    return lambda *args, **kwargs: function(*args, **{k: v for k, v in kwargs.items() if k not in names})


# convolution
def _conv2d(x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
            groups: int = 1) -> Any:  # fmt: skip
    return x.conv2d(weight, bias, groups, stride, dilation, padding)


def _conv_transpose2d(x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
                      output_padding: Any = 0, groups: int = 1, dilation: Any = 1) -> Any:  # fmt: skip
    return x.conv_transpose2d(weight, bias, groups, stride, dilation, padding, output_padding)


# pooling
def _avg_pool2d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
                count_include_pad: bool = True, divisor_override: Any = None) -> Any:  # fmt: skip
    return x.avg_pool2d(kernel_size, stride or None, 1, padding, ceil_mode, count_include_pad, divisor_override)


def _max_pool2d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False, return_indices: bool = False) -> Any:  # fmt: skip
    return x.max_pool2d(kernel_size, stride, dilation, padding, ceil_mode, return_indices)


def _max_pool2d_backward(x: Any, *args: Any, **kwargs: Any) -> Any:
    """As torch's database drives it: the gradient of the sum of what was pooled."""
    maxima, indices = _max_pool2d(x, *args, **{**kwargs, "return_indices": True})
    return maxima.ones_like().max_pool2d_with_indices_backward(x, indices)


def _max_unpool2d(x: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
                  output_size: Any = None) -> Any:  # fmt: skip
    return x.max_unpool2d(indices, kernel_size, stride, 1, padding, output_size)


def _fractional(name: str) -> Callable[..., Any]:
    def call(x: Any, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
             return_indices: bool = False, _random_samples: Any = None) -> Any:  # fmt: skip
        return getattr(x, name)(kernel_size, output_size, output_ratio, return_indices, _random_samples)

    return call


# resizing
def _interpolate(x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
                 recompute_scale_factor: Any = None, antialias: bool = False) -> Any:  # fmt: skip
    if size is not None and not isinstance(size, (tuple, list)):
        size = (size,) * (x.ndim - 2)
    return x.interpolate(size, mode, bool(align_corners), scale_factor, bool(recompute_scale_factor), antialias)


def _upsample_bilinear(x: Any, size: Any = None, scale_factor: Any = None) -> Any:
    return _interpolate(x, size, scale_factor, "bilinear", True)


def _upsample_nearest(x: Any, size: Any = None, scale_factor: Any = None) -> Any:
    return _interpolate(x, size, scale_factor)


def _upsample_aa(x: Any, output_size: Any = None, align_corners: bool = False, scale_factors: Any = None,
                 scales_h: Any = None, scales_w: Any = None) -> Any:  # fmt: skip
    factors = scale_factors if scales_h is None else (scales_h, scales_w)
    return x.interpolate(output_size, "bilinear", align_corners, factors, antialias=True)


def _grid_sampler(x: Any, grid: Any, mode: int, padding_mode: int, align_corners: bool) -> Any:
    modes, outside = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return x.grid_sample(grid, modes[mode], outside[padding_mode], align_corners)


def _grid_sample(x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros",
                 align_corners: Any = None) -> Any:  # fmt: skip
    return x.grid_sample(grid, mode, padding_mode, bool(align_corners))


# normalisation
def _native_batch_norm(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float,
                       eps: float) -> Any:  # fmt: skip
    return x.native_batch_norm(weight, bias, mean, variance, training, momentum, eps)


def _native_batch_norm_legit(x: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    """Running statistics may be missing among the arguments."""
    return _native_batch_norm(x, weight, bias, *(rest if len(rest) == 5 else (None, None, *rest)))


def _batch_norm_with_update(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float,
                            eps: float) -> Any:  # fmt: skip
    return *x.native_batch_norm(weight, bias, mean, variance, True, momentum, eps), Tensor.zeros(0, dtype="uint8")


# losses
def _cross_entropy(x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
                   label_smoothing: float = 0.0) -> Any:  # fmt: skip
    ignored = ignore_index if target.dtype.is_int else None
    return x.cross_entropy(target, reduction, label_smoothing, ignored, weight)


def _linear_cross_entropy(x: Any, linear_weight: Any, target: Any, linear_bias: Any = None, weight: Any = None,
                          reduction: str = "mean", ignore_index: Any = None, label_smoothing: float = 0.0,
                          options: Any = None) -> Any:  # fmt: skip
    ignored = -100 if ignore_index is None and target.dtype.is_int else ignore_index
    return x.linear_cross_entropy(linear_weight, target, linear_bias, reduction, label_smoothing, ignored, weight)


def _nll_loss(x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    return x.nll_loss(target, weight, ignore_index, reduction)


def _triplet_with_distance(anchor: Any, positive: Any, negative: Any, distance_function: Any = None,
                           **kwargs: Any) -> Any:  # fmt: skip
    """The database gives torch's PairwiseDistance, which is the distance that None means."""
    return anchor.triplet_margin_with_distance_loss(positive, negative, None, **kwargs)


def _embedding(weight: Any, numbers: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
               scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:  # fmt: skip
    return numbers.embedding(weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)


def _embedding_bag(weight: Any, numbers: Any, offsets: Any = None, sparse: bool = False, **kwargs: Any) -> Any:
    return numbers.embedding_bag(weight, offsets, **kwargs)


def _one_hot(x: Any, num_classes: int = -1) -> Any:
    return x.one_hot(num_classes)


MAPPING: dict[str, Entry | Callable[..., Any]] = {
    "nn.functional.conv1d": T.conv1d,
    "nn.functional.conv2d": _conv2d,
    "nn.functional.conv3d": T.conv3d,
    "nn.functional.conv_transpose1d": T.conv_transpose1d,
    "nn.functional.conv_transpose2d": _conv_transpose2d,
    "nn.functional.conv_transpose3d": T.conv_transpose3d,
    "nn.functional.avg_pool1d": T.avg_pool1d,
    "nn.functional.avg_pool2d": _avg_pool2d,
    "nn.functional.avg_pool3d": T.avg_pool3d,
    "nn.functional.max_pool1d": T.max_pool1d,
    "nn.functional.max_pool2d": _max_pool2d,
    "nn.functional.max_pool3d": T.max_pool3d,
    "max_pool2d_with_indices_backward": _max_pool2d_backward,
    "nn.functional.max_unpool1d": T.max_unpool1d,
    "nn.functional.max_unpool2d": _max_unpool2d,
    "nn.functional.max_unpool3d": T.max_unpool3d,
    "nn.functional.adaptive_avg_pool1d": T.adaptive_avg_pool1d,
    "nn.functional.adaptive_avg_pool2d": T.adaptive_avg_pool2d,
    "nn.functional.adaptive_avg_pool3d": T.adaptive_avg_pool3d,
    "nn.functional.adaptive_max_pool1d": T.adaptive_max_pool1d,
    "nn.functional.adaptive_max_pool2d": T.adaptive_max_pool2d,
    "nn.functional.adaptive_max_pool3d": T.adaptive_max_pool3d,
    "nn.functional.fractional_max_pool2d": Entry(_fractional("fractional_max_pool2d"), random=True),
    "nn.functional.fractional_max_pool3d": Entry(_fractional("fractional_max_pool3d"), random=True),
    "nn.functional.unfold": T.unfold2d,
    "nn.functional.interpolate": _interpolate,
    "nn.functional.upsample_bilinear": _upsample_bilinear,
    "nn.functional.upsample_nearest": _upsample_nearest,
    "_upsample_bilinear2d_aa": _upsample_aa,
    "nn.functional.grid_sample": _grid_sample,
    "grid_sampler_2d": _grid_sampler,
    "grid_sampler_3d": _grid_sampler,
    "nn.functional.pixel_shuffle": T.pixel_shuffle,
    "nn.functional.pixel_unshuffle": T.pixel_unshuffle,
    "nn.functional.channel_shuffle": T.channel_shuffle,
    # A row of one element: its gradient is 0, torch's is what x * factor - mean * factor rounds to.
    "nn.functional.layer_norm": Entry(T.layer_norm, gradient_absolute=5e-4),
    "nn.functional.rms_norm": T.rms_norm,
    "nn.functional.group_norm": T.group_norm,
    "nn.functional.instance_norm": T.instance_norm,
    "nn.functional.batch_norm": T.batch_norm,
    "nn.functional.local_response_norm": T.local_response_norm,
    "native_layer_norm": Entry(T.native_layer_norm, gradient_absolute=5e-4),
    "native_group_norm": T.native_group_norm,
    "native_batch_norm": _native_batch_norm,
    "_native_batch_norm_legit": _native_batch_norm_legit,
    "_batch_norm_with_update": _batch_norm_with_update,
    "nn.functional.cross_entropy": _cross_entropy,
    "nn.functional.linear_cross_entropy": _linear_cross_entropy,
    "nn.functional.nll_loss": _nll_loss,
    "nn.functional.binary_cross_entropy": T.binary_cross_entropy,
    "nn.functional.binary_cross_entropy_with_logits": T.binary_cross_entropy_with_logits,
    "nn.functional.mse_loss": T.mse_loss,
    "nn.functional.l1_loss": T.l1_loss,
    "nn.functional.smooth_l1_loss": T.smooth_l1_loss,
    "nn.functional.huber_loss": T.huber_loss,
    "nn.functional.kl_div": T.kl_div,
    "nn.functional.poisson_nll_loss": T.poisson_nll_loss,
    "nn.functional.gaussian_nll_loss": T.gaussian_nll_loss,
    "nn.functional.hinge_embedding_loss": T.hinge_embedding_loss,
    "nn.functional.cosine_embedding_loss": T.cosine_embedding_loss,
    "nn.functional.margin_ranking_loss": T.margin_ranking_loss,
    "nn.functional.multi_margin_loss": T.multi_margin_loss,
    "nn.functional.multilabel_margin_loss": T.multilabel_margin_loss,
    "nn.functional.multilabel_soft_margin_loss": T.multilabel_soft_margin_loss,
    "nn.functional.soft_margin_loss": T.soft_margin_loss,
    "nn.functional.triplet_margin_loss": T.triplet_margin_loss,
    "nn.functional.triplet_margin_with_distance_loss": _triplet_with_distance,
    # Torch's logarithms are those of the whole sequence, which round more than scaled ones.
    "nn.functional.ctc_loss": Entry(T.ctc_loss, gradient_absolute=1e-4),
    "nn.functional.embedding": _embedding,
    "nn.functional.embedding_bag": _embedding_bag,
    "nn.functional.one_hot": _one_hot,
    "nn.functional.scaled_dot_product_attention": Entry(
        T.scaled_dot_product_attention, random=lambda *args, dropout_p=0.0, **kwargs: dropout_p > 0
    ),
    "nn.functional.multi_head_attention_forward": Entry(
        T.multi_head_attention_forward,
        random=lambda *args, training=True, **kwargs: training and args[10] > 0,
        absolute=1e-4,  # scores of several hundreds: the last bits of one are as much in its exponential
    ),
    "torch.ops.aten._safe_softmax.default": lambda x, dim, dtype=None: x.safe_softmax(dim, dtype),
    "_softmax_backward_data": lambda x, output, dim, dtype: x.softmax_backward(output, dim, dtype),
}

REASONS: dict[str, str] = {
    "torch.ops.aten._flash_attention_forward": "in torch internal, for CUDA only: a kernel of "
    "scaled_dot_product_attention, which is here",
    "torch.ops.aten._efficient_attention_forward": "in torch internal, for CUDA only: a kernel of "
    "scaled_dot_product_attention, which is here",
}
