"""Mistakes in convolutions, pooling, attention and losses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from tests.errors.table import Row, check

IMAGE, WEIGHT = Tensor.ones(1, 1, 4, 4), Tensor.ones(1, 1, 3, 3)
GROUPED, GROUP_WEIGHT = Tensor.ones(1, 4, 4, 4), Tensor.ones(4, 2, 3, 3)
X, CLASSES = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([0, 1])
A = Tensor.zeros(2, 3)
V = Tensor.zeros(3)
HEADS = Tensor.zeros(3, 3, 2)
ROWS = Tensor([[0, 1]])


def attend(
    value: Tensor | None = None,
    weight: Tensor | None = Tensor.zeros(12, 4),
    width: int = 4,
    heads: int = 2,
    **more: Any,
) -> Any:
    """Attention of two steps of four features to themselves."""
    x = Tensor.zeros(2, 4)
    other = x if value is None else value
    return x.multi_head_attention_forward(
        x, other, width, heads, weight, None, None, None, False, 0.0, Tensor.zeros(4, 4), None, **more
    )


MISTAKES: list[Row] = [
    (lambda: IMAGE.conv2d(None), DTypeError, "conv2d: weight must be a Tensor"),
    (lambda: IMAGE.conv2d(Tensor.ones(1, 2, 3, 3)), ShapeError, "conv2d: input .* has 1 channels"),
    (lambda: IMAGE.conv2d(Tensor.ones(1, 1, 5, 5)), ShapeError, "does not fit the padded input"),
    (lambda: IMAGE.conv2d(Tensor.ones(1, 1, 0, 0)), ShapeError, "a kernel without elements"),
    (lambda: IMAGE.conv2d(WEIGHT, stride=0), ArgumentError, r"conv2d: stride must be positive, got \(0, 0\)"),
    (lambda: IMAGE.conv2d(WEIGHT, stride=-1), ArgumentError, "conv2d: stride must be positive"),
    (lambda: IMAGE.conv2d(WEIGHT, stride=1.5), ShapeError, "conv2d: stride: expected integers"),
    (lambda: IMAGE.conv2d(WEIGHT, stride=(1, 2, 3)), ShapeError, "conv2d: stride: expected an integer or 2"),
    (lambda: IMAGE.conv2d(WEIGHT, dilation=0), ArgumentError, "conv2d: dilation must be positive"),
    (lambda: IMAGE.conv2d(WEIGHT, padding="around"), ArgumentError, "conv2d: padding 'around' is not 'same'"),
    (lambda: IMAGE.conv2d(WEIGHT, padding=None), ShapeError, "conv2d: padding: expected integers"),
    (lambda: IMAGE.conv2d(WEIGHT, padding=(1, 2, 3)), ShapeError, "conv2d: padding"),
    (lambda: IMAGE.conv2d(WEIGHT, Tensor.ones(3)), ShapeError, r"conv2d: bias of shape \(3,\) must have shape \(1,\)"),
    (lambda: IMAGE.conv2d(WEIGHT, 3), DTypeError, "conv2d: bias must be a Tensor"),
    (lambda: GROUPED.conv2d(GROUP_WEIGHT, groups=0), ArgumentError, "conv2d: groups must be at least 1"),
    (lambda: GROUPED.conv2d(GROUP_WEIGHT, groups=1.5), ArgumentError, "conv2d: groups must be an integer"),
    (lambda: GROUPED.conv2d(Tensor.ones(3, 2, 3, 3), groups=2), ShapeError, "conv2d: .*groups=2"),
    (lambda: IMAGE.conv_transpose2d(WEIGHT, stride=0), ArgumentError, "conv_transpose2d: stride must be positive"),
    (lambda: IMAGE.conv_transpose2d(WEIGHT, output_padding=1), ArgumentError, "output_padding .* smaller than"),
    (lambda: IMAGE.conv_transpose2d(WEIGHT, output_padding=-1), ArgumentError, "output_padding .* at least 0"),
    (lambda: IMAGE.conv_transpose2d(WEIGHT, padding=9), ShapeError, "conv_transpose2d: padding .* cuts off more"),
    (lambda: IMAGE.max_pool2d(0), ArgumentError, "max_pool2d: kernel_size must be positive"),
    (lambda: IMAGE.max_pool2d(2.5), ShapeError, "max_pool2d: kernel_size: expected integers"),
    (lambda: IMAGE.max_pool2d(2, padding=2), ArgumentError, "max_pool2d: padding .* at most half"),
    (lambda: IMAGE.avg_pool2d(2, padding=-1), ArgumentError, "avg_pool2d: padding .* at least 0"),
    (lambda: IMAGE.avg_pool2d(9), ShapeError, "avg_pool2d: a kernel"),
    (lambda: X.dropout("a"), ArgumentError, "dropout: p must be a number"),
    (lambda: X.dropout(2), ArgumentError, r"dropout: p must lie in \[0, 1\], got 2"),
    (lambda: X.interpolate((0,)), ShapeError, "interpolate: .*must be positive"),
    (lambda: X.interpolate("a"), ShapeError, "interpolate: size: expected integers"),
    (lambda: X.scaled_dot_product_attention(None, X), DTypeError, "attention: key must be a Tensor"),
    (lambda: X.scaled_dot_product_attention(Tensor.ones(3, 2), X), ShapeError, "attention: queries"),
    (lambda: X.scaled_dot_product_attention(X, X, enable_gqa=True), ShapeError, "attention: enable_gqa needs"),
    (lambda: X.cross_entropy([0, 1]), DTypeError, "cross_entropy: Y must be a Tensor, got list"),
    (lambda: X.cross_entropy(Tensor([0, 1, 2])), ShapeError, "cross_entropy: Y of shape"),
    (lambda: X.cross_entropy(CLASSES, label_smoothing="a"), ArgumentError, "label_smoothing must be a number"),
    (lambda: X.cross_entropy(X, label_smoothing=3), ArgumentError, "label_smoothing must lie in"),
    (lambda: X.cross_entropy(CLASSES, reduction="max"), ArgumentError, "reduction 'max' is not one of"),
    (lambda: X.sparse_categorical_crossentropy(None), DTypeError, "Y must be a Tensor"),
    (lambda: Tensor(1.0).sparse_categorical_crossentropy(Tensor(1)), ShapeError, "needs an axis of classes"),
    (lambda: Tensor(1.0).nll_loss(Tensor(1)), ShapeError, "nll_loss: needs an axis of classes"),
    (lambda: X.nll_loss(CLASSES, weight=Tensor([1.0])), ShapeError, "nll_loss: weight of shape"),
    (lambda: X.batchnorm(None, None, None, X), DTypeError, "batchnorm: mean must be a Tensor"),
    (
        lambda: X.batchnorm(None, None, Tensor.ones(3), Tensor.ones(2)),
        ShapeError,
        "batchnorm: mean has 3 entries, axis 1 has 2",
    ),
    (lambda: X.celu(0), ArgumentError, "celu: alpha must not be 0"),
    (lambda: X.softplus(beta=0), ArgumentError, "softplus: beta must not be 0"),
    (lambda: X.hardtanh(3, 1), ArgumentError, "hardtanh: min_val 3 is above max_val 1"),
    (lambda: A.conv2d(Tensor.zeros(1, 1, 3, 3)), ShapeError, "conv2d: input"),
    (lambda: Tensor.zeros(1, 2, 5, 5).conv2d(Tensor.zeros(4, 3, 3, 3)), ShapeError, "2 channels, weight"),
    (lambda: Tensor.zeros(1, 1, 2, 2).conv2d(Tensor.zeros(1, 1, 3, 3)), ShapeError, "does not fit the padded input"),
    (lambda: Tensor.zeros(1, 1, 4, 4).conv2d(Tensor.zeros(1, 1, 3, 3), stride=(1, 2, 3)), ShapeError, "stride"),
    (lambda: Tensor.zeros(1, 1, 4, 4).max_pool2d(5), ShapeError, "max_pool2d"),
    (lambda: A.cross_entropy(Tensor([1, 2, 3])), ShapeError, "cross_entropy"),
    (lambda: A.cross_entropy(Tensor([1, 0]), reduction="avg"), ArgumentError, "reduction 'avg'"),
    (lambda: A.sparse_categorical_crossentropy(V), ShapeError, r"\(2,\)"),
    (lambda: A.sparse_categorical_crossentropy(Tensor([0.5, 1.0])), DTypeError, "integers"),
    (lambda: A.gelu("erf"), ArgumentError, "'tanh' or 'none'"),
    # attention
    (
        lambda: HEADS.scaled_dot_product_attention(Tensor.zeros(2, 3, 2), Tensor.zeros(2, 3, 2), enable_gqa=True),
        ShapeError,
        "attention: 3 query heads must be a multiple of 2 key heads and of 2 value heads",
    ),
    (
        lambda: X.scaled_dot_product_attention(X, X, attn_mask=X, is_causal=True),
        ArgumentError,
        "attention: give attn_mask or is_causal, not both",
    ),
    (lambda: attend(width=3), ArgumentError, r"_forward: queries \(2, 4\) have 4 features; they must be embed_dim_to"),
    (lambda: attend(heads=3), ArgumentError, "multi_head_attention_forward: .* a multiple of num_heads, 3"),
    (lambda: attend(value=Tensor.zeros(3, 4)), ShapeError, r"_forward: keys .* and values .* must be \[S, 1, ...\]"),
    (lambda: attend(weight=None), ArgumentError, "_forward: give in_proj_weight, or all of q_, k_ and v_proj_weight"),
    (
        lambda: attend(weight=Tensor.zeros(12, 3)),
        ShapeError,
        r"_forward: a projection of shape \(4, 3\) does not fit 4 features; give \[outputs, features\]",
    ),
    (
        lambda: attend(key_padding_mask=Tensor([True])),
        ShapeError,
        r"_forward: key_padding_mask of shape \(1, 1\) must be \(1, 2\)",
    ),
    (
        lambda: attend(attn_mask=Tensor([[1, 0], [0, 1]])),
        DTypeError,
        "_forward: masks must be bool or floats, got dtypes.int32; cast them",
    ),
    # tables of embeddings
    (
        lambda: CLASSES.embedding_bag(X, CLASSES, mode="sum", per_sample_weights=V),
        ShapeError,
        r"embedding_bag: per_sample_weights of shape \(3,\) must have shape \(2,\)",
    ),
    (
        lambda: ROWS.embedding_bag(X, CLASSES),
        ShapeError,
        r"embedding_bag: a matrix \(1, 2\) of row numbers has its bags as rows; leave out offsets",
    ),
    (
        lambda: CLASSES.embedding_bag(X, V),
        ShapeError,
        r"embedding_bag: offsets of shape \(3,\) and type dtypes.float32 must be integers, one a bag",
    ),
    # windows
    (lambda: V.fractional_max_pool2d(1, 1), ShapeError, r"fractional_max_pool2d: needs 3 or 4 axes with elements, got"),
    (
        lambda: IMAGE.fractional_max_pool2d(2, 2, random_samples=X),
        ShapeError,
        r"fractional_max_pool2d: random_samples of shape \(2, 2\) must be \(1, 1, 2\)",
    ),
    (lambda: IMAGE[:, :0].max_pool2d(2), ShapeError, r"max_pool2d: shape \(1, 0, 4, 4\) has no elements beside the b"),
    (lambda: V.max_pool2d(2), ShapeError, r"max_pool2d: 2 window sizes need at least 2 axes, got shape \(3,\)"),
    (
        lambda: IMAGE.max_unpool2d(IMAGE.cast("int32"), 1, padding=4),
        ShapeError,
        r"max_unpool2d: the result would have the sizes \(-4, -4\); use a larger kernel or less padding",
    ),
    (
        lambda: IMAGE.max_pool2d_with_indices_backward(IMAGE, CLASSES),
        ShapeError,
        r"_backward: a gradient of shape \(1, 1, 4, 4\), indices of shape \(2,\) and x of shape",
    ),
    # normalization
    (
        lambda: IMAGE.native_group_norm(None, None, 1, 2, 16, 1, 1e-5),
        ShapeError,
        r"native_group_norm: shape \(1, 1, 4, 4\) is not N=1 samples of C=2 channels of HxW=16 elements",
    ),
    (
        lambda: IMAGE[:, :, :1, :1].instance_norm(),
        ShapeError,
        r"instance_norm: shape \(1, 1, 1, 1\) has one element a channel, whose variance is 0",
    ),
    (lambda: Tensor(1.0).batch_norm(None, None, training=True), ShapeError, "batch_norm: needs an axis of channels"),
    # images
    (
        lambda: V.interpolate((2, 2)),
        ShapeError,
        r"interpolate: 2 sizes for shape \(3,\); give one for each of its last",
    ),
    (
        lambda: Tensor.zeros(1, 1, 0, 4).grid_sample(Tensor.zeros(1, 2, 2, 2)),
        ShapeError,
        r"grid_sample: images of shape \(1, 1, 0, 4\) have no pixels",
    ),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_a_number_that_is_no_class_gives_nan_and_never_a_small_loss() -> None:
    for wrong in (2, -1, -100):
        loss = X.cross_entropy(Tensor([0, wrong]), reduction="none").tolist()
        assert loss[0] > 0 and math.isnan(loss[1])
    assert math.isnan(X.cross_entropy(Tensor([0, 7])).item())
    assert math.isnan(X.log_softmax().nll_loss(Tensor([0, 200], dtype="uint8")).item())
    assert X.cross_entropy(Tensor([0, 7]), ignore_index=7).item() > 0
    assert X.sparse_categorical_crossentropy(Tensor([0, -1])).item() > 0
