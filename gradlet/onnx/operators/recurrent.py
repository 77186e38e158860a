"""Recurrent layers: RNN, GRU and LSTM, step by step over time.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gradlet.onnx.operators.control import STEPS_TOGETHER
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Ints
from gradlet.tensor.tensor import Tensor

Activation = Callable[[Tensor], Tensor]
# Name -> (function of x, alpha, beta), default alpha, default beta.
ACTIVATIONS: Final[dict[str, tuple[Callable[[Tensor, float, float], Tensor], float, float]]] = {
    "relu": (lambda x, a, b: x.relu(), 0.0, 0.0),
    "tanh": (lambda x, a, b: x.tanh(), 0.0, 0.0),
    "sigmoid": (lambda x, a, b: x.sigmoid(), 0.0, 0.0),
    "affine": (lambda x, a, b: x * a + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: (x < 0).where(x * a, x), 0.01, 0.0),
    "thresholdedrelu": (lambda x, a, b: (x > a).where(x, 0.0), 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: (x * b).tanh() * a, 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: x.hardsigmoid(a, b), 0.2, 0.5),
    "elu": (lambda x, a, b: (x < 0).where((x.minimum(0).exp() - 1) * a, x), 1.0, 0.0),
    "softsign": (lambda x, a, b: x.softsign(), 0.0, 0.0),
    "softplus": (lambda x, a, b: x.softplus(), 0.0, 0.0),
}


def _activations(
    call: Call, names: list[str], alphas: list[float] | None, betas: list[float] | None
) -> list[Activation]:
    """The functions of all directions; parameters are listed for those that have some."""
    given_a, given_b = list(alphas or ()), list(betas or ())
    made: list[Activation] = []
    for name in names:
        found = ACTIVATIONS.get(name.lower())
        if found is None:
            raise call.error(f"activation {name!r} is not one of {', '.join(ACTIVATIONS)}")
        function, a, b = found
        if a and given_a:
            a = given_a.pop(0)
        if b and given_b:
            b = given_b.pop(0)
        made.append(lambda x, function=function, a=a, b=b: function(x, a, b))  # type: ignore[misc]
    return made


def _cut(x: Tensor, clip: float | None) -> Tensor:
    return x if clip is None else x.clamp(-clip, clip)


def _matrix(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result = rows.matmul(weight.transpose())
    return result if bias is None else result + bias


def _directions(direction: str) -> list[bool]:
    """For every direction whether it runs backwards."""
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]


def _reversed(x: Tensor, lengths: list[int] | None) -> Tensor:
    """Time backwards, each row of the batch by its own length."""
    if lengths is None or all(n == x.shape[0] for n in lengths):
        return x.flip(0)
    columns = []
    for b, n in enumerate(lengths):
        column = x[:, b : b + 1]
        columns.append(column[:n].flip(0).cat(column[n:], dim=0))
    return columns[0].cat(*columns[1:], dim=1)


def _run(
    x: Tensor, states: list[Tensor], lengths: list[int] | None, step: Callable[[Tensor, list[Tensor]], list[Tensor]]
) -> tuple[Tensor, list[Tensor]]:
    """All steps of one direction: rows of outputs, and the last states. Rows past their length keep their state."""
    parts, outputs = [], []
    time = x.shape[0]
    for t in range(time):
        new = step(x[t], states)
        output = new[0]
        if lengths is not None and any(n <= t for n in lengths):
            alive = Tensor([n > t for n in lengths], device=x.device).reshape(-1, 1)
            new = [alive.where(a, b) for a, b in zip(new, states)]
            output = alive.where(output, 0.0)
        states = new
        outputs.append(output)
        if (t + 1) % STEPS_TOGETHER == 0 or t + 1 == time:
            parts.append(outputs[0].stack(*outputs[1:], dim=0))
            outputs = []
            if t + 1 < time:
                parts[-1].realize(*states)
    return parts[0].cat(*parts[1:], dim=0) if len(parts) > 1 else parts[0], states


def _layer(
    call: Call, x: Tensor, initial: Sequence[Tensor | None], hidden: int, direction: str, layout: int,
    lengths: list[int] | None, cell: Callable[[int], Callable[[Tensor, list[Tensor]], list[Tensor]]],
    project: Callable[[int, Tensor], Tensor],
) -> tuple[Tensor, ...]:  # fmt: skip
    """All directions: outputs [time, direction, batch, hidden] and the last states [direction, batch, hidden]."""
    if layout:
        x = x.permute(1, 0, 2)
        initial = [None if s is None else s.permute(1, 0, 2) for s in initial]
    batch = x.shape[1]
    rows, lasts = [], []
    directions = _directions(direction)
    given = [project(d, _reversed(x, lengths) if backward else x) for d, backward in enumerate(directions)]
    if x.shape[0] > STEPS_TOGETHER:  # each of several computations would do it again
        call.compute(*given, *[s for s in initial if s is not None])
    for d, backward in enumerate(directions):
        zeros = Tensor.zeros(batch, hidden, dtype=x.dtype, device=x.device)
        states = [zeros if s is None else s[d] for s in initial]
        output, states = _run(given[d], states, lengths, cell(d))
        rows.append(_reversed(output, lengths) if backward else output)
        lasts.append(states)
    result = rows[0].stack(*rows[1:], dim=1)
    final = [column[0].stack(*column[1:], dim=0) for column in zip(*lasts)]
    if layout:
        return result.permute(2, 0, 1, 3), *(f.permute(1, 0, 2) for f in final)
    return result, *final


@operator("RNN")
def rnn(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Ints | None = None,
    initial_h: Tensor | None = None, *, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None, activations: list[str] | None = None, clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, layout: int = 0, output_sequence: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """`h = f(x W + h R + b)`."""
    hidden = r.shape[-1]
    functions = _activations(call, activations or ["Tanh"] * w.shape[0], activation_alpha, activation_beta)

    def project(d: int, source: Tensor) -> Tensor:
        return _matrix(source, w[d], None if b is None else b[d, :hidden] + b[d, hidden:])

    def cell(d: int) -> Callable[[Tensor, list[Tensor]], list[Tensor]]:
        return lambda given, states: [functions[d](_cut(given + _matrix(states[0], r[d]), clip))]

    return _layer(call, x, [initial_h], hidden, direction, layout, lengths, cell, project)


@operator("GRU")
def gru(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Ints | None = None,
    initial_h: Tensor | None = None, *, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None, activations: list[str] | None = None, clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, layout: int = 0, linear_before_reset: int = 0,
    output_sequence: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gates z, r and the candidate h: `h = (1 - z) * candidate + z * h`."""
    n = r.shape[-1]
    names = activations or ["Sigmoid", "Tanh"] * w.shape[0]
    functions = _activations(call, names, activation_alpha, activation_beta)

    def project(d: int, source: Tensor) -> Tensor:
        bias = None
        if b is not None:
            # The candidate's recurrent bias is added inside the reset where that comes after the product.
            both = b[d, : 3 * n] + b[d, 3 * n :]
            bias = both if not linear_before_reset else both[: 2 * n].cat(b[d, 2 * n : 3 * n], dim=0)
        return _matrix(source, w[d], bias)

    def cell(d: int) -> Callable[[Tensor, list[Tensor]], list[Tensor]]:
        f, g = functions[2 * d], functions[2 * d + 1]

        def step(given: Tensor, states: list[Tensor]) -> list[Tensor]:
            h = states[0]
            if linear_before_reset:
                back = _matrix(h, r[d])
                gates = f(_cut(given[:, : 2 * n] + back[:, : 2 * n], clip))
                z, reset = gates[:, :n], gates[:, n:]
                inner = back[:, 2 * n :] if b is None else back[:, 2 * n :] + b[d, 5 * n :]
                candidate = g(_cut(given[:, 2 * n :] + reset * inner, clip))
            else:
                gates = f(_cut(given[:, : 2 * n] + _matrix(h, r[d, : 2 * n]), clip))
                z, reset = gates[:, :n], gates[:, n:]
                candidate = g(_cut(given[:, 2 * n :] + _matrix(reset * h, r[d, 2 * n :]), clip))
            return [(1 - z) * candidate + z * h]

        return step

    return _layer(call, x, [initial_h], n, direction, layout, lengths, cell, project)


