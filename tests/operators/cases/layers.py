"""Pooling, resizing, sampling, normalisation, losses, embeddings and attention under torch's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradlet import Tensor
from tests.operators.case import Case, In

F = torch.nn.functional
CASES: list[Case] = []


def case(
    name: str, ours: Callable[..., Any], theirs: Callable[..., Any], *inputs: Sequence[In], dtypes: Sequence[str] = (
        "float32",
    ), grad: bool = True, scale: float = 5.0, same_dtype: bool = True,
) -> None:  # fmt: skip
    """A row of the table."""
    CASES.append(Case(name, ours, theirs, inputs, dtypes, grad, scale, same_dtype))


# convolution
case("conv1d", lambda x, w, b: x.conv1d(w, b, 2, 1), lambda x, w, b: F.conv1d(x, w, b, 2, 1),
     [In((2, 3, 8)), In((4, 3, 3)), In((4,))])  # fmt: skip
case("conv2d-same", lambda x, w: x.conv2d(w, padding="same", dilation=(1, 2)),
     lambda x, w: F.conv2d(x, w, padding="same", dilation=(1, 2)), [In((3, 5, 6)), In((2, 3, 2, 3))])  # fmt: skip
case("conv3d", lambda x, w: x.conv3d(w, groups=2), lambda x, w: F.conv3d(x, w, groups=2),
     [In((1, 4, 3, 3, 3)), In((2, 2, 2, 2, 2))])  # fmt: skip
case("conv_transpose1d", lambda x, w: x.conv_transpose1d(w, stride=2, output_padding=1),
     lambda x, w: F.conv_transpose1d(x, w, stride=2, output_padding=1), [In((3, 4)), In((3, 2, 3))])  # fmt: skip
case("conv_transpose3d", lambda x, w: x.conv_transpose3d(w, padding=1),
     lambda x, w: F.conv_transpose3d(x, w, padding=1), [In((1, 2, 2, 3, 2)), In((2, 1, 3, 3, 3))])  # fmt: skip

# pooling: values with many ties, whose gradient goes to the first
_TIES = In((2, 3, 7, 6), step=1.0)
for _kernel, _stride, _padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
    case(f"max_pool2d-ties-{_kernel}-{_stride}", lambda x, o=(_kernel, _stride, 1, _padding): x.max_pool2d(*o),
         lambda x, o=(_kernel, _stride, _padding): F.max_pool2d(x, *o), [_TIES])  # fmt: skip
case("max_pool2d-indices", lambda x: x.max_pool2d((3, 2), 2, (1, 2), 1, True, return_indices=True),
     lambda x: F.max_pool2d(x, (3, 2), 2, 1, (1, 2), True, return_indices=True), [_TIES], same_dtype=False)  # fmt: skip
case("max_pool1d-indices", lambda x: x.max_pool1d(3, 2, 1, return_indices=True),
     lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), [In((3, 9), step=1.0)], same_dtype=False)  # fmt: skip
case("max_pool3d-ties", lambda x: x.max_pool3d(2, 1), lambda x: F.max_pool3d(x, 2, 1),
     [In((1, 2, 3, 3, 3), step=1.0)])  # fmt: skip
case("avg_pool1d", lambda x: x.avg_pool1d(3, 2, 1, True, False), lambda x: F.avg_pool1d(x, 3, 2, 1, True, False),
     [In((2, 3, 8))])  # fmt: skip
case("avg_pool3d", lambda x: x.avg_pool3d(2, 1, 1, divisor_override=3),
     lambda x: F.avg_pool3d(x, 2, 1, 1, divisor_override=3), [In((1, 2, 3, 2, 3))])  # fmt: skip
case("lp_pool2d", lambda x: x.lp_pool2d(3.0, 2, 1), lambda x: F.lp_pool2d(x, 3.0, 2, 1), [In((2, 3, 4), 0.1, 2)])
case("lp_pool1d", lambda x: x.lp_pool1d(2, 3), lambda x: F.lp_pool1d(x, 2, 3), [In((2, 7))])
for _outs in ((3, 5), (4, 6), (8, 1)):
    case(f"adaptive_avg_pool2d-{_outs[0]}", lambda x, o=_outs: x.adaptive_avg_pool2d(o),
         lambda x, o=_outs: F.adaptive_avg_pool2d(x, o), [In((2, 4, 6))])  # fmt: skip
    case(f"adaptive_max_pool2d-{_outs[0]}", lambda x, o=_outs: x.adaptive_max_pool2d(o, return_indices=True),
         lambda x, o=_outs: F.adaptive_max_pool2d(x, o, return_indices=True), [In((2, 4, 6), step=1.0)],
         same_dtype=False)  # fmt: skip
case("adaptive_avg_pool1d-half", lambda x: x.adaptive_avg_pool1d(4), lambda x: F.adaptive_avg_pool1d(x, 4),
     [In((2, 3, 7))], dtypes=("float16",))  # fmt: skip
_SAMPLES = In((2, 3, 2), 0.0, 0.999, grad=False)
case("fractional_max_pool2d", lambda x, u: x.fractional_max_pool2d((2, 3), (4, 3), None, True, u),
     lambda x, u: F.fractional_max_pool2d(x, (2, 3), (4, 3), None, True, u), [In((2, 3, 9, 8)), _SAMPLES],
     same_dtype=False)  # fmt: skip
case("fractional_max_pool3d", lambda x, u: x.fractional_max_pool3d(2, (3, 4, 2), random_samples=u),
     lambda x, u: F.fractional_max_pool3d(x, 2, (3, 4, 2), _random_samples=u),
     [In((1, 2, 5, 7, 6)), In((1, 2, 3), 0.0, 0.999, grad=False)])  # fmt: skip


def _there_and_back(x: Any) -> Any:
    if isinstance(x, Tensor):
        maxima, places = x.max_pool2d(2, return_indices=True)
        return maxima.max_unpool2d(places, 2, output_size=(5, 6))
    maxima, places = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(maxima, places, 2, output_size=(5, 6))


case("max_unpool2d", _there_and_back, _there_and_back, [In((2, 3, 5, 6))])
case("unfold2d", lambda x: x.unfold2d((2, 3), 1, 1, (1, 2)), lambda x: F.unfold(x, (2, 3), 1, 1, (1, 2)),
     [In((2, 3, 4, 5))])  # fmt: skip
case("fold", lambda x: x.fold((4, 5), (2, 3), 1, 1, (1, 2)), lambda x: F.fold(x, (4, 5), (2, 3), 1, 1, (1, 2)),
     [In((2, 12, 15))])  # fmt: skip

# resizing and sampling
for _size, _align in (((3, 7), False), ((8, 2), True), ((1, 1), True)):
    case(f"interpolate-bicubic-{_size[0]}-{_align}", lambda x, s=_size, a=_align: x.interpolate(s, "bicubic", a),
         lambda x, s=_size, a=_align: F.interpolate(x, s, mode="bicubic", align_corners=a),
         [In((1, 2, 4, 5))])  # fmt: skip
case("interpolate-area", lambda x: x.interpolate((3, 2), "area"), lambda x: F.interpolate(x, (3, 2), mode="area"),
     [In((1, 2, 5, 4))])  # fmt: skip
case("interpolate-trilinear", lambda x: x.interpolate(mode="trilinear", scale_factor=1.5),
     lambda x: F.interpolate(x, mode="trilinear", scale_factor=1.5), [In((1, 1, 2, 3, 4))])  # fmt: skip
case("interpolate-nearest-factor", lambda x: x.interpolate(mode="nearest", scale_factor=(2, 0.6)),
     lambda x: F.interpolate(x, scale_factor=(2, 0.6)), [In((1, 2, 3, 5))], dtypes=("float32", "uint8"))  # fmt: skip
for _mode in ("bilinear", "bicubic"):
    case(f"interpolate-antialias-{_mode}", lambda x, m=_mode: x.interpolate((3, 8), m, antialias=True),
         lambda x, m=_mode: F.interpolate(x, (3, 8), mode=m, antialias=True), [In((1, 2, 7, 5))])  # fmt: skip
_GRID = In((1, 3, 4, 2), -1.4, 1.4)
for _mode, _outside in (
    ("bilinear", "zeros"), ("bilinear", "border"), ("bilinear", "reflection"), ("nearest", "border"),
    ("bicubic", "reflection"),
):  # fmt: skip
    case(f"grid_sample-{_mode}-{_outside}", lambda x, g, m=_mode, o=_outside: x.grid_sample(g, m, o),
         lambda x, g, m=_mode, o=_outside: F.grid_sample(x, g, m, o, align_corners=False),
         [In((1, 2, 4, 5)), _GRID], scale=10)  # fmt: skip
case("grid_sample-3d", lambda x, g: x.grid_sample(g, align_corners=True),
     lambda x, g: F.grid_sample(x, g, align_corners=True), [In((1, 1, 2, 3, 4)), In((1, 2, 2, 2, 3), -1.2, 1.2)],
     scale=10)  # fmt: skip
for _align in (False, True):
    case(f"affine_grid-{_align}", lambda t, a=_align: t.affine_grid((2, 1, 3, 4), a),
         lambda t, a=_align: F.affine_grid(t, (2, 1, 3, 4), a), [In((2, 2, 3))])  # fmt: skip
case("affine_grid-3d", lambda t: t.affine_grid((1, 1, 2, 3, 4)), lambda t: F.affine_grid(t, (1, 1, 2, 3, 4), False),
     [In((1, 3, 4))])  # fmt: skip
case("pixel_shuffle", lambda x: x.pixel_shuffle(2), lambda x: F.pixel_shuffle(x, 2), [In((2, 8, 2, 3))])
case("pixel_unshuffle", lambda x: x.pixel_unshuffle(2), lambda x: F.pixel_unshuffle(x, 2), [In((2, 2, 4, 6))])
case("channel_shuffle", lambda x: x.channel_shuffle(3), lambda x: F.channel_shuffle(x, 3), [In((2, 6, 2, 2))],
     grad=False)  # fmt: skip

# normalisation
_C = In((4,))
case("layer_norm", lambda x, w, b: x.layer_norm((2, 4), w, b), lambda x, w, b: F.layer_norm(x, (2, 4), w, b),
     [In((3, 2, 4)), In((2, 4)), In((2, 4))], dtypes=("float32", "float16", "bfloat16"))  # fmt: skip
case("rms_norm", lambda x, w: x.rms_norm(4, w), lambda x, w: F.rms_norm(x, (4,), w), [In((3, 4)), _C],
     dtypes=("float32", "float64"))  # fmt: skip
case("group_norm", lambda x, w, b: x.group_norm(2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b),
     [In((2, 4, 3)), _C, _C])  # fmt: skip
case("instance_norm", lambda x, w, b: x.instance_norm(weight=w, bias=b),
     lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [In((2, 4, 5)), _C, _C])  # fmt: skip
case("local_response_norm", lambda x: x.local_response_norm(3, 0.5), lambda x: F.local_response_norm(x, 3, 0.5),
     [In((2, 4, 5))])  # fmt: skip
_RUNNING = [In((5, 4, 3)), In((4,), grad=False), In((4,), 0.5, 2, grad=False), _C, _C]


def _trained(x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
    """Training moves the running statistics."""
    mean, variance = mean.clone(), variance.clone()
    result = (Tensor if isinstance(x, Tensor) else F).batch_norm(x, mean, variance, weight, bias, True, 0.3)
    return result, mean, variance


case("batch_norm-training", _trained, _trained, _RUNNING)
case("batch_norm", Tensor.batch_norm, F.batch_norm, _RUNNING)

# losses
_X, _Y, _P = In((4, 3)), In((4, 3)), In((4, 3), 0.05, 0.95)
_SIGNS = In(values=[1, -1, 1, -1], dtype="float32", grad=False)
for _name, _inputs, _options in (
    ("mse_loss", [_X, _Y], {}),
    ("l1_loss", [In((4, 3), step=1.0), In((4, 3), step=1.0)], {}),
    ("smooth_l1_loss", [_X, _Y], {"beta": 0.7}),
    ("huber_loss", [_X, _Y], {"delta": 0.7}),
    ("kl_div", [_X, In(values=[[0.0, 0.5, 0.5]] * 4, grad=False)], {"reduction": "batchmean"}),
    ("kl_div", [_X, _Y], {"log_target": True}),
    ("poisson_nll_loss", [_P, In((4, 3), 0, 5, grad=False)], {"full": True}),
    ("poisson_nll_loss", [_P, In((4, 3), 0, 5, grad=False)], {"log_input": False}),
    ("soft_margin_loss", [_X, In(values=[[1, -1, 1]] * 4, dtype="float32", grad=False)], {}),
    ("multilabel_soft_margin_loss", [_X, In(values=[[1, 0, 1]] * 4, dtype="float32", grad=False)], {}),
    ("hinge_embedding_loss", [In((4,)), _SIGNS], {"margin": 0.5}),
    ("multi_margin_loss", [_X, In((4,), 0, 2, dtype="int64")], {"p": 2}),
    ("multilabel_margin_loss", [_X, In(values=[[0, 2, -1], [1, -1, 0], [2, 1, 0], [-1, 0, 1]], dtype="int64")], {}),
    ("binary_cross_entropy", [In(values=[0.0, 0.0, 1.0, 1.0, 0.3]), In(values=[0, 1, 0, 1, 0.6], grad=False)], {}),
    ("binary_cross_entropy_with_logits", [_X, In((4, 3), 0, 1, grad=False)], {}),
):
    case(f"{_name}{''.join(f'-{v}' for v in _options.values())}",
         lambda *args, n=_name, o=_options: getattr(Tensor, n)(*args, **o),
         lambda *args, n=_name, o=_options: getattr(F, n)(*args, **o), _inputs)  # fmt: skip
case("gaussian_nll_loss", lambda x, y, v: x.gaussian_nll_loss(y, v, full=True),
     lambda x, y, v: F.gaussian_nll_loss(x, y, v, full=True), [_X, _Y, In((4, 1), 0.1, 2)],
     [_X, _Y, In((4, 3), 0.0, 0.0)], scale=50)  # fmt: skip
case("cosine_embedding_loss", lambda x, y, t: x.cosine_embedding_loss(y, t, 0.1),
     lambda x, y, t: F.cosine_embedding_loss(x, y, t, 0.1), [_X, _Y, _SIGNS])  # fmt: skip
case("margin_ranking_loss", lambda x, y, t: x.margin_ranking_loss(y, t, 0.5),
     lambda x, y, t: F.margin_ranking_loss(x, y, t, 0.5), [In((4,)), In((4,)), _SIGNS])  # fmt: skip
case("triplet_margin_loss", lambda a, p, n: a.triplet_margin_loss(p, n, p=3.0, swap=True),
     lambda a, p, n: F.triplet_margin_loss(a, p, n, p=3.0, swap=True), [_X, _Y, In((4, 3))])  # fmt: skip
case("cross_entropy-weights", lambda x, y, w: x.cross_entropy(y, "mean", 0.2, 1, w),
     lambda x, y, w: F.cross_entropy(x, y, w, ignore_index=1, label_smoothing=0.2),
     [In((6, 5)), In((6,), 0, 4, dtype="int64"), In((5,), 0.1, 2, grad=False)])  # fmt: skip
case("linear_cross_entropy", lambda x, w, y: x.linear_cross_entropy(w, y),
     lambda x, w, y: F.cross_entropy(x @ w.T, y), [In((6, 3)), In((5, 3)), In((6,), 0, 4, dtype="int64")])  # fmt: skip
_LABELS = [[1, 2, 2, 3], [3, 3, 0, 0], [1, 0, 0, 0]]
_LENGTHS = ([6, 5, 1], [4, 2, 1])
case("ctc_loss", lambda x: x.log_softmax(-1).ctc_loss(Tensor(_LABELS, device=x.device), *_LENGTHS),
     lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor(_LABELS), *_LENGTHS), [In((6, 3, 4))], scale=10)  # fmt: skip
case("ctc_loss-joined", lambda x: x.log_softmax(-1).ctc_loss(Tensor([1, 2, 3, 3], device=x.device), [5, 3], [2, 2]),
     lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([1, 2, 3, 3]), torch.tensor([5, 3]), torch.tensor([2, 2])),
     [In((5, 2, 4))], scale=10)  # fmt: skip
case("ctc_loss-impossible",
     lambda x: x.log_softmax(-1).ctc_loss(Tensor([[1, 1]], device=x.device), [2], [2], zero_infinity=True),
     lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 1]]), [2], [2], zero_infinity=True),
     [In((2, 1, 3))])  # fmt: skip

# embeddings
_TABLE = In((5, 3))
_NUMBERS = In(values=[0, 3, 3, 1, 4, 2, 0], dtype="int64")
_OFFSETS = In(values=[0, 2, 2, 5], dtype="int64")
case("embedding", lambda w, i: i.embedding(w, padding_idx=3, scale_grad_by_freq=True),
     lambda w, i: F.embedding(i, w, 3, scale_grad_by_freq=True), [_TABLE, _NUMBERS])  # fmt: skip
for _mode in ("sum", "mean", "max"):
    case(f"embedding_bag-{_mode}", lambda w, i, o, m=_mode: i.embedding_bag(w, o, mode=m, padding_idx=1),
         lambda w, i, o, m=_mode: F.embedding_bag(i, w, o, mode=m, padding_idx=1),
         [_TABLE, _NUMBERS, _OFFSETS])  # fmt: skip
case("embedding_bag-weights",
     lambda w, i, o, f: i.embedding_bag(w, o, mode="sum", per_sample_weights=f, include_last_offset=True),
     lambda w, i, o, f: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=f, include_last_offset=True),
     [_TABLE, _NUMBERS, In(values=[0, 3, 7], dtype="int64"), In((7,))])  # fmt: skip
case("embedding_bag-rows", lambda w, i: i.embedding_bag(w), lambda w, i: F.embedding_bag(i, w),
     [_TABLE, In((3, 2), 0, 4, dtype="int64")])  # fmt: skip

# attention
case("safe_softmax", lambda x: x.safe_softmax(-1), lambda x: torch.ops.aten._safe_softmax(x, -1),
     [In(values=[[0.5, -1.0, 2.0], [-torch.inf] * 3])])  # fmt: skip
case("attention-hidden", lambda q, k, v, m: q.scaled_dot_product_attention(k, v, m),
     lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
     [In((2, 2, 4)), In((2, 3, 4)), In((2, 3, 4)),
      In(values=[[True, False, True], [False] * 3], dtype="bool")])  # fmt: skip
_MHA = [In((3, 2, 4)), In((5, 2, 4)), In((5, 2, 4)), In((12, 4)), In((12,)), In((4, 4)), In((4,))]


def _heads(query: Any, key: Any, value: Any, weight: Any, bias: Any, out: Any, last: Any) -> Any:
    function = Tensor.multi_head_attention_forward if isinstance(query, Tensor) else F.multi_head_attention_forward
    return function(query, key, value, 4, 2, weight, bias, None, None, True, 0.0, out, last)


case("multi_head_attention_forward", _heads, _heads, _MHA)
