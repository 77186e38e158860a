"""The reference evaluator as a backend: host memory, no code generation, the oracle of the operator suite.

With `TC=emulate` kernels are lowered for a GPU, and the programs of its lanes are interpreted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from gradlet.base.dtype import dtypes
from gradlet.base.errors import DeviceError
from gradlet.base.settings import TC
from gradlet.device.common.hostmemory import HostAllocator
from gradlet.graph import numeric
from gradlet.graph.evaluate import run_kernel, run_launch
from gradlet.graph.evaluate_lanes import run_lanes
from gradlet.graph.launch import is_launch, variables_in_order
from gradlet.graph.node import UOp
from gradlet.graph.program import AnyProgram, LinearProgram
from gradlet.ops.op import Op
from gradlet.render import cuda
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.device import Program
from gradlet.target.target import AVX2, TARGETS, Target

# The facts only set prices for the scheduler; the evaluator computes in every type.
TARGET: Final[Target] = replace(AVX2, name="python", cores=1, native_dtypes=frozenset({*dtypes.all(), dtypes.index}))


class LaneProgram:
    """A kernel lowered for a GPU, to be interpreted."""

    def __init__(self, program: LinearProgram) -> None:
        self.program = program

    def __call__(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool = False) -> float | None:
        params = self.program.params
        arrays = [_array(p, b) for p, b in zip(params, buffers, strict=True)]
        run_lanes(self.program, arrays, dict(zip(self.program.variables, values, strict=True)))
        return 0.0 if wait else None


def _array(param: UOp, buffer: Buffer) -> np.ndarray[Any, Any]:
    """The elements that a kernel may touch; the buffer may be larger."""
    kind = np.dtype(numeric.storage_type(param.dtype))
    return np.frombuffer(buffer.memory(), np.uint8)[: param.arg.size * kind.itemsize].view(kind)


class PythonBackend:
    """Runs kernel graphs with numpy. It is slow and exact: every op is rounded to its type."""

    measurable: Final = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.allocator = HostAllocator(name)

    @property
    def interprets(self) -> bool:
        """Whether kernels are run as they are, not lowered for a GPU."""
        return not TC.value.startswith("emulate")

    @property
    def target(self) -> Target:
        """The GPU whose lanes are interpreted, else facts that only set prices."""
        return TARGET if self.interprets else TARGETS[TC.value.partition(":")[2] or "sm_90"]

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
                arrays[param.arg.slot] = _array(param, buffers[param.arg.slot])
        variables = variables_in_order(nodes)
        if len(variables) != len(values):
            raise DeviceError(f"kernel {ast.arg.name} has {len(variables)} variables, {len(values)} values were given")
        run_kernel(ast, arrays, dict(zip(variables, values, strict=True)))

    def render(self, program: AnyProgram) -> str:
        """CUDA C where a GPU is emulated, to look at; else there is no source text."""
        if not self.interprets:
            return cuda.render(program, self.target)
        raise DeviceError(f"device {self.name} interprets kernels and has no source code; use device CPU to see code")

    def compile(self, program: AnyProgram) -> bytes:
        """The text where a GPU is emulated; else there is no machine code."""
        return self.assemble(self.render(program), program.name)

    def assemble(self, source: str, name: str) -> bytes:
        """The text as it is."""
        return source.encode()

    def load(self, name: str, code: bytes, program: AnyProgram) -> Program:
        """The program of lanes where a GPU is emulated; else there is no machine code."""
        if not self.interprets and isinstance(program, LinearProgram):
            return LaneProgram(program)
        raise DeviceError(f"device {self.name} interprets kernels and cannot load machine code; use device CPU")


def open_backend(name: str) -> PythonBackend:
    """The device."""
    return PythonBackend(name)
