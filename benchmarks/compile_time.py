"""From a model to machine code, without running it: what each step costs, in fresh processes, beside jax and tinygrad.

python benchmarks/compile_time.py --peers PEERS_PYTHON                all models
python benchmarks/compile_time.py --only resnet50_step,llama8         some of them
python benchmarks/compile_time.py --profile resnet50_step             where the time goes, function by function
python benchmarks/compile_time.py --growth 8,16,32,64,128             LLaMA of so many layers: slopes of time and memory

Seconds are processor time of the process and its children, on one core; `wall` is what a clock shows. `cold` has an
empty cache on disk, `warm` what the cold process left there; `cold 2+` may use all cores, so that LLVM works beside
Python. Bytecode is made before, as installers do. `counts` is a cold process whose rewrites are counted: nodes made,
nodes that a rule set was shown, matchers called, and those of them that rewrote their node. jax: tracing, then XLA for
one CPU. tinygrad: its schedule alone.
"""

from __future__ import annotations

import argparse
import compileall
import cProfile
import json
import math
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from compile_models import MODELS, Model, Shape, Weights, llama, small

SECONDS = 1800


def processor_time() -> float:
    """Of this process and the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def peak_memory() -> int:
    """Most bytes that this process held."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


class Clock:
    """Seconds of named steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = processor_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + processor_time() - begin

    def timed(self, owner: Any, name: str, step: str) -> None:
        """Count the time of a function of a module or class."""
        function: Callable[..., Any] = getattr(owner, name)

        def wrapper(*arguments: Any, **named: Any) -> Any:
            with self.step(step):
                return function(*arguments, **named)

        setattr(owner, name, wrapper)


# ---- frameworks ---------------------------------------------------------------------------------------------------


class TensorOps:
    """gradlet and tinygrad: the same methods."""

    def __init__(self, package: str) -> None:
        self.Tensor: Any = __import__(package).Tensor

    def leaf(self, shape: Shape) -> Any:
        return self.Tensor.empty(*shape)

    def conv(self, x: Any, w: Any, stride: int, padding: int) -> Any:
        return x.conv2d(w, stride=stride, padding=padding)

    def window_max(self, x: Any) -> Any:
        return x.max_pool2d(3, 2, padding=1)

    def upsample(self, x: Any) -> Any:
        batch, channels, height, width = x.shape
        x = x.reshape(batch, channels, height, 1, width, 1).expand(batch, channels, height, 2, width, 2)
        return x.reshape(batch, channels, 2 * height, 2 * width)

    def mean(self, x: Any, axes: Sequence[int]) -> Any:
        return x.mean(tuple(axes), keepdim=True)

    def sum(self, x: Any, axes: Sequence[int]) -> Any:
        return x.sum(tuple(axes))

    def relu(self, x: Any) -> Any:
        return x.relu()

    def sigmoid(self, x: Any) -> Any:
        return x.sigmoid()

    def gelu(self, x: Any) -> Any:
        return x.gelu()

    def rsqrt(self, x: Any) -> Any:
        return x.rsqrt()

    def softmax(self, x: Any) -> Any:
        return x.softmax(-1)

    def log_softmax(self, x: Any) -> Any:
        return x.log_softmax(-1)

    def reshape(self, x: Any, shape: Shape) -> Any:
        return x.reshape(*shape)

    def permute(self, x: Any, axes: Shape) -> Any:
        return x.permute(*axes)

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        return parts[0].cat(*parts[1:], dim=axis)

    def causal(self, scores: Any) -> Any:
        rows, columns = scores.shape[-2:]
        ahead = self.Tensor.arange(columns).reshape(1, columns) > self.Tensor.arange(rows).reshape(rows, 1)
        return ahead.where(-1e9, scores)

    def graph(self, model: Model, clock: Clock) -> list[Any]:
        """The tensors to compute."""
        with clock.step("build"):
            weights = Weights(self.leaf)
            result = model.loss(self, weights, [self.leaf(shape) for shape in model.inputs])
        if not model.backward:
            return [result]
        with clock.step("gradient"):
            return [result, *result.gradient(*weights.values)]


class JaxOps:
    """jax: arrays are abstract, shapes alone are traced."""

    def __init__(self) -> None:
        import jax

        self.jax: Any = jax

    def leaf(self, shape: Shape) -> Any:
        return self.jax.ShapeDtypeStruct(shape, self.jax.numpy.float32)

    def conv(self, x: Any, w: Any, stride: int, padding: int) -> Any:
        return self.jax.lax.conv(x, w, (stride, stride), "SAME") if padding == 0 else (
            self.jax.lax.conv_general_dilated(x, w, (stride, stride), [(padding, padding)] * 2)
        )  # fmt: skip

    def window_max(self, x: Any) -> Any:
        lax = self.jax.lax
        pads = ((0, 0), (0, 0), (1, 1), (1, 1))
        return lax.reduce_window(x, -self.jax.numpy.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pads)

    def upsample(self, x: Any) -> Any:
        return self.jax.numpy.repeat(self.jax.numpy.repeat(x, 2, 2), 2, 3)

    def mean(self, x: Any, axes: Sequence[int]) -> Any:
        return x.mean(tuple(axes), keepdims=True)

    def sum(self, x: Any, axes: Sequence[int]) -> Any:
        return x.sum(tuple(axes))

    def relu(self, x: Any) -> Any:
        return self.jax.nn.relu(x)

    def sigmoid(self, x: Any) -> Any:
        return self.jax.nn.sigmoid(x)

    def gelu(self, x: Any) -> Any:
        return self.jax.nn.gelu(x)

    def rsqrt(self, x: Any) -> Any:
        return self.jax.lax.rsqrt(x)

    def softmax(self, x: Any) -> Any:
        return self.jax.nn.softmax(x)

    def log_softmax(self, x: Any) -> Any:
        return self.jax.nn.log_softmax(x)

    def reshape(self, x: Any, shape: Shape) -> Any:
        return x.reshape(shape)

    def permute(self, x: Any, axes: Shape) -> Any:
        return x.transpose(axes)

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        return self.jax.numpy.concatenate(parts, axis)

    def causal(self, scores: Any) -> Any:
        numpy = self.jax.numpy
        rows, columns = scores.shape[-2:]
        return numpy.where(numpy.arange(columns)[None] > numpy.arange(rows)[:, None], -1e9, scores)


# ---- what a child process measures ---------------------------------------------------------------------------------


def measure_gradlet(model: Model) -> dict[str, Any]:
    """Every step to loaded machine code."""
    clock = Clock()
    with clock.step("import"):
        ops = TensorOps("gradlet")
        from gradlet.base import settings
        from gradlet.device.common import llvm
        from gradlet.device.cpu import runtime
        from gradlet.engine import compile as compilation
        from gradlet.engine import execute
        from gradlet.graph.node import toposort
        from gradlet.schedule.calls import KernelCall
    parts = {
        "lower": (compilation, "lower_kernel"),
        "render": (runtime.CpuBackend, "render"),
        "LLVM": (llvm, "emit_object"),
        "link": (runtime, "load"),
    }
    if settings.NUM_THREADS.value == 1:  # else they overlap
        for step, (owner, name) in parts.items():
            clock.timed(owner, name, step)
    before = peak_memory()
    begin = time.perf_counter()
    roots = [tensor.uop for tensor in ops.graph(model, clock)]
    with clock.step("schedule"):
        plan = execute.schedule(roots)
    calls = [call for call in plan.calls if isinstance(call, KernelCall)]
    with clock.step("kernels"):
        compilation.prepare_kernels([(call.ast, call.device) for call in calls])
        for call in calls:
            compilation.get_kernel(call.ast, call.device)
    wall = time.perf_counter() - begin
    rest = clock.seconds.pop("kernels") - sum(clock.seconds.get(step, 0) for step in parts)
    return {
        "seconds": {**clock.seconds, "rest": rest},
        "wall": wall,
        "grown": peak_memory() - before,
        "counts": {
            "nodes": len(toposort(roots)),
            "launches": len(calls),
            "kernels": len({call.ast for call in calls}),
        },
    }


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """What the rewrites inside do, in numbers that are the same on every machine; counting takes time itself."""
    from gradlet.graph import matcher, node, rewrite

    found = {"nodes made": -node._next_uid(), "visits": 0, "matches tried": 0, "matches hit": 0}
    write, collect = matcher.SourceWriter.compile, rewrite._collect

    def compile_counted(self: Any, *arguments: Any, **named: Any) -> Any:
        function = write(self, *arguments, **named)

        def tried(node: Any, context: Any) -> Any:
            found["matches tried"] += 1
            result = function(node, context)
            found["matches hit"] += result is not None
            return result

        return tried

    def collect_counted(*arguments: Any) -> Any:
        nodes = collect(*arguments)
        found["visits"] += len(nodes)
        return nodes

    matcher.SourceWriter.compile = compile_counted  # type: ignore[method-assign]
    rewrite._collect = collect_counted
    try:
        yield found
    finally:
        matcher.SourceWriter.compile, rewrite._collect = write, collect  # type: ignore[method-assign]
        found["nodes made"] += node._next_uid()


def measure_counts(model: Model) -> dict[str, Any]:
    """gradlet with its work counted; the seconds are no figures."""
    with counted() as found:
        result = measure_gradlet(model)
    return {**result, "counts": {**result["counts"], **found}}


def measure_tinygrad(model: Model) -> dict[str, Any]:
    """Graph, gradient and schedule."""
    clock = Clock()
    with clock.step("import"):
        ops = TensorOps("tinygrad")
    begin = time.perf_counter()
    tensors = ops.graph(model, clock)
    with clock.step("schedule"):
        first, *others = tensors
        plan = first.schedule_linear(*others) if hasattr(first, "schedule_linear") else first.schedule(*others)
    wall = time.perf_counter() - begin
    return {"seconds": clock.seconds, "wall": wall, "counts": {"launches": len(getattr(plan, "src", plan))}}


def measure_jax(model: Model, shapes: Sequence[Shape]) -> dict[str, Any]:
    """Tracing, and XLA's compilation."""
    clock = Clock()
    with clock.step("import"):
        ops = JaxOps()

    def loss(weights: Sequence[Any], inputs: Sequence[Any]) -> Any:
        left = iter(weights)
        return model.loss(ops, Weights(lambda shape: next(left)), inputs)

    function = ops.jax.value_and_grad(loss) if model.backward else loss
    weights, inputs = [ops.leaf(s) for s in shapes], [ops.leaf(s) for s in model.inputs]
    begin = time.perf_counter()
    with clock.step("trace"):
        lowered = ops.jax.jit(function).lower(weights, inputs)
    with clock.step("compile"):
        lowered.compile()
    return {"seconds": clock.seconds, "wall": time.perf_counter() - begin, "counts": {}}


