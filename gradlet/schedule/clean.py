"""Clean-up of the tensor graph before anything is decided: variables bound, gradients' marks and empty copies gone."""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op
from gradlet.schedule.moves import root_of


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


def clean(roots: Sequence[UOp], values: dict[UOp, int]) -> tuple[dict[UOp, UOp], dict[UOp, str]]:
    """Drop DETACH, turn BIND into VARIABLE, drop copies of constants.

    Args:
        roots: the graph.
        values: receives every bound variable's value.

    Returns:
        Every old node to its new one, and the device that a dropped copy asked for, by new node.

    Raises:
        ArgumentError: one variable bound to two values.
    """
    order = toposort(roots)
    devices = find_devices(order)
    new: dict[UOp, UOp] = {}
    wanted: dict[UOp, str] = {}
    for node in order:
        op = node.op
        if op is Op.DETACH:
            new[node] = new[node.src[0]]
        elif op is Op.BIND:
            new[node] = bind(node, values)
        elif op is Op.COPY and node.src[0] not in devices:
            new[node] = new[node.src[0]]
            wanted[new[node]] = node.arg.device
        elif op is Op.COPY and devices[node.src[0]] == node.arg.device:
            new[node] = new[node.src[0]]
        else:
            src = tuple([new[s] for s in node.src])
            new[node] = node if src == node.src else mk(op, node.dtype, src, node.arg)
    return new, wanted


def bind(node: UOp, values: dict[UOp, int]) -> UOp:
    """The variable of a BIND; its value is noted.

    Raises:
        ArgumentError: the variable has another value already.
    """
    variable, value = node.src[0], int(node.src[1].arg)
    if values.setdefault(variable, value) != value:
        raise ArgumentError(
            f"variable {variable.arg.name!r} is bound to {values[variable]} and to {value} in one computation; "
            "use two variables, or realize one result first"
        )
    return variable


def is_whole(node: UOp) -> bool:
    """Whether a node is exactly one op's or buffer's memory, at most reshaped."""
    bottom = root_of(node)
    while node is not bottom:
        if node.op is not Op.RESHAPE:
            return False
        node = node.src[0]
    return True
