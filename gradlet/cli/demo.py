"""`gradlet demo`: a convolutional network learns real handwritten digits, every kernel made by our own compiler."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gradlet.base.errors import ArgumentError, DeviceError
from gradlet.base.report import giga_per_second, human_count, human_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from gradlet.tensor.tensor import Tensor

BATCH = 125
STEPS = 180
RATE = 0.005
DECAY = 0.05
FILE = "digits.safetensors"
INTERRUPTED = 130
SHADES = " .:-=+*#%@"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gradlet demo`."""
    parser.add_argument("--seed", type=int, default=0, help="first weights and order of the images (default 0)")
    parser.add_argument("--device", default=None, help="device to train on (default: DEV, else CPU)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps of {BATCH} images (default {STEPS})")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line; the rest goes to stderr")
    parser.add_argument("--output", default=FILE, help=f"where the trained model is saved (default {FILE})")


class Network:
    """Three convolutions with batch normalisation, pooled twice, and one linear layer: 26,000 parameters."""

    def __init__(self) -> None:
        from gradlet import nn

        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm(32)
        self.conv3, self.norm3 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm(64)
        self.head = nn.Linear(64 * 2 * 2, 10)

    def __call__(self, images: Tensor) -> Tensor:
        x = self.norm1(self.conv1(images)).relu()
        x = self.norm2(self.conv2(x)).relu().max_pool2d()
        x = self.norm3(self.conv3(x)).relu().max_pool2d()
        return self.head(x.flatten(1))


class Training(NamedTuple):
    """What a training run measured."""

    steps: int
    seconds: float
    first_step: float
    kernels_per_step: int
    interrupted: bool

    @property
    def steps_per_second(self) -> float:
        """Rate once the kernels exist."""
        return (self.steps - 1) / (self.seconds - self.first_step) if self.steps > 1 else 0.0


def run(arguments: argparse.Namespace) -> int:
    """Train, test, show a kernel, save, load and predict."""
    from rich.console import Console

    from gradlet import Tensor
    from gradlet.nn.datasets import digits
    from gradlet.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save
    from gradlet.runtime.device import Device

    if arguments.steps < 1:
        raise ArgumentError(f"--steps {arguments.steps}: at least one step is needed")
    path = Path(arguments.output)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):  # before training, not after
        raise ArgumentError(f"--output {path}: cannot be written; name a file in a folder that can")
    if arguments.device is not None:
        Device.DEFAULT = arguments.device
    if Device.DEFAULT.startswith("NULL"):
        raise DeviceError("the NULL device computes nothing, so nothing is learned; use --device CPU")
    console = Console(stderr=arguments.json, highlight=False, soft_wrap=True)
    Tensor.manual_seed(arguments.seed)
    train_images, train_labels, test_images, test_labels = digits()
    network = Network()
    trainer = Trainer(network, train_images, train_labels, arguments.seed, arguments.steps)
    count = sum(p.numel() for p in get_parameters(network))
    with stop_on_interrupt() as stop:
        console.print(
            f"[bold]gradlet demo[/]: {train_images.shape[0]} handwritten digits to learn, {test_images.shape[0]} to "
            f"test, {count:,} parameters, device {Device.DEFAULT}"
        )
        result = trainer.train(console, stop)

    predictions = predict(network, test_images)
    truth = test_labels.tolist()
    accuracy = sum(p == t for p, t in zip(predictions, truth)) / len(truth)
    console.print(
        f"test accuracy [bold]{accuracy:.2%}[/], {result.steps} steps in {human_seconds(result.seconds)} "
        f"({human_seconds(result.first_step)} of it the first, which compiles), "
        f"{result.steps_per_second:.1f} steps/s, {result.kernels_per_step} kernels a step"
    )
    trainer.show_kernel(console)

    safe_save(get_state_dict(network), path, {"accuracy": f"{accuracy:.4f}", "steps": str(result.steps)})
    loaded = Network()
    load_state_dict(loaded, safe_load(path))
    again = predict(loaded, test_images)
    same = "the same predictions" if again == predictions else "OTHER predictions"
    console.print(f"saved to {path} ({path.stat().st_size:,} bytes), loaded into a new network: {same}")
    draw(console, test_images, again, truth)
    if arguments.json:
        print(
            json.dumps(
                {
                    "accuracy": round(accuracy, 4),
                    "seconds": round(result.seconds, 3),
                    "steps_per_s": round(result.steps_per_second, 2),
                    "kernels_per_step": result.kernels_per_step,
                }
            )
        )
    if again != predictions:
        return 1
    return INTERRUPTED if result.interrupted else 0


