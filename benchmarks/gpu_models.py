"""Whole models on an NVIDIA GPU beside PyTorch on the same card: `python benchmarks/gpu_models.py [--only A,B]`.

Rows: a token of LLaMA 8B (batch 1, 1024 keys, bfloat16), training steps of LLaMA 1.1B, GPT-2 124M and ResNet-50 with
AdamW, bfloat16 and weights in float32. Weights are random numbers drawn on the card. Before anything is timed the two
libraries are compared on a small model with the same weights. A replay is one CUDA graph; `--profile` runs the launches
of each kernel as a graph of their own and prints what each takes. Needs `pip install 'gradlet[cuda]' torch` and a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_networks as networks
import numpy as np

from gradlet import Tensor, Variable, dtypes, jit, nn
from gradlet.runtime.buffer import buffer_of
from gradlet.runtime.device import Device, GraphLaunch

ROUNDS = 5
KEYS = 1024
DEVICE = "CUDA"


class Ours:
    """The names of gradlet."""

    name = "gradlet"
    half_type: Any = dtypes.bfloat16

    def array(self, values: Any) -> Tensor:
        return Tensor(np.asarray(values, np.float32), device=DEVICE).realize()

    def numbers(self, values: Any) -> Tensor:
        return Tensor(np.asarray(values, np.int32), device=DEVICE).realize()

    def normal(self, shape: tuple[int, ...], scale: float, shift: float, half: bool) -> Tensor:
        value = Tensor.randn(*shape, device=DEVICE) * scale + shift
        return value.cast(self.half_type if half else dtypes.float32).contiguous().realize()

    def half(self, x: Tensor) -> Tensor:
        return x.cast(self.half_type)

    def wide(self, x: Tensor) -> Tensor:
        return x.cast(dtypes.float32)

    def like(self, x: Tensor, other: Tensor) -> Tensor:
        return x.cast(other.dtype)

    def cat(self, parts: list[Tensor]) -> Tensor:
        return Tensor.cat(*parts, dim=-1)

    def rows(self, table: Tensor, numbers: Tensor) -> Tensor:
        return table[numbers]

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = x @ weight.transpose(0, 1)
        return y if bias is None else y + bias

    def silu(self, x: Tensor) -> Tensor:
        return x.silu()

    def gelu(self, x: Tensor) -> Tensor:
        return x.gelu()

    def relu(self, x: Tensor) -> Tensor:
        return x.relu()

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return x.layernorm() * weight + bias

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.cast(dtypes.float32).sparse_categorical_crossentropy(targets)

    def conv2d(self, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        return x.conv2d(weight, stride=stride, padding=padding)

    def batch_norm(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y = x.cast(dtypes.float32)
        mean = y.mean((0, 2, 3))
        centred = y - mean.reshape(1, -1, 1, 1)
        return y.batchnorm(scale, shift, mean, (centred.square().mean((0, 2, 3)) + 1e-5).rsqrt()).cast(x.dtype)

    def window_max(self, x: Tensor) -> Tensor:
        return x.max_pool2d(kernel_size=(3, 3), stride=2, padding=1)

    def training_step(self, weights: dict[str, Tensor], loss_of: Callable[..., Any], _: bool = False) -> Any:
        """A function of a batch that trains and returns the loss."""
        optimizer = nn.optim.AdamW([*weights.values()], lr=1e-4)

        @jit
        def step(*batch: Tensor) -> Tensor:
            with Tensor.train():
                optimizer.zero_grad()
                loss: Tensor = loss_of(weights, *batch)
                loss.backward()
                return loss.realize(*optimizer.schedule_step())

        return step

    def decoder(self, sizes: networks.Llama, weights: dict[str, Tensor], _: bool = False) -> Any:
        """A function of a token (1, 1) and its place that gives the next one; it keeps keys and values."""
        shape = (1, sizes.kv_heads, sizes.positions, sizes.features)
        caches = [[self.normal(shape, 1.0, 0.0, True) for _ in range(2)] for _ in range(sizes.layers)]
        cos, sin = networks.turns(self, sizes)

        @jit
        def step(token: Tensor, at: Any) -> Tensor:
            def attend(n: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                keys, values = caches[n]
                keys[:, :, at : at + 1] = k
                values[:, :, at : at + 1] = v
                group = sizes.heads // sizes.kv_heads
                q = q.reshape(1, sizes.kv_heads, group, sizes.features)
                seen = keys[:, :, : at + 1].transpose(-2, -1)
                scores = q.dot(seen, dtype=dtypes.float32) * sizes.features**-0.5
                mixed = self.half(scores.softmax(-1)) @ values[:, :, : at + 1]
                return mixed.reshape(1, sizes.heads, 1, sizes.features)

            logits = networks.llama(self, sizes, weights, token, cos[at : at + 1], sin[at : at + 1], attend)
            return logits.argmax(-1).cast(dtypes.int32)

        place = Variable("place", 0, sizes.positions - 1)
        return lambda token, at: step(token, place.bind(at)), step

    def wait(self) -> None:
        Device[DEVICE].synchronize()  # type: ignore[attr-defined]

    def host(self, value: Tensor) -> Any:
        return value.cast(dtypes.float32).numpy()


class Theirs:
    """The names of PyTorch."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self.torch, self.functional, self.half_type = torch, torch.nn.functional, torch.bfloat16
        torch.backends.cudnn.benchmark = True

    def array(self, values: Any) -> Any:
        return self.torch.tensor(np.asarray(values, np.float32), device="cuda")

    def numbers(self, values: Any) -> Any:
        return self.torch.tensor(np.asarray(values, np.int64), device="cuda")

    def normal(self, shape: tuple[int, ...], scale: float, shift: float, half: bool) -> Any:
        kind = self.half_type if half else self.torch.float32
        return self.torch.empty(shape, dtype=kind, device="cuda").normal_(shift, scale)

    def half(self, x: Any) -> Any:
        return x.to(self.half_type)

    def wide(self, x: Any) -> Any:
        return x.float()

    def like(self, x: Any, other: Any) -> Any:
        return x.to(other.dtype)

    def cat(self, parts: list[Any]) -> Any:
        return self.torch.cat(parts, -1)

    def rows(self, table: Any, numbers: Any) -> Any:
        return self.functional.embedding(numbers, table)

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.functional.linear(x, weight, bias)

    def silu(self, x: Any) -> Any:
        return self.functional.silu(x)

    def gelu(self, x: Any) -> Any:
        return self.functional.gelu(x, approximate="tanh")

    def relu(self, x: Any) -> Any:
        return x.relu()

    def layer_norm(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.functional.layer_norm(x, x.shape[-1:], weight, bias)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        same = q.shape[1] == k.shape[1]
        return self.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not same)

    def cross_entropy(self, logits: Any, targets: Any) -> Any:
        return self.functional.cross_entropy(logits.float(), targets)

    def conv2d(self, x: Any, weight: Any, stride: int, padding: int) -> Any:
        return self.functional.conv2d(x, weight, stride=stride, padding=padding)

    def batch_norm(self, x: Any, scale: Any, shift: Any) -> Any:
        return self.functional.batch_norm(x, None, None, scale, shift, training=True)

    def window_max(self, x: Any) -> Any:
        return self.functional.max_pool2d(x, 3, 2, 1)

    def training_step(self, weights: dict[str, Any], loss_of: Callable[..., Any], compiled: bool = False) -> Any:
        """A function of a batch that trains and returns the loss."""
        for weight in weights.values():
            weight.requires_grad_(True)
        optimizer = self.torch.optim.AdamW([*weights.values()], lr=1e-4, fused=True)
        loss = self.torch.compile(loss_of) if compiled else loss_of

        def step(*batch: Any) -> Any:
            optimizer.zero_grad()
            value = loss(weights, *batch)
            value.backward()
            optimizer.step()
            return value.detach()

        return step

    def decoder(self, sizes: networks.Llama, weights: dict[str, Any], compiled: bool = False) -> Any:
        """A function of a token (1, 1) and its place that gives the next one; it keeps keys and values."""
        torch = self.torch
        shape = (1, sizes.kv_heads, sizes.positions, sizes.features)
        caches = [[self.normal(shape, 1.0, 0.0, True) for _ in range(2)] for _ in range(sizes.layers)]
        cos, sin = networks.turns(self, sizes)
        places = torch.arange(sizes.positions, device="cuda")

        def step(token: Any, at: Any) -> Any:
            mask = (places <= at)[None, None, None]

            def attend(n: int, q: Any, k: Any, v: Any) -> Any:
                keys, values = caches[n]
                keys[:, :, at], values[:, :, at] = k, v
                return self.functional.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True)

            logits = networks.llama(self, sizes, weights, token, cos[at], sin[at], attend)
            return logits.argmax(-1)

        chosen = torch.compile(step, mode="max-autotune-no-cudagraphs" if compiled == "tuned" else "reduce-overhead")
        function = chosen if compiled else step

        def run(token: Any, at: int) -> Any:
            with torch.no_grad():
                return function(token, torch.tensor([at], device="cuda")).clone()

        return run, None

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def host(self, value: Any) -> Any:
        return value.float().cpu().numpy()


