"""What scheduling costs for models of 1 to 126 equal layers: processor time, prices asked for, and how both grow.

python benchmarks/schedule_time.py                     transformer (and a training step), perceptron, convolution layers
python benchmarks/schedule_time.py transformer 1 8     one model, these numbers of layers
python benchmarks/schedule_time.py --profile conv 8    where the time goes, function by function

Schedules are made from scratch, forward and backward of all layers in one graph; nothing is compiled or run. A slope
is that of the logarithms: 1 is linear growth. Times are those of this process alone; what makes those longer on a busy
machine shows in the calibration of `graph_timing.py` (1: the machine of the budgets), printed beside every time.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import math
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graph_timing import REFERENCE, calibrate

from gradlet import Tensor
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp, no_gc
from gradlet.graph.passes import Pass
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.context import Context, sink
from gradlet.schedule.pipeline import PIPELINE
from gradlet.target.target import AVX2

LAYERS = (1, 8, 32, 126)
WIDTH, HEADS, TOKENS, BATCH = 64, 4, 16, 2
IMAGE = 8


def weight(*shape: int) -> Tensor:
    """A parameter in memory of its own; nothing looks at the values."""
    return Tensor.empty(*shape).realize()


def normalised(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Layer norm with its parameters."""
    scale, shift = weight(WIDTH), weight(WIDTH)
    return x.layernorm() * scale + shift, [scale, shift]


def linear(x: Tensor, inputs: int, outputs: int) -> tuple[Tensor, list[Tensor]]:
    """A matrix product and a bias."""
    matrix, bias = weight(inputs, outputs), weight(outputs)
    return x @ matrix + bias, [matrix, bias]


def transformer_layer(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Layer norm, attention, layer norm, perceptron."""
    inner, first = normalised(x)
    mixed, second = linear(inner, WIDTH, 3 * WIDTH)
    heads = mixed.reshape(BATCH, TOKENS, 3, HEADS, WIDTH // HEADS)
    q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
    scores = (q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5).softmax(-1)
    found, third = linear((scores @ v).transpose(1, 2).reshape(BATCH, TOKENS, WIDTH), WIDTH, WIDTH)
    x = x + found
    inner, fourth = normalised(x)
    hidden, fifth = linear(inner, WIDTH, 4 * WIDTH)
    out, sixth = linear(hidden.gelu(), 4 * WIDTH, WIDTH)
    return x + out, [*first, *second, *third, *fourth, *fifth, *sixth]


def perceptron_layer(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Layer norm and a perceptron."""
    inner, first = normalised(x)
    hidden, second = linear(inner, WIDTH, 2 * WIDTH)
    out, third = linear(hidden.relu(), 2 * WIDTH, WIDTH)
    return x + out, [*first, *second, *third]


def convolution_layer(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A convolution, normalised by channel, with a skip connection."""
    kernel, scale, shift = weight(16, 16, 3, 3), weight(16), weight(16)
    out = x.conv2d(kernel, padding=1)
    mean = out.mean((0, 2, 3), keepdim=True)
    centred = out - mean
    spread = (centred * centred).mean((0, 2, 3), keepdim=True)
    out = centred * (spread + 1e-5).rsqrt() * scale.reshape(1, 16, 1, 1) + shift.reshape(1, 16, 1, 1)
    return x + out.relu(), [kernel, scale, shift]


Layer = Callable[[Tensor], tuple[Tensor, list[Tensor]]]
MODELS: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "transformer": (transformer_layer, (BATCH, TOKENS, WIDTH)),
    "perceptron": (perceptron_layer, (BATCH * TOKENS, WIDTH)),
    "training": (transformer_layer, (BATCH, TOKENS, WIDTH)),
    "convolution": (convolution_layer, (BATCH, 16, IMAGE, IMAGE)),
}


def build(name: str, layers: int) -> list[UOp]:
    """The loss of a model and its gradients by input and parameters; in training, parameters updated in place."""
    layer, shape = MODELS[name]
    x = given = weight(*shape)
    parameters = [given]
    for _ in range(layers):
        x, more = layer(x)
        parameters += more
    loss = (x * x).mean()
    gradients = loss.gradient(*parameters)
    if name != "training":
        return [t.uop for t in (loss, *gradients)]
    results = [loss]
    for parameter, gradient in zip(parameters[1:], gradients[1:], strict=True):
        velocity = weight(*parameter.shape)
        results.append(velocity.assign(velocity * 0.9 + gradient))
        results.append(parameter.assign(parameter - velocity * 0.01))
    return [t.uop for t in results]


@dataclass
class Result:
    """One schedule from scratch."""

    seconds: float
    steps: int
    launches: int
    bodies: int
    distinct: int
    prices: int
    replayed: int
    passes: dict[str, float]


def schedule(roots: Sequence[UOp]) -> Result:
    """Schedule once, with the time of every pass."""
    passes: dict[str, float] = {}
    clock = time.process_time()

    def observe(row: Pass, before: UOp, after: UOp, seconds: float) -> None:
        nonlocal clock
        now = time.process_time()
        passes[row.name] = now - clock
        clock = now

    gc.collect()
    with no_gc():
        start = clock = time.process_time()
        context = Context(list(roots), len(roots), 0, lambda device: AVX2, "CPU")
        PIPELINE.run(sink(context.asked), context, [observe])
        seconds = time.process_time() - start
    calls = [call for call in context.calls if isinstance(call, KernelCall)]
    bodies = [body for call in calls for body in (call.ast.src if is_launch(call.ast.arg) else (call.ast,))]
    assert context.steps is not None
    work = context.steps.work
    return Result(
        seconds, len(context.steps.order), len(calls), len(bodies), len(set(bodies)), work.prices, work.replayed, passes
    )


def slope(points: Sequence[tuple[int, float]]) -> float:
    """The exponent with which the values grow, by least squares of the logarithms."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(max(y, 1e-9)) for _, y in points]
    middle, height = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - middle) * (y - height) for x, y in zip(xs, ys)) / sum((x - middle) ** 2 for x in xs)


