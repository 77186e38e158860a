"""Functions that have a derivative of their own, applied to tensors."""

# The constructor `wrap` makes whatever class is public: it is Any to the type checker.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Self

from gradlet.base.dtype import accumulator
from gradlet.grad.functions import function
from gradlet.ops.arguments import broadcast_shapes
from gradlet.ops.op import Op
from gradlet.tensor import symbolic
from gradlet.tensor.core import LazyTensor, wrap
from gradlet.tensor.nodes import node_cast, spread


class Elementary(LazyTensor):
    """The hook of the functions in `ops/transcendental`."""

    __slots__ = ()

    def elementary(self, name: str, *others: Any) -> Self:
        """A function of `grad/functions` of this and others: 16-bit floats are widened and the result rounded once.

        Raises:
            ShapeError: shapes that do not broadcast.
            DTypeError: types that have no float form.
            DeviceError: operands on different devices.

        >>> Tensor([0.0]).elementary("sigmoid").item()
        0.5
        """
        tensors = self.same_float(name).same_dtype(others, name) if others else (self.same_float(name),)
        own = tensors[0].dtype
        nodes = tuple([node_cast(t.uop, accumulator(own)) for t in tensors])
        place = next((t._place for t in tensors if t._place is not None), None)
        shape = nodes[0].shape
        if others:
            symbolic.check_sizes(nodes, Op.ADD)
            shape = broadcast_shapes([n.shape for n in nodes], name)
        return wrap(node_cast(function(name, *[spread(n, n.shape, shape, True) for n in nodes]), own), place)