@operator("LSTM")
def lstm(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Ints | None = None,
    initial_h: Tensor | None = None, initial_c: Tensor | None = None, p: Tensor | None = None, *,
    activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
    activations: list[str] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0, output_sequence: int = 1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gates i, o, f and the candidate c, with peepholes where `p` is given."""

    def project(d: int, source: Tensor) -> Tensor:
        return _matrix(source, w[d])

    return lstm_layer(
        call, x, r, b, lengths, initial_h, initial_c, p, activation_alpha, activation_beta, activations, clip,
        direction, input_forget, layout, project,
    )  # fmt: skip


def lstm_layer(
    call: Call, x: Tensor, r: Any, b: Tensor | None, lengths: list[int] | None, initial_h: Tensor | None,
    initial_c: Tensor | None, p: Tensor | None, alphas: list[float] | None, betas: list[float] | None,
    activations: list[str] | None, clip: float | None, direction: str, input_forget: int, layout: int,
    project: Callable[[int, Tensor], Tensor], recur: Callable[[int, Tensor], Tensor] | None = None,
    hidden: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """An LSTM whose products are given as functions, so that quantized weights can have their own."""
    n = r.shape[-1] if hidden is None else hidden
    count = len(_directions(direction))
    functions = _activations(call, activations or ["Sigmoid", "Tanh", "Tanh"] * count, alphas, betas)

    def cell(d: int) -> Callable[[Tensor, list[Tensor]], list[Tensor]]:
        f, g, h = functions[3 * d : 3 * d + 3]
        bias = None if b is None else b[d, : 4 * n] + b[d, 4 * n :]
        peep = None if p is None else p[d]

        def step(given: Tensor, states: list[Tensor]) -> list[Tensor]:
            before, memory = states
            gates = given + (_matrix(before, r[d]) if recur is None else recur(d, before))
            if bias is not None:
                gates = gates + bias
            gi, go, gf, gc = (gates[:, k * n : (k + 1) * n] for k in range(4))
            if peep is not None:
                gi, gf = gi + peep[:n] * memory, gf + peep[2 * n :] * memory
            enter = f(_cut(gi, clip))
            forget = 1 - enter if input_forget else f(_cut(gf, clip))
            new = forget * memory + enter * g(_cut(gc, clip))
            if peep is not None:
                go = go + peep[n : 2 * n] * new
            return [f(_cut(go, clip)) * h(new), new]

        return step

    return _layer(call, x, [initial_h, initial_c], n, direction, layout, lengths, cell, project)