def weights_of(api: Any, shapes: dict[str, tuple[int, ...]], half: bool) -> dict[str, Any]:
    """Random weights; norms are near 1, shifts near 0, matrices such that sizes of values are kept."""
    found = {}
    for name, shape in shapes.items():
        scale = 0.02 if len(shape) < 2 or name in ("tokens", "places") else 1 / math.sqrt(math.prod(shape[1:]))
        shift = float(len(shape) < 2 and not name.endswith(("bias", "shift")))
        found[name] = api.normal(shape, scale, shift, half)
    return found


def seconds_of(api: Any, run: Callable[[], Any], count: int) -> float:
    """Seconds of one run among `count` in a row: the median of some rounds."""
    times = []
    for _ in range(ROUNDS):
        api.wait()
        begin = time.perf_counter()
        for _ in range(count):
            run()
        api.wait()
        times.append((time.perf_counter() - begin) / count)
    return statistics.median(times)


def profile(step: Any) -> list[str]:
    """What the launches of each kernel of a captured function take, as graphs of their own; the slowest first."""
    backend: Any = Device[DEVICE]
    gpu = backend.gpu
    program = list(step.captures.values())[-1].program
    part = program if program.prologue is None else program.prologue.rest
    groups: dict[int, list[Any]] = {}
    for call in part.calls:
        if call.kernel is not None:
            groups.setdefault(id(call.kernel), []).append(call)
    rows = []
    for calls in groups.values():
        kernel = calls[0].kernel
        words: list[int] = []
        launches = []
        for call in calls:
            own = [buffer_of(part.nodes[slot]).address for slot in call.slots]
            own += [part.values[v] for v in call.variables]
            launches.append(GraphLaunch(kernel.program, tuple(range(len(words), len(words) + len(own)))))
            words += own
        graph = backend.graph(launches, len(words))
        for place, word in enumerate(words):
            graph.words[place] = word
        graph.run()
        begin, end = gpu.call("cuEventCreate", 0), gpu.call("cuEventCreate", 0)
        gpu.call("cuEventRecord", begin, gpu.stream)
        graph.run()
        gpu.call("cuEventRecord", end, gpu.stream)
        gpu.synchronize()
        microseconds = float(gpu.call("cuEventElapsedTime", begin, end)) * 1e3
        each = microseconds / len(calls) * 1e-6
        rows.append((microseconds, len(calls), kernel, each))
    rows.sort(key=lambda row: -row[0])
    total = sum(row[0] for row in rows)
    lines = [f"profile: {total / 1e3:.3f} ms in {sum(row[1] for row in rows)} launches of {len(rows)} kernels"]
    for microseconds, count, kernel, each in rows[:40]:
        lines.append(
            f"  {microseconds / 1e3:8.3f} ms {count:4d} x {each * 1e6:8.1f} us {kernel.bytes / each / 1e9:7.0f} GB/s "
            f"{kernel.flops / each / 1e12:7.1f} TF  {kernel.program.grid}x{kernel.program.threads} {kernel.name}"
        )
    return lines


