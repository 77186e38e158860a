"""Order statistics, sets, counting, distances and masked reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tests.operators.case import Case, In

CASES: list[Case] = []
NAN = float("nan")


def narrow(result: Any) -> Any:
    """torch's results with int32 places; ours are of the default integer type."""
    if isinstance(result, torch.Tensor):
        return result.int() if result.dtype is torch.int64 else result
    return tuple([narrow(part) for part in result])


def case(
    name: str,
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    inputs: Sequence[Sequence[In]],
    dtypes: Sequence[str] = ("float32",),
    **rest: Any,
) -> None:
    """One more case; places are compared as int32."""
    CASES.append(Case(name, ours, lambda *parts: narrow(theirs(*parts)), inputs, dtypes, **rest))


# order
ROWS = [[In((3, 7))], [In((2, 4), layout="transposed")], [In((4, 1))]]
TIES = [[In((3, 7), step=1.0)], [In((2, 4), layout="transposed")]]
case("median", lambda x: x.median(), torch.median, TIES, ("float32", "int32"))
case("nanmedian", lambda x: x.nanmedian(), torch.nanmedian, [*TIES, [In(values=[NAN, 3.0, 1.0, NAN, 2.0])]])
for _axis in (0, 1):
    case(f"median-{_axis}", lambda x, a=_axis: x.median(a), lambda x, a=_axis: torch.median(x, a), ROWS)
    case(f"kthvalue-{_axis}", lambda x, a=_axis: x.kthvalue(1, a), lambda x, a=_axis: torch.kthvalue(x, 1, a), ROWS)
    case(
        f"mode-{_axis}", lambda x, a=_axis: x.mode(a), lambda x, a=_axis: torch.mode(x, a), TIES,
        ("float32", "float64") if _axis else ("int32",),
    )  # fmt: skip
    case(
        f"max_with_indices-{_axis}",
        lambda x, a=_axis: x.max_with_indices(a),
        lambda x, a=_axis: x.max(a),
        TIES,
        ("float32", "uint8"),
    )
case("min_with_indices", lambda x: x.min_with_indices(1, True), lambda x: x.min(1, True), TIES)
case("aminmax", lambda x: x.aminmax(1), lambda x: (x.amin(1), x.amax(1)), TIES, ("float32", "int16"))
case("msort", lambda x: x.msort(), torch.msort, TIES, ("float32", "int8"))
for _kind in ("linear", "lower", "higher", "midpoint", "nearest"):
    case(
        f"quantile-{_kind}",
        lambda x, k=_kind: x.quantile(0.3, 1, interpolation=k),
        lambda x, k=_kind: torch.quantile(x, 0.3, 1, interpolation=k),
        ROWS[:2],
        ("float32", "float64") if _kind == "linear" else ("float32",),
    )
_Q = In(values=[0.0, 0.25, 0.9, 1.0], grad=False)
case("quantile-several", lambda x, q: x.quantile(q, 0), lambda x, q: torch.quantile(x, q, 0), [[In((5, 3)), _Q]])
case(
    "nanquantile",
    lambda x, q: x.nanquantile(q, 1),
    lambda x, q: torch.nanquantile(x, q, 1),
    [[In(values=[[1.0, NAN, 3.0, 2.0], [NAN, 5.0, NAN, NAN], [NAN] * 4]), _Q]],
    grad=False,
)
case("nansum", lambda x: x.nansum(0), lambda x: torch.nansum(x, 0), [[In(values=[[1.0, NAN], [2.0, NAN]])]])
case("nanmean", lambda x: x.nanmean(0), lambda x: torch.nanmean(x, 0), [[In(values=[[1.0, NAN], [2.0, 5.0]])]])
CASES.append(
    Case("count_nonzero", lambda x: x.count_nonzero(1), lambda x: torch.count_nonzero(x, 1), [[In((4, 9), step=1.0)]])
)

