"""What the LLVM renderer asks of a linear program: loop-carried sums, guards, strides of lanes, ranges of values."""

from __future__ import annotations

from itertools import chain
from typing import Final

from gradlet.base.dtype import DType
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op

# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_CONST: Final = Op.CONST
_INDEX: Final = Op.INDEX
_RANGE: Final = Op.RANGE
_ACC: Final = Op.ACC
_UPDATE: Final = Op.UPDATE
_END: Final = Op.END
_VECTORIZE: Final = Op.VECTORIZE


def accumulators(uops: tuple[UOp, ...]) -> tuple[dict[UOp, list[UOp]], dict[UOp, list[UOp]]]:
    """Which accumulators each loop carries, and which begin where a loop opens because their node stands inside it."""
    ends: dict[UOp, int] = {}
    updates: dict[UOp, list[int]] = {}
    position: dict[UOp, int] = {}
    for i, node in enumerate(uops):
        op = node.op
        if op is _RANGE or op is _ACC:
            position[node] = i
        elif op is _END:
            ends[node.src[0]] = i
        elif op is _UPDATE:
            updates.setdefault(node.src[0], []).append(i)
    carried: dict[UOp, list[UOp]] = {r: [] for r in ends}
    initialised_at: dict[UOp, list[UOp]] = {}
    for acc in [n for n in position if n.op is _ACC]:
        begin = position[acc]
        loops = [r for r in acc.src[1:] if r in position]
        outermost = min(loops, key=lambda r: position[r], default=None)
        if outermost is not None and position[outermost] < begin:
            initialised_at.setdefault(outermost, []).append(acc)
            begin = position[outermost] - 1
        for loop, end in ends.items():
            if begin < position[loop] and any(position[loop] < u < end for u in updates.get(acc, ())):
                carried[loop].append(acc)
    return carried, initialised_at


def gate_of(index: UOp) -> UOp | None:
    """The guard of an access: a scalar where it is the same for all lanes and the memory has a whole vector."""
    if len(index.src) < 3:
        return None
    gate = index.src[2]
    if gate.op is _VECTORIZE and all(s is gate.src[0] for s in gate.src):
        return gate.src[0] if index.src[0].arg.size >= gate.dtype.count else gate
    return gate


def address_offsets(uops: tuple[UOp, ...]) -> frozenset[UOp]:
    """The sums of an element number and a constant that only addresses need, and not after a select of a gate."""
    indices = [node for node in uops if node.op is _INDEX]
    found: set[UOp] = set()
    for node in indices:
        element = node.src[1]
        if element.op is _ADD and element.src[1].op is _CONST and element.src[0].op is not _CONST:
            found.add(element)
    for node in indices:
        gate = gate_of(node)
        gated = gate is not None and gate.dtype.count == 1
        found.difference_update(node.src if gated else node.src[2:])
    return frozenset(found.difference(chain.from_iterable([n.src for n in uops if n.op is not _INDEX])))


def lane_strides(uops: tuple[UOp, ...]) -> dict[UOp, tuple[int, int]]:
    """For every THREAD range, how many lanes one step of it is, and its size. The last range varies fastest."""
    strides: dict[UOp, tuple[int, int]] = {}
    stride = 1
    for node in reversed([n for n in uops if n.op is _RANGE]):
        if node.arg.kind is AxisKind.THREAD:
            size = int(node.src[0].arg)
            strides[node] = (stride, size)
            stride *= size
    return strides


def known_integer(node: UOp) -> int | None:
    """The value of a constant, also when it is a broadcast one."""
    if node.op is _VECTORIZE and all(s is node.src[0] for s in node.src):
        node = node.src[0]
    return int(node.arg) if node.op is _CONST else None


def is_number(node: UOp) -> bool:
    """Whether a node is a constant other than NaN."""
    if node.op is _VECTORIZE and all(s is node.src[0] for s in node.src):
        node = node.src[0]
    return node.op is _CONST and node.arg == node.arg


def is_inside(amount: UOp, dtype: DType) -> bool:
    """Whether a shift is certainly by at least 0 and less than the width of the type."""
    low, high = bounds(amount)
    return bool(low >= 0 and high < dtype.bits)


def are_positive(node: UOp) -> bool:
    """Whether a division's dividend is certainly >= 0 and its divisor certainly > 0."""
    return bool(bounds(node.src[0])[0] >= 0 and bounds(node.src[1])[0] > 0)
