"""What Python costs in programs without `jit`: eager operations beside torch and jax, and steps of training ResNet-50.

python benchmarks/unjitted.py --peers PEERS_PYTHON
python benchmarks/unjitted.py --profile            where a step's time goes, function by function

Steps find their schedule again and launch kernels that do nothing, so what is left is Python: the graph, its gradient,
the optimizer, the look-up and the launches. Milliseconds are the least of several steps, on one thread.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

OPERATIONS = 200
STEPS = 10
BATCH, IMAGE, CLASSES = 2, 64, 1000
BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, how many, stride of the first
PEERS = {
    "jax": "import jax.numpy as n; a = n.ones((4, 4)); f = lambda: (a + 1).block_until_ready()",
    "torch": "import torch; torch.set_num_threads(1); a = torch.ones(4, 4); f = lambda: a + 1",
}
PEER_END = "; f(); import timeit; print(min(timeit.repeat(f, number=2000, repeat=7)) / 2000 * 1e6)"


def best(function: Callable[[], object], number: int) -> float:
    """Least microseconds of a call."""
    function()
    return min(timeit.repeat(function, number=number, repeat=7)) / number * 1e6


def eager() -> dict[str, float]:
    """Microseconds an operation."""
    from gradlet import Tensor

    a = Tensor.ones(4, 4).contiguous().realize()

    def one_by_one() -> None:
        x = a
        for _ in range(OPERATIONS):
            x = (x + 1).realize()

    def together() -> None:
        x = a
        for _ in range(OPERATIONS):
            x = x + 1
        x.realize()

    found = {
        "an addition, realized": best(lambda: (a + 1).realize(), 500),
        f"{OPERATIONS} additions, each realized": best(one_by_one, 5) / OPERATIONS,
        f"{OPERATIONS} additions, realized together": best(together, 5) / OPERATIONS,
    }
    held = [Tensor.ones(3).contiguous().realize() for _ in range(1000)]
    found["an addition among 1000 other tensors"] = best(lambda: (a + 1).realize(), 500)
    assert held
    return found


class Bottleneck:
    """A block of ResNet-50."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        from gradlet import nn

        outputs = 4 * channels
        self.layers = [
            nn.Conv2d(inputs, channels, 1, bias=False), nn.BatchNorm2d(channels),
            nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(channels),
            nn.Conv2d(channels, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        ]  # fmt: skip
        changes = inputs != outputs or stride != 1
        self.side: list[Any] = [nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)]
        self.side = self.side if changes else []

    def __call__(self, x: Any) -> Any:
        y = x
        for number, layer in enumerate(self.layers):
            y = layer(y).relu() if number in (1, 3) else layer(y)
        for layer in self.side:
            x = layer(x)
        return (y + x).relu()


class ResNet50:
    """The network."""

    def __init__(self) -> None:
        from gradlet import nn

        self.first, self.norm = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
        self.blocks: list[Bottleneck] = []
        inputs = 64
        for channels, count, stride in BLOCKS:
            for number in range(count):
                self.blocks.append(Bottleneck(inputs, channels, 1 if number else stride))
                inputs = 4 * channels
        self.last = nn.Linear(inputs, CLASSES)

    def __call__(self, x: Any) -> Any:
        x = self.norm(self.first(x)).relu().max_pool2d(3, 2, padding=1)
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((2, 3)))


def launch_nothing() -> None:
    """Kernels are neither compiled nor run from now on; their buffers get memory as ever."""
    from gradlet.engine import compile as compilation
    from gradlet.engine import execute, ready
    from gradlet.graph.node import UOp

    def nothing(buffers: Any, values: Any, wait: bool = False) -> None:
        for buffer in buffers:
            assert buffer.address

    def build(ast: UOp, device: str) -> Any:
        return compilation.CompiledKernel("nothing", 0, 0, ast, device, nothing)

    compilation.build_kernel = build
    execute.prepare_kernels = ready.prepare_kernels = lambda wanted: None


def training_step() -> Callable[[dict[str, float]], None]:
    """A step of training as users write it, which notes how long its parts took."""
    from gradlet import Tensor, nn

    launch_nothing()
    model = ResNet50()
    optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.01, momentum=0.9)
    x, y = Tensor.empty(BATCH, 3, IMAGE, IMAGE).contiguous().realize(), Tensor([i % CLASSES for i in range(BATCH)])
    Tensor.training = True

    def step(spent: dict[str, float]) -> None:
        moments = [time.perf_counter()]

        def part(name: str) -> None:
            moments.append(time.perf_counter())
            spent[name] = (moments[-1] - moments[-2]) * 1e3

        optimizer.zero_grad()
        loss = model(x).cross_entropy(y)
        part("forward")
        loss.backward()
        part("backward")
        updates = optimizer.schedule_step()
        part("optimizer")
        loss.realize(*updates)
        part("realize")
        spent["whole step"] = (moments[-1] - moments[0]) * 1e3

    return step


def steps() -> dict[str, float]:
    """Milliseconds of the parts of a step that finds its schedule again: of the fastest whole step."""
    step = training_step()
    found: list[dict[str, float]] = []
    for _ in range(STEPS):
        spent: dict[str, float] = {}
        step(spent)
        found.append(spent)
    from gradlet.schedule.create import statistics

    assert statistics.hits >= STEPS - 3, list(statistics.misses)
    return min(found[3:], key=lambda spent: spent["whole step"])


def profile() -> None:
    """Functions by their own time in a step."""
    step = training_step()
    for _ in range(3):
        step({})
    profiler = cProfile.Profile()
    profiler.enable()
    step({})
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="python of the environment that has torch and jax")
    parser.add_argument("--profile", action="store_true")
    parsed = parser.parse_args()
    os.environ.setdefault("NUM_THREADS", "1")
    if parsed.profile:
        profile()
        return
    for name, microseconds in eager().items():
        print(f"{name:40} {microseconds:8.1f} us")
    for name, code in PEERS.items() if parsed.peers else ():
        done = subprocess.run([parsed.peers, "-c", code + PEER_END], capture_output=True, text=True)
        print(f"an addition, {name:27} " + (f"{float(done.stdout):8.1f} us" if done.returncode == 0 else "  failed"))
    for name, milliseconds in steps().items():
        print(f"ResNet-50, {name:29} {milliseconds:8.2f} ms")


if __name__ == "__main__":
    main()
