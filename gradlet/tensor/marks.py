"""Marks on a value: memory of its own, no gradient or one of its own, another device."""

# The constructor `wrap` makes whatever class is public: it is Any to the type checker.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Self

from gradlet.base.dtype import DType
from gradlet.base.errors import ArgumentError
from gradlet.engine import execute
from gradlet.graph.node import UOp, mk
from gradlet.ops.movement import operand
from gradlet.ops.op import DerivativeArg, DeviceArg, Op
from gradlet.runtime.device import Device
from gradlet.tensor.core import LazyTensor, foreign, wrap
from gradlet.tensor.nodes import no_leaf

_CONTIGUOUS_BACKWARD: Final = DerivativeArg(
    "contiguous_backward", lambda gradient: (mk(Op.CONTIGUOUS, gradient.dtype, (gradient,), None),)
)


class Marks(LazyTensor):
    """How a value is kept, and what gradients do with it."""

    __slots__ = ()

    def contiguous(self) -> Self:
        """The value in memory of its own, in row-major order, once it is computed.

        >>> Tensor([[1, 2], [3, 4]]).T.contiguous().tolist()
        [[1, 3], [2, 4]]
        """
        node = self.uop
        return wrap(mk(Op.CONTIGUOUS, node.dtype, (no_leaf(node),), None), self._place)

    def clone(self, device: str | None = None) -> Self:
        """A copy of the value, on this one's device unless another is given.

        >>> Tensor([1]).clone().tolist()
        [1]
        """
        return self.contiguous() if device is None else self.to(device).contiguous()

    def detach(self) -> Self:
        """The same values, through which no gradient flows.

        >>> Tensor([1.0]).detach().tolist()
        [1.0]
        """
        node = self.uop
        if node.dtype.kind != "f":
            return wrap(node, self._place)
        return wrap(mk(Op.DETACH, node.dtype, (no_leaf(node),), None), self._place)

    def contiguous_backward(self) -> Self:
        """The same values, whose gradient is put in memory before it goes on.

        >>> x = Tensor([1.0])
        >>> (x * 3).contiguous_backward().sum().gradient(x)[0].tolist()
        [3.0]
        """
        node = self.uop
        if node.dtype.kind != "f":
            return self
        node = no_leaf(node)
        return wrap(mk(Op.DERIVATIVE, node.dtype, (node, node), _CONTIGUOUS_BACKWARD), self._place)

    def with_derivative(self, name: str, inputs: Sequence[Self], rule: Callable[[Self], Sequence[Self | None]]) -> Self:
        """The same values, with a gradient of its own.

        Args:
            name: of the function, for printing.
            inputs: what the value is computed from.
            rule: gradient of this -> gradient of each input, in the input's shape; None where there is none. What the
                rule does has derivatives itself.

        Raises:
            ArgumentError: `inputs` is no list.
            DTypeError: one of them is no tensor.

        >>> x = Tensor([3.0])
        >>> y = x.detach().floor().with_derivative("straight through floor", [x], lambda gradient: [gradient])
        >>> y.sum().gradient(x)[0].tolist()
        [1.0]
        """
        if not isinstance(inputs, (tuple, list)):
            raise ArgumentError(f"with_derivative: inputs must be a list of tensors, got {type(inputs).__name__}")
        node, place = self.uop, self._place
        if node.dtype.kind != "f" or not inputs:
            return self
        inputs = [operand(value, "with_derivative", f"input {n}") for n, value in enumerate(inputs)]
        types, places = [i.dtype for i in inputs], [i._place or place for i in inputs]

        def node_rule(gradient: UOp) -> list[UOp | None]:
            found = rule(wrap(gradient, place))
            return [
                None if part is None or not dtype.is_float else part.cast(dtype).to(where).uop
                for part, dtype, where in zip(found, types, places, strict=True)
            ]

        sources = (no_leaf(node), *[i.uop for i in inputs])
        return wrap(mk(Op.DERIVATIVE, node.dtype, sources, DerivativeArg(name, node_rule)), place)

    def to(
        self,
        device: str | DType | LazyTensor | None = None,
        dtype: DType | str | None = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Self:
        """The same values on another device, in another type, or both.

        Args:
            device: name of a device; None for the default one, or, with a `dtype`, for the one where they are. As in
                torch a type may stand here, `x.to(dtypes.float16)`, or a tensor, whose type and device are meant.
            dtype: type to cast to.
            non_blocking: nothing ever waits here.
            copy: whether the result has memory of its own even where nothing changes.

        Raises:
            DeviceError: no such device.
            DTypeError: no such type.

        >>> Tensor([1]).to("CPU").device
        'CPU'
        >>> Tensor([1]).to(dtypes.float16).dtype
        dtypes.float16
        """
        if isinstance(device, DType):
            device, dtype = None, device
        elif isinstance(device, LazyTensor):
            dtype = device.dtype
            device = device._place
        result = self if dtype is None else self.cast(dtype)
        if device is not None or dtype is None:
            result = result._moved(device)
        return result.contiguous() if copy else result

    def _moved(self, device: str | None) -> Self:
        target = Device.canonicalize(device)
        if self._place == target or (self._place is None and foreign(target) is None):
            return self
        node = self.uop if self._place is not None else self.contiguous().uop
        return wrap(mk(Op.COPY, node.dtype, (node,), DeviceArg(target)), target)

    def to_(self, device: str | None) -> Self:
        """Move this tensor, and its gradient, to another device.

        >>> Tensor([1]).to_("CPU").device
        'CPU'
        """
        moved = self.to(device)
        execute.touched(self)
        self.uop, self._place, self._view = moved.uop, moved._place, None
        if self.grad is not None:
            self.grad = self.grad.to(device)
        return self
