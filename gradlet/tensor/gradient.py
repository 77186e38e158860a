"""Asking for gradients: `backward` and `gradient`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

from gradlet.base.errors import ArgumentError, GradientError, ShapeError
from gradlet.graph.node import no_gc
from gradlet.ops.movement import operand
from gradlet.ops.op import SCALAR_LEAVES
from gradlet.tensor.core import LazyTensor, wrap

UNUSED: Final = ("error", "none", "zero")


class Gradients(LazyTensor):
    """Differentiation."""

    __slots__ = ()

    def backward(self, gradient: Any = None) -> Self:
        """Add the gradient of this to `grad` of the tensors alive that it depends on, and return this.

        Where it depends on tensors that an optimizer trains (`is_param`), only those get one; else every float tensor
        does. Gradients are lazy: those that nobody reads cost nothing.

        Args:
            gradient: gradient of this tensor itself, shaped like it; 1 when None, for one element.

        Raises:
            GradientError: this is not a float, has more than one element and no `gradient`, or depends on no tensor
                alive (for example because it was realised before).
            ShapeError: `gradient` does not have this one's shape.

        >>> x = Tensor([1.0, 2.0])
        >>> _ = (x * x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
        """
        nodes = set(self.uop.toposort())
        found = [t for t in self.all_live() if t.uop in nodes and t.uop is not self.uop and _may_have_gradient(t)]
        targets = [t for t in found if t.is_param] or found
        results = self._gradients(targets, gradient)
        reached = 0
        for target, result in zip(targets, results):
            if result is not None:
                reached += 1
                target.grad = result if target.grad is None else target.grad.add(result)
        if not reached:
            raise GradientError(
                "backward: this depends on no float tensor alive. A tensor that was computed already (realize, item, "
                "numpy) has forgotten what it was computed from: call backward() before that"
            )
        return self

    def gradient(self, *targets: Any, gradient: Any = None, unused: str = "error") -> list[Any]:
        """The gradients of this with respect to the targets: `d sum(gradient * this) / d target`.

        Args:
            targets: float tensors that this depends on.
            gradient: gradient of this tensor itself, shaped like it; 1 when None, for one element.
            unused: what stands for a target that this does not depend on: "error", "none" (None) or "zero".

        Raises:
            GradientError: this is not a float, or does not depend on a target and `unused` is "error".
            ArgumentError: another `unused`.
            DTypeError: a target that is no tensor.
            ShapeError: `gradient` does not have this one's shape.

        >>> x = Tensor([3.0])
        >>> (x * x).sum().gradient(x)[0].tolist()
        [6.0]
        """
        if unused not in UNUSED:
            raise ArgumentError(f"gradient: unused {unused!r} is not one of {', '.join(UNUSED)}")
        results = self._gradients(targets, gradient)
        for position, result in enumerate(results):
            if result is not None or unused == "none":
                continue
            if unused == "zero" or targets[position].numel() == 0:
                results[position] = targets[position].zeros_like()
            else:
                raise GradientError(
                    f"gradient: this does not depend on target {position} (shape {targets[position].shape}); a target "
                    "that was written to or computed after this was built is another value; unused='zero' or 'none' "
                    "accepts that"
                )
        return results

    def _gradients(self, targets: Sequence[Any], gradient: Any) -> list[Any]:
        targets = [operand(t, "gradient", f"target {i}") for i, t in enumerate(targets)]
        seed = None
        if gradient is not None:
            if operand(gradient, "gradient", "gradient").shape != self.shape:
                raise ShapeError(
                    f"gradient of shape {gradient.shape} for a tensor of shape {self.shape}; they must agree"
                )
            seed = gradient.cast(self.dtype).uop
        from gradlet.grad.backward import gradients  # inference never needs it

        with no_gc():
            found = gradients(self.uop, seed, [t.uop for t in targets])
        return [None if g is None else wrap(g, t._place or self._place) for g, t in zip(found, targets)]


def _may_have_gradient(tensor: Any) -> bool:
    return tensor.dtype.is_float and tensor.uop.op not in SCALAR_LEAVES