class Row:
    """One model: how each library prepares it, and what is counted."""

    def __init__(self, name: str, unit: str, work: float, flops: float, prepare: Callable[..., Any]) -> None:
        self.name, self.unit, self.work, self.flops, self.prepare = name, unit, work, flops, prepare


def decode(sizes: networks.Llama, at: int) -> Callable[..., Any]:
    """Tokens one after another; each is the input of the next, none is read by the host."""

    def prepare(api: Any, compiled: Any) -> Any:
        weights = weights_of(api, sizes.shapes(), True)
        run, step = api.decoder(sizes, weights, compiled)
        state = [api.numbers([[5]]), at]

        def next_token() -> Any:
            state[0] = run(state[0], state[1])
            state[1] = at + (state[1] + 1 - at) % 256
            return state[0]

        return next_token, step, 50

    return prepare


def training(shapes: dict[str, tuple[int, ...]], loss: Callable[..., Any], batch: Callable[[Any], Any]) -> Any:
    """Steps over one batch."""

    def prepare(api: Any, compiled: Any) -> Any:
        weights = weights_of(api, shapes, False)
        inputs = batch(api)
        more = loss(api)
        step = api.training_step(weights, more, compiled)
        return lambda: step(*inputs), step, 4

    return prepare


def token_batch(rows: int, count: int, vocabulary: int) -> Callable[[Any], Any]:
    """Random tokens, and others as what follows."""

    def make(api: Any) -> Any:
        rng = np.random.default_rng(0)
        return [api.numbers(rng.integers(0, vocabulary, (rows, count))) for _ in range(2)]

    return make


