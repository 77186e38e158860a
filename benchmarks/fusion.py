"""How 48 programs are cut into kernels: counts and bytes beside others, results beside torch, times beside not fusing.

python benchmarks/fusion.py                    the table of counts
python benchmarks/fusion.py --check            also compare every result with torch
python benchmarks/fusion.py --time             also time every program as chosen, with kernels one a launch, and unfused
python benchmarks/fusion.py softmax sort       only programs with these words in their names
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fusion_programs import PROGRAMS, Inputs, Program

import gradlet
from gradlet import Tensor
from gradlet.schedule.calls import KernelCall, Schedule
from gradlet.schedule.traffic import traffic_of

ROUNDS = 9


class GradletApi:
    """What gradlet spells in its own way."""

    cat = staticmethod(lambda tensors, axis: tensors[0].cat(*tensors[1:], dim=axis))
    where = staticmethod(lambda mask, x, other: mask.where(x, other))
    count = staticmethod(lambda mask: mask.sum())
    amax = staticmethod(lambda x, axis: x.max(axis))
    at_most = staticmethod(lambda x, limit: x.minimum(limit))
    ids = staticmethod(lambda ids: ids)
    embedding = staticmethod(lambda table, ids: table[ids])
    one_hot = staticmethod(lambda ids, classes: ids.one_hot(classes).float())
    conv = staticmethod(lambda x, k: x.conv2d(k, padding=1))
    max_pool = staticmethod(lambda x: x.max_pool2d((2, 2)))
    bilinear = staticmethod(lambda x, size: x.interpolate(size))
    cross_entropy = staticmethod(lambda x, y: x.cross_entropy(y))
    layer_norm = staticmethod(lambda x, w, b: x.layernorm() * w + b)
    assign = staticmethod(lambda target, value: target.assign(value))

    @staticmethod
    def dropout(x: Tensor, p: float) -> Tensor:
        with Tensor.train():
            return x.dropout(p)

    @staticmethod
    def scatter_add(x: Tensor, axis: int, ids: Tensor, values: Tensor) -> Tensor:
        return x.scatter_reduce(axis, ids, values, "sum")

    @staticmethod
    def causal(scores: Tensor) -> Tensor:
        size = scores.shape[-1]
        return Tensor.ones(size, size, dtype="bool").tril().where(scores, float("-inf"))

    @staticmethod
    def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean = x.mean((0, 2, 3))
        gap = x - mean.reshape(1, -1, 1, 1)
        return x.batchnorm(w, b, mean, ((gap * gap).mean((0, 2, 3)) + 1e-5).rsqrt())

    @staticmethod
    def group_norm(x: Tensor, groups: int, w: Tensor, b: Tensor) -> Tensor:
        normed = x.reshape(x.shape[0], groups, -1).layernorm(-1, 1e-5).reshape(x.shape)
        return normed * w.reshape(1, -1, 1, 1) + b.reshape(1, -1, 1, 1)

    @staticmethod
    def grad(outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None], targets: Sequence[Tensor]) -> list[Tensor]:
        return list(outputs[0].gradient(*targets, gradient=cotangents[0]))


class TorchApi:
    """The same for torch."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        functional = torch.nn.functional
        self.where = lambda mask, x, other: torch.where(mask, x, other)
        self.count = lambda mask: mask.sum()
        self.amax = lambda x, axis: x.amax(axis)
        self.at_most = lambda x, limit: x.clamp(max=limit)
        self.ids = lambda ids: ids.long()
        self.cat = lambda tensors, axis: torch.cat(tensors, axis)
        self.embedding = lambda table, ids: table[ids.long()]
        self.one_hot = lambda ids, classes: functional.one_hot(ids.long(), classes).float()
        self.conv = lambda x, k: functional.conv2d(x, k, padding=1)
        self.max_pool = lambda x: functional.max_pool2d(x, 2)
        self.bilinear = lambda x, size: functional.interpolate(x, size=size, mode="bilinear")
        self.cross_entropy = lambda x, y: functional.cross_entropy(x, y.long())
        self.layer_norm = lambda x, w, b: functional.layer_norm(x, w.shape, w, b)
        self.batch_norm = lambda x, w, b: functional.batch_norm(x, None, None, w, b, True)
        self.group_norm = lambda x, groups, w, b: functional.group_norm(x, groups, w, b)
        self.scatter_add = lambda x, axis, ids, values: x.scatter_add(axis, ids.long(), values)
        self.dropout = lambda x, p: functional.dropout(x, p)

    def assign(self, target: Any, value: Any) -> Any:
        return value.clone()

    def causal(self, scores: Any) -> Any:
        size = scores.shape[-1]
        return scores.masked_fill(~self.torch.ones(size, size, dtype=self.torch.bool).tril(), float("-inf"))

    def grad(self, outputs: Sequence[Any], cotangents: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
        return list(self.torch.autograd.grad(outputs[0], targets, cotangents[0]))


@dataclass
class Row:
    """One program, measured."""

    program: Program
    kernels: int
    megabytes: float
    error: float | None = None
    times: tuple[float, ...] = ()  # as chosen, fused kernels one a launch, an operation a kernel


def tensors(inputs: Inputs) -> dict[str, Tensor]:
    """The inputs in memory."""
    made = {key: Tensor(value) for key, value in inputs.items()}
    for tensor in made.values():
        tensor.contiguous().realize()
    return made


def build(program: Program, inputs: Inputs) -> list[Tensor]:
    """The lazy results of a program."""
    return program.run(GradletApi, **tensors(inputs))


def schedule(results: Sequence[Tensor]) -> Schedule:
    """The kernels that would run."""
    first, *rest = results
    return first.schedule(*rest)


def count(program: Program, inputs: Inputs) -> Row:
    """Kernels and bytes."""
    calls = schedule(build(program, inputs)).calls
    moved = sum(traffic_of(call).bytes for call in calls if isinstance(call, KernelCall))
    return Row(program, len(calls), moved / 1e6)


def compare(program: Program, inputs: Inputs) -> float:
    """The largest difference to torch, relative to the size of the result."""
    import torch

    mine = build(program, inputs)
    mine[0].realize(*mine[1:])
    other = {k: torch.tensor(v) for k, v in inputs.items()}
    if "gradient" in program.name and "norm clipped" not in program.name:
        other = {k: v.requires_grad_() if v.is_floating_point() and k != "g" else v for k, v in other.items()}
    theirs = program.run(TorchApi(), **other)
    worst = 0.0
    for a, b in zip(mine, theirs, strict=True):
        left, right = a.numpy().astype(np.float64), b.detach().numpy().astype(np.float64)
        if left.shape != right.shape:
            raise SystemExit(f"{program.name}: shape {left.shape}, torch has {right.shape}")
        scale = max(float(np.abs(right).max()), 1e-30)
        worst = max(worst, float(np.abs(left - right).max()) / scale)
    return worst


def runner(program: Program, inputs: Inputs) -> Any:
    """The program as a jitted function of its inputs, compiled."""
    arguments = tensors(inputs)
    names = list(arguments)

    def call(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(program.run(GradletApi, **dict(zip(names, values, strict=True))))

    compiled = gradlet.jit(call)
    values = list(arguments.values())

    def run() -> None:
        for result in compiled(*values):
            result.realize()

    for _ in range(3):
        run()
    return run


def measure(program: Program, inputs: Inputs) -> tuple[float, ...]:
    """Median seconds as chosen, with fused kernels one a launch, and with a kernel an operation; interleaved."""
    runs = []
    for level in (2, 1, 0):
        with gradlet.Context(FUSE=level):
            runs.append(runner(program, inputs))
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, record in zip(runs, times, strict=True):
            run()
            start = time.perf_counter()
            run()
            record.append(time.perf_counter() - start)
    return tuple(statistics.median(record) for record in times)


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    timed = any(r.times for r in rows)
    head = ["program", "ideal", "gradlet", "tinygrad", "inductor", "xla"]
    head += ["difference to torch"] if any(r.error is not None for r in rows) else []
    head += ["ms", "kernels alone", "unfused", "to the faster"] if timed else []
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        a = row.program.anchor
        cells = [row.program.name, _pair(*a.ideal), f"**{row.kernels}** / {_size(row.megabytes)}",
                 _pair(*a.tinygrad), _pair(*a.inductor), _pair(*a.xla)]  # fmt: skip
        if row.error is not None:
            cells.append("random" if row.program.random else f"{row.error:.0e}")
        if row.times:
            cells += [*[f"{t * 1e3:.3f}" for t in row.times], f"{row.times[0] / min(row.times[1:]):.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    kernels = [sum(r.program.anchor.__dict__[k][0] for r in rows) for k in ("ideal", "tinygrad", "inductor", "xla")]
    lines += ["", f"Kernels in all: ideal {kernels[0]}, gradlet {sum(r.kernels for r in rows)}, tinygrad {kernels[1]}, "
              f"inductor {kernels[2]}, xla {kernels[3]}."]  # fmt: skip
    return "\n".join(lines)


def _pair(kernels: int, megabytes: float | None) -> str:
    return f"{kernels} / {'?' if megabytes is None else _size(megabytes)}"


def _size(megabytes: float) -> str:
    return f"{megabytes:.3g}" if megabytes < 100 else f"{megabytes:.0f}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only programs with one of these words in their names")
    parser.add_argument("--check", action="store_true", help="compare results with torch")
    parser.add_argument("--time", action="store_true", help="time as chosen and with less fusion")
    options = parser.parse_args()
    with gradlet.Context(PROBE=0):  # counts are those of typical figures, the same on every machine of this kind
        print(table(measured(options)))


def measured(options: argparse.Namespace) -> list[Row]:
    """The rows that were asked for."""
    rows = []
    for program in PROGRAMS.values():
        if options.words and not any(word in program.name for word in options.words):
            continue
        inputs = program.inputs(np.random.default_rng(0))
        row = count(program, inputs)
        if options.check and not program.random:
            row.error = compare(program, inputs)
        elif options.check:
            row.error = 0.0
        if options.time:
            row.times = measure(program, inputs)
        rows.append(row)
        print(f"{program.name}: {row.kernels} kernels, {row.megabytes:.3g} MB", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    main()
