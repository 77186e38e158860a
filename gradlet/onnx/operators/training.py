"""Optimizers of the domain ai.onnx.preview.training: one update of any number of tensors.

Source: the pages of these operators in the ONNX specification, "Operators" of that domain.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Number
from gradlet.tensor.tensor import Tensor

TRAINING = "ai.onnx.preview.training"


def _groups(call: Call, tensors: tuple[Tensor, ...], kinds: int) -> list[tuple[Tensor, ...]]:
    """The tensors, gradients and states of each parameter: inputs list all of one kind after the other."""
    if len(tensors) % kinds:
        raise call.error(f"has {len(tensors)} tensors, which must be {kinds} for each parameter")
    count = len(tensors) // kinds
    return [tuple(tensors[k * count + i] for k in range(kinds)) for i in range(count)]


def _flat(updates: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(t for kind in zip(*updates) for t in kind)


@operator("Adagrad", TRAINING)
def adagrad(
    call: Call, rate: Tensor, step: Tensor, *tensors: Tensor, decay_factor: float = 0.0, epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Steps divided by the root of all squared gradients so far (Duchi et al. 2011)."""
    r = rate / (step.cast(rate.dtype) * decay_factor + 1)
    updates = []
    for x, gradient, squares in _groups(call, tensors, 3):
        g = x * norm_coefficient + gradient
        new = squares + g * g
        updates.append((x - r * g / (new.sqrt() + epsilon), new))
    return _flat(updates)


@operator("Adam", TRAINING)
def adam(
    call: Call, rate: Tensor, step: Number, *tensors: Tensor, alpha: float = 0.9, beta: float = 0.999,
    epsilon: float = 1e-6, norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Moments of the gradient, corrected for their start at 0 (Kingma and Ba 2014)."""
    t = int(step)
    r = rate * ((1 - beta**t) ** 0.5 / (1 - alpha**t)) if t > 0 else rate
    updates = []
    for x, gradient, mean, squares in _groups(call, tensors, 4):
        g = x * norm_coefficient + gradient
        first, second = mean * alpha + g * (1 - alpha), squares * beta + g * g * (1 - beta)
        new = x - r * first / (second.sqrt() + epsilon)
        updates.append((new * (1 - norm_coefficient_post), first, second))
    return _flat(updates)


@operator("Momentum", TRAINING)
def momentum(
    call: Call, rate: Tensor, step: Number, *tensors: Tensor, alpha: float, beta: float, mode: str,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradient descent with momentum, the standard one or Nesterov's."""
    factor = beta if int(step) > 0 else 1.0
    updates = []
    for x, gradient, velocity in _groups(call, tensors, 3):
        g = x * norm_coefficient + gradient
        new = velocity * alpha + g * factor
        updates.append((x - rate * (g + new * alpha if mode == "nesterov" else new), new))
    return _flat(updates)


@operator("Gradient", TRAINING)
def gradient(call: Call, *inputs: Tensor, xs: list[str], y: str, zs: list[str] | None = None) -> tuple[Tensor, ...]:
    """The gradient of a value of the graph with respect to others that it was computed from."""
    named = [*xs, *(zs or ())]
    if list(call.node.inputs) != named:
        raise call.error(f"its inputs must be the values it names, {', '.join(named)}")
    target = call.tensor(call.scope.get(y))
    return tuple(target.sum().gradient(*inputs[: len(xs)], unused="zero"))