def image_batch(api: Any) -> Any:
    """Random images and labels."""
    rng = np.random.default_rng(0)
    return [api.array(rng.standard_normal((64, 3, 224, 224), np.float32)), api.numbers(rng.integers(0, 1000, 64))]


def llama_loss(sizes: networks.Llama) -> Callable[[Any], Any]:
    """The loss with the table of positions."""

    def of(api: Any) -> Any:
        table = networks.turns(api, sizes)
        return lambda w, *batch: networks.llama_loss(api, sizes, w, table, *batch)

    return of


def llama_row(sizes: networks.Llama, name: str, rows: int, count: int) -> Row:
    """A training step of a LLaMA."""
    products = sizes.parameters() - sizes.vocabulary * sizes.width
    scores = sizes.layers * sizes.heads * sizes.features * count  # half of them are hidden, two products each
    flops = 6.0 * rows * count * (products + scores)
    prepare = training(sizes.shapes(), llama_loss(sizes), token_batch(rows, count, sizes.vocabulary))
    return Row(f"{name} training step, {rows}x{count}", "tokens/s", rows * count, flops, prepare)


def all_rows(sequences: int) -> list[Row]:
    """All models; LLaMA 1.1B learns from so many sequences at once."""
    gpt = sum(math.prod(s) for s in networks.gpt2_shapes().values()) - 1024 * networks.GPT_WIDTH
    gpt_scores = networks.GPT_LAYERS * networks.GPT_WIDTH * 1024
    batch = token_batch(16, 1024, networks.GPT_VOCABULARY)
    gpt_step = training(
        networks.gpt2_shapes(), lambda api: lambda w, *b: networks.gpt2_loss(api, w, *b), batch
    )  # fmt: skip
    image_step = training(
        networks.resnet_shapes(), lambda api: lambda w, *b: networks.resnet_loss(api, w, *b), image_batch
    )  # fmt: skip
    return [
        Row("LLaMA 8B decode", "tokens/s", 1, 2.0 * networks.LLAMA_8B.parameters(), decode(networks.LLAMA_8B, KEYS)),
        Row("GPT-2 124M training step, 16x1024", "tokens/s", 16384, 6.0 * 16384 * (gpt + gpt_scores), gpt_step),
        Row("ResNet-50 training step, 64", "images/s", 64, 3 * 2 * 4.09e9 * 64, image_step),
        llama_row(networks.LLAMA_1B, "LLaMA 1.1B", sequences, 2048),
    ]


