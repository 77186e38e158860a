"""Kernels on an NVIDIA GPU beside PyTorch on the same card: `python benchmarks/gpu.py [--only A,B] [--output FILE]`.

`--beam 2` searches the schedules of these kernels first (docs/search.md), `BEAM_TIME` seconds each.

Both run in this process, in turns, on data that is the same to the bit; results are compared before anything is timed.
A time is that of one launch among many in a row, between two events of the GPU's stream: the host's part is not in it.
Needs `pip install 'gradlet[cuda]' torch` and a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradlet import Tensor, dtypes
from gradlet.base.settings import scope
from gradlet.engine.compile import get_kernel
from gradlet.runtime.buffer import bind_parts, buffer_of
from gradlet.runtime.device import Device

ROUNDS = 5
TARGET_MS = 20  # of launches in a row
TYPES = {
    "f32": (dtypes.float32, torch.float32),
    "bf16": (dtypes.bfloat16, torch.bfloat16),
    "f16": (dtypes.float16, torch.float16),
    "e4m3": (dtypes.float8_e4m3fn, torch.float8_e4m3fn),
    "s8": (dtypes.int8, torch.int8),
}


@dataclass
class Row:
    """One comparison: a function that both libraries understand, on random arrays of these shapes."""

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    work: float
    unit: str
    tf32: bool = False
    before: int = 0  # launches that come first and are not timed
    timed: Callable[..., Callable[[], Any]] | None = None  # makes of arrays what is timed of theirs


def memory(name: str, dtype: str, shapes: Any, function: Any, nbytes: float, theirs: Any = None) -> Row:
    """A row that is bound by memory."""
    return Row(name, dtype, tuple(shapes), function, theirs or function, nbytes, "GB/s")


def product(m: int, k: int, n: int, dtype: str, turned: bool = False) -> Row:
    """A matrix product; `turned`: the right factor lies by columns."""
    shapes = ((m, k), (n, k) if turned else (k, n))
    function = (lambda a, b: a @ b.T) if turned else (lambda a, b: a @ b)
    name = f"gemm {dtype} {m}x{k}x{n}{', x@W.T' if turned else ''}"
    return Row(name, dtype, shapes, function, function, 2 * m * k * n, "TFLOP/s")


def narrow_product(side: int, dtype: str) -> Row:
    """A product of square factors of 8 bits that both lie along the sum: floats to bfloat16, integers to int32."""
    total = "bfloat16" if dtype == "e4m3" else "int32"

    def theirs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if dtype == "s8":
            return torch._int_mm(a, b.T)
        one = torch.ones((), device="cuda")
        return torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    name = f"gemm {dtype} {side}x{side}x{side}, x@W.T"
    return Row(
        name, dtype, ((side, side),) * 2, lambda a, b: a.matmul(b.T, dtype=total), theirs, 2 * side**3, "TFLOP/s"
    )


def convolution(channels: int, side: int, window: int, stride: int, channels_last: bool = True) -> Row:
    """A convolution of bfloat16 images that keeps their size, or halves it."""
    functional, many = torch.nn.functional, 64 * 256 // channels
    images = (many, side, side, channels) if channels_last else (many, channels, side, side)
    weights = (channels, window, window, channels) if channels_last else (channels, channels, window, window)

    def run(convolve: Any) -> Any:
        def turned(x: Any, w: Any) -> Any:
            if not channels_last:
                return convolve(x, w)
            return convolve(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()

        return turned

    name = (
        f"conv {window}x{window} {'NHWC' if channels_last else 'NCHW'} {many}x{side}x{side}x{channels}, stride {stride}"
    )
    work = 2.0 * many * (side // stride) ** 2 * channels**2 * window**2
    return Row(
        name, "bf16", (images, weights), run(lambda x, w: x.conv2d(w, padding=window // 2, stride=stride)),
        run(lambda x, w: functional.conv2d(x, w, padding=window // 2, stride=stride)), work, "TFLOP/s",
    )  # fmt: skip


def attention(length: int, width: int, causal: bool, of_keys: int = 16, dtype: str = "bf16") -> Row:
    """Attention of 16 heads of queries to as many, or fewer, of keys and values, 8192 tokens in all."""
    functional, heads = torch.nn.functional.scaled_dot_product_attention, 16
    batch = max(1, 8192 // length)
    shapes = ((batch, heads, length, width), *(((batch, of_keys, length, width),) * 2))
    how = {"is_causal": causal, "enable_gqa": of_keys != heads}
    kind = ("causal" if causal else "full") + (f", {of_keys} of keys" if of_keys != heads else "")
    work = 4.0 * batch * heads * length**2 * width / (2 if causal else 1)
    return Row(
        f"attention {kind}, {batch}x{heads}x{length}x{width}", dtype, shapes,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, **how), lambda q, k, v: functional(q, k, v, **how), work,
        "TFLOP/s",
    )  # fmt: skip


def attention_backward(length: int, width: int, causal: bool, of_keys: int = 16) -> Row:
    """The gradients of queries, keys and values, given that of the result: without the launch that makes the result."""
    forward = attention(length, width, causal, of_keys)
    how = {"is_causal": causal, "enable_gqa": of_keys != 16}

    def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Any:
        out = q.scaled_dot_product_attention(k, v, **how)
        return (out, *out.gradient(q, k, v, gradient=g))

    def timed(q: Any, k: Any, v: Any, g: Any) -> Callable[[], Any]:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        out = torch.nn.functional.scaled_dot_product_attention(*inputs, **how)
        return lambda: (out.detach(), *torch.autograd.grad(out, inputs, g, retain_graph=True))

    return replace(
        forward, name=forward.name.replace("attention", "attention backward"),
        shapes=(*forward.shapes, forward.shapes[0]),
        ours=ours, theirs=lambda *arrays: timed(*arrays)(), work=2.5 * forward.work, before=1, timed=timed,
    )  # fmt: skip


def rows() -> Iterator[Row]:
    """All comparisons."""
    functional = torch.nn.functional
    many, wide = 1 << 28, (16384, 8192)
    size = wide[0] * wide[1]
    yield memory("copy", "f32", [(many,)], lambda x: x * 1.5, 8 * many)
    yield memory("relu(2x+1)*0.5-x", "f32", [(many,)], lambda x: (x * 2 + 1).relu() * 0.5 - x, 8 * many)
    yield memory("exp", "bf16", [(many,)], lambda x: x.exp(), 4 * many)
    yield memory("sum", "f32", [(many,)], lambda x: x.sum(), 4 * many)
    yield memory("sum of rows", "f32", [(32768, 8192)], lambda x: x.sum(1), 4 * 2 * size)
    yield memory("sum of columns", "f32", [(32768, 8192)], lambda x: x.sum(0), 4 * 2 * size)
    for dtype, nbytes in (("f32", 8), ("bf16", 4)):
        yield memory(f"softmax 16384x8192 {dtype}", dtype, [wide], lambda x: x.softmax(-1), nbytes * size)
    yield memory(
        "layer norm 16384x8192",
        "bf16",
        [wide],
        lambda x: x.layernorm(),
        4 * size,
        lambda x: functional.layer_norm(x, (8192,)),
    )
    yield memory(
        "rms norm 65536x1024", "f32", [(65536, 1024)],
        lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt(), 8 * 65536 * 1024,
        lambda x: functional.rms_norm(x, (1024,), eps=1e-5),
    )  # fmt: skip
    yield memory("W@x 16384", "bf16", [(16384, 16384), (16384,)], lambda a, x: a @ x, 2 * 16384**2)
    yield memory("W@x 16384", "f32", [(16384, 16384), (16384,)], lambda a, x: a @ x, 4 * 16384**2)
    yield memory("x@W 16384", "f32", [(16384, 16384), (16384,)], lambda a, x: x @ a, 4 * 16384**2)
    yield memory("transpose 16384", "f32", [(16384, 16384)], lambda a: a.T.contiguous(), 8 * 16384**2)
    for dtype, side, turned in (
        ("f32", 4096, False), ("bf16", 1024, False), ("bf16", 4096, False), ("bf16", 4096, True),
        ("bf16", 8192, False), ("bf16", 8192, True), ("f16", 8192, False), ("f16", 5000, False),
        ("f16", 5000, True), ("bf16", 2048, False), ("bf16", 5120, False), ("bf16", 1001, False),
    ):  # fmt: skip
        yield product(side, side, side, dtype, turned)
    yield product(16384, 4096, 512, "bf16")
    yield product(16384, 512, 4096, "bf16")
    for few in (16, 32, 64):
        yield product(few, 8192, 8192, "bf16")
    yield replace(product(8192, 8192, 8192, "f32", True), name="gemm tf32 8192x8192x8192, x@W.T", tf32=True)
    for dtype in ("e4m3", "s8"):
        yield narrow_product(8192, dtype)
    for length in (2048, 8192):
        for width in (64, 128):
            for causal in (True, False):
                yield attention(length, width, causal)
    yield attention(8192, 128, True, of_keys=4)
    yield attention(8192, 128, True, dtype="f16")
    yield attention(5000, 128, True)
    for length in (2048, 8192):
        for width in (64, 128):
            for causal in (True, False):
                yield attention_backward(length, width, causal)
    yield attention_backward(8192, 128, True, of_keys=4)
    yield attention_backward(5000, 128, True)
    for channels, side, window, stride in ((256, 56, 3, 1), (256, 56, 3, 2), (256, 56, 1, 1), (512, 28, 3, 1)):
        yield convolution(channels, side, window, stride)
    yield convolution(256, 56, 3, 1, channels_last=False)
    yield Row(
        "conv 3x3, 64x64x56x56 -> 64", "f32", ((64, 64, 56, 56), (64, 64, 3, 3)), lambda x, w: x.conv2d(w, padding=1),
        lambda x, w: functional.conv2d(x, w, padding=1), 2.0 * 64 * 64 * 56 * 56 * 64 * 9, "TFLOP/s",
    )  # fmt: skip


def to_tensor(array: torch.Tensor, dtype: str) -> Tensor:
    """The same bits on our device."""
    host = array.cpu()
    if dtype not in ("bf16", "e4m3"):
        return Tensor(host.numpy(), device="CUDA").realize()
    bits = host.view(torch.int16).numpy().view(np.uint16) if dtype == "bf16" else host.view(torch.uint8).numpy()
    return Tensor(bits, device="CUDA").bitcast(TYPES[dtype][0]).realize()


def random(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Random values of a type: any integer, or floats around zero."""
    if dtype == "s8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
    return torch.randn(*shape, device="cuda").to(TYPES[dtype][1])


