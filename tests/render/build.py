"""Linear programs built by hand, and three ways to run them: machine code, and the reference interpreter."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.device.common.llvm import emit_object
from gradlet.device.cpu.jit import load
from gradlet.graph import numeric
from gradlet.graph.evaluate_linear import run_linear
from gradlet.graph.node import UOp, mk
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AccArg, AxisKind, LaneArg, Op, ParamArg, RangeArg, ReduceArg, VariableArg
from gradlet.render.llvmir import render
from gradlet.target.target import Target


class Build:
    """Appends nodes in execution order; sources that are not listed yet go before them."""

    def __init__(self, name: str = "kernel") -> None:
        self.name = name
        self.uops: list[UOp] = []
        self.listed: set[UOp] = set()
        self.params: list[UOp] = []
        self.written: list[int] = []
        self.variables: list[UOp] = []
        self.grid = 1
        self.threads = 1
        self.numbers = 0

    def emit(self, node: UOp) -> UOp:
        # Depth first, so that the order does not depend on which nodes live from earlier tests.
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [s for s in top.src if s not in self.listed and s.op is not Op.RANGE]
            if top in self.listed:
                stack.pop()
            elif waiting:
                stack.extend(reversed(waiting))
            else:
                self.append(stack.pop())
        return node

    def append(self, node: UOp) -> UOp:
        self.uops.append(node)
        self.listed.add(node)
        return node

    def const(self, value: Any, dtype: DType = dtypes.index) -> UOp:
        return UOp.const(dtype, value)

    def param(self, dtype: DType, size: int) -> UOp:
        node = mk(Op.PARAM, dtype, (), ParamArg(len(self.params), size))
        self.params.append(node)
        return self.append(node)

    def variable(self, name: str, low: int, high: int, dtype: DType = dtypes.index) -> UOp:
        node = mk(Op.VARIABLE, dtype, (), VariableArg(name, low, high))
        self.variables.append(node)
        return self.append(node)

    def range(self, size: int | UOp, kind: AxisKind = AxisKind.LOOP, dtype: DType = dtypes.index) -> UOp:
        """A loop variable; `open` begins the loop."""
        bound = size if isinstance(size, UOp) else UOp.const(dtype, size)
        node = mk(Op.RANGE, dtype, (bound,), RangeArg(self.numbers, kind))
        self.numbers += 1
        if kind is AxisKind.PARALLEL and isinstance(size, int):
            self.grid = size
        if kind is AxisKind.THREAD and isinstance(size, int):
            self.threads *= size
        return node

    def open(self, node: UOp) -> UOp:
        self.emit(node.src[0])
        return self.append(node)

    def loop(self, size: int | UOp, kind: AxisKind = AxisKind.LOOP, dtype: DType = dtypes.index) -> UOp:
        return self.open(self.range(size, kind, dtype))

    def end(self, node: UOp) -> None:
        self.append(mk(Op.END, dtypes.void, (node,)))

    def index(self, param: UOp, element: UOp | int, gate: UOp | None = None) -> UOp:
        number = element if isinstance(element, UOp) else self.const(element)
        return mk(Op.INDEX, param.dtype, (param, number) if gate is None else (param, number, gate))

    def load(
        self, param: UOp, element: UOp | int, lanes: int = 1, gate: UOp | None = None, other: UOp | None = None
    ) -> UOp:
        address = self.index(param, element, gate)
        src = (
            (address,)
            if gate is None
            else (address, other if other is not None else UOp.const(param.dtype.vec(lanes), 0))
        )
        return self.emit(mk(Op.LOAD, param.dtype.vec(lanes), src))

    def store(self, param: UOp, element: UOp | int, value: UOp, gate: UOp | None = None) -> None:
        if param.arg.slot not in self.written:
            self.written.append(param.arg.slot)
        self.emit(mk(Op.STORE, dtypes.void, (self.index(param, element, gate), value)))

    def acc(self, initial: UOp, *ranges: UOp, number: int = 0) -> UOp:
        self.emit(initial)
        return self.append(mk(Op.ACC, initial.dtype, (initial, *ranges), AccArg(number)))

    def update(self, acc: UOp, value: UOp) -> UOp:
        self.emit(value)
        return self.append(mk(Op.UPDATE, acc.dtype, (acc, value)))

    def broadcast(self, scalar: UOp, lanes: int) -> UOp:
        return mk(Op.VECTORIZE, scalar.dtype.vec(lanes), (scalar,) * lanes)

    def vector(self, *scalars: UOp) -> UOp:
        return mk(Op.VECTORIZE, scalars[0].dtype.vec(len(scalars)), scalars)

    def lane(self, vector: UOp, number: int) -> UOp:
        return mk(Op.EXTRACT, vector.dtype.scalar, (vector,), LaneArg(number))

    def reduce_lanes(self, op: Op, vector: UOp) -> UOp:
        return mk(Op.REDUCE_LANES, vector.dtype.scalar, (vector,), ReduceArg(op))

    def program(self, flops: int = 0, nbytes: int = 0) -> LinearProgram:
        return LinearProgram(
            self.name, tuple(self.uops), tuple(self.params), tuple(self.written), tuple(self.variables), self.grid,
            self.threads, flops, nbytes,
        )  # fmt: skip


def storage(dtype: DType) -> np.dtype[Any]:
    """numpy type of a buffer; floats that numpy lacks are their bits."""
    return numeric.storage_type(dtype)


def execute(
    program: LinearProgram, target: Target, arrays: Sequence[np.ndarray[Any, Any]], values: Sequence[int] = (),
    part: tuple[int, int] | None = None,
) -> None:  # fmt: skip
    """Compile for this machine and run; arrays change in place."""
    code = load(emit_object(render(program, target), target), (program.name,))
    words = [a.ctypes.data for a in arrays] + list(values)
    table = ctypes.create_string_buffer(struct.pack(f"<{len(words)}q", *words))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(code.addresses[program.name])
    begin, end = part or (0, program.grid)
    function(ctypes.addressof(table), begin, end)


def run_both(
    program: LinearProgram, target: Target, arrays: Sequence[np.ndarray[Any, Any]], values: Sequence[int] = (),
    part: tuple[int, int] | None = None,
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:  # fmt: skip
    """The arrays after machine code and after the interpreter."""
    machine, reference = [a.copy() for a in arrays], [a.copy() for a in arrays]
    execute(program, target, machine, values, part)
    variables = dict(zip(program.variables, values, strict=True))
    begin, end = part or (0, program.grid)
    run_linear(program, reference, variables, begin, end)
    return machine, reference


def assert_same_bits(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], dtype: DType) -> None:
    """Equal including the sign of zero; any NaN equals any other."""
    a, e = actual.reshape(-1).view(storage(dtype)), expected.reshape(-1).view(storage(dtype))
    bits = np.dtype(f"u{a.dtype.itemsize}")
    same = a.view(bits) == e.view(bits)
    if dtype.is_float:
        same |= np.isnan(numeric.load(a, dtype)) & np.isnan(numeric.load(e, dtype))
    wrong = np.flatnonzero(~same)
    assert wrong.size == 0, f"{wrong.size} differ, first at {wrong[0]}: got {a[wrong[0]]!r}, expected {e[wrong[0]]!r}"
