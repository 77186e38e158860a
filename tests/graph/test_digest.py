"""Digests of graphs: equal for equal graphs, different for all others, in any process and order of creation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.digest import digest
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import KernelArg, Op, ParamArg
from tests.codegen import kernels

ROOT = Path(__file__).resolve().parents[2]
F32 = dtypes.float32


def const(value: float, dtype=F32) -> UOp:
    return mk(Op.CONST, dtype, (), value)


def param(slot: int, size: int = 8) -> UOp:
    return mk(Op.PARAM, F32, (), ParamArg(slot, size))


GRAPHS: list[Callable[[], UOp]] = [
    lambda: const(0.0),
    lambda: const(-0.0),
    lambda: const(float("nan")),
    lambda: const(float("inf")),
    lambda: const(1.0),
    lambda: const(1.0000001192092896),
    lambda: const(1, dtypes.int32),
    lambda: const(1, dtypes.int64),
    lambda: param(0),
    lambda: param(1),
    lambda: param(0, 9),
    lambda: mk(Op.EXP, F32, (const(1.0),), None),
    lambda: mk(Op.POW, F32, (const(1.0), const(2.0)), None),
    lambda: mk(Op.POW, F32, (const(2.0), const(1.0)), None),
    lambda: mk(Op.POW, F32, (const(1.0), const(1.0)), None),
    lambda: mk(Op.SINK, dtypes.void, (param(0), param(1)), KernelArg("one")),
    lambda: mk(Op.SINK, dtypes.void, (param(0), param(1)), KernelArg("two")),
    lambda: mk(Op.SINK, dtypes.void, (param(0), param(0)), KernelArg("one")),
]


def test_different_graphs_have_different_digests() -> None:
    assert len({digest(make()) for make in GRAPHS}) == len(GRAPHS)


@pytest.mark.parametrize("make", [lambda: kernels.elementwise(77).sink, lambda: kernels.matmul(5, 6, 7).sink])
def test_the_order_of_creation_does_not_count(make: Callable[[], UOp]) -> None:
    root = make()
    expected = digest(root)
    nodes = len(root.toposort())
    del root
    keep = [const(float(number)) for number in range(200)]  # the nodes come to lie elsewhere, with other numbers
    root = make()
    assert digest(root) == expected and len(root.toposort()) == nodes and keep


def test_processes_agree() -> None:
    code = (
        "from tests.codegen import kernels; from gradlet.graph.digest import digest;"
        "print(digest(kernels.elementwise(77).sink))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, text=True,
            capture_output=True, check=True,
        ).stdout.strip()
        for seed in "12"
    }  # fmt: skip
    assert answers == {digest(kernels.elementwise(77).sink)}
