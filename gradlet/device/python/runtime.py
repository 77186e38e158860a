"""The reference evaluator as a backend: host memory, no code generation, the oracle of the operator suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from gradlet.base.dtype import dtypes
from gradlet.base.errors import DeviceError
from gradlet.device.common.hostmemory import HostAllocator
from gradlet.graph import numeric
from gradlet.graph.evaluate import run_kernel, run_launch
from gradlet.graph.launch import is_launch, variables_in_order
from gradlet.graph.node import UOp
from gradlet.graph.program import AnyProgram
from gradlet.ops.op import Op
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.device import Program
from gradlet.target.target import AVX2, Target

# The facts only set prices for the scheduler; the evaluator computes in every type.
TARGET: Final[Target] = replace(AVX2, name="python", cores=1, native_dtypes=frozenset({*dtypes.all(), dtypes.index}))


class PythonBackend:
    """Runs kernel graphs with numpy. It is slow and exact: every op is rounded to its type."""

    interprets: Final = True
    measurable: Final = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.target = TARGET
        self.allocator = HostAllocator(name)

    def run(self, ast: UOp, buffers: Sequence[Buffer], values: Sequence[int]) -> None:
        """Run one kernel, or one launch of several.

        Args:
            ast: a SINK of the KERNEL stage.
            buffers: memory by slot; it may be larger than the PARAM says.
            values: values of the variables v0, v1, ...
        """
        if is_launch(ast.arg):
            run_launch(ast, [np.frombuffer(b.memory(), np.uint8) for b in buffers], values)
            return
        nodes = ast.toposort()
        arrays = [np.zeros(0, np.uint8)] * len(buffers)
        for param in nodes:
            if param.op is Op.PARAM:
                kind = numeric.storage_type(param.dtype)
                nbytes = param.arg.size * kind.itemsize
                memory = np.frombuffer(buffers[param.arg.slot].memory(), np.uint8)
                arrays[param.arg.slot] = memory[:nbytes].view(kind)
        variables = variables_in_order(nodes)
        if len(variables) != len(values):
            raise DeviceError(f"kernel {ast.arg.name} has {len(variables)} variables, {len(values)} values were given")
        run_kernel(ast, arrays, dict(zip(variables, values, strict=True)))

    def render(self, program: AnyProgram) -> str:
        """There is no source text."""
        raise DeviceError(f"device {self.name} interprets kernels and has no source code; use device CPU to see code")

    def compile(self, program: AnyProgram) -> bytes:
        """There is no machine code."""
        raise DeviceError(f"device {self.name} interprets kernels and cannot compile; use device CPU")

    def load(self, name: str, code: bytes, program: AnyProgram) -> Program:
        """There is no machine code."""
        raise DeviceError(f"device {self.name} interprets kernels and cannot load machine code; use device CPU")


def open_backend(name: str) -> PythonBackend:
    """The device."""
    return PythonBackend(name)
