"""Mistakes in pooling, resizing, sampling, normalisation, losses and embeddings under torch's names."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from tests.errors.table import Row, check

IMAGE = Tensor.ones(1, 2, 4, 4)
ROW = Tensor.ones(1, 2, 4)
X, CLASSES = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([0, 1])
VECTOR = Tensor.ones(3)
TABLE = Tensor.ones(5, 3)
GRID = Tensor.zeros(1, 3, 3, 2)
HEADS = (2, 1, Tensor.ones(6, 2), None, None, None, False, 0.0, Tensor.ones(2, 2), None)

MISTAKES: list[Row] = [
    (lambda: ROW.conv1d(Tensor.ones(1, 2, 3, 3)), ShapeError, r"conv1d: weight \(1, 2, 3, 3\) must have 3 axes"),
    (lambda: IMAGE.conv2d(Tensor.ones(1, 2, 3, 3), stride=2, padding="same"), ArgumentError, "'same' needs stride 1"),
    (lambda: IMAGE.conv3d(None), DTypeError, "conv3d: weight must be a Tensor"),
    (lambda: ROW.conv_transpose1d(Tensor.ones(3, 1, 2)), ShapeError, "conv_transpose1d: input .* has 2 channels"),
    (lambda: ROW.max_pool1d(9), ShapeError, "max_pool1d: a kernel of"),
    (lambda: ROW.max_pool1d(2, padding=2), ArgumentError, "max_pool1d: padding .* at most half"),
    (lambda: IMAGE.avg_pool3d(2.5), ShapeError, "avg_pool3d: kernel_size: expected integers"),
    (lambda: IMAGE.avg_pool2d(2, divisor_override=0), ArgumentError, "divisor_override must not be 0"),
    (lambda: ROW.lp_pool1d(0, 2), ArgumentError, "lp_pool1d: norm_type must not be 0"),
    (lambda: IMAGE.adaptive_avg_pool2d((1, 2, 3)), ShapeError, "adaptive_avg_pool2d: output_size .* or 2 sizes"),
    (lambda: X.adaptive_max_pool2d(1), ShapeError, "adaptive_max_pool2d: .* behind one of channels"),
    (lambda: IMAGE.adaptive_max_pool2d(-1), ShapeError, "bins need elements, and their number is at least 0"),
    (lambda: IMAGE.fractional_max_pool2d(2), ArgumentError, "give either output_size or output_ratio"),
    (lambda: IMAGE.fractional_max_pool2d(2, 4), ShapeError, r"\(4, 4\) windows of \(2, 2\) do not fit"),
    (lambda: IMAGE.fractional_max_pool2d(2, output_ratio=1.5), ArgumentError, r"output_ratio 1.5 must lie in \(0, 1\)"),
    (lambda: ROW.max_unpool1d(CLASSES, 2), ShapeError, "max_unpool1d: indices of shape"),
    (lambda: ROW.max_unpool1d(ROW, 2), ShapeError, "max_unpool1d: indices .* must be integers"),
    (lambda: ROW.max_unpool1d(ROW.cast("int32"), 2, output_size=(20,)), ShapeError, "output_size .* within the stride"),
    (lambda: VECTOR.unfold2d(2), ShapeError, r"unfold2d: needs the shape \[N, C, H, W\]"),
    (lambda: IMAGE.unfold2d(5), ShapeError, "unfold2d: a kernel"),
    (lambda: IMAGE.unfold2d(2, padding=-1), ArgumentError, "unfold2d: padding .* at least 0"),
    (lambda: ROW.fold((4, 4), 2), ShapeError, r"fold: shape \(1, 2, 4\) must be \[N, C \* 4, 9\]"),
    (lambda: IMAGE.interpolate(), ArgumentError, "interpolate: give size or scale_factor"),
    (lambda: IMAGE.interpolate(scale_factor=0), ArgumentError, "scale_factor 0 must be 2 positive numbers"),
    (lambda: IMAGE.interpolate((2, 2), "cubic"), ArgumentError, "interpolate: mode 'cubic' is not one of"),
    (lambda: IMAGE.interpolate((2,), "bicubic"), ArgumentError, "mode 'bicubic' resizes 2 axes"),
    (lambda: IMAGE.interpolate((2, 2), "nearest", True), ArgumentError, "align_corners goes with"),
    (lambda: IMAGE.interpolate((2, 2), "area", antialias=True), ArgumentError, "antialias goes with"),
    (lambda: IMAGE.grid_sample(GRID, "cubic"), ArgumentError, "grid_sample: mode 'cubic'"),
    (lambda: IMAGE.grid_sample(GRID, padding_mode="edge"), ArgumentError, "padding_mode 'edge' is not one of"),
    (lambda: IMAGE.grid_sample(Tensor.zeros(2, 3, 3, 2)), ShapeError, r"grid_sample: images .* and grid"),
    (lambda: X.affine_grid((1, 1, 2, 2)), ShapeError, "affine_grid: maps of shape"),
    (lambda: IMAGE.pixel_shuffle(2), ShapeError, r"pixel_shuffle: shape .* must be \[..., C \* 4, H, W\]"),
    (lambda: IMAGE.pixel_unshuffle(3), ShapeError, "pixel_unshuffle: shape"),
    (lambda: IMAGE.channel_shuffle(3), ShapeError, "channel_shuffle: shape"),
    (lambda: X.layer_norm((3,)), ShapeError, r"layer_norm: normalized_shape \(3,\) must be the last sizes"),
    (lambda: X.layer_norm((2,), VECTOR), ShapeError, "layer_norm: weight of shape"),
    (lambda: X.rms_norm(()), ShapeError, "rms_norm: normalized_shape"),
    (lambda: IMAGE.group_norm(3), ShapeError, "group_norm: shape .* that 3 groups divide"),
    (lambda: IMAGE.group_norm(2, VECTOR), ShapeError, "group_norm: weight of shape .* one a channel"),
    (lambda: X.instance_norm(), ShapeError, r"instance_norm: shape \(2, 2\) must be \[N, C, ...\]"),
    (lambda: X.batch_norm(None, None), ShapeError, "batch_norm: needs running_mean and running_var"),
    (lambda: Tensor.ones(1, 2).batch_norm(None, None, training=True), ShapeError, "one element a channel"),
    (lambda: X.local_response_norm(2), ShapeError, "local_response_norm: shape"),
    (lambda: X.mse_loss(VECTOR), ShapeError, "do not broadcast"),
    (lambda: X.mse_loss(X, weight=VECTOR), ShapeError, "mse_loss: weight of shape"),
    (lambda: X.smooth_l1_loss(X, beta=-1), ArgumentError, "smooth_l1_loss: beta must be at least 0"),
    (lambda: X.huber_loss(X, delta=0), ArgumentError, "huber_loss: delta must be positive"),
    (lambda: X.kl_div(X, "average"), ArgumentError, "kl_div: reduction 'average' is not one of"),
    (lambda: X.gaussian_nll_loss(X, VECTOR), ShapeError, "gaussian_nll_loss: var of shape"),
    (lambda: X.gaussian_nll_loss(X, -1.0), ArgumentError, "a variance may not be negative"),
    (lambda: X.binary_cross_entropy(VECTOR), ShapeError, "binary_cross_entropy: target of shape"),
    (lambda: X.multi_margin_loss(CLASSES, p=3), ArgumentError, "multi_margin_loss: p must be 1 or 2"),
    (lambda: X.multi_margin_loss(X), ShapeError, "multi_margin_loss: Y of shape"),
    (lambda: X.multilabel_margin_loss(CLASSES), ShapeError, "multilabel_margin_loss: scores"),
    (lambda: X.multilabel_soft_margin_loss(CLASSES), ShapeError, "multilabel_soft_margin_loss: target of shape"),
    (lambda: X.cosine_embedding_loss(X, X), ShapeError, "cosine_embedding_loss: vectors"),
    (lambda: X.triplet_margin_loss(X, X, margin=-1), ArgumentError, "triplet_margin_loss: margin must be positive"),
    (lambda: X.triplet_margin_loss(None, X), DTypeError, "triplet_margin_loss: positive must be a Tensor"),
    (lambda: X.cross_entropy(CLASSES, weight=VECTOR), ShapeError, "cross_entropy: weight of shape"),
    (lambda: X.linear_cross_entropy(VECTOR, CLASSES), ShapeError, "linear_cross_entropy: input"),
    (lambda: ROW.ctc_loss(CLASSES, [1], [2], blank=4), ArgumentError, "ctc_loss: blank 4 is not one of 4 classes"),
    (lambda: ROW.ctc_loss(CLASSES, [1], [2]), ShapeError, r"ctc_loss: input_lengths \[1\] must be 2 lengths up to 1"),
    (lambda: ROW.ctc_loss(X, [1, 1], [2, 2]), DTypeError, "ctc_loss: targets must be integers"),
    (lambda: VECTOR.ctc_loss(CLASSES, [1], [2]), ShapeError, "ctc_loss: log probabilities"),
    (lambda: VECTOR.embedding(TABLE), DTypeError, "embedding: row numbers must be integers"),
    (lambda: CLASSES.embedding(VECTOR), ShapeError, r"embedding: weight of shape \(3,\) must be \[rows, features\]"),
    (lambda: CLASSES.embedding(TABLE, padding_idx=7), IndexingError, "embedding: padding_idx"),
    (lambda: CLASSES.embedding_bag(TABLE), ShapeError, "embedding_bag: row numbers .* with offsets"),
    (lambda: CLASSES.embedding_bag(TABLE, CLASSES, mode="min"), ArgumentError, "embedding_bag: mode 'min'"),
    (lambda: CLASSES.embedding_bag(TABLE, CLASSES, per_sample_weights=X), ArgumentError, "go with mode 'sum'"),
    (lambda: X.softmax_backward(VECTOR), ShapeError, "softmax_backward: output of shape"),
    (lambda: X.scaled_dot_product_attention(X, X, CLASSES), DTypeError, "attention: attn_mask must be bool or a float"),
    (lambda: X.multi_head_attention_forward(X, VECTOR, *HEADS), ShapeError, "need 3 axes, or all 2"),
    (lambda: X.multi_head_attention_forward(X, X, *HEADS, attn_mask=VECTOR), ShapeError, "attn_mask of shape"),
    (lambda: X.multi_head_attention_forward(X, X, *HEADS, is_causal=True), ArgumentError, "is_causal only describes"),
    (lambda: X.one_hot(2), ArgumentError, "one_hot: needs integers"),
]  # fmt: skip


@pytest.mark.parametrize("row", MISTAKES)
def test_mistake(row: Row) -> None:
    check(row)