class Trainer:
    """The training loop: a jitted step, batches in shuffled order, a learning rate that falls along a cosine."""

    def __init__(self, network: Network, images: Tensor, labels: Tensor, seed: int, steps: int) -> None:
        from gradlet import jit, nn

        self.network, self.images, self.labels, self.steps = network, images, labels, steps
        self.optimizer = nn.optim.AdamW(nn.state.get_parameters(network), RATE, weight_decay=DECAY)
        self.random = random.Random(seed)
        self.step = jit(self._step)

    def _step(self, chosen: Tensor, rate: Tensor) -> Tensor:
        optimizer = self.optimizer
        optimizer.lr.assign(rate)
        optimizer.zero_grad()
        loss = self.network(self.images[chosen]).sparse_categorical_crossentropy(self.labels[chosen])
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    def _batches(self) -> Iterator[list[int]]:
        order = list(range(self.images.shape[0]))
        while True:
            self.random.shuffle(order)
            for start in range(0, len(order) - BATCH + 1, BATCH):
                yield order[start : start + BATCH]

    def train(self, console: Console, stop: Sequence[bool]) -> Training:
        """Run the steps, or fewer when `stop` becomes non-empty."""
        from gradlet import GlobalCounters, Tensor, dtypes

        start = time.perf_counter()
        first, kernels, done = 0.0, 0, 0
        with Tensor.train(), progress_bar(console, self.steps) as show:
            for done, batch in enumerate(self._batches(), 1):
                rate = RATE * 0.5 * (1 + math.cos(math.pi * (done - 1) / self.steps))
                before = GlobalCounters.kernels
                loss = self.step(Tensor(batch, dtype=dtypes.int32), Tensor([rate], dtype=dtypes.float32))
                kernels = GlobalCounters.kernels - before
                seconds = time.perf_counter() - start
                first = first or seconds
                if done % 10 == 0 or done in (1, self.steps):
                    show(done, loss.item(), (done - 1) / (seconds - first) if done > 1 else 0.0)
                if done == self.steps or stop:
                    break
        return Training(done, time.perf_counter() - start, first, kernels, bool(stop))

    def show_kernel(self, console: Console) -> None:
        """The most expensive kernel of a step: its speed on scratch memory, and the head of its code."""
        from gradlet.runtime.buffer import Buffer
        from gradlet.runtime.device import Device

        found = heaviest_call(self.step)
        if found is None:
            return
        call, nodes = found
        kernel = call.kernel
        buffers = [Buffer(node.arg.device, node.dtype, node.arg.size) for node in nodes]
        for buffer in buffers:
            buffer.copyin(bytes(buffer.nbytes))
        seconds = min(kernel.run(buffers, [0] * len(call.variables), True) or 0.0 for _ in range(10))
        console.print(
            f"heaviest kernel [bold]{kernel.name}[/]: {human_count(kernel.flops)}FLOP in {human_seconds(seconds)}, "
            f"{giga_per_second(kernel.flops, seconds):.1f} GFLOP/s; some of its code:"
        )
        lines = Device[call.device].render(kernel.lowered()).splitlines()
        for line in inner_loop(lines, 12):
            console.print(f"  {line}"[: console.width], style="dim", markup=False)
        console.print(f"  ({len(lines)} lines in all, DEBUG=4 prints them)", style="dim")


def inner_loop(lines: Sequence[str], count: int) -> Sequence[str]:
    """The `count` lines with the most multiplications among them, which is where the time goes."""
    heavy = [any(word in line for word in ("fmul", "fma")) and "declare" not in line for line in lines]
    start = max(range(max(1, len(lines) - count + 1)), key=lambda i: sum(heavy[i : i + count]))
    return lines[start : start + count]


def heaviest_call(step: Any) -> tuple[Any, list[Any]] | None:
    """The captured call with the most floating point operations, and its BUFFER nodes; None where nothing compiled."""
    captures = list(step.captures.values())
    if not captures:
        return None
    program = captures[-1].program
    calls = [call for call in program.calls if hasattr(call.kernel, "lowered")]
    if not calls:
        return None
    call = max(calls, key=lambda call: call.kernel.flops)
    return call, [program.nodes[slot] for slot in call.slots]


def predict(network: Network, images: Tensor) -> list[int]:
    """The digit in every image."""
    from gradlet import Tensor

    with Tensor.train(False):
        return list(network(images).argmax(axis=1).tolist())


@contextmanager
def stop_on_interrupt() -> Iterator[list[bool]]:
    """A list that Ctrl-C makes non-empty, so that a step is never cut in the middle; a second Ctrl-C interrupts."""
    stop: list[bool] = []

    def note(number: int, frame: Any) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(True)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not in the main thread: nobody sends us Ctrl-C
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress_bar(console: Console, steps: int) -> Iterator[Any]:
    """A live bar; the value is a function of (steps done, loss, steps a second)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  {task.fields[rate]:.1f} steps/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("compiling", total=steps, loss=float("nan"), rate=0.0)

        def show(done: int, loss: float, rate: float) -> None:
            progress.update(task, completed=done, loss=loss, rate=rate, description="training ")

        yield show


def draw(console: Console, images: Tensor, predictions: Sequence[int], truth: Sequence[int], count: int = 6) -> None:
    """The first few digits side by side, mistakes first, with what was predicted."""
    order = sorted(range(len(truth)), key=lambda i: (predictions[i] == truth[i], i))
    wrong = sum(p != t for p, t in zip(predictions, truth))
    chosen = order[: min(2, wrong)] + order[wrong:]
    chosen = chosen[: max(1, min(count, (console.width - 2) // 19))]
    pixels = images.numpy()
    for row in range(8):
        cells = ["".join(SHADES[round(float(v) * 9)] * 2 for v in pixels[i, 0, row]) for i in chosen]
        console.print("  " + "   ".join(cells), markup=False)
    labels = [f"{predictions[i]}" if predictions[i] == truth[i] else f"{predictions[i]}, is {truth[i]}" for i in chosen]
    console.print("  " + "   ".join(f"{label:^16}" for label in labels), markup=False)
