"""What a function of tensors makes of them, kept as a recipe: the next operands of these shapes get nodes at once.

A layer of a network is checked, promoted and broadcast op by op when it is met for the first time. The nodes that come
of it depend on shapes, types and numbers alone, so the hundredth layer, and every layer in the next step, is made of
the same ops over other operands. Saves work, decides nothing: with and without recipes the graph is the same.
"""

# The constructor `wrap` makes whatever class is public: it is Any to the type checker.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.extents import HAS_LIMIT
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, SCALAR_LEAVES, Op, ShapeArg
from gradlet.runtime.buffer import new_buffer_node
from gradlet.tensor.core import LazyTensor, wrap

# Recipes that are kept; then all are forgotten.
KEPT: Final = 1024
_PLAIN: Final = frozenset({int, float, bool, str, type(None)})
_OPS: Final = ELEMENTWISE | MOVEMENT | {Op.REDUCE_AXES, Op.DETACH, Op.CONTIGUOUS}


class Recipe(NamedTuple):
    """How nodes are made of those of the operands.

    Attributes:
        constants: numbers that follow the operands.
        steps: op, type, numbers of the sources, argument and shape of each node that follows those.
        results: numbers of the results; a single number for a single result.
    """

    constants: list[UOp]
    steps: list[tuple[Op, Any, tuple[int, ...], Any, tuple[int, ...]]]
    results: tuple[int, ...] | int


_recipes: dict[Any, Recipe | None] = {}


def composed(function: Callable[..., Any], operands: Sequence[Any], *arguments: Any) -> Any:
    """`function(*operands, *arguments)`, which depends on nothing else, and on values of the operands only lazily.

    Args:
        function: gives a tensor or a tuple of them; it writes to none, and is the same object at each call.
        operands: tensors, or None.
        arguments: numbers, texts and tuples of them; with others the function is called.
    """
    place: str | None = None
    nodes: list[UOp] = []
    signature: list[Any] = [function, dtypes.default_float]
    for operand in operands:
        if operand is None:
            signature.append(None)
            continue
        if not isinstance(operand, LazyTensor) or operand._place is None or not operand.has_value:
            return function(*operands, *arguments)
        node = operand.uop
        if node.mask & HAS_LIMIT or node.op in SCALAR_LEAVES or (place is not None and operand._place != place):
            return function(*operands, *arguments)
        place = operand._place
        signature += (node.shape, node.dtype)
        nodes.append(node)
    if place is None or not _are_plain(arguments):
        return function(*operands, *arguments)
    signature += (place, repr(arguments))  # which tells 1 from 1.0 and True
    key = tuple(signature)
    recipe = _recipes.get(key)
    if recipe is None:
        if key not in _recipes:
            if len(_recipes) >= KEPT:
                _recipes.clear()
            recipe = _recipes[key] = _traced(function, operands, arguments, place)
        if recipe is None:
            return function(*operands, *arguments)
    nodes += recipe.constants
    append = nodes.append
    for op, dtype, src, arg, shape in recipe.steps:
        node = mk(op, dtype, tuple([nodes[number] for number in src]), arg)
        node._shape = shape
        append(node)
    results = recipe.results
    if results.__class__ is int:
        return wrap(nodes[results], place)
    return tuple([wrap(nodes[number], place) for number in results])  # type: ignore[union-attr]


def _are_plain(values: Iterable[Any]) -> bool:
    for value in values:
        kind = value.__class__
        if kind not in _PLAIN and not ((kind is tuple or kind is list) and _are_plain(value)):
            return False
    return True


def _traced(
    function: Callable[..., Any], operands: Sequence[Any], arguments: Sequence[Any], place: str
) -> Recipe | None:
    """What the function makes of operands that are like no others; None where that is more than a recipe can say."""
    stands: list[Any] = []
    numbers: dict[UOp, int] = {}
    for operand in operands:
        if operand is None:
            stands.append(None)
            continue
        node = operand.uop
        if 0 in node.shape:
            return None
        memory = new_buffer_node(place, node.dtype, prod(node.shape))
        stand = mk(Op.RESHAPE, node.dtype, (memory,), ShapeArg(node.shape))
        numbers[stand] = len(numbers)
        stands.append(wrap(stand, place))
    made = function(*stands, *arguments)
    results = made if isinstance(made, tuple) else (made,)
    if any(result._place != place for result in results):
        return None
    constants: list[UOp] = []
    order: list[UOp] = []
    seen: set[UOp] = set(numbers)
    stack = [(result.uop, False) for result in results]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            if node.op is Op.CONST:
                constants.append(node)
            elif node.op in _OPS:
                stack.append((node, True))
                stack += [(source, False) for source in node.src]
            else:
                return None
    for node in (*constants, *order):
        numbers[node] = len(numbers)
    steps = [(n.op, n.dtype, tuple([numbers[s] for s in n.src]), n.arg, n.shape) for n in order]
    found = tuple([numbers[result.uop] for result in results])
    return Recipe(constants, steps, found if isinstance(made, tuple) else found[0])


class Recipes(LazyTensor):
    """What networks call most, by recipe."""

    __slots__ = ()

    def _convolve(
        self, what: str, weight: Any, bias: Any, groups: Any, stride: Any, dilation: Any, padding: Any, dtype: Any
    ) -> Any:
        arguments = (what, groups, stride, dilation, padding, dtype)
        return composed(_convolution, (self, weight, bias), *arguments)


def _convolution(
    x: Any, weight: Any, bias: Any, what: str, groups: Any, stride: Any, dilation: Any, padding: Any, dtype: Any
) -> Any:
    return super(Recipes, x)._convolve(what, weight, bias, groups, stride, dilation, padding, dtype)
