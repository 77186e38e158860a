"""What a kernel costs before it can run: lowering, rendering, LLVM and loading, kernel by kernel.

python benchmarks/kernel_compile.py                  every row
python benchmarks/kernel_compile.py conv demo        rows whose name contains one of these
python benchmarks/kernel_compile.py --worst 20       show so many of the dearest kernels (default 10)
python benchmarks/kernel_compile.py --target neon    kernels for another machine; they are not loaded

The kernels are those that the rows schedule; nothing runs. Times are processor time of this thread in milliseconds, the
least of `--rounds`, since what else runs here only ever adds to them. The goal is 40 ms for the median kernel and 80 ms
for the dearest, rendering and LLVM together, and 0.3 ms to load what the cache on disk has.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from gradlet import Tensor, dtypes, nn
from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.codegen.launch import lower_launch
from gradlet.device.common import llvm
from gradlet.device.cpu.image import image_of
from gradlet.device.cpu.plan import launch_plan
from gradlet.device.cpu.runtime import CpuBackend, link
from gradlet.device.cpu.target import host_target
from gradlet.engine import compile as engine_compile
from gradlet.engine import execute
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp
from gradlet.render.llvmlaunch import render
from gradlet.runtime import diskcache
from gradlet.target.target import Target, by_name

GOAL_MEDIAN, GOAL_MAX, GOAL_LOAD = 40.0, 80.0, 0.3


class Cost(NamedTuple):
    """One kernel: lines of IR, and milliseconds of every step; `cached` is rendering, the key, the disk and linking."""

    row: str
    name: str
    lines: int
    lower: float
    render: float
    parse: float
    codegen: float
    link: float
    disk: float

    @property
    def compile(self) -> float:
        """What the goal counts."""
        return self.render + self.parse + self.codegen


def in_memory(network: Any) -> list[Tensor]:
    """Its parameters as they are between two steps; the kernels that make them are no part of a row."""
    parameters: list[Tensor] = nn.state.get_parameters(network)
    with collected():
        Tensor.realize(*parameters, *nn.state.get_state_dict(network).values())
    return parameters


class _Unrun:
    """A kernel that only counts as one."""

    flops = bytes = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, buffers: Any, values: Any, wait: bool) -> float | None:
        """Leave the memory as it is."""
        for buffer in buffers:
            buffer.allocate()
        return 0.0 if wait else None


@contextmanager
def collected() -> Iterator[list[UOp]]:
    """The kernels that are asked for inside; none of them is compiled or run."""
    found: dict[UOp, None] = {}
    order: list[UOp] = []

    def get_kernel(ast: UOp, device: str) -> _Unrun:
        if ast not in found:
            found[ast] = None
            order.append(ast)
        return _Unrun(ast.arg.name)

    before = execute.get_kernel, execute.prepare_kernels
    execute.get_kernel = get_kernel  # type: ignore[assignment]
    execute.prepare_kernels = lambda wanted: None
    try:
        yield order
    finally:
        execute.get_kernel, execute.prepare_kernels = before


# ---- rows ---------------------------------------------------------------------------------------------------------

Row = Callable[[], object]


def empty(*shape: int, dtype: Any = dtypes.float32) -> Tensor:
    """Memory that nobody looks at."""
    return Tensor.empty(*shape, dtype=dtype).realize()


def of(function: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: Any = dtypes.float32) -> Row:
    """A row of one expression."""
    return lambda: function(*(empty(*s, dtype=dtype) for s in shapes)).realize()


def matmul(m: int, k: int, n: int, transposed: bool = False, dtype: Any = dtypes.float32) -> Row:
    """x @ w, or x @ w.T."""
    if transposed:
        return of(lambda x, w: x @ w.T, (m, k), (n, k), dtype=dtype)
    return of(lambda x, w: x @ w, (m, k), (k, n), dtype=dtype)


def conv(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Row:
    """A convolution."""
    return of(lambda a, b: a.conv2d(b, **options), x, w)


def mlp_step() -> None:
    """784-512-256-10, batch 128, SGD with momentum."""
    layers = [nn.Linear(784, 512), nn.Linear(512, 256), nn.Linear(256, 10)]
    optimizer = nn.optim.SGD(in_memory(layers), 0.01, momentum=0.9)
    with Tensor.train():
        x = empty(128, 784)
        for layer in layers[:-1]:
            x = layer(x).relu()
        loss = layers[-1](x).sparse_categorical_crossentropy(empty(128, dtype=dtypes.int32))
        loss.backward()
        loss.realize(*optimizer.schedule_step())


def demo_step() -> None:
    """The step of `gradlet demo`."""
    from gradlet.cli.demo import Network

    network = Network()
    optimizer = nn.optim.AdamW(in_memory(network), 0.01, weight_decay=0.01)
    with Tensor.train():
        loss = network(empty(125, 1, 8, 8)).sparse_categorical_crossentropy(empty(125, dtype=dtypes.int32))
        loss.backward()
        loss.realize(*optimizer.schedule_step())


class _Block:
    """Two convolutions and a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else None
        self.norm3 = nn.BatchNorm(outputs)

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (inner + (x if self.short is None else self.norm3(self.short(x)))).relu()


