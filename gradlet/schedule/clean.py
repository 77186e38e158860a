"""Clean-up of the tensor graph before anything is decided: variables bound, marks and empty copies gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, VariableArg
from gradlet.schedule.moves import chain_to, replay, root_of, whole_root_of

# (old node, its new sources) -> new node, or None to keep it with its new sources.
Change = Callable[[UOp, tuple[UOp, ...]], UOp | None]


def find_devices(order: Sequence[UOp]) -> dict[UOp, str]:
    """The device of every node that reads memory; constants have none."""
    devices: dict[UOp, str] = {}
    for node in order:
        if node.op in (Op.BUFFER, Op.COPY, Op.CUSTOM):
            devices[node] = node.arg.device
            continue
        for source in node.src:
            found = devices.get(source)
            if found is not None:
                devices[node] = found
                break
    return devices


def rebuild(root: UOp, change: Change) -> UOp:
    """The graph with every node given to `change`, sources first."""
    new: dict[UOp, UOp] = {}  # of what is another node now
    others, get = new.keys(), new.get
    for node in toposort((root,)):
        old = node.src
        src = old if others.isdisjoint(old) else tuple([get(s, s) for s in old])
        changed = change(node, src)
        if changed is None:
            changed = node if src is old else mk(node.op, node.dtype, src, node.arg)
        if changed is not node:
            new[node] = changed
    return new.get(root, root)


def drop_marks(root: UOp, devices: Mapping[UOp, str]) -> UOp:
    """DETACH and DERIVATIVE are nothing here; a COPY to where values are already, or of constants, copies nothing."""

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Op.DETACH or node.op is Op.DERIVATIVE:
            return src[0]
        if node.op is Op.COPY and devices.get(node.src[0]) in (None, node.arg.device):
            return src[0]
        return None

    return rebuild(root, change)


def bind_variables(root: UOp, values: dict[UOp, int], computed: int) -> UOp:
    """BIND becomes its VARIABLE, and the value is noted; a variable with one possible value is a constant.

    The first `computed` sources of the root are what is computed. In what others hold a variable may have another
    value: there it is another variable.

    Raises:
        ArgumentError: one variable bound to two values.
    """
    for node in toposort(root.src[:computed]):
        if node.op is Op.BIND and node.src[0].arg.low != node.src[0].arg.high:
            note_value(node, values)

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Op.VARIABLE and node.arg.low == node.arg.high:
            return UOp.const(node.dtype, node.arg.low)
        if node.op is not Op.BIND:
            return None
        value = int(node.src[1].arg)
        if values.setdefault(node.src[0], value) != value:
            arg = node.src[0].arg
            return mk(Op.VARIABLE, node.dtype, (), VariableArg(f"{arg.name}={value}", arg.low, arg.high))
        return src[0]

    return rebuild(root, change)


def note_value(node: UOp, values: dict[UOp, int]) -> None:
    """Remember the value of a BIND.

    Raises:
        ArgumentError: the variable has another value already.
    """
    variable, value = node.src[0], int(node.src[1].arg)
    if values.setdefault(variable, value) != value:
        raise ArgumentError(
            f"variable {variable.arg.name!r} is bound to {values[variable]} and to {value} in one computation; "
            "use two variables, or realize one result first"
        )


def keep_bases_whole(root: UOp) -> tuple[UOp, list[UOp]]:
    """Writes whose base no rule can take apart, so that simplifying leaves each view a view of its base.

    Returns:
        The graph, and the CONTIGUOUS nodes that guard bases which are not memory: they ask for no memory themselves.
    """
    guards: dict[UOp, None] = {}

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Op.WRITE:
            return None
        base, view, value = src
        chain = chain_to(view, base)
        bottom = whole_root_of(base)
        if bottom.op is Op.BUFFER or bottom.op is Op.WRITE:
            return replay(chain_to(base, bottom), mk(Op.WRITE, node.dtype, (bottom, view, value), None))
        guard = mk(Op.CONTIGUOUS, base.dtype, (base,), None)
        guards[guard] = None
        return mk(Op.WRITE, node.dtype, (guard, replay(chain, guard), value), None)

    return rebuild(root, change), list(guards)


def is_whole(node: UOp) -> bool:
    """Whether a node is exactly one op's or buffer's memory, at most reshaped."""
    bottom = root_of(node)
    while node is not bottom:
        if node.op is not Op.RESHAPE:
            return False
        node = node.src[0]
    return True
