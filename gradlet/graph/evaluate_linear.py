"""Reference interpreter of the LINEAR stage: runs a program node by node, one loop iteration at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gradlet.base.errors import CompilerError
from gradlet.graph import numeric
from gradlet.graph.evaluate_kernel import Address, elements, empty_local, lanes, lookup, shuffle, vectorize
from gradlet.graph.node import UOp
from gradlet.graph.numeric import Array
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import ELEMENTWISE, AxisKind, Op


def run_linear(
    program: LinearProgram,
    arrays: Sequence[Array],
    variables: Mapping[UOp, int] | None = None,
    begin: int = 0,
    end: int | None = None,
) -> None:
    """Run a linear program; arrays are changed in place. For tests at small sizes.

    Args:
        program: what code generation made.
        arrays: memory by PARAM slot, contiguous; bfloat16 as uint16 bit patterns.
        variables: values of the VARIABLE nodes.
        begin: first iteration of the PARALLEL range (or first workgroup) to run.
        end: one past the last; by default all of them.
    """
    stop = program.grid if end is None else end
    specials = [n for n in program.uops if n.op is Op.SPECIAL]
    sizes = [range(begin, stop) if n.arg.name == "workgroup" else range(n.arg.size) for n in specials]
    jumps = match_loops(program.uops)
    with np.errstate(all="ignore"):
        for point in itertools.product(*sizes):
            values: dict[UOp, Any] = {n: _scalar(i) for n, i in zip(specials, point, strict=True)}
            values.update({n: numeric.constant(v, n.dtype).reshape(1) for n, v in (variables or {}).items()})
            Run(program, [a.reshape(-1) for a in arrays], values, jumps, (begin, end)).run()


def _scalar(value: int) -> Array:
    return np.array([value], np.int64)


def match_loops(uops: Sequence[UOp]) -> dict[int, int]:
    """Position of every RANGE to position of its END.

    Raises:
        CompilerError: loops do not nest.
    """
    jumps: dict[int, int] = {}
    stack: list[int] = []
    for position, node in enumerate(uops):
        if node.op is Op.RANGE:
            stack.append(position)
        elif node.op is Op.END:
            if not stack or uops[stack[-1]] is not node.src[0]:
                raise CompilerError(f"END at position {position} does not close the innermost loop")
            jumps[stack.pop()] = position
    if stack:
        raise CompilerError(f"the loop at position {stack[-1]} has no END")
    return jumps


@dataclass
class Run:
    program: LinearProgram
    arrays: list[Array]
    values: dict[UOp, Any]
    jumps: dict[int, int]
    part: tuple[int, int | None]
    locals: dict[UOp, Array] = field(default_factory=dict)

    def _part(self, loop: UOp, count: int) -> tuple[int, int]:
        """The iterations of the PARALLEL range that this call runs."""
        begin, end = self.part
        if loop.src[0].op is Op.CONST:
            return begin, count if end is None else min(count, end)
        grid = self.program.grid
        return begin * count // grid, count if end is None else end * count // grid

    def run(self) -> None:
        uops = self.program.uops
        starts = {uops[start]: start for start in self.jumps}
        limits: dict[UOp, int] = {}
        position = 0
        while position < len(uops):
            node = uops[position]
            if node.op is Op.RANGE:
                low, high = 0, int(self.values[node.src[0]].item())
                if node.arg.kind is AxisKind.PARALLEL:
                    low, high = self._part(node, high)
                limits[node] = high
                self.values[node] = numeric.constant(low, node.dtype).reshape(1)
                if low >= high:
                    position = self.jumps[position]
            elif node.op is Op.END:
                loop = node.src[0]
                following = self.values[loop] + 1
                if following.item() < limits[loop]:
                    self.values[loop] = following
                    position = starts[loop]
            else:
                self.execute(node)
            position += 1

    def execute(self, node: UOp) -> None:
        """Run one node that is not a loop."""
        if node.op in ELEMENTWISE:
            operands = [self.values[s] for s in node.src]
            self.values[node] = numeric.apply(node.op, node.dtype, operands, node.src[0].dtype)
            return
        handler = HANDLERS.get(node.op)
        if handler is None:
            raise CompilerError(f"{node.op.name} does not occur in a linear program")
        handler(self, node)

    def memory(self, param: UOp) -> Array:
        if param.op is Op.LOCAL:
            return self.locals.setdefault(param, empty_local(param))
        return np.asarray(self.arrays[param.arg.slot].view(numeric.storage_type(param.dtype)))


def _const(run: Run, node: UOp) -> None:
    run.values[node] = numeric.constant(node.arg, node.dtype).reshape(1)


def _given(run: Run, node: UOp) -> None:
    if node.op is Op.VARIABLE and node not in run.values:
        raise CompilerError(f"no value given for variable {node.arg.name}")


def _index(run: Run, node: UOp) -> None:
    gate = run.values[node.src[2]] if len(node.src) > 2 else None
    run.values[node] = Address(node.src[0], run.values[node.src[1]], gate)


def _load(run: Run, node: UOp) -> None:
    element, gate = elements(run.values[node.src[0]], node.dtype.count)
    memory = run.memory(node.src[0].src[0])
    if gate is None:
        run.values[node] = numeric.load(memory[element], node.dtype)
        return
    if not memory.size:
        memory = np.zeros(1, memory.dtype)
    run.values[node] = np.where(gate, numeric.load(memory[element], node.dtype), run.values[node.src[1]])


def _store(run: Run, node: UOp) -> None:
    count = node.src[1].dtype.count
    element, gate = elements(run.values[node.src[0]], count)
    stored = np.broadcast_to(numeric.store(run.values[node.src[1]], node.src[1].dtype), element.shape)
    memory = run.memory(node.src[0].src[0])
    if gate is None:
        memory[element] = stored
    else:
        chosen = np.broadcast_to(gate, element.shape)
        memory[element[chosen]] = stored[chosen]


def _vectorize(run: Run, node: UOp) -> None:
    run.values[node] = vectorize([run.values[s] for s in node.src], node.dtype.count)


def _extract(run: Run, node: UOp) -> None:
    whole = lanes(run.values[node.src[0]], node.src[0].dtype.count)
    run.values[node] = whole[..., node.arg.lane : node.arg.lane + 1]


def _shuffle(run: Run, node: UOp) -> None:
    run.values[node] = shuffle([run.values[s] for s in node.src], node.src[0].dtype.count, node.arg.picks)


def _lookup(run: Run, node: UOp) -> None:
    table = lanes(run.values[node.src[0]], node.src[0].dtype.count)
    run.values[node] = lookup(table, run.values[node.src[1]])


def _prefetch(run: Run, node: UOp) -> None:
    run.values[node] = run.values[node.src[0]]


def _reduce_lanes(run: Run, node: UOp) -> None:
    value = lanes(run.values[node.src[0]], node.src[0].dtype.count)
    run.values[node] = numeric.finish(numeric.partial(node.arg.op, node.dtype, value, (-1,), True), node.dtype)


def _acc(run: Run, node: UOp) -> None:
    run.values[node] = run.values[node.src[0]]


def _update(run: Run, node: UOp) -> None:
    run.values[node.src[0]] = run.values[node] = run.values[node.src[1]]


def _nothing(run: Run, node: UOp) -> None:
    pass


HANDLERS: Final[dict[Op, Callable[[Run, UOp], None]]] = {
    Op.CONST: _const,
    Op.VARIABLE: _given,
    Op.SPECIAL: _given,
    Op.PARAM: _nothing,
    Op.LOCAL: _nothing,
    Op.INDEX: _index,
    Op.LOAD: _load,
    Op.STORE: _store,
    Op.VECTORIZE: _vectorize,
    Op.EXTRACT: _extract,
    Op.SHUFFLE: _shuffle,
    Op.LOOKUP: _lookup,
    Op.PREFETCH: _prefetch,
    Op.REDUCE_LANES: _reduce_lanes,
    Op.ACC: _acc,
    Op.UPDATE: _update,
    Op.SINK: _nothing,
}
