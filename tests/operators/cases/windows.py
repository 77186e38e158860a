"""Convolution and pooling."""

from __future__ import annotations

from typing import Any

import torch

from tests.operators.case import Case, In

F = torch.nn.functional
CASES: list[Case] = []
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def conv(
    name: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    layout: str = "plain",
    dtypes: tuple[str, ...] = ("float32",),
    ours: Any = None,
    **options: Any,
) -> None:
    spatial = len(w) - 2
    mine = {**options, **(ours or {})}
    CASES.append(
        Case(
            f"conv-{name}",
            lambda a, b, c: a.conv2d(b, c, **mine),
            lambda a, b, c: CONV[spatial](a, b, c, **options),
            [[In(x, layout=layout), In(w), In((w[0],))]],
            dtypes,
            scale=5,
        )
    )


conv("plain", (2, 3, 7, 6), (4, 3, 3, 3), dtypes=("float32", "float16", "float64"))
conv("1x1", (2, 3, 4, 4), (5, 3, 1, 1))
conv("padding", (1, 2, 5, 5), (3, 2, 3, 3), padding=1)
conv("padding-pair", (1, 2, 5, 5), (3, 2, 3, 3), padding=(2, 1))
conv("stride", (1, 2, 7, 8), (3, 2, 3, 3), stride=2)
conv("stride-pair", (1, 2, 7, 8), (3, 2, 3, 2), stride=(2, 3))
conv("dilation", (1, 2, 9, 9), (3, 2, 3, 3), dilation=2)
conv("everything", (2, 4, 11, 9), (6, 2, 3, 3), stride=2, padding=2, dilation=2, groups=2)
conv("depthwise", (2, 4, 6, 6), (8, 1, 3, 3), groups=4)
conv("1d", (2, 3, 9), (4, 3, 3), stride=2, padding=1)
conv("3d", (1, 2, 4, 5, 4), (3, 2, 2, 3, 2), padding=1)
conv("transposed-input", (2, 3, 6, 6), (4, 3, 3, 3), layout="transposed")
conv("one-pixel", (1, 1, 1, 1), (1, 1, 1, 1))
CASES.append(
    Case(
        "conv-sides",
        lambda a, b: a.conv2d(b, padding=(1, 0, 2, 1)),
        lambda a, b: F.conv2d(F.pad(a, (1, 0, 2, 1)), b),
        [[In((1, 2, 5, 5)), In((3, 2, 3, 3))]],
        scale=5,
    )
)
CASES.append(Case("conv-no-bias", lambda a, b: a.conv2d(b), F.conv2d, [[In((2, 3, 6, 6)), In((4, 3, 3, 3))]], scale=5))


def transposed(name: str, x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> None:
    spatial = len(w) - 2
    out = w[1] * options.get("groups", 1)
    CASES.append(
        Case(
            f"conv_transpose-{name}",
            lambda a, b, c: a.conv_transpose2d(b, c, **options),
            lambda a, b, c: TRANSPOSED[spatial](a, b, c, **options),
            [[In(x), In(w), In((out,))]],
            scale=5,
        )
    )


transposed("plain", (2, 3, 5, 4), (3, 4, 3, 3))
transposed("stride", (1, 2, 4, 4), (2, 3, 3, 3), stride=2)
transposed("padding", (1, 2, 4, 5), (2, 3, 3, 3), stride=2, padding=1)
transposed("output_padding", (1, 2, 4, 4), (2, 3, 3, 3), stride=2, padding=1, output_padding=1)
transposed("dilation", (1, 2, 4, 4), (2, 3, 3, 3), dilation=2)
transposed("groups", (2, 4, 4, 4), (4, 3, 2, 2), groups=2, stride=2)
transposed("side_by_side", (2, 4, 3, 5), (4, 3, 2, 3), groups=2, stride=(2, 3), padding=1)
transposed("side_by_side-one_axis", (1, 2, 4, 3), (2, 3, 2, 3), stride=2)
transposed("1d", (2, 3, 5), (3, 2, 4), stride=3, padding=1)
transposed("3d", (1, 2, 3, 2, 3), (2, 2, 2, 2, 2), stride=2)

_POOL = [[In((2, 3, 7, 6))], [In((1, 1, 4, 4))], [In((2, 2, 6, 7), layout="transposed")]]
for _name, _mine, _theirs in [
    ("plain", {}, {"kernel_size": 2}),
    ("kernel", {"kernel_size": (3, 2)}, {"kernel_size": (3, 2)}),
    ("stride", {"kernel_size": 3, "stride": 1}, {"kernel_size": 3, "stride": 1}),
    ("padding", {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("ceil", {"kernel_size": 3, "stride": 2, "ceil_mode": True}, {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    (
        "ceil-padding",
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    ),
]:
    CASES.append(
        Case(
            f"max_pool2d-{_name}",
            lambda x, o=_mine: x.max_pool2d(**o),
            lambda x, o=_theirs: F.max_pool2d(x, **o),
            _POOL,
            ("float32", "float16"),
        )
    )
    CASES.append(
        Case(
            f"avg_pool2d-{_name}",
            lambda x, o=_mine: x.avg_pool2d(**o),
            lambda x, o=_theirs: F.avg_pool2d(x, **o),
            _POOL,
            ("float32", "float16"),
        )
    )
    CASES.append(
        Case(
            f"avg_pool2d-{_name}-without-pad",
            lambda x, o=_mine: x.avg_pool2d(**o, count_include_pad=False),
            lambda x, o=_theirs: F.avg_pool2d(x, **o, count_include_pad=False),
            _POOL,
        )
    )
CASES.append(
    Case(
        "max_pool2d-dilation",
        lambda x: x.max_pool2d(2, stride=1, dilation=2),
        lambda x: F.max_pool2d(x, 2, 1, dilation=2),
        _POOL,
    )
)
CASES.append(Case("max_pool1d", lambda x: x.max_pool2d((3,)), lambda x: F.max_pool1d(x, 3), [[In((2, 3, 9))]]))
CASES.append(
    Case("max_pool3d", lambda x: x.max_pool2d((2, 2, 2)), lambda x: F.max_pool3d(x, 2), [[In((1, 2, 4, 4, 4))]])
)
CASES.append(
    Case(
        "max_pool2d-int",
        lambda x: x.max_pool2d(3, 1, padding=1),
        lambda x: F.max_pool2d(x.float(), 3, 1, padding=1).to(x.dtype),
        [[In((1, 1, 5, 5), -100, -1)]],
        ("int8", "int32"),
        grad=False,
    )
)
