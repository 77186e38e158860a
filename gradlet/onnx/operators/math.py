"""Element-wise operators: arithmetic, comparison, logic, rounding and activations.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Number, Value
from gradlet.tensor.tensor import Tensor

UNARY: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "Abs": Tensor.abs, "Neg": Tensor.neg, "Sign": Tensor.sign, "Floor": Tensor.floor, "Ceil": Tensor.ceil,
    "Round": Tensor.round, "Sqrt": Tensor.sqrt, "Exp": Tensor.exp, "Log": Tensor.log, "Reciprocal": Tensor.reciprocal,
    "Erf": Tensor.erf, "Sin": Tensor.sin, "Cos": Tensor.cos, "Tan": Tensor.tan, "Asin": Tensor.asin,
    "Acos": Tensor.acos, "Atan": Tensor.atan, "Sinh": Tensor.sinh, "Cosh": Tensor.cosh, "Tanh": Tensor.tanh,
    "Asinh": Tensor.asinh, "Acosh": Tensor.acosh, "Atanh": Tensor.atanh, "Sigmoid": Tensor.sigmoid,
    "Relu": Tensor.relu, "Softplus": Tensor.softplus, "Softsign": Tensor.softsign, "HardSwish": Tensor.hardswish,
    "Mish": Tensor.mish, "IsNaN": Tensor.isnan, "Not": Tensor.logical_not, "BitwiseNot": Tensor.bitwise_not,
    "Det": Tensor.det,
}  # fmt: skip


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return a.div(b, rounding_mode="trunc") if a.dtype.is_int else a.div(b)


def _power(a: Tensor, b: Tensor) -> Tensor:
    """The type is that of the base."""
    if a.dtype.is_float:
        return a.pow(b.cast(a.dtype))
    return a.cast(b.dtype).pow(b).cast(a.dtype) if b.dtype.is_float else a.pow(b.cast(a.dtype))


BINARY: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "Add": Tensor.add, "Sub": Tensor.sub, "Mul": Tensor.mul, "Div": _divide, "Pow": _power, "Equal": Tensor.eq,
    "Less": Tensor.lt, "Greater": Tensor.gt, "LessOrEqual": Tensor.le, "GreaterOrEqual": Tensor.ge,
    "And": Tensor.logical_and, "Or": Tensor.logical_or, "Xor": Tensor.logical_xor, "BitwiseAnd": Tensor.bitwise_and,
    "BitwiseOr": Tensor.bitwise_or, "BitwiseXor": Tensor.bitwise_xor,
}  # fmt: skip


def _unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    @operator(name)
    def apply(x: Tensor) -> Tensor:
        return function(x)


def _binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @operator(name)
    def apply(call: Call, a: Value, b: Value, *, broadcast: int = 0, axis: int | None = None) -> Any:
        if name == "Equal" and a.is_text:
            return a.array() == b.array()
        if name == "Pow" and b.known and b.array().size == 1 and b.ndim <= a.ndim and b.array().dtype.kind in "iuf":
            # A number: squares and roots are no powers then.
            exponent = b.array().reshape(-1)[0].item()
            base = call.tensor(a)
            if base.dtype.is_float:
                return base.pow(exponent)
        first, second = call.tensor(a), call.tensor(b)
        if broadcast and axis is not None:
            # Before version 7 the second operand lies at the axes from `axis` on.
            at = axis + first.ndim if axis < 0 else axis
            second = second.reshape(*second.shape, *(1,) * (first.ndim - at - second.ndim))
        return function(first, second)


for _name, _function in UNARY.items():
    _unary(_name, _function)
for _name, _operation in BINARY.items():
    _binary(_name, _operation)


@operator("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder, with the sign of the divisor, or with `fmod` that of the dividend."""
    return a.fmod(b) if fmod else a.mod(b)