# sets and searching: their results depend on the data, the sizes too
INTEGERS = [[In((40,), -4, 4)], [In((5, 6), 0, 3)], [In((1,))], [In((0,))]]
CASES.append(
    Case(
        "unique",
        lambda x: x.unique(return_inverse=True, return_counts=True)[::2],
        lambda x: torch.unique(x, return_inverse=True, return_counts=True)[::2],
        INTEGERS,
        ("int64", "uint8", "bool"),
    )
)
case(
    "unique-inverse",
    lambda x: x.unique(return_inverse=True),
    lambda x: torch.unique(x, return_inverse=True),
    INTEGERS,
    ("int32", "float32"),
    grad=False,
)
for _axis in (0, 2):
    case(
        f"unique-slices-{_axis}",
        lambda x, a=_axis: x.unique(dim=a, return_inverse=True),
        lambda x, a=_axis: torch.unique(x, dim=a, return_inverse=True),
        [[In((6, 5, 3), 0, 1)], [In((7, 1, 2), 0, 1)]],
        ("int16",),
    )
case(
    "unique_consecutive",
    lambda x: x.unique_consecutive(return_inverse=True),
    lambda x: torch.unique_consecutive(x, return_inverse=True),
    [[In((30,), 0, 2)], [In((3, 4), 0, 1)]],
    ("int32",),
)
for _right in (False, True):
    case(
        f"searchsorted-{_right}",
        lambda s, v, r=_right: s.sort()[0].searchsorted(v, right=r),
        lambda s, v, r=_right: torch.searchsorted(s.sort()[0], v, right=r),
        [
            [In((9,), step=0.5), In((4, 5), step=0.5)],
            [In((3, 6), step=1.0), In((3, 2), step=1.0)],
            [In((0,)), In((3,))],
        ],
        ("float32", "int32"),
        grad=False,
    )
case(
    "bucketize",
    lambda x, b: x.bucketize(b),
    lambda x, b: torch.bucketize(x, b),
    [[In(values=[-1.0, 0.0, 0.5, 7.0, NAN]), In(values=[0.0, 1.0, 3.0])]],
    grad=False,
)
case(
    "isin",
    lambda x, y: x.isin(y),
    torch.isin,
    [[In((5, 4), 0, 9), In((3,), 0, 9)], [In((50,), 0, 99), In((40,), 0, 99)]],
    ("int32", "float32"),
    grad=False,
)
case(
    "argwhere",
    lambda x: x.argwhere(),
    torch.argwhere,
    [[In((4, 5), 0, 1)], [In((3, 0))]],
    ("int32", "bool"),
    grad=False,
)
case("nonzero-size", lambda x: x.nonzero(size=5, fill_value=-1), lambda x: torch.nonzero_static(x, size=5),
     [[In((4, 5), 0, 1)], [In((3, 0))], [In((3,), 1, 1)]], ("int32",))  # fmt: skip

# counting
CASES.append(
    Case("bincount", lambda x: x.bincount(), torch.bincount, [[In((30,), 0, 6)], [In((0,))]], ("int32", "uint8"))
)
case(
    "bincount-weights",
    lambda x, w: x.bincount(w, minlength=9),
    lambda x, w: torch.bincount(x, w, minlength=9),
    [[In((30,), 0, 6), In((30,), dtype="float32")]],
    ("int32",),
    grad=False,
)
for _ends in ((0.0, 0.0), (-1.0, 1.5)):
    case(
        f"histc-{_ends}",
        lambda x, e=_ends: x.histc(7, *e),
        lambda x, e=_ends: torch.histc(x, 7, *e),
        [[In((50,))], [In((3, 4), layout="transposed")], [In(values=[2.0, 2.0])]],
        grad=False,
    )
case(
    "histogram",
    lambda x, w: x.histogram(5, weight=w),
    lambda x, w: tuple(torch.histogram(x, 5, weight=w)),
    [[In((60,)), In((60,), 0.0, 1.0)]],
    grad=False,
)
case(
    "histogram-edges",
    lambda x, e: x.histogram(e.sort()[0], density=True),
    lambda x, e: tuple(torch.histogram(x, e.sort()[0], density=True)),
    [[In((60,)), In((5,))]],
    grad=False,
)
for _op in ("sum", "mean", "prod", "max", "min"):
    case(
        f"segment_reduce-{_op}",
        lambda x, n, o=_op: x.segment_reduce(o, lengths=n),
        lambda x, n, o=_op: torch.segment_reduce(x, o, lengths=n),
        [[In((9, 2)), In(values=[2, 0, 4, 3], dtype="int64")]],
    )

