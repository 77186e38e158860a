"""Clean-up of the tensor graph before anything is decided: variables bound, marks and empty copies gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from gradlet.base.errors import ArgumentError
from gradlet.grad.functions import rough_formula
from gradlet.graph.loose import loose_values
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, VariableArg
from gradlet.schedule.moves import chain_to, replay, root_of, whole_root_of
from gradlet.target.target import Target

# (old node, its new sources) -> new node, or None to keep it with its new sources.
Change = Callable[[UOp, tuple[UOp, ...]], UOp | None]
# What most passes ask about.
REDUCES: Final = frozenset({Op.REDUCE_AXES})
HAS_REDUCES: Final = 1 << Op.REDUCE_AXES
# Ops that say on which device they are, and what a graph that reads memory holds of them.
_PLACED: Final = frozenset({Op.BUFFER, Op.COPY, Op.CUSTOM})
_MEMORY: Final = 1 << Op.BUFFER | 1 << Op.COPY | 1 << Op.CUSTOM
_MARKS: Final = frozenset({Op.DETACH, Op.DERIVATIVE, Op.COPY})
_HAS_MARKS: Final = 1 << Op.DETACH | 1 << Op.DERIVATIVE | 1 << Op.COPY
_VARIABLES: Final = frozenset({Op.VARIABLE, Op.BIND})
_HAS_VARIABLES: Final = 1 << Op.VARIABLE | 1 << Op.BIND
_WRITES: Final = frozenset({Op.WRITE})
_HAS_WRITES: Final = 1 << Op.WRITE


def find_devices(order: Sequence[UOp]) -> dict[UOp, str]:
    """The device of every node that reads memory; constants have none. `order`: whole graphs, sources first."""
    placed = {node: node.arg.device for node in order if node.op in _PLACED}
    names = set(placed.values())
    if len(names) == 1:
        (name,) = names
        return {node: name for node in order if node.mask & _MEMORY}
    devices: dict[UOp, str] = {}
    for node in order:
        if node in placed:
            devices[node] = placed[node]
            continue
        for source in node.src:
            if source in devices:
                devices[node] = devices[source]
                break
    return devices


def rebuild(
    root: UOp,
    change: Change,
    ops: Collection[Op],
    order: Sequence[UOp] | None = None,
    new: dict[UOp, UOp] | None = None,
) -> UOp:
    """The graph with every node of some ops given to `change`, sources first.

    Args:
        root: the graph.
        change: says what a node becomes.
        ops: what it is asked about.
        order: all nodes, for who has them.
        new: gets what became of those that are other nodes now.
    """
    new = {} if new is None else new
    others, get = new.keys(), new.get
    for node in toposort((root,)) if order is None else order:
        old = node.src
        src = old if others.isdisjoint(old) else tuple([get(s, s) for s in old])
        changed = change(node, src) if node.op in ops else None
        if changed is None:
            if src is old:
                continue
            changed = mk(node.op, node.dtype, src, node.arg)
        if changed is not node:
            new[node] = changed
    return new.get(root, root)


def drop_marks(
    root: UOp, devices: Mapping[UOp, str], order: Sequence[UOp] | None = None, rough: Collection[UOp] = ()
) -> UOp:
    """DETACH and DERIVATIVE are nothing here; a COPY to where values are already, or of constants, copies nothing.

    Those in `rough` are computed by a short formula.
    """
    if not root.mask & _HAS_MARKS:
        return root

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Op.COPY and devices.get(node.src[0]) not in (None, node.arg.device):
            return None
        if node in rough:
            formula = rough_formula(node)
            return src[0] if formula is None else formula(*src[1:])
        return src[0]

    return rebuild(root, change, _MARKS, order)


def rough_functions(
    order: Sequence[UOp], devices: Mapping[UOp, str], target_of: Callable[[str], Target]
) -> frozenset[UOp]:
    """The functions of a graph that need not be exact, on targets whose instructions approximate."""
    found = [n for n in order if n.op is Op.DERIVATIVE and rough_formula(n) is not None]
    found = [n for n in found if n in devices and target_of(devices[n]).approximates]
    return loose_values(order).intersection(found) if found else frozenset()


def bind_variables(root: UOp, values: dict[UOp, int], computed: int) -> UOp:
    """BIND becomes its VARIABLE, and the value is noted; a variable with one possible value is a constant.

    The first `computed` sources of the root are what is computed. In what others hold a variable may have another
    value: there it is another variable.

    Raises:
        ArgumentError: one variable bound to two values.
    """
    if not root.mask & _HAS_VARIABLES:
        return root
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

    return rebuild(root, change, _VARIABLES)


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
    if not root.mask & _HAS_WRITES:
        return root, []
    guards: dict[UOp, None] = {}

    def change(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        base, view, value = src
        chain = chain_to(view, base)
        bottom = whole_root_of(base)
        if bottom.op is Op.BUFFER or bottom.op is Op.WRITE:
            return replay(chain_to(base, bottom), mk(Op.WRITE, node.dtype, (bottom, view, value), None))
        guard = mk(Op.CONTIGUOUS, base.dtype, (base,), None)
        guards[guard] = None
        return mk(Op.WRITE, node.dtype, (guard, replay(chain, guard), value), None)

    return rebuild(root, change, _WRITES), list(guards)


def is_whole(node: UOp) -> bool:
    """Whether a node is exactly one op's or buffer's memory, at most reshaped."""
    bottom = root_of(node)
    while node is not bottom:
        if node.op is not Op.RESHAPE:
            return False
        node = node.src[0]
    return True