class ResNet18:
    """The network of the table."""

    def __init__(self) -> None:
        self.conv, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm(64)
        widths = (64, 64, 128, 256, 512)
        self.blocks = [
            block
            for i, (a, b) in enumerate(zip(widths, widths[1:]))
            for block in (_Block(a, b, 1 + (i > 0)), _Block(b, b, 1))
        ]
        self.head = nn.Linear(512, 1000)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().max_pool2d(3, 2, padding=1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def resnet_inference() -> None:
    """One image."""
    network = ResNet18()
    in_memory(network)
    network(empty(1, 3, 224, 224)).realize()


def resnet_step() -> None:
    """A training step of 8 images."""
    network = ResNet18()
    optimizer = nn.optim.SGD(in_memory(network), 0.01, momentum=0.9)
    with Tensor.train():
        loss = network(empty(8, 3, 224, 224)).sparse_categorical_crossentropy(empty(8, dtype=dtypes.int32))
        loss.backward()
        loss.realize(*optimizer.schedule_step())


def gpt_block(tokens: int) -> Row:
    """Layer norm, attention with 12 heads, layer norm, perceptron: a layer of GPT-2."""

    def run() -> None:
        x = empty(1, tokens, 768)
        qkv, out, up, down = empty(768, 2304), empty(768, 768), empty(768, 3072), empty(3072, 768)
        heads = (x.layernorm() @ qkv).reshape(1, tokens, 3, 12, 64)
        q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
        mixed = q.scaled_dot_product_attention(k, v, is_causal=tokens > 1)
        x = x + mixed.transpose(1, 2).reshape(1, tokens, 768) @ out
        (x + (x.layernorm() @ up).gelu() @ down).realize()

    return run


ROWS: dict[str, Row] = {
    **{f"gemm {n}{' T' * t}": matmul(n, n, n, bool(t)) for n in (512, 1024, 2048) for t in (0, 1)},
    "gemm odd 1000x77x513": matmul(1000, 77, 513),
    "gemm odd 777x333x555": matmul(777, 333, 555),
    "gemm 64x64x16384": matmul(64, 64, 16384),
    "gemm 8x4096x4096": matmul(8, 4096, 4096),
    "gemm 8x4096x4096 T": matmul(8, 4096, 4096, True),
    "gemv 4096": of(lambda a, x: a @ x, (4096, 4096), (4096,)),
    "vecmat 4096": of(lambda a, x: x @ a, (4096, 4096), (4096,)),
    "gemm bf16 1024": matmul(1024, 1024, 1024, dtype=dtypes.bfloat16),
    "conv 3x3": conv((8, 64, 56, 56), (64, 64, 3, 3), padding=1),
    "conv 1x1": conv((8, 64, 56, 56), (128, 64, 1, 1)),
    "conv depthwise": conv((8, 64, 56, 56), (64, 1, 3, 3), padding=1, groups=64),
    "conv 3x3 stride 2": conv((8, 64, 56, 56), (128, 64, 3, 3), padding=1, stride=2),
    "conv 7x7 stride 2": conv((8, 3, 224, 224), (64, 3, 7, 7), padding=3, stride=2),
    "softmax": of(lambda x: x.softmax(-1), (4096, 4096)),
    "layer norm": of(lambda x: x.layernorm(), (4096, 1024)),
    "sum": of(lambda x: x.sum(), (1 << 26,)),
    "argmax": of(lambda x: x.argmax(1), (4096, 4096)),
    "cumsum": of(lambda x: x.cumsum(1), (16, 1 << 20)),
    "transpose": of(lambda x: x.T.contiguous(), (4096, 4096)),
    "embedding": lambda: empty(50257, 768)[empty(4096, dtype=dtypes.int64)].realize(),
    "cheap chain": of(lambda x, y: (x * y + 1).relu() * 0.5 + x, (1 << 24,), (1 << 24,)),
    "tanh chain": of(lambda x, y: (x * y + 1).tanh() * 0.5 + x, (1 << 24,), (1 << 24,)),
    "int8 gemv": lambda: (empty(16384, 4096, dtype=dtypes.int8).float() @ empty(4096)).realize(),
    "sort 1M": of(lambda x: x.sort()[0], (1 << 20,)),
    "top-k 64": of(lambda x: x.topk(64)[0], (64, 50257)),
    "MLP step": mlp_step,
    "demo step": demo_step,
    "ResNet-18 inference": resnet_inference,
    "ResNet-18 step": resnet_step,
    "GPT-2 block, decode": gpt_block(1),
    "GPT-2 block, prefill": gpt_block(128),
}


# ---- measuring ----------------------------------------------------------------------------------------------------


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the milliseconds of processor time."""
    start = time.thread_time()
    result = function()
    return result, 1e3 * (time.thread_time() - start)


def finished(code: bytes) -> bytes:
    """Object code as it is kept on disk."""
    return image_of(code) or code


def measure(row: str, ast: UOp, target: Target, runs_here: bool, rounds: int) -> Cost:
    """One kernel, step by step."""
    lower = lower_launch if is_launch(ast.arg) else pipeline.lower
    program, lowering = timed(lambda: lower(ast, target))
    times: list[tuple[float, ...]] = []
    loaded: list[Any] = []  # nothing is unloaded between the rounds
    source = ""
    for _ in range(rounds):
        source, rendering = timed(lambda: render(program, target))
        machine = llvm.target_machine(target.triple, target.cpu, target.features)
        module, parsing = timed(lambda text=source: llvm._parse(text, target, machine))
        code, generating = timed(lambda parsed=module: finished(bytes(machine.emit_object(parsed))))
        linking = cached = 0.0
        if runs_here:
            loaded.append(None)
            loaded[-1], linking = timed(lambda: link(code, launch_plan(program)))
            backend = CpuBackend("CPU")
            if diskcache.get(backend.cache_name(source)) is None:
                diskcache.put(backend.cache_name(source), code)
            _, cached = timed(lambda: diskcache.get(backend.cache_name(source)))
        times.append((rendering, parsing, generating, linking, cached))
    best = [min(column) for column in zip(*times)]
    return Cost(row, program.name, source.count("\n"), lowering, *best)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows that were asked for and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--worst", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--target", default="")
    parser.add_argument("--ir", default="", help="folder that gets the IR of every kernel")
    chosen = parser.parse_args(arguments)
    target = by_name(chosen.target) if chosen.target else host_target()
    costs: list[Cost] = []
    seen: set[UOp] = set()
    llvm.target_machine(target.triple, target.cpu, target.features)
    with tempfile.TemporaryDirectory() as folder, scope(CACHEDIR=folder, CACHE=1):
        for name, row in ROWS.items():
            if chosen.rows and not any(part in name for part in chosen.rows):
                continue
            engine_compile._kernels.clear()
            with collected() as asts:
                row()
            for ast in asts:
                if ast not in seen:
                    seen.add(ast)
                    cost = measure(name, ast, target, not chosen.target, chosen.rounds)
                    costs.append(cost)
                    if chosen.ir:
                        lower = lower_launch if is_launch(ast.arg) else pipeline.lower
                        place = Path(chosen.ir) / f"{len(costs):03d}-{cost.name}.ll"
                        place.write_text(render(lower(ast, target), target))
    show(costs, chosen.worst)
    return 0


def show(costs: Sequence[Cost], worst: int) -> None:
    """The dearest kernels, then the sum of all."""
    columns = f"{'lines':>6s} {'lower':>7s} {'render':>7s} {'parse':>6s} {'codegen':>8s} {'link':>6s} {'disk':>6s}"
    print(f"{'row':22s} {'kernel':30s} {columns}")
    for number, c in sorted(enumerate(costs, 1), key=lambda pair: -pair[1].compile)[:worst]:
        print(
            f"{c.row:22s} {f'{number} {c.name}'[:30]:30s} {c.lines:6d} {c.lower:7.1f} {c.render:7.2f} {c.parse:6.2f} "
            f"{c.codegen:8.2f} {c.link:6.2f} {c.disk:6.2f}"
        )
    whole = [c.compile for c in costs]
    print(
        f"{len(costs)} kernels: render + LLVM median {statistics.median(whole):.1f} ms (goal {GOAL_MEDIAN:.0f}), "
        f"max {max(whole):.1f} ms (goal {GOAL_MAX:.0f}), {sum(c > GOAL_MAX for c in whole)} above it, sum "
        f"{sum(whole) / 1e3:.2f} s, lowering {sum(c.lower for c in costs) / 1e3:.2f} s"
    )
    lines = sum(c.lines for c in costs)
    print(
        f"{lines} lines: rendering {1e3 * sum(c.render for c in costs) / lines:.1f}, LLVM "
        f"{1e3 * sum(c.parse + c.codegen for c in costs) / lines:.1f} us a line"
    )
    loads = [c.link + c.disk for c in costs]
    print(f"load: disk + link median {statistics.median(loads):.3f} ms, max {max(loads):.3f} (goal {GOAL_LOAD})")


if __name__ == "__main__":
    sys.exit(main())
