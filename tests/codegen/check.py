"""Run a kernel at either stage and compare with its numpy result."""

from __future__ import annotations

import numpy as np

from gradlet.codegen import pipeline
from gradlet.graph.evaluate import run_kernel, run_linear
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.graph.spec import check_program
from gradlet.target.target import Target
from tests.codegen.kernels import Array, Kernel


def assert_expected(kernel: Kernel, arrays: list[Array]) -> None:
    """The written slots hold what numpy computed; the others are unchanged."""
    for slot, array in enumerate(arrays):
        expected = kernel.expected.get(slot, kernel.arrays[slot]).reshape(-1)
        got = array.reshape(-1)
        if expected.dtype.kind == "f":
            loose = expected.dtype == np.float16
            np.testing.assert_allclose(
                got.astype(np.float64), expected.astype(np.float64), rtol=3e-3 if loose else 1e-4, atol=2e-5
            )
        else:
            np.testing.assert_array_equal(got, expected)


def check_kernel(kernel: Kernel, sink: UOp | None = None) -> None:
    """Evaluate at the KERNEL stage."""
    arrays = [a.copy() for a in kernel.arrays]
    run_kernel(kernel.sink if sink is None else sink, arrays, kernel.variables)
    assert_expected(kernel, arrays)


def check_linear(kernel: Kernel, target: Target, sink: UOp | None = None) -> LinearProgram:
    """Lower, check the program against its spec, run it."""
    program = pipeline.lower(kernel.sink if sink is None else sink, target)
    check_program(program)
    arrays = [a.copy() for a in kernel.arrays]
    run_linear(program, arrays, kernel.variables)
    assert_expected(kernel, arrays)
    return program
