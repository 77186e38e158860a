"""Element-wise arithmetic, comparisons, bits, activations."""

from __future__ import annotations

from typing import Any

from gradlet import Tensor
from tests.parity.table import Entry


def method(name: str, **renamed: str) -> Any:
    """The method of this name; keyword arguments that are called otherwise here are renamed."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a method of Tensor, not of {type(x).__name__}")
        kwargs.pop("inplace", None)
        kwargs.pop("out", None)
        return getattr(Tensor, name)(x, *args, **{renamed.get(k, k): v for k, v in kwargs.items()})

    return call


SAME = """
abs acos acosh add clamp_max clamp_min mul sub addcmul addcdiv asin asinh atan atan2 atanh allclose bitwise_and
bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift ceil positive copysign cos cosh deg2rad div
true_divide equal eq exp fmax fmin fmod remainder frac floor floor_divide frexp log1p ge gt le lt ne ldexp log log10
log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum minimum heaviside lcm gcd isclose
nextafter neg pow float_power rad2deg round sign sgn signbit sin sinc sinh tan tanh trunc exp2 expm1 nan_to_num
reciprocal rsqrt sqrt square lerp angle isfinite isinf isposinf isneginf isreal isnan hypot xlogy sigmoid logit erf
fill item rsub
"""
OPERATORS = {
    "__radd__": "__radd__",
    "__rdiv__": "__rtruediv__",
    "__rmul__": "__rmul__",
    "__rand__": "__rand__",
    "__ror__": "__ror__",
    "__rxor__": "__rxor__",
    "__rmod__": "__rmod__",
    "__rpow__": "__rpow__",
    "__rsub__": "__rsub__",
}
ACTIVATIONS = """
relu leaky_relu glu elu prelu celu rrelu selu silu hardsigmoid hardswish logsigmoid mish softsign tanhshrink threshold
softshrink hardshrink hardtanh gelu relu6 softplus
"""

MAPPING: dict[str, Any] = {
    **{name: method(name) for name in SAME.split()},
    **{name: method(ours) for name, ours in OPERATORS.items()},
    **{f"nn.functional.{name}": method(name) for name in ACTIVATIONS.split()},
    "clamp": method("clamp", min="min_", max="max_"),
    "where": lambda x, condition, y: condition.where(x, y),
    "max.binary": method("maximum"),
    "min.binary": method("minimum"),
    "zero_": lambda x: x.clone().zero_(),
    "nn.functional.leaky_relu": method("leaky_relu", negative_slope="neg_slope"),
    "nn.functional.gelu": lambda x, approximate="none": x.gelu(approximate),
    "nn.functional.rrelu": Entry(method("rrelu"), random=True),
}

REASONS: dict[str, str] = {
    "nn.functional.silu.complex": "complex numbers",
    **dict.fromkeys(
        (
            "jiterator_2inputs_2outputs",
            "jiterator_4inputs_with_extra_args",
            "jiterator_binary",
            "jiterator_binary_return_by_ref",
            "jiterator_unary",
        ),
        "CUDA source text compiled by torch",
    ),
}
