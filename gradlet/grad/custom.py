"""Derivatives that replace those of the ops behind a node: rules of a user's own, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.grad.shapes import expand, reshape, shrink
from gradlet.graph.node import UOp, mk, substitute, toposort
from gradlet.ops.op import Op, VariableArg

NodeRule = Callable[[UOp], Sequence[UOp | None]]
# (root, seed, targets, custom) -> gradients: the reverse walk.
Walk = Callable[[UOp, UOp, Sequence[UOp], "Mapping[UOp, CustomGradient]"], Sequence[UOp | None]]

# 0 at every launch, which no rewrite can know.
NEVER: Final = VariableArg("never", 0, 1)


class CustomGradient(NamedTuple):
    """A derivative that replaces the ones of the ops behind a node.

    Attributes:
        inputs: nodes that the node is computed from; nothing else behind it receives a gradient through it.
        rule: gradient of the node -> gradient of each input, None where there is none.
    """

    inputs: tuple[UOp, ...]
    rule: NodeRule


def own_derivatives(order: Sequence[UOp], wanted: set[UOp], walk: Walk) -> dict[UOp, CustomGradient]:
    """The DERIVATIVE nodes of a graph, each with what it says.

    Args:
        order: the nodes of the graph, sources first.
        wanted: the nodes whose gradients are asked for.
        walk: the reverse walk, for checkpoints.
    """
    found = {}
    for node in order:
        if node.op is not Op.DERIVATIVE:
            continue
        if node.arg.takes_inputs:
            found[node] = CustomGradient(node.src[1:], _of_inputs(node))
        elif node.arg.rule is not None:
            found[node] = CustomGradient(node.src[1:], node.arg.rule)
        else:
            found[node] = _checkpoint(node, wanted, walk)
    return found


def _of_inputs(node: UOp) -> NodeRule:
    """The rule of a function of its inputs."""
    return lambda gradient: node.arg.rule(gradient, *node.src[1:])


def _checkpoint(node: UOp, wanted: set[UOp], walk: Walk) -> CustomGradient:
    """The ordinary derivative of the value, computed once more from the inputs when the gradient is there.

    Chen et al. 2016, "Training deep nets with sublinear memory cost". What is asked for inside is an input as well.
    """
    value, boundary = node.src[0], tuple(dict.fromkeys(node.src[1:]))
    inside = tuple(n for n in toposort((value,)) if n in wanted and n not in boundary)

    def rule(gradient: UOp) -> Sequence[UOp | None]:
        again = {source: after(source, gradient) for source in boundary}
        new_value, *new_inside = substitute((value, *inside), again)
        # What lies behind an input belongs to the walk outside.
        ends = {source: CustomGradient((), lambda _: ()) for source in again.values()}
        floats = [source for source in boundary if source.dtype.is_float]
        found = walk(new_value, gradient, [*[again[s] for s in floats], *new_inside], ends)
        by_source = dict(zip((*floats, *inside), found, strict=True))
        return [by_source.get(source) for source in (*boundary, *inside)]

    return CustomGradient((*boundary, *inside), rule)


def after(source: UOp, gradient: UOp) -> UOp:
    """A copy of `source` that cannot be made before `gradient` is there.

    It reads an element of the gradient, for a condition that never holds.
    """
    if 0 in gradient.shape or 0 in source.shape:
        return source
    element = reshape(shrink(gradient, [(0, 1)] * len(gradient.shape)), ())
    variable = mk(Op.VARIABLE, dtypes.index, (), NEVER)
    never = mk(Op.BIND, dtypes.index, (variable, UOp.const(dtypes.index, 0)), None)
    condition = (element.lt(0.0).cast(dtypes.int32) * never.cast(dtypes.int32)).ne(0)
    wide = expand(reshape(condition, (1,) * len(source.shape)), source.shape)
    return mk(Op.CONTIGUOUS, source.dtype, (wide.where(source.coerce(0), source),), None)
