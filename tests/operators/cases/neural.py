"""Norms, losses, attention, interpolation."""

from __future__ import annotations

import torch

from tests.operators.case import Case, In

F = torch.nn.functional
CASES: list[Case] = []
CASES.append(
    Case(
        "layernorm",
        lambda x: x.layernorm(),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        [[In((3, 8))], [In((2, 3, 8), layout="transposed")]],
        ("float32", "float16"),
        scale=5,
    )
)
CASES.append(
    Case(
        "layernorm-axes",
        lambda x: x.layernorm((-2, -1), eps=1e-3),
        lambda x: F.layer_norm(x, x.shape[-2:], eps=1e-3),
        [[In((2, 3, 8))]],
        scale=5,
    )
)
CASES.append(
    Case(
        "rmsnorm",
        lambda x: x.rmsnorm(),
        lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
        [[In((3, 8))]],
        ("float32", "float16"),
        scale=5,
    )
)
CASES.append(
    Case(
        "batchnorm",
        lambda x, w, b, m, v: x.batchnorm(w, b, m, (v + 1e-5).rsqrt()),
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b),
        [
            [In((4, 3, 5, 5)), In((3,)), In((3,)), In((3,), grad=False), In((3,), 0.5, 2, grad=False)],
            [In((4, 3)), In((3,)), In((3,)), In((3,), grad=False), In((3,), 0.5, 2, grad=False)],
        ],
        scale=5,
    )
)
_LOGITS = In((6, 5))
_CLASSES = In((6,), 0, 4, dtype="int64")
for _reduction in ("mean", "sum", "none"):
    CASES.append(
        Case(
            f"cross_entropy-{_reduction}",
            lambda x, y, r=_reduction: x.cross_entropy(y, reduction=r),
            lambda x, y, r=_reduction: F.cross_entropy(x, y, reduction=r),
            [[_LOGITS, _CLASSES]],
            scale=4,
        )
    )
    CASES.append(
        Case(
            f"sparse_categorical_crossentropy-{_reduction}",
            lambda x, y, r=_reduction: x.sparse_categorical_crossentropy(y, reduction=r),
            lambda x, y, r=_reduction: F.cross_entropy(x, y, reduction=r),
            [[_LOGITS, _CLASSES]],
            scale=4,
        )
    )
    CASES.append(
        Case(
            f"nll_loss-{_reduction}",
            lambda x, y, r=_reduction: x.log_softmax(1).nll_loss(y, reduction=r),
            lambda x, y, r=_reduction: F.nll_loss(x.log_softmax(1), y, reduction=r),
            [[_LOGITS, _CLASSES]],
            scale=4,
        )
    )
    CASES.append(
        Case(
            f"binary_crossentropy-{_reduction}",
            lambda x, y, r=_reduction: x.binary_crossentropy(y, r),
            lambda x, y, r=_reduction: F.binary_cross_entropy(x, y, reduction=r),
            [[In((4, 3), 0.05, 0.95), In((4, 3), 0, 1, grad=False)]],
            scale=4,
        )
    )
    CASES.append(
        Case(
            f"binary_crossentropy_logits-{_reduction}",
            lambda x, y, r=_reduction: x.binary_crossentropy_logits(y, r),
            lambda x, y, r=_reduction: F.binary_cross_entropy_with_logits(x, y, reduction=r),
            [[In((4, 3), -30, 30), In((4, 3), 0, 1, grad=False)]],
            scale=4,
        )
    )
CASES.append(
    Case(
        "cross_entropy-images",
        lambda x, y: x.cross_entropy(y),
        F.cross_entropy,
        [[In((2, 5, 3, 4)), In((2, 3, 4), 0, 4, dtype="int64")]],
        scale=4,
    )
)
CASES.append(
    Case(
        "cross_entropy-smoothing",
        lambda x, y: x.cross_entropy(y, label_smoothing=0.2),
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.2),
        [[_LOGITS, _CLASSES]],
        scale=4,
    )
)
CASES.append(
    Case(
        "cross_entropy-probabilities",
        lambda x, y: x.cross_entropy(y.softmax(1), label_smoothing=0.1),
        lambda x, y: F.cross_entropy(x, y.softmax(1), label_smoothing=0.1),
        [[_LOGITS, In((6, 5))]],
        scale=4,
    )
)
CASES.append(
    Case(
        "cross_entropy-vector",
        lambda x, y: x.cross_entropy(y),
        F.cross_entropy,
        [[In((5,)), In((), 0, 4, dtype="int64")]],
        scale=4,
    )
)
CASES.append(
    Case(
        "sparse_categorical_crossentropy-ignored",
        lambda x, y: x.sparse_categorical_crossentropy(y, ignore_index=2, label_smoothing=0.1),
        lambda x, y: F.cross_entropy(x, y, ignore_index=2, label_smoothing=0.1),
        [[_LOGITS, In(values=[0, 2, 1, 2, 4, 3], dtype="int64")]],
        scale=4,
    )
)
CASES.append(
    Case(
        "nll_loss-weighted",
        lambda x, y, w: x.nll_loss(y, w, ignore_index=1),
        lambda x, y, w: F.nll_loss(x, y, w, ignore_index=1),
        [[_LOGITS, _CLASSES, In((5,), 0.1, 2, grad=False)]],
        scale=4,
    )
)
_QKV = [In((2, 2, 4, 8)), In((2, 2, 5, 8)), In((2, 2, 5, 6))]
CASES.append(
    Case(
        "attention",
        lambda q, k, v: q.scaled_dot_product_attention(k, v),
        F.scaled_dot_product_attention,
        [_QKV],
        scale=5,
    )
)
CASES.append(
    Case(
        "attention-causal",
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [[In((2, 4, 8)), In((2, 4, 8)), In((2, 4, 8))]],
        ("float32", "float16"),
        scale=5,
    )
)
CASES.append(
    Case(
        "attention-mask",
        lambda q, k, v, m: q.scaled_dot_product_attention(k, v, m),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        [[*_QKV, In((4, 5))], [*_QKV, In(values=[[True, False, True, True, False]] * 4, dtype="bool")]],
        scale=5,
    )
)
for _size in ((7,), (2,), (4,), (1,)):
    for _align in (False, True):
        CASES.append(
            Case(
                f"interpolate-linear-{_size[0]}-{_align}",
                lambda x, s=_size, a=_align: x.interpolate(s, align_corners=a),
                lambda x, s=_size, a=_align: F.interpolate(x, s, mode="linear", align_corners=a),
                [[In((2, 3, 4))]],
                scale=5,
            )
        )
CASES.append(
    Case(
        "interpolate-bilinear",
        lambda x: x.interpolate((5, 7)),
        lambda x: F.interpolate(x, (5, 7), mode="bilinear"),
        [[In((1, 2, 3, 4))]],
        scale=5,
    )
)
for _mode in ("nearest", "nearest-exact"):
    CASES.append(
        Case(
            f"interpolate-{_mode}",
            lambda x, m=_mode: x.interpolate((5, 7), m),
            lambda x, m=_mode: F.interpolate(x, (5, 7), mode=m),
            [[In((1, 2, 3, 4))]],
        )
    )