def slowness() -> float:
    """How much longer plain Python takes now than on the machine of the budgets."""
    with no_gc():
        return calibrate() / REFERENCE


def report(name: str, counts: Sequence[int]) -> None:
    """Measure one model and print its table."""
    print(f"{name}: layers, seconds, steps, us/step (calibration), launches, bodies (distinct), prices/step, replayed")
    results: dict[int, Result] = {}
    schedule(build(name, 1))
    for layers in counts:
        found = results[layers] = schedule(build(name, layers))
        print(
            f"  {layers:4d} {found.seconds:8.3f} {found.steps:7d} {found.seconds / found.steps * 1e6:7.0f}"
            f" ({slowness():.2f})"
            f" {found.launches:6d} {found.bodies:6d} ({found.distinct}) {found.prices / found.steps:6.2f}"
            f" {found.replayed:6d}",
            flush=True,
        )
    if len(counts) > 1:
        print(f"  slopes: time {slope([(r.steps, r.seconds) for r in results.values()]):.2f},", end=" ")
        print(f"prices {slope([(r.steps, r.prices) for r in results.values()]):.2f}")
    last = results[counts[-1]]
    for row, seconds in sorted(last.passes.items(), key=lambda item: -item[1]):
        points = [(r.steps, r.passes[row]) for r in results.values()]
        grows = f"  slope {slope(points):.2f}" if len(counts) > 1 else ""
        print(f"    {row:24s} {seconds:8.3f} s {seconds / last.steps * 1e6:6.1f} us/step{grows}")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chosen", nargs="*", help="models and numbers of layers")
    parser.add_argument("--profile", action="store_true", help="print the functions that take most time")
    given = parser.parse_intermixed_args()
    counts = [int(word) for word in given.chosen if word.isdigit()] or list(LAYERS)
    names = [name for name in MODELS if name in given.chosen] or list(MODELS)
    for name in names:
        if given.profile:
            roots = build(name, counts[-1])
            profile = cProfile.Profile()
            profile.enable()
            schedule(roots)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        else:
            report(name, counts)


if __name__ == "__main__":
    main()
