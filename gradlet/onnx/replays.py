"""Calls that repeat: the second call with the same sizes is captured by `jit`, later ones replay its launches.

What was captured holds for sizes and types of the inputs, and for the data of those whose numbers decided something (a
shape, the rate of a signal, a condition). Models that look at what a device computed are walked at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gradlet.base.errors import JitError
from gradlet.onnx.values import Array, Value
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor

# Of each kind the oldest is forgotten.
MOST_SIGNATURES: Final = 32
MOST_CAPTURES: Final = 16

Walk = Callable[[Sequence[Any]], "list[Any]"]


class Replays:
    """The captures of one model; `walk` gives the outputs for inputs, as values."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._plans: dict[Any, _Plan] = {}

    def results(self, inputs: list[Any]) -> list[Any] | None:
        """The outputs as tensors that are computed, or None where this call should be walked."""
        if not all(v is None or (isinstance(v, Value) and not v.is_text) for v in inputs):
            return None
        signature = tuple(None if v is None else (v.elem, v.shape, v.on_host) for v in inputs)
        plan = self._plans.get(signature)
        if plan is None:
            if len(self._plans) >= MOST_SIGNATURES:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[signature] = _Plan(self.walk)
        return plan.results(inputs)


class _Plan:
    """The captures for inputs of certain sizes."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.reads: set[int] = set()  # inputs whose numbers were read
        self.seen: set[Any] = set()
        self.captures: dict[Any, Callable[..., Any]] = {}
        self.walked = False  # for good

    def results(self, inputs: list[Any]) -> list[Any] | None:
        if self.walked:
            return None
        key = tuple((i, inputs[i].array().tobytes()) for i in sorted(self.reads))
        if key not in self.seen:
            # The first time it is walked, to see which numbers matter.
            for i, value in enumerate(inputs):
                if value is not None and value.on_host:
                    inputs[i] = self._watched(value, i)
            self.seen.add(key)
            return None
        captured = self.captures.get(key)
        if captured is None:
            if len(self.captures) >= MOST_CAPTURES:
                del self.captures[next(iter(self.captures))]
            captured = self.captures[key] = jit(_function(_Capture(self.walk, inputs, self.reads)))
        try:
            found: list[Any] | None = captured(*[v.needed() for v in inputs if v is not None])
        except JitError:
            found = None
        if found is None:
            self.walked = True
            self.captures.clear()
        return found

    def _watched(self, value: Value, index: int) -> Value:
        """The input, whose reading is noticed."""

        def pull() -> Array:
            self.reads.add(index)
            return value.array()

        return Value.of_tensor(value.needed(), value.elem, pull)


class _Capture:
    """One walk that is captured: tensors are those of each call, numbers those of the first."""

    def __init__(self, walk: Walk, inputs: Sequence[Any], reads: set[int]) -> None:
        self.walk = walk
        self.elems = [None if v is None else v.elem for v in inputs]
        self.numbers = {i: inputs[i].array() for i in reads}

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The outputs; None where some of them are no tensors."""
        rest = iter(tensors)
        values = [
            None if elem is None else Value.of_tensor(next(rest), elem, self._pull(i))
            for i, elem in enumerate(self.elems)
        ]
        found = self.walk(values)
        if not all(isinstance(v, Value) and not v.is_text and not v.known for v in found):
            raise JitError("an output is no tensor that a device computes")
        return [v.needed() for v in found]

    def _pull(self, index: int) -> Callable[[], Array] | None:
        found = self.numbers.get(index)
        return None if found is None else lambda: found


def _function(capture: _Capture) -> Callable[..., Any]:
    def replayed(*tensors: Tensor) -> Any:
        return capture.run(tensors)

    return replayed
