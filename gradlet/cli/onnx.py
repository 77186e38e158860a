"""`gradlet onnx run | info | bench model.onnx`: what a model takes, what it computes, how long that takes."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

from gradlet.base.errors import ArgumentError, GradletError
from gradlet.base.report import human_seconds
from gradlet.onnx.elements import STRING, numpy_type
from gradlet.onnx.graph import Graph, Info
from gradlet.onnx.registry import domain_name
from gradlet.onnx.runner import OnnxRunner

USUAL: Final = 64  # a size with which most models run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `onnx` takes."""
    parser.add_argument("action", choices=("run", "info", "bench"), help="compute, describe, or time")
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input from a numpy file; others are random",
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="a size that the file leaves open; 1 by default"
    )
    parser.add_argument("--output", metavar="FILE.npz", help="write the results of `run` to a numpy file")
    parser.add_argument("--device", help="where to run; the default device otherwise")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of `bench`")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    begin = time.perf_counter()
    runner = OnnxRunner(arguments.model, arguments.device)
    loaded = time.perf_counter() - begin
    if arguments.action == "info":
        _describe(runner)
        _describe_sizes(runner, arguments)
        return 0
    inputs = _inputs(runner, arguments)
    if arguments.action == "run":
        results = runner(inputs)
        for name, value in results.items():
            print(f"{name}: {_shown(value)}")
        if arguments.output:
            found: dict[str, Any] = {
                n: _array(v) for n, v in results.items() if not isinstance(v, list) and v is not None
            }
            np.savez(arguments.output, **found)
        return 0
    begin = time.perf_counter()
    runner(inputs)
    first = time.perf_counter() - begin
    runner(inputs)
    times = []
    for _ in range(max(1, arguments.rounds)):
        begin = time.perf_counter()
        runner(inputs)
        times.append(time.perf_counter() - begin)
    times.sort()
    print(f"load {human_seconds(loaded)}, first call {human_seconds(first)}")
    print(f"call {human_seconds(times[len(times) // 2])} (median of {len(times)}), best {human_seconds(times[0])}")
    return 0


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    made = {}
    for text in texts:
        name, sign, value = text.rpartition("=")
        if not sign:
            raise ArgumentError(f"--{option} {text!r}: write NAME=VALUE")
        made[name] = value
    return made


def _inputs(runner: OnnxRunner, arguments: argparse.Namespace, size: int = 1) -> dict[str, Any]:
    files, sizes = _pairs(arguments.input, "input"), _pairs(arguments.size, "size")
    unknown = sorted(set(files) - {i.name for i in runner.inputs})
    if unknown:
        raise ArgumentError(f"the model has no input {unknown[0]!r}; it has {', '.join(i.name for i in runner.inputs)}")
    generator = np.random.default_rng(arguments.seed)
    made: dict[str, Any] = {}
    for info in runner.inputs:
        if info.name in files:
            if not Path(files[info.name]).is_file():
                raise ArgumentError(f"--input {info.name}: {files[info.name]} is no file")
            made[info.name] = np.load(files[info.name], allow_pickle=False)
        elif info.kind == "tensor":
            made[info.name] = _random(info, sizes, generator, size)
    return made


def _random(info: Info, sizes: dict[str, str], generator: np.random.Generator, default: int) -> Any:
    """Random numbers in the shape that the file declares."""
    shape = []
    for axis, size in enumerate(info.shape or ()):
        text = sizes.get(size if isinstance(size, str) else f"{info.name}.{axis}")
        if text is not None and not text.isdigit():
            raise ArgumentError(f"--size {text!r} is no number")
        shape.append(size if isinstance(size, int) and size > 0 and text is None else int(text or default))
    if info.elem == STRING:
        return np.full(shape, "text", object)
    kind = numpy_type(info.elem)
    if kind.kind in "iub":
        return generator.integers(0, 2, shape).astype(kind)
    return generator.standard_normal(shape).astype(kind)


def _array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else value.numpy()


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    array = _array(value)
    text = np.array2string(array, threshold=6, edgeitems=2, precision=5)
    return f"{array.dtype}{list(array.shape)} {' '.join(text.split())}"


def _count(graph: Graph, counts: Counter[str]) -> None:
    for node in graph.nodes:
        counts[f"{domain_name(node.domain)}.{node.op}" if node.domain else node.op] += 1
        for value in node.attributes.values():
            if isinstance(value, Graph):
                _count(value, counts)


def _describe_sizes(runner: OnnxRunner, arguments: argparse.Namespace) -> None:
    """Which sizes one capture serves, found out at the sizes that were given."""
    try:
        found = runner.open_sizes(_inputs(runner, arguments, USUAL))
    except GradletError as error:
        print(f"sizes that vary: not found out with sizes of {USUAL}, give others with --size: {error}")
        return
    if found:
        print("sizes that vary:")
        for name, text in found.items():
            print(f"  {name}: {text}")


def _describe(runner: OnnxRunner) -> None:
    model = runner.model
    versions = ", ".join(f"{domain_name(d)} {v}" for d, v in sorted(model.opsets.items()))
    print(f"{model.producer or 'unknown producer'}; format {model.ir_version}; operators of {versions}")
    for title, infos in (("inputs", runner.inputs), ("outputs", runner.outputs)):
        print(f"{title}:")
        for info in infos:
            print(f"  {info.name}: {info}")
    weights = model.graph.constants.values()
    elements = sum(int(np.prod(v.shape)) for v in weights)
    print(f"weights: {len(model.graph.constants)} tensors, {elements:,} elements")
    counts: Counter[str] = Counter()
    _count(model.graph, counts)
    print(f"nodes: {sum(counts.values())}")
    for name, number in counts.most_common():
        print(f"  {number:5} {name}")
    for key, value in model.metadata.items():
        print(f"{key}: {value if len(value) < 80 else value[:77] + '...'}")