def check() -> str:
    """Losses of a small LLaMA over some steps with the same weights, in both libraries."""
    ours, theirs = Ours(), Theirs()
    sizes = networks.SMALL
    rng = np.random.default_rng(1)
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32) * (0.05 if len(shape) > 1 else 0.1) + (len(shape) < 2)
        for name, shape in sizes.shapes().items()
    }
    batch = token_batch(2, 64, sizes.vocabulary)
    losses = []
    for api in (ours, theirs):
        step = api.training_step({k: api.array(v) for k, v in arrays.items()}, llama_loss(sizes)(api))
        losses.append([float(api.host(step(*batch(api)))) for _ in range(4)])
    found, wanted = (np.array(each) for each in losses)
    return f"losses of a small LLaMA: {found.round(4).tolist()}, torch {wanted.round(4).tolist()}"


def measure(api: Any, row: Row, compiled: Any, with_profile: bool) -> tuple[str, list[str]]:
    """One line of the table, and the profile."""
    run, step, count = row.prepare(api, compiled)
    api.wait()
    begin = time.perf_counter()
    result = run()
    api.wait()
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    run(), run()
    api.wait()
    second = time.perf_counter() - begin
    seconds = seconds_of(api, run, count)
    value = float(api.host(result).reshape(-1)[0])
    details = profile(step) if with_profile and isinstance(api, Ours) else []
    name = api.name + (f", {compiled or 'eager'}" if api.name == "torch" else "")
    line = (
        f"| {row.name} | {name} | {seconds * 1e3:.3f} | {row.work / seconds:.5g} {row.unit} "
        f"| {row.flops / seconds / 1e12:.4g} | {first:.1f} + {second:.1f} | {value:.4g} |"
    )
    return line, details


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="beginnings of names of rows, by commas")
    parser.add_argument("--libraries", default="gradlet,eager", help="of gradlet, eager, compile; by commas")
    parser.add_argument("--sequences", type=int, default=8, help="of 2048 tokens that LLaMA 1.1B learns from at once")
    parser.add_argument("--profile", action="store_true", help="print what each kernel takes")
    parser.add_argument("--check", action="store_true", help="compare a small model first")
    parser.add_argument("--output", type=Path, help="write the table to this file, too")
    options = parser.parse_args()
    lines = [
        "# Whole models on a GPU",
        "",
        "Written by `python benchmarks/gpu_models.py`; do not edit by hand.",
        "",
        f"* Date: {datetime.date.today()}; {Device[DEVICE].gpu.name()}",  # type: ignore[attr-defined]
        "* Seconds until the first result, and of the next two calls, of which the first is captured or compiled.",
        "",
        "| model | library | ms | rate | TFLOP/s | first + next two, s | result |",
        "|---|---|---|---|---|---|---|",
    ]
    if options.check:
        print(check(), flush=True)
    print("\n".join(lines), flush=True)
    for row in all_rows(options.sequences):
        if options.only and not row.name.startswith(tuple(options.only.split(","))):
            continue
        for library in options.libraries.split(","):
            api = Ours() if library == "gradlet" else Theirs()
            compiled = library not in ("gradlet", "eager") and library
            try:
                line, details = measure(api, row, compiled, options.profile)
            except Exception as error:  # the other rows are wanted all the same
                line, details = f"| {row.name} | {library} | failed: {type(error).__name__}: {error} |", []
            lines.append(line)
            print("\n".join([line, *details]), flush=True)
            gc.collect()
            if library == "gradlet":
                Device[DEVICE].allocator.release_kept()  # type: ignore[attr-defined]
            else:
                api.torch.cuda.empty_cache()
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
