"""Leaves and evaluation for tests of gradients: graphs over buffers, computed by the reference evaluator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.grad.backward import gradients
from gradlet.grad.shapes import reshape
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import BufferArg, Op

_numbers = itertools.count(1_000_000)

DTYPES = {"float16": dtypes.float16, "float32": dtypes.float32, "float64": dtypes.float64}


class Leaves:
    """Buffers with contents; `evaluate` knows them all."""

    def __init__(self) -> None:
        self.contents: dict[UOp, np.ndarray] = {}

    def add(self, array: np.ndarray, device: str = "CPU") -> UOp:
        """A node of the array's shape and dtype that reads it from a buffer."""
        dtype = dtypes.by_name(array.dtype.name)
        node = mk(Op.BUFFER, dtype, (), BufferArg(next(_numbers), array.size, device))
        self.contents[node] = array.reshape(-1)
        return reshape(node, array.shape)

    def evaluate(self, roots: Sequence[UOp]) -> list[np.ndarray]:
        return evaluate(roots, self.contents)


def gradient_values(
    function: Callable[..., UOp], arrays: Sequence[np.ndarray], seed: np.ndarray | None = None
) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """Value of `function` at `arrays` and its gradients, weighted by `seed`."""
    leaves = Leaves()
    inputs = [leaves.add(array) for array in arrays]
    root = function(*inputs)
    targets = [node for node in inputs if node.dtype.is_float]
    found = gradients(root, None if seed is None else leaves.add(seed), targets)
    values = leaves.evaluate([root, *(node for node in found if node is not None)])
    remaining = iter(values[1:])
    return values[0], [None if node is None else next(remaining) for node in found]


def finite_difference(
    function: Callable[..., UOp], arrays: Sequence[np.ndarray], seed: np.ndarray, position: int, step: float = 1e-6
) -> np.ndarray:
    """Central differences of sum(function * seed) with respect to the array at `position`, in float64."""

    def value(changed: np.ndarray) -> float:
        leaves = Leaves()
        inputs = [leaves.add(changed if i == position else array) for i, array in enumerate(arrays)]
        return float((leaves.evaluate([function(*inputs)])[0] * seed).sum())

    base = arrays[position]
    result = np.zeros(base.shape)
    for index in np.ndindex(base.shape):
        up, down = base.copy(), base.copy()
        up[index] += step
        down[index] -= step
        result[index] = (value(up) - value(down)) / (2 * step)
    return result


def constant(value: float, dtype: DType = dtypes.float64) -> UOp:
    return UOp.const(dtype, value)