# running
case("diff", lambda x: x.diff(2, 0), lambda x: torch.diff(x, 2, 0), [[In((5, 3))], [In((1, 3))]], ("float32", "int32"))
case("diff-bool", lambda x: x.diff(), torch.diff, [[In((9,))]], ("bool",))
case(
    "trapezoid", lambda y, x: y.trapezoid(x, dim=0), lambda y, x: torch.trapezoid(y, x, dim=0), [[In((5, 3)), In((5,))]]
)
case(
    "cumulative_trapezoid",
    lambda y: y.cumulative_trapezoid(dx=0.5),
    lambda y: torch.cumulative_trapezoid(y, dx=0.5),
    ROWS,
)

# distances
PAIRS = [[In((4, 3)), In((5, 3))], [In((2, 1, 3, 2)), In((3, 4, 2))], [In((30, 4)), In((28, 4))]]
for _p in (0.5, 2.0, 3.0, float("inf")):
    case(f"cdist-{_p}", lambda x, y, p=_p: x.cdist(y, p), lambda x, y, p=_p: torch.cdist(x, y, p), PAIRS, scale=5)
    case(
        f"pdist-{_p}",
        lambda x, p=_p: x.pdist(p),
        lambda x, p=_p: torch.pdist(x, p),
        [[In((6, 3))], [In((1, 3))]],
        scale=5,
    )
    case(
        f"dist-{_p}", lambda x, y, p=_p: x.dist(y, p), lambda x, y, p=_p: torch.dist(x, y, p), [[In((4, 3)), In((3,))]],
        scale=5,
    )  # fmt: skip
case("pairwise_distance", lambda x, y: x.pairwise_distance(y, 3.0), lambda x, y: F.pairwise_distance(x, y, 3.0),
     [[In((4, 3)), In((4, 3))]], scale=5)  # fmt: skip
case("cosine_similarity", lambda x, y: x.cosine_similarity(y), F.cosine_similarity,
     [[In((4, 3)), In((4, 3))], [In((1, 5, 2)), In((3, 1, 2))]], ("float32", "float64"))  # fmt: skip
for _p in (0.5, 1.0, float("inf")):
    case(f"normalize-{_p}", lambda x, p=_p: x.normalize(p), lambda x, p=_p: F.normalize(x, p), [[In((3, 5))]], scale=5)
case("renorm", lambda x: x.renorm(2, 0, 1.0), lambda x: torch.renorm(x, 2, 0, 1.0), [[In((4, 3))], [In((2, 3, 2))]])
case("cov", lambda x: x.cov(), torch.cov, [[In((3, 8))], [In((9,))]], scale=4)
case("corrcoef", lambda x: x.corrcoef(), torch.corrcoef, [[In((3, 8))]], scale=4)
case(
    "cov-weights",
    lambda x, f, a: x.cov(0, f, a),
    lambda x, f, a: torch.cov(x, correction=0, fweights=f, aweights=a),
    [[In((3, 6)), In((6,), 1, 4, dtype="int32"), In((6,), 0.5, 2.0, grad=False)]],
    scale=4,
)

# masked
# At least two elements of every column are selected: of fewer there is no variance.
_SOME = [[True, True, False, True], [False, True, True, True], [True, False, True, False], [False, True, False, True]]
MASKED = [
    [In((4, 4)), In(values=_SOME, dtype="bool")],
    [In((3, 4), layout="transposed"), In(values=[[True], [False], [True]], dtype="bool")],
]


def masked_case(name: str, dtypes: Sequence[str] = ("float32",), **rest: Any) -> None:
    case(
        f"masked_{name}",
        lambda x, m: getattr(x, f"masked_{name}")(m, 0),
        lambda x, m: getattr(torch.masked, name)(x, 0, mask=m),
        MASKED,
        dtypes,
        **rest,
    )


for _name in ("sum", "prod", "amax", "amin", "mean", "var", "std", "logsumexp", "cumsum", "cumprod", "softmax"):
    masked_case(_name, scale=4)
CASES.append(
    Case(
        "masked_select-gradient", lambda x, m: x.masked_select(m), torch.masked_select, MASKED, ("float32", "bfloat16")
    )
)
case(
    "masked_select-size",
    lambda x, m: x.masked_select(m, size=25, fill_value=3.0)[:20],
    lambda x, m: torch.cat((x.masked_select(m), torch.full((20,), 3.0)))[:20],
    MASKED[:1],
)
