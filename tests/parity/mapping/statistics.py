"""Reductions, statistics, order, sets and masked reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradlet import Tensor
from tests.parity.table import Entry


def reduction(name: str) -> Callable[..., Any]:
    """`torch.name(input, dim, keepdim)` where ours says axis."""

    def run(x: Tensor, dim: Any = None, keepdim: bool = False, **rest: Any) -> Any:
        return getattr(x, name)(dim, keepdim, **rest)

    return run


def spread(name: str) -> Callable[..., Any]:
    """`var` and its kin: `unbiased` is a correction of 1 or 0, the only positional bool."""

    def run(x: Tensor, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, **rest: Any) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if unbiased is not None:
            rest["correction"] = int(unbiased)
        return getattr(x, name)(dim, keepdim, rest.get("correction", 1))

    return run


def softened(name: str) -> Callable[..., Any]:
    def run(x: Tensor, dim: int, dtype: Any = None, **rest: Any) -> Any:
        return getattr(x, name)(dim, dtype=dtype)

    return run


def masked(name: str) -> Callable[..., Any]:
    """`torch.masked.name(input, dim, keepdim=, dtype=, mask=)`."""

    def run(x: Tensor, dim: Any = None, *, mask: Any = None, **rest: Any) -> Any:
        if "unbiased" in rest:
            rest["correction"] = int(rest.pop("unbiased"))
        return getattr(x, f"masked_{name}")(mask, dim, **rest)

    return run


def masked_norm(x: Tensor, ord: float, dim: Any = None, *, mask: Any = None, **rest: Any) -> Any:
    return x.masked_norm(ord, mask, dim, **rest)


def masked_normalize(x: Tensor, ord: float, dim: int, *, mask: Any = None, **rest: Any) -> Any:
    return x.masked_normalize(ord, dim, mask=mask, **rest)


def product(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return x.prod(dim, keepdim, dtype)


def extreme(name: str) -> Callable[..., Any]:
    def run(x: Tensor, dim: int, keepdim: bool = False) -> Any:
        return getattr(x, f"{name}_with_indices")(dim, keepdim)

    return run


def is_in(x: Any, test_elements: Any, **rest: Any) -> Any:
    return (x if isinstance(x, Tensor) else Tensor(x)).isin(test_elements, **rest)


MAPPING: dict[str, Entry | Callable[..., Any]] = {
    "all": reduction("all"),
    "any": reduction("any"),
    "amax": Tensor.amax,
    "amin": Tensor.amin,
    "aminmax": Tensor.aminmax,
    "argmax": reduction("argmax"),
    "argmin": reduction("argmin"),
    "argsort": Tensor.argsort,
    "argwhere": Tensor.argwhere,
    "bincount": Tensor.bincount,
    "bucketize": Tensor.bucketize,
    "cdist": Tensor.cdist,
    "corrcoef": Tensor.corrcoef,
    "count_nonzero": Tensor.count_nonzero,
    "cov": Tensor.cov,
    "cummax": lambda x, dim: x.cummax(dim),
    "cummin": lambda x, dim: x.cummin(dim),
    "cumprod": lambda x, dim, dtype=None: x.cumprod(dim, dtype),
    "cumsum": lambda x, dim, dtype=None: x.cumsum(dim, dtype),
    "cumulative_trapezoid": lambda y, x=None, *, dx=1.0, dim=-1: y.cumulative_trapezoid(x, dx, dim),
    "diff": Tensor.diff,
    "dist": Tensor.dist,
    "hash_tensor": Tensor.hash_tensor,
    "histc": Tensor.histc,
    "histogram": Tensor.histogram,
    "histogramdd": Tensor.histogramdd,
    "isin": is_in,
    "kthvalue": Tensor.kthvalue,
    "log_softmax": softened("log_softmax"),
    # torch's own gradient is 3e-3 from the exact one in samples with 1e4 in them; ours is 3e-7 from it.
    "logcumsumexp": Entry(lambda x, dim: x.logcumsumexp(dim), gradient_absolute=5e-3),
    "logsumexp": reduction("logsumexp"),
    "masked.amax": masked("amax"),
    "masked.amin": masked("amin"),
    # torch gives these places the type of the input.
    "masked.argmax": lambda x, *args, **rest: masked("argmax")(x, *args, **rest).cast(x.dtype),
    "masked.argmin": lambda x, *args, **rest: masked("argmin")(x, *args, **rest).cast(x.dtype),
    "masked.cumprod": masked("cumprod"),
    "masked.cumsum": masked("cumsum"),
    "masked.log_softmax": masked("log_softmax"),
    "masked.logaddexp": Tensor.masked_logaddexp,
    "masked.logsumexp": masked("logsumexp"),
    "masked.mean": masked("mean"),
    "masked.median": masked("median"),
    "masked.norm": masked_norm,
    "masked.normalize": masked_normalize,
    "masked.prod": masked("prod"),
    "masked.softmax": masked("softmax"),
    "masked.softmin": masked("softmin"),
    "masked.std": masked("std"),
    "masked.sum": masked("sum"),
    "masked.var": masked("var"),
    "masked_select": Tensor.masked_select,
    "max.reduction_no_dim": Tensor.max,
    "max.reduction_with_dim": extreme("max"),
    "mean": reduction("mean"),
    "median": Tensor.median,
    "min.reduction_no_dim": Tensor.min,
    "min.reduction_with_dim": extreme("min"),
    "mode": Tensor.mode,
    "msort": Tensor.msort,
    "nanmean": Tensor.nanmean,
    "nanmedian": Tensor.nanmedian,
    "nanquantile": Tensor.nanquantile,
    "nansum": Tensor.nansum,
    "nn.functional.cosine_similarity": Tensor.cosine_similarity,
    "nn.functional.normalize": Tensor.normalize,
    "nn.functional.pairwise_distance": Tensor.pairwise_distance,
    "nn.functional.pdist": Tensor.pdist,
    "nn.functional.softmin": softened("softmin"),
    "nonzero": Tensor.nonzero,
    "nonzero_static": lambda x, *, size, fill_value=-1: x.nonzero(size, fill_value),
    "prod": product,
    "quantile": Tensor.quantile,
    "renorm": Tensor.renorm,
    "searchsorted": Tensor.searchsorted,
    "_segment_reduce": lambda x, reduce, *, unsafe=False, **rest: x.segment_reduce(reduce, **rest),
    "softmax": softened("softmax"),
    "sort": Tensor.sort,
    "std": spread("std"),
    "std_mean": spread("std_mean"),
    "sum": reduction("sum"),
    "topk": Tensor.topk,
    "trapezoid": lambda y, x=None, *, dx=1.0, dim=-1: y.trapezoid(x, dx, dim),
    "trapz": lambda y, x=None, *, dx=1.0, dim=-1: y.trapz(x, dx, dim),
    "unique": Tensor.unique,
    "unique_consecutive": Tensor.unique_consecutive,
    "unravel_index": Tensor.unravel_index,
    "var": spread("var"),
    "var_mean": spread("var_mean"),
}

REASONS: dict[str, str] = {}