@operator("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """Bits moved left or right."""
    return x.lshift(y) if direction == "LEFT" else x.rshift(y)


def _variadic(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @operator(name)
    def apply(*data: Tensor) -> Tensor:
        result = data[0]
        for other in data[1:]:
            result = function(result, other)
        return result


_variadic("Max", Tensor.maximum)
_variadic("Min", Tensor.minimum)
_variadic("Sum", Tensor.add)


@operator("Mean")
def mean(*data: Tensor) -> Tensor:
    """The average of all inputs."""
    result = data[0]
    for other in data[1:]:
        result = result + other
    return result / len(data)


@operator("Clip")
def clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, min: float | None = None,
    max: float | None = None,
) -> Tensor:  # fmt: skip
    """Values moved into a range; limits are attributes before version 11."""
    least, most = (min if low is None else low), (max if high is None else high)
    if least is not None:
        x = x.maximum(least)
    return x if most is None else x.minimum(most)


@operator("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Whether elements are infinite."""
    return x.isinf(bool(detect_positive), bool(detect_negative))


@operator("Where")
def where(call: Call, condition: Value, x: Value, y: Value) -> Any:
    """`x` where the condition holds, `y` elsewhere."""
    if x.is_text:
        import numpy as np

        return np.where(condition.array(), x.array(), y.array())
    return call.tensor(condition).where(call.tensor(x), call.tensor(y))


# activations with parameters
@operator("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """`x`, below 0 times alpha."""
    return (x < 0).where(x * alpha, x)


@operator("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x` above alpha, else 0."""
    return (x > alpha).where(x, 0.0)


@operator("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x`, below 0 `alpha * (exp(x) - 1)`."""
    return (x < 0).where((x.minimum(0).exp() - 1) * alpha, x)


@operator("Selu")
def selu(x: Tensor, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    """`gamma * x`, up to 0 `gamma * alpha * (exp(x) - 1)`."""
    return (x <= 0).where((x.minimum(0).exp() - 1) * alpha, x) * gamma


@operator("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`."""
    return x.celu(alpha)


@operator("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """`alpha * x + beta` within 0 and 1."""
    return x.hardsigmoid(alpha, beta)


@operator("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """`x`, below 0 times the slope; before version 7 a slope a channel."""
    if slope.ndim == 1 and x.ndim > 1 and slope.shape[0] not in (1, x.shape[-1]) and slope.shape[0] == x.shape[1]:
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    return (x < 0).where(x * slope, x)


@operator("Gelu")
@operator("Gelu", "com.microsoft")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """`x` times the normal distribution function."""
    return x.gelu(approximate)


@operator("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """0 within `lambd` of 0, elsewhere `x` moved towards 0 by the bias."""
    zero = x.zeros_like()
    return (x < -lambd).where((x + bias).cast(x.dtype), (x > lambd).where((x - bias).cast(x.dtype), zero))


@operator("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`x * sigmoid(alpha * x)`."""
    return x * (x * alpha).sigmoid()


@operator("SwiGLU")
def swiglu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """`a * sigmoid(alpha * a) * b`."""
    return a * (a * alpha).sigmoid() * b


@operator("Affine")
def affine(x: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    """`alpha * x + beta`; an operator of the first versions that converters wrote."""
    return x * alpha + beta


@operator("Scale")
def scale(x: Tensor, *, scale: float = 1.0) -> Tensor:
    """`scale * x`; an operator of the first versions that converters wrote."""
    return x * scale


# matrix products
@operator("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product as numpy has it."""
    return a.matmul(b)


@operator("Gemm")
def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0, broadcast: int = 0,
) -> Tensor:  # fmt: skip
    """`alpha * A @ B + beta * C`."""
    result = (a.transpose() if transA else a).matmul(b.transpose() if transB else b)
    if alpha != 1.0:
        result = (result * alpha).cast(a.dtype)
    if c is None:
        return result
    return result + (c if beta == 1.0 else (c * beta).cast(a.dtype))


@operator("Einsum")
def einsum(*operands: Tensor, equation: str) -> Tensor:
    """Einstein's summation."""
    return Tensor.einsum(equation.replace(" ", ""), *operands)


@operator("CumSum")
def cumsum(x: Tensor, axis: Number, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Running sums; exclusive ones begin with 0, reverse ones run from the end."""
    return _running(x, int(axis), exclusive, reverse, Tensor.cumsum, 0)


@operator("CumProd")
def cumprod(x: Tensor, axis: Number, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Running products; exclusive ones begin with 1, reverse ones run from the end."""
    return _running(x, int(axis), exclusive, reverse, Tensor.cumprod, 1)


def _running(x: Tensor, axis: int, exclusive: int, reverse: int, function: Any, start: int) -> Tensor:
    axis += x.ndim if axis < 0 else 0
    source = x.flip(axis) if reverse else x
    if exclusive:
        size = source.shape[axis]
        grown = source.pad([(1, 0) if a == axis else (0, 0) for a in range(x.ndim)], value=start)
        source = grown.whole_axes([axis])[(*[slice(None)] * axis, slice(0, size))]
    result = function(source, axis).cast(x.dtype)
    return result.flip(axis) if reverse else result