def several(results: Any) -> list[Any]:
    """What a function gives, one result or several."""
    return list(results) if isinstance(results, tuple) else [results]


def launches(results: Sequence[Tensor]) -> list[tuple[Any, list[Any], list[int]]]:
    """The kernels of lazy tensors with their memory, ready to be launched again and again."""
    plan = results[0].schedule(*results[1:])
    bind_parts(plan.memory.arenas, plan.memory.places, {})
    return [
        (get_kernel(c.ast, c.device).program, [buffer_of(b) for b in c.buffers], [plan.values[v] for v in c.variables])
        for c in plan.calls
    ]


def our_seconds(gpu: Any, kernels: list[tuple[Any, list[Any], list[int]]], count: int) -> float:
    """Seconds of one run among `count`."""
    begin, end = (gpu.call("cuEventCreate", 0) for _ in range(2))
    gpu.call("cuEventRecord", begin, gpu.stream)
    for _ in range(count):
        for program, buffers, values in kernels:
            program(buffers, values)
    gpu.call("cuEventRecord", end, gpu.stream)
    gpu.synchronize()
    return float(gpu.call("cuEventElapsedTime", begin, end)) / count / 1e3


def their_seconds(function: Callable[[], Any], count: int) -> float:
    """Seconds of one run among `count`."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        function()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / count / 1e3


def compare(gpu: Any, row: Row, beam: int) -> str:
    """One line of the table."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = row.tf32
    theirs = [random(shape, row.dtype) for shape in row.shapes]
    mine = [to_tensor(array, row.dtype) for array in theirs]
    wanted = [x.float() for x in several(row.theirs(*theirs))]
    results = several(row.ours(*mine))
    Tensor.realize(*results)
    found = [torch.from_numpy(x.cast(dtypes.float32).numpy()).cuda() for x in results]
    errors = [(a - b).abs().max() / (b.abs().max() + 1e-30) for a, b in zip(found, wanted, strict=True)]
    error = max(float(e) for e in errors)
    if not error < 0.02:
        return f"| {row.name} | {row.dtype} | wrong: {error:.1e} | | | | | |"
    del wanted, found, results
    with scope(BEAM=beam):
        kernels = launches(several(row.ours(*mine)))
    our_seconds(gpu, kernels, 2)
    kernels = kernels[row.before :]
    run = row.timed(*theirs) if row.timed is not None else lambda: row.theirs(*theirs)
    guess = our_seconds(gpu, kernels, 2)
    count = max(3, min(200, int(TARGET_MS / 1e3 / guess)))
    pairs = []
    for _ in range(ROUNDS):
        pairs.append((our_seconds(gpu, kernels, count), their_seconds(run, count)))
    ours, others = (statistics.median(column) for column in zip(*pairs, strict=True))
    scale = 1e9 if row.unit == "GB/s" else 1e12
    return (
        f"| {row.name} | {row.dtype} | {ours * 1e3:.3f} | {row.work / ours / scale:.4g} {row.unit} "
        f"| {others * 1e3:.3f} | {row.work / others / scale:.4g} | {others / ours:.2f} | {error:.0e} | {len(kernels)} |"
    )


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="beginnings of names of rows, by commas")
    parser.add_argument("--beam", type=int, default=0, help="search schedules, keep so many at a time")
    parser.add_argument("--output", type=Path, help="write the table to this file, too")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    backend: Any = Device["CUDA"]
    lines = [
        "# Results on a GPU",
        "",
        "Written by `python benchmarks/gpu.py --output benchmarks/RESULTS-cuda.md`; do not edit by hand.",
        "",
        f"* Date: {datetime.date.today()}",
        f"* {torch.cuda.get_device_name()}, torch {torch.__version__}; medians of {ROUNDS} rounds in turns",
        "* Ratios above 1: gradlet is faster. An error is the largest difference by the largest value.",
        "",
        "| row | type | gradlet ms | rate | torch ms | its rate | ratio | error | kernels |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for row in rows():
        if options.only and not row.name.startswith(tuple(options.only.split(","))):
            continue
        with scope(ALLOW_TF32=int(row.tf32)):
            lines.append(compare(backend.gpu, row, options.beam))
        print(lines[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
