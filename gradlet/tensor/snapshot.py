"""All tensors as they were before a call was captured: to see what the call did, and to undo it when it fails."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradlet.engine import execute
from gradlet.graph.node import UOp
from gradlet.tensor import random_state
from gradlet.tensor.tensor import Tensor


class Before(NamedTuple):
    """A tensor, and what it was."""

    tensor: Tensor
    uop: UOp
    grad: Any
    place: str | None
    view: Any


class Snapshot:
    """The tensors alive at one moment."""

    def __init__(self) -> None:
        self.tensors = {id(t): Before(t, t.uop, t.grad, t._place, t._view) for t in Tensor.all_live()}
        self.draws = random_state.draws()
        self._seed = random_state.seed_words()

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor was alive then."""
        return id(tensor) in self.tensors

    def changed(self, recorder: execute.Recorder) -> list[Tensor]:
        """Of the tensors that this thread wrote to those that were alive then and have another value now."""
        alive = dict.fromkeys([t for r in recorder.touched if (t := r()) is not None])
        return [t for t in alive if self.has(t) and t.uop is not self.tensors[id(t)].uop]

    def new_gradients(self) -> list[Before]:
        """The tensors whose gradient is another tensor now."""
        return [b for b in self.tensors.values() if b.tensor.grad is not b.grad and b.tensor.grad is not None]

    def restore(self, recorder: execute.Recorder) -> None:
        """Undo what happened since: memory, values, gradients, draws."""
        execute.undo(recorder)
        for tensor in [r() for r in (*recorder.touched, *recorder.computed)]:
            if tensor is not None and self.has(tensor):
                before = self.tensors[id(tensor)]
                tensor.uop, tensor._place, tensor._view = before.uop, before.place, before.view
        for before in self.tensors.values():
            before.tensor.grad = before.grad
        random_state.advance(self.draws - random_state.draws())
