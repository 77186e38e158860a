"""Clean-up of the tensor graph before anything is decided: variables bound, marks and empty copies gone, simplified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import Op
from gradlet.rules.sets import SIMPLIFY
from gradlet.schedule.moves import chain_to, replay, root_of, whole_root_of


@dataclass
class Clean:
    """A cleaned graph.

    Attributes:
        new: roots, other live graphs and every write of the old graph to what they became.
        devices: device of the old nodes; constants have none unless a copy asked for one.
        values: this launch's value of every bound variable.
        guards: CONTIGUOUS nodes that only keep a write's base in one piece; they ask for no memory.
    """

    new: dict[UOp, UOp]
    devices: dict[UOp, str]
    values: dict[UOp, int]
    guards: set[UOp]


def find_devices(order: Sequence[UOp]) -> dict[UOp, str]:
    """The device of every node that reads memory; constants have none."""
    devices: dict[UOp, str] = {}
    for node in order:
        if node.op is Op.BUFFER or node.op is Op.COPY:
            devices[node] = node.arg.device
            continue
        for source in node.src:
            found = devices.get(source)
            if found is not None:
                devices[node] = found
                break
    return devices


def clean(roots: Sequence[UOp], live: Sequence[UOp] = ()) -> Clean:
    """Drop DETACH, turn BIND into VARIABLE, drop copies that copy nothing, simplify.

    Raises:
        ArgumentError: one variable bound to two values.
    """
    order = toposort([*roots, *live])
    devices = find_devices(order)
    values: dict[UOp, int] = {}
    guards: dict[UOp, None] = {}
    new: dict[UOp, UOp] = {}
    for node in order:
        op = node.op
        if op is Op.DETACH:
            new[node] = new[node.src[0]]
        elif op is Op.BIND:
            new[node] = bind(node, values)
        elif op is Op.COPY and devices.get(node.src[0]) in (None, node.arg.device):
            new[node] = new[node.src[0]]
        else:
            src = tuple([new[s] for s in node.src])
            if op is Op.WRITE:
                new[node] = write_on_memory(node, src, guards)
            else:
                new[node] = node if src == node.src else mk(op, node.dtype, src, node.arg)
    kept = list(dict.fromkeys([*roots, *live, *[n for n in order if n.op is Op.WRITE]]))
    simple = rewrite([*[new[n] for n in kept], *guards], SIMPLIFY)
    return Clean(dict(zip(kept, simple)), devices, values, set(simple[len(kept) :]))


def bind(node: UOp, values: dict[UOp, int]) -> UOp:
    """The variable of a BIND, whose value is noted; a constant when only one value is possible.

    Raises:
        ArgumentError: the variable has another value already.
    """
    variable, value = node.src[0], int(node.src[1].arg)
    if variable.arg.low == variable.arg.high:
        return UOp.const(variable.dtype, variable.arg.low)
    if values.setdefault(variable, value) != value:
        raise ArgumentError(
            f"variable {variable.arg.name!r} is bound to {values[variable]} and to {value} in one computation; "
            "use two variables, or realize one result first"
        )
    return variable


def write_on_memory(node: UOp, src: tuple[UOp, ...], guards: dict[UOp, None]) -> UOp:
    """A WRITE whose base no rule can take apart, so that simplifying leaves the view a view of it."""
    base, view, value = src
    chain = chain_to(view, base)
    bottom = whole_root_of(base)
    if bottom.op is Op.BUFFER or bottom.op is Op.WRITE:
        return replay(chain_to(base, bottom), mk(Op.WRITE, node.dtype, (bottom, view, value), None))
    guard = mk(Op.CONTIGUOUS, base.dtype, (base,), None)
    guards[guard] = None
    return mk(Op.WRITE, node.dtype, (guard, replay(chain, guard), value), None)


def is_whole(node: UOp) -> bool:
    """Whether a node is exactly one op's or buffer's memory, at most reshaped."""
    bottom = root_of(node)
    while node is not bottom:
        if node.op is not Op.RESHAPE:
            return False
        node = node.src[0]
    return True
