"""Calls that repeat are captured by `jit`, later ones replay the launches: the first call of all, and of other sizes
the second one.

What was captured holds for sizes and types of the inputs, and for the data of those whose numbers decided something (a
shape, the rate of a signal, a condition). Models that look at what a device computed are walked at every call.
Arrays of a call like an earlier one are copied to where its inputs lay: no tensor is made for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradlet.base.errors import JitError
from gradlet.engine.execute import base_buffer, refusals
from gradlet.onnx.values import Array, Value
from gradlet.ops.op import Op
from gradlet.runtime.counters import GlobalCounters
from gradlet.tensor import random_state
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
        self._plans: dict[Any, Plan] = {}
        self._placed: dict[Any, _Placed] = {}

    def again(self, given: Mapping[str, Any]) -> list[Any] | None:
        """The outputs for arrays like those of an earlier call, or None: nothing was done."""
        if not self._placed:
            return None
        try:
            placed = self._placed.get(tuple([(name, a.shape, a.dtype, a.__class__) for name, a in given.items()]))
        except AttributeError:  # no array
            return None
        return None if placed is None else placed.results(given)

    def place(self, given: Mapping[str, Any], names: Sequence[str], inputs: Sequence[Any], found: list[Any]) -> None:
        """Let the next call with arrays like these be short. `found`: the results of the replay of this one."""
        present = [(name, value) for name, value in zip(names, inputs) if value is not None]
        if len(present) != len(given):
            return
        for name, value in present:
            array = given.get(name)
            if array.__class__ is not np.ndarray or array.dtype.name != value.needed().dtype.name:
                return
            if not array.dtype.isnative or not value.needed().device.startswith("CPU"):
                return
        plan = self._plans[_signature(inputs)]
        key = tuple([(name, a.shape, a.dtype, a.__class__) for name, a in given.items()])
        if plan.captures and key not in self._placed and not _shows(found, [value for _, value in present]):
            while len(self._placed) >= MOST_CAPTURES:
                del self._placed[next(iter(self._placed))]
            self._placed[key] = _Placed(plan, list(inputs), [n if v is not None else "" for n, v in zip(names, inputs)])

    def results(self, inputs: list[Any], at_once: bool = False) -> tuple[list[Any] | None, list[Any]]:
        """The outputs as tensors that are computed, or else (None in place of them) as values of a walk.

        `at_once`: a first call is captured whatever came before.
        """
        if not all(v is None or (isinstance(v, Value) and not v.is_text) for v in inputs):
            return None, self.walk(inputs)
        signature = _signature(inputs)
        plan = self._plans.get(signature)
        if plan is None:
            is_first = at_once or not self._plans
            if len(self._plans) >= MOST_SIGNATURES:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[signature] = Plan(self.walk, is_first)
        return plan.results(inputs)

    def captured(self, inputs: Sequence[Any]) -> tuple[list[int], jit, list[Tensor]] | None:
        """What was captured for inputs: numbers of those whose data decided something, the function, its arguments."""
        plan = self._plans.get(_signature(inputs))
        captured = None if plan is None else plan.captures.get(plan.key(inputs))
        if plan is None or captured is None:
            return None
        return sorted(plan.reads), captured, [v.needed() for v in inputs if v is not None]


def _signature(inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(None if v is None else (v.elem, v.shape, v.on_host) for v in inputs)


def _shows(results: Sequence[Tensor], inputs: Sequence[Value]) -> bool:
    """Whether a result is a view of an input, which the next call must not overwrite."""
    memory = {bottom(value.needed()) for value in inputs}
    return any(bottom(result) in memory for result in results)


def _is_computed(value: Any) -> bool:
    """Whether an output is more than a view of memory."""
    return isinstance(value, Value) and value.is_tensor and bottom(value.needed()).op is not Op.BUFFER


def bottom(tensor: Tensor) -> Any:
    """The memory of a tensor that is computed."""
    return base_buffer(tensor.uop)


class _Placed:
    """Inputs of certain names, sizes and types, in memory that each call fills."""

    def __init__(self, plan: Plan, inputs: list[Any], names: list[str]) -> None:
        self.plan = plan
        self.names = [name for name in names if name]
        self.arrays = [np.zeros(value.shape, value.array().dtype) for value in inputs if value is not None]
        self.tensors = [Tensor(array, value.needed().device, copy=False) for array, value in
                        zip(self.arrays, [v for v in inputs if v is not None])]  # fmt: skip
        self.numbers = [(i, names[i]) for i in sorted(plan.reads)]  # inputs whose data is part of what was captured
        self._free = [True]  # empty while a call uses the memory

    def results(self, given: Mapping[str, Any]) -> list[Any] | None:
        """The outputs, or None where another thread is at it or other numbers decide."""
        try:
            self._free.pop()
        except IndexError:
            return None
        try:
            if self.plan.walked or len(self.numbers) != len(self.plan.reads):
                return None
            captured = self.plan.captures.get(tuple([(i, given[name].tobytes()) for i, name in self.numbers]))
            if captured is None:
                return None
            for name, array in zip(self.names, self.arrays):
                array[...] = given[name]
            return self.plan.replay(captured, self.tensors)
        finally:
            self._free.append(True)


class Plan:
    """The captures for inputs of certain sizes; `at_once`: the first call is captured too."""

    def __init__(self, walk: Walk, at_once: bool) -> None:
        self.walk = walk
        self.at_once = at_once
        self.reads: set[int] = set()  # inputs whose numbers were read
        self.seen: set[Any] = set()
        self.captures: dict[Any, jit] = {}
        self.walked = False  # for good
        self.reason = ""  # why it is walked

    def key(self, inputs: Sequence[Any]) -> Any:
        """The numbers that decided something, of some inputs."""
        return tuple((i, inputs[i].array().tobytes()) for i in sorted(self.reads))

    def results(self, inputs: list[Any]) -> tuple[list[Any] | None, list[Any]]:
        """As `Replays.results`."""
        if self.walked:
            return None, self.walk(inputs)
        values: list[Any] = []
        if self.key(inputs) not in self.seen:
            # The first time it is walked, to see which numbers matter.
            watched = [self._watched(v, i) if v is not None and v.on_host else v for i, v in enumerate(inputs)]
            before, refused = (GlobalCounters.kernels, random_state.draws()), refusals()
            values = self.walk(watched)
            self.seen.add(self.key(inputs))
            self.walked = refusals() != refused
            self.reason = "it looks at numbers that a device computes" if self.walked else ""
            was_lazy = before == (GlobalCounters.kernels, random_state.draws())
            if self.walked or not self.at_once or not was_lazy or not all(_is_computed(v) for v in values):
                return None, values
        self.at_once = False
        key = self.key(inputs)
        captured = self.captures.get(key)
        if captured is None:
            if len(self.captures) >= MOST_CAPTURES:
                del self.captures[next(iter(self.captures))]
            captured = self.captures[key] = jit(_function(_Capture(self.walk, inputs, self.reads)))
        found = self.replay(captured, [v.needed() for v in inputs if v is not None])
        return found, values if found is not None or values else self.walk(inputs)

    def replay(self, captured: Callable[..., Any], tensors: Sequence[Tensor]) -> list[Any] | None:
        """The outputs of a captured walk; None, from now on, where it cannot be replayed."""
        try:
            found: list[Any] | None = captured(*tensors)
        except JitError as error:
            found, self.reason = None, str(error)
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
