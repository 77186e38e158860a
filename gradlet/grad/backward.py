"""The reverse walk: gradients of one root with respect to any of the nodes it is computed from, as graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from gradlet.base.errors import CompilerError, GradientError
from gradlet.grad.custom import CustomGradient, own_derivatives
from gradlet.grad.derivatives import DERIVATIVES
from gradlet.grad.shapes import spread
from gradlet.grad.softmax import softmax_gradient, softmax_inputs
from gradlet.graph.extents import HAS_LIMIT, alike, extents, fill, limit
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import SCALAR_LEAVES, Op, ReduceAxesArg

_HAS_DERIVATIVE: Final = 1 << Op.DERIVATIVE


def gradients(
    root: UOp, seed: UOp | None, targets: Sequence[UOp], custom: Mapping[UOp, CustomGradient] | None = None
) -> list[UOp | None]:
    """Gradient of `root` with respect to each target, as graphs of the same shape and dtype as the targets.

    Args:
        root: what is differentiated, of a float dtype.
        seed: gradient of the root itself, shaped like it; None means 1 and needs a root of one element.
        targets: nodes of the root's graph.
        custom: nodes whose derivative the caller gives, beside those whose derivative stands in the graph.

    Returns:
        A graph a target, None for a target that no gradient reaches.

    Raises:
        GradientError: a root or target that is no float, a seed missing or of the wrong shape or dtype, or a target
            that is a bare constant (equal constants are one node, so its uses cannot be told apart).
    """
    start = _check_seed(root, seed)
    for position, target in enumerate(targets):
        _check_target(position, target)
    wanted = set(targets)
    order = toposort((root,))
    own = own_derivatives(order, wanted, gradients) if root.mask & _HAS_DERIVATIVE else {}
    custom = {**whole_softmaxes(order, wanted), **own, **(custom or {})}
    carries = _between(order, wanted, custom)
    pending: dict[UOp, list[UOp]] = {root: [start]}
    found: dict[UOp, UOp] = {}
    parts: Iterable[tuple[UOp, UOp]]
    for node in reversed(order):
        contributions = pending.pop(node, None)
        if contributions is None:
            continue
        gradient = contributions[0] if len(contributions) == 1 else balanced_sum(alike(contributions))
        if node.mask & HAS_LIMIT:
            gradient = limit(gradient, extents(node))
        if node in wanted:
            found[node] = fill(gradient, extents(node))
        if node in custom or 0 in node.shape:
            parts = _unusual_parts(node, gradient, carries, custom)
        else:
            parts = [
                (source, rule(node, gradient))
                for rule, source in zip(DERIVATIVES.get(node.op, ()), node.src)
                if rule is not None and source in carries
            ]
        for source, part in parts:
            have, shape = part.shape, source.shape
            if have != shape and not have:  # a scalar
                part, have = spread(part, shape), shape
            if part.dtype is not source.dtype or have != shape:
                expected = f"{source.dtype} {shape}"
                raise CompilerError(f"derivative of {node.op.name}: {part.dtype} {have}, not {expected}")
            waiting = pending.get(source)
            if waiting is None:
                pending[source] = [part]
            else:
                waiting.append(part)
    return [found.get(target) for target in targets]


def whole_softmaxes(order: Sequence[UOp], wanted: set[UOp]) -> dict[UOp, CustomGradient]:
    """A derivative of its own for every softmax."""

    def rule(node: UOp, sum_arg: ReduceAxesArg) -> Callable[[UOp], Sequence[UOp | None]]:
        return lambda gradient: (softmax_gradient(node, sum_arg, gradient),)

    found = softmax_inputs(order, wanted)
    return {node: CustomGradient((source,), rule(node, arg)) for node, (source, arg) in found.items()}


def _unusual_parts(
    node: UOp, gradient: UOp, carries: set[UOp], custom: Mapping[UOp, CustomGradient]
) -> Iterator[tuple[UOp, UOp]]:
    """The gradients that a node without elements, or with a derivative of its own, passes on, each with who gets it."""
    special = custom.get(node)
    if 0 in node.shape:
        # Nothing of it counts: zero for all it depends on.
        for source in dict.fromkeys(special.inputs if special is not None else node.src):
            if source in carries:
                yield source, spread(UOp.const(source.dtype, 0.0), source.shape)
    elif special is not None:
        for source, part in zip(special.inputs, special.rule(gradient), strict=True):
            if source in carries and part is not None:
                yield source, spread(part, source.shape)


def balanced_sum(terms: Sequence[UOp]) -> UOp:
    """Sum in a tree of logarithmic depth: less rounding than a chain, and a shallow graph for a node of many uses."""
    level = list(terms)
    while len(level) > 1:
        pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def _between(order: Sequence[UOp], wanted: set[UOp], custom: Mapping[UOp, CustomGradient]) -> set[UOp]:
    """The nodes that a gradient passes on its way to a target, the targets included."""
    carries: set[UOp] = set()
    for node in order:
        if node.dtype.kind != "f":
            continue
        if node in wanted:
            carries.add(node)
        elif node in custom:
            if not carries.isdisjoint(custom[node].inputs):
                carries.add(node)
        elif not carries.isdisjoint(node.src):
            for rule, source in zip(DERIVATIVES.get(node.op, ()), node.src):
                if rule is not None and source in carries:
                    carries.add(node)
                    break
    return carries


def _check_seed(root: UOp, seed: UOp | None) -> UOp:
    if not root.dtype.is_float:
        raise GradientError(f"only floats have gradients; the root is {root.dtype}: cast it to a float first")
    if seed is None:
        if any(size != 1 for size in root.shape):
            raise GradientError(
                f"the root has shape {root.shape}, not one element: reduce it (for example `.sum()`), "
                "or pass the gradient of the root, shaped like it"
            )
        return spread(UOp.const(root.dtype, 1.0), root.shape)
    if seed.dtype is not root.dtype:
        raise GradientError(f"the root is {root.dtype} but the gradient passed for it {seed.dtype}: cast it")
    if seed.shape != root.shape and seed.op not in SCALAR_LEAVES:
        raise GradientError(f"the root has shape {root.shape} but the gradient passed for it {seed.shape}")
    return spread(seed, root.shape)


def _check_target(position: int, target: UOp) -> None:
    if not target.dtype.is_float:
        raise GradientError(
            f"target {position} is {target.dtype}: only floats have gradients, cast it to a float first"
        )
    if target.op in SCALAR_LEAVES:
        raise GradientError(
            f"target {position} is a bare constant, and equal constants are one node: give it memory of its own first"
        )