def measure(framework: str, name: str, shapes: Sequence[Shape]) -> dict[str, Any]:
    """One framework's way with one model, in this process."""
    model = model_of(name)
    if framework == "jax":
        found = measure_jax(model, shapes)
    elif framework == "counts":
        found = measure_counts(model)
    else:
        found = measure_gradlet(model) if framework == "gradlet" else measure_tinygrad(model)
    return {**found, "peak": peak_memory()}


def model_of(name: str) -> Model:
    """A row by its name; `llama` and a number is LLaMA of width 512 with so many layers."""
    if name in MODELS:
        return MODELS[name]
    layers = int(name.removeprefix("llama"))
    return llama(f"LLaMA, {layers} layers of width 512, forward and backward", small(layers), True)


# ---- the table -----------------------------------------------------------------------------------------------------


def child(
    python: str, framework: str, name: str, cache: str, shapes: Sequence[Shape], all_cores: bool = False
) -> dict[str, Any] | str:
    """What a fresh process measured, or why it did not."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "CC", "LD_LIBRARY_PATH")}
    threads = {
        "OMP_NUM_THREADS": "1",
        "NUM_THREADS": "0" if all_cores else "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }
    environment = {**kept, **threads, "XDG_CACHE_HOME": cache, "DEV": "CPU", "JAX_PLATFORMS": "cpu", "SCACHE": "0"}
    command = [python, __file__, "--child", framework, "--only", name]
    try:
        done = subprocess.run(
            command, input=json.dumps(shapes), env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"more than {SECONDS} s"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def weight_shapes(model: Model) -> list[Shape]:
    """The shapes of a model's weights in the order of use."""
    ops = TensorOps("gradlet")
    weights = Weights(ops.leaf)
    model.loss(ops, weights, [ops.leaf(shape) for shape in model.inputs])
    return [tuple(value.shape) for value in weights.values]


