"""Random numbers and dropout: shapes and types are compared, statistics stand in tests/ops/test_distributions.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradlet import Tensor
from tests.parity.table import Entry


def _integers(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch takes (high) or (low, high) in front of the shape."""

    def call(*args: Any, **rest: Any) -> Tensor:
        *ends, shape = args
        low, high = ends if len(ends) == 2 else (0, ends[0])
        return make(shape, low=low, high=high, **rest)

    return call


def _like(x: Tensor, *ends: int, **rest: Any) -> Tensor:
    return _integers(lambda _, **r: x.randint_like(**r))(*ends, None, **rest)


def _normal(mean: Any, std: Any, shape: tuple[int, ...] = (), **rest: Any) -> Tensor:
    return Tensor.normal(*shape, mean=mean, std=std, **rest)


MAPPING = {
    name: Entry(ours, random=True)
    for name, ours in {
        "bernoulli": Tensor.bernoulli,
        "cauchy": Tensor.cauchy_,
        "exponential": Tensor.exponential_,
        "geometric": Tensor.geometric_,
        "log_normal": Tensor.log_normal_,
        "multinomial": Tensor.multinomial,
        "nn.functional.alpha_dropout": Tensor.alpha_dropout,
        "nn.functional.dropout": Tensor.dropout,
        "nn.functional.dropout2d": Tensor.dropout2d,
        "nn.functional.dropout3d": Tensor.dropout3d,
        "nn.functional.feature_alpha_dropout.with_train": Tensor.feature_alpha_dropout,
        "normal": _normal,
        "normal.in_place": Tensor.normal_,
        "normal.number_mean": _normal,
        "rand_like": Tensor.rand_like,
        "randint": _integers(Tensor.randint),
        "randint_like": _like,
        "randn": Tensor.randn,
        "randn_like": Tensor.randn_like,
        "uniform": Tensor.uniform_,
    }.items()
} | {
    "native_dropout_backward": Entry(Tensor.native_dropout_backward),
    "nn.functional.feature_alpha_dropout.without_train": Entry(Tensor.feature_alpha_dropout),
}
REASONS: dict[str, str] = {}