STEPS = ("build", "gradient", "schedule", "lower", "render", "LLVM", "link", "rest")


ALL = "cold 2+"


def row(name: str, peers: str | None, rounds: int) -> list[str]:
    """Lines about one model."""
    model = MODELS[name]
    shapes = weight_shapes(model)
    runs: dict[str, list[dict[str, Any]]] = {}
    failures: list[str] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="bench-cache-") as cache:
            plan = [(label, "gradlet", sys.executable) for label in ("cold", "warm", ALL)]
            plan.append(("counts", "counts", sys.executable))
            plan += [(peer, peer, peers) for peer in ("jax", "tinygrad") if peers]  # type: ignore[misc]
            for label, framework, python in plan:
                own = cache if label in ("cold", "warm") else f"{cache}/{label}"
                found = child(python, framework, name, own, shapes, label == ALL)
                if isinstance(found, str):
                    failures.append(f"  {label}: {found}")
                else:
                    runs.setdefault(label, []).append(found)
    return [f"{model.title}", *text_of(runs), *dict.fromkeys(failures)]


def text_of(runs: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A line a process: medians of its steps."""
    for label, found in runs.items():
        middle = {
            step: statistics.median(one["seconds"].get(step, 0.0) for one in found) for step in found[0]["seconds"]
        }
        if label in ("cold", "warm", ALL):
            total = sum(middle.get(step, 0.0) for step in STEPS)
            parts = ", ".join(f"{step} {middle[step]:.2f}" for step in STEPS if step in middle)
        else:
            total = sum(seconds for step, seconds in middle.items() if step != "import")
            parts = ", ".join(f"{step} {seconds:.2f}" for step, seconds in middle.items() if step != "import")
        counts = ", ".join(f"{number} {what}" for what, number in found[0]["counts"].items())
        if label == "counts":
            yield f"  {label:9} {counts}"
            continue
        peak = statistics.median(one["peak"] for one in found) / 1e6
        wall = statistics.median(one["wall"] for one in found)
        yield f"  {label:9} {total:8.2f} s, wall {wall:.2f}  ({parts})  {peak:.0f} MB  {counts}"


def growth(layers: Sequence[int]) -> Iterator[str]:
    """How time, memory and counts grow with equal layers; a slope is that of the logarithms: 1 is linear."""
    found: list[dict[str, Any]] = []
    for count in layers:
        with tempfile.TemporaryDirectory(prefix="bench-cache-") as cache:
            one = child(sys.executable, "gradlet", f"llama{count}", cache, ())
        if isinstance(one, str):
            raise SystemExit(one)
        seconds = {step: one["seconds"].get(step, 0.0) for step in STEPS}
        found.append({"time": sum(seconds.values()), **seconds, "memory": one["grown"] / 1e6, **one["counts"]})
    yield f"{'':10}" + "".join(f"{count:>10}" for count in layers) + f"{'slope':>10}"
    for name in found[0]:
        values = [one[name] for one in found]
        shown = "".join(f"{value:>10}" if isinstance(value, int) else f"{value:>10.2f}" for value in values)
        yield f"{name:10}{shown}{slope(list(zip(layers, values, strict=True))):>10.2f}"


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the logarithms, least squares."""
    logs = [(math.log(x), math.log(max(y, 1e-9))) for x, y in points]
    middle = [sum(values) / len(logs) for values in zip(*logs)]
    across = sum((x - middle[0]) ** 2 for x, _ in logs)
    return sum((x - middle[0]) * (y - middle[1]) for x, y in logs) / across if across else 0.0


def profile(name: str) -> None:
    """Functions by their own time."""
    profiler = cProfile.Profile()
    profiler.enable()
    found = measure("gradlet", name, ())
    profiler.disable()
    print(json.dumps(found))
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="python of the environment that has jax and tinygrad")
    parser.add_argument("--only", default=",".join(MODELS), help="names of models, comma separated")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile", metavar="MODEL")
    parser.add_argument("--growth", metavar="LAYERS", help="numbers of layers, comma separated")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.profile:
        profile(parsed.profile)
    elif parsed.growth:
        for line in growth([int(count) for count in parsed.growth.split(",")]):
            print(line, flush=True)
    elif parsed.child:
        print(json.dumps(measure(parsed.child, parsed.only, [tuple(s) for s in json.load(sys.stdin)])))
    else:
        compileall.compile_dir(str(HERE.parent / "gradlet"), quiet=1)
        for name in parsed.only.split(","):
            print("\n".join(row(name, parsed.peers, parsed.rounds)), flush=True)


if __name__ == "__main__":
    main()
