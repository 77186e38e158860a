"""Sizes that a file leaves open and that vary from call to call: one capture serves all of them, as variables.

The first size of all is captured for itself. When another comes, the sizes that differ become variables from 1 to the
next power of two (8 at least), and the walk over the model is captured with them; every further size inside these
limits replays it: arrays are copied to the beginning of memory of the largest sizes, results are cut. What a model or
one of its nodes cannot do with such sizes is remembered with its reason, and then every size has captures of its own.
So has a size that comes often: kernels that know it are faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradlet.base import settings
from gradlet.base.errors import ArgumentError, JitError, SizeLimitError, SizeStepError
from gradlet.engine.execute import refusals
from gradlet.onnx.graph import Info
from gradlet.onnx.layouts import Dim, Layout, Shapes, keys_of
from gradlet.onnx.replays import Plan, Walk, bottom
from gradlet.onnx.values import Array, Value
from gradlet.ops.arguments import has_size
from gradlet.tensor.hostdata import numpy_name
from gradlet.tensor.tensor import Tensor

# A size that comes so often gets captures of its own, unless the user gave limits.
OWN_AFTER: Final = 32
MOST_STEP: Final = 32  # of powers of two that sizes may have to be multiples of: strides divide them
LEAST_HIGH: Final = 8  # times the step
MOST_LOW: Final = 64  # of limits below that are tried
MOST_LAYOUTS: Final = 8
MOST_SHAPES: Final = 256
MOST_BYTES: Final = 1 << 28  # of the memory of inputs, for the largest sizes


class _Seen:
    """The values that one size had."""

    def __init__(self) -> None:
        self.values: set[int] = set()
        self.all: list[int] = []  # in order
        self.most = 0

    def add(self, value: int) -> None:
        if len(self.all) < MOST_SHAPES:
            self.values.add(value)
            self.all.append(value)
        self.most = max(self.most, value)

    def forget(self) -> None:
        """The last one was none."""
        if len(self.all) < MOST_SHAPES:
            self.all.pop()
            self.values = set(self.all)
            self.most = max(self.all, default=0)


class Calls:
    """How often calls of some shapes came."""

    def __init__(self) -> None:
        self._counts: dict[Shapes, int] = {}

    def add(self, shapes: Shapes) -> int:
        """Count one; returns how many there were."""
        if shapes not in self._counts and len(self._counts) >= MOST_SHAPES:
            del self._counts[next(iter(self._counts))]
        self._counts[shapes] = found = self._counts.get(shapes, 0) + 1
        return found


class Sizes:
    """The captures of one model whose sizes vary.

    Args:
        infos: all inputs.
        dims: limits that the user gave; None where they are chosen.
        walk: the outputs for inputs, as values.
        calls: how often calls came.

    Attributes:
        refused: why sizes cannot vary in one capture, by their names.
    """

    def __init__(self, infos: Sequence[Info], dims: Mapping[str, Dim] | None, walk: Walk, calls: Calls) -> None:
        self.infos, self.given, self.walk, self.calls = infos, dims, walk, calls
        self.refused: dict[frozenset[str], str] = {}
        self._plans: dict[Layout, SizePlan] = {}
        self._known: dict[Any, tuple[SizePlan, Shapes, dict[Dim, int]]] = {}  # by names, shapes and types of arrays
        self._seen: dict[str, _Seen] = {}
        self._first: Shapes | None = None
        self._ends: dict[str, tuple[int, int]] = {}  # limits below and steps that are not 1
        self._same: dict[str, str] | None = None  # sizes that are taken for others; None: that was not tried
        self._noted: list[_Seen] = []  # what was noted of the last call
        self._last: list[frozenset[str]] = []  # what the last call found out
        self.is_frequent = False  # whether the size of the last call came often

    # calls
    def again(self, given: Mapping[str, Any]) -> list[Tensor] | None:
        """The outputs for arrays like those of an earlier call, or None: nothing was done."""
        if not self._known:
            return None
        try:
            key = tuple([(name, a.shape, a.dtype, a.__class__) for name, a in given.items()])
        except AttributeError:  # no array
            return None
        found = self._known.get(key)
        if found is None:
            return None
        plan, shapes, values = found
        if self.count(shapes):
            del self._known[key]
            return None
        return plan.replayed([given.get(info.name) for info in self.infos], values)

    def results(self, given: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any] | None:
        """The outputs as tensors that are computed, None where sizes are to be captured for themselves.

        Raises:
            ArgumentError: a size outside of the limits that the user gave.
        """
        self._last, self._noted, self.is_frequent = [], [], False
        if not _are_tensors(inputs):
            return None
        if self.given is not None and not self.given:
            return None
        if self.given is None and not _device(inputs).startswith("CPU"):
            return None  # what such kernels cost there was not measured
        shapes = _shapes(inputs)
        if any(has_size(shape) for shape in shapes if shape is not None):
            return None
        count = self.calls.add(shapes)
        self._note(shapes)
        if self.given is not None:
            self._check(shapes)
        elif self._first is None or self._first == shapes or count > OWN_AFTER:
            self._first = self._first or shapes
            self.is_frequent = count > OWN_AFTER
            return None
        elif any(value == 0 for *_, value in self._each(shapes)):
            return None  # what a model does with nothing says little of what it does with something
        plan = self._fitting(shapes)
        while plan is not None or (plan := self._new(shapes)) is not None:
            values = plan.layout.values(shapes)
            assert values is not None
            found = self._attempt(plan, inputs, values)
            if found is not None:
                self._accept(plan)
                self._remember(given, plan, shapes, values)
                return found
            self._plans.pop(plan.layout, None)
            plan = None
        return None

    def shapes(self, given: Mapping[str, Any]) -> Shapes:
        """The shapes of arrays, None for inputs that are left out."""
        return tuple([given[info.name].shape if info.name in given else None for info in self.infos])

    def count(self, shapes: Shapes) -> bool:
        """Count a call; returns whether its sizes came often enough to be captured for themselves."""
        return self.given is None and self.calls.add(shapes) > OWN_AFTER

    def withdraw(self) -> None:
        """Forget what the last call found out, and that it came: it fails with numbers for sizes, too."""
        for names in self._last:
            self.refused.pop(names, None)
        for seen in self._noted:
            seen.forget()
        if all(not seen.all for seen in self._seen.values()):
            self._first = None
        self._last, self._noted = [], []

    def captured(self, inputs: Sequence[Any]) -> tuple[Layout, list[int], Any, list[Tensor]] | None:
        """What was captured for sizes like these, as `Replays.captured`, behind its layout."""
        shapes = _shapes(inputs)
        plan = self._fitting(shapes)
        values = None if plan is None else plan.layout.values(shapes)
        found = None if plan is None or values is None else plan.captured(inputs, values)
        return None if plan is None or found is None else (plan.layout, *found)

    def explained(self, inputs: Sequence[Any]) -> dict[str, str]:
        """How each size may vary in one capture, by name.

        Raises:
            OnnxError: the model refuses the inputs, whatever varies.
        """
        self.walk(inputs)
        if not _are_tensors(inputs):
            keys = [key for info in self.infos for key in keys_of(info, len(info.shape or ())) if key is not None]
            return dict.fromkeys(keys, "walked at every call: an input is text, a sequence or a map")
        shapes = _shapes(inputs)
        self._note(shapes)
        found: dict[str, str] = {}
        for name in dict.fromkeys([key for _, _, key, _ in self._each(shapes)]):
            self._is_worse_alone(name, inputs)
            low, step = self._ends.get(name, (1, 1))
            reason = self.refused.get(frozenset((name,)))
            steps = f" in steps of {step}" if step > 1 else ""
            found[name] = f"one capture, from {low} on{steps}" if reason is None else f"a capture for each: {reason}"
        return found

    def _fitting(self, shapes: Shapes) -> SizePlan | None:
        """What was captured for shapes, with the least memory."""
        fitting = [plan for layout, plan in self._plans.items() if layout.values(shapes) is not None]
        return min(fitting, key=lambda plan: plan.layout.elements, default=None)

    def _new(self, shapes: Shapes) -> SizePlan | None:
        """What is to be tried for shapes that no capture fits."""
        layout = self._layout(shapes, {n: self._dim(n, self._ends.get(n, (1, 1))) for n in self._varying(shapes)})
        return None if layout is None else SizePlan(layout, self.walk)

    def _attempt(self, plan: SizePlan, inputs: Sequence[Any], values: Mapping[Dim, int]) -> list[Any] | None:
        """The outputs; where there are none, what is found out about the sizes is remembered."""
        try:
            found, reason = plan.results(inputs, values), plan.refusal
        except Exception as error:  # whatever it is: the model is computed with numbers for sizes instead
            found, reason = None, _text(error)
        if found is None and not self._join():
            names = [dim.name for dim in plan.layout.dims]
            alone = [name for name in names if self._is_worse_alone(name, inputs)]
            if not alone:
                self._refuse(names, reason)
        return found

    def _join(self) -> bool:
        """Take sizes that agreed in all calls for one size, once: whether that changes something."""
        if self.given is not None or self._same is not None:
            return False
        leaders: dict[tuple[int, ...], str] = {}
        self._same = {}
        for name, seen in self._seen.items():
            leader = leaders.setdefault(tuple(seen.all), name)
            if leader != name and len(seen.values) > 1:
                self._same[name] = leader
        return bool(self._same)

    def _is_worse_alone(self, name: str, inputs: Sequence[Any]) -> bool:
        """Whether one size makes trouble by itself, which is remembered: what it has to be a multiple of, and at least.

        Where this value cannot tell, a later one will.
        """
        if frozenset((name,)) in self.refused:
            return False
        value = next(v for _, _, key, v in self._each(_shapes(inputs)) if key == name)
        low, step = before = self._ends.get(name, (1, 1))
        while True:
            trouble = self._trouble(name, inputs, (low, step))
            if trouble is None:
                self._ends[name] = low, step
                return (low, step) != before
            kind = type(trouble.__cause__ or trouble)
            if self.given is None and kind is SizeStepError and step < MOST_STEP:
                step *= 2
                low = max(low, step)
            elif self.given is None and kind is SizeLimitError and low < MOST_LOW:
                low *= 2
            else:
                self._refuse([name], _text(trouble))
                return True
            if value % step or value < low:
                self._ends[name] = low, step
                return True

    def _trouble(self, name: str, inputs: Sequence[Any], ends: tuple[int, int]) -> Exception | None:
        """What is wrong with a walk in which one size varies from a limit on, in steps."""
        shapes = _shapes(inputs)
        layout = self._layout(shapes, {name: self._dim(name, ends)})
        values = None if layout is None else layout.values(shapes)
        if layout is None or values is None:
            return None
        try:
            SizePlan(layout, self.walk).attempt(inputs, values)
        except Exception as error:  # as above
            return error
        return None

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        self.refused[frozenset(names)] = reason
        self._last.append(frozenset(names))
        if settings.DEBUG >= 1:
            print(f"onnx: {', '.join(names)}: captured for each size: {reason}")

    def _accept(self, plan: SizePlan) -> None:
        if plan.layout in self._plans:
            return
        if len(self._plans) >= MOST_LAYOUTS:
            del self._plans[next(iter(self._plans))]
        self._plans[plan.layout] = plan
        if settings.DEBUG >= 1:
            print(f"onnx: one capture for {', '.join(map(str, plan.layout.dims))}")

    def _remember(self, given: Mapping[str, Any], plan: SizePlan, shapes: Shapes, values: dict[Dim, int]) -> None:
        """Let the next call with arrays like these be short."""
        if not plan.is_short or not all(a.__class__ is np.ndarray and a.dtype.isnative for a in given.values()):
            return
        if len(given) != sum(shape is not None for shape in shapes):
            return
        if len(self._known) >= MOST_SHAPES:
            del self._known[next(iter(self._known))]
        self._known[tuple([(n, a.shape, a.dtype, a.__class__) for n, a in given.items()])] = plan, shapes, values

    # which sizes vary
    def _each(self, shapes: Shapes) -> Iterator[tuple[Info, int, str, int]]:
        """Input, axis, name and value of every size that the file leaves open."""
        for info, shape in zip(self.infos, shapes, strict=True):
            for axis, key in enumerate(self._keys(info, len(shape)) if shape is not None else ()):
                if key is not None:
                    yield info, axis, key, shape[axis]  # type: ignore[index]

    def _keys(self, info: Info, rank: int) -> list[str | None]:
        keys = keys_of(info, rank)
        return [self._same.get(key, key) if key is not None else None for key in keys] if self._same else keys

    def _note(self, shapes: Shapes) -> None:
        """Remember the sizes of a call; sizes that were taken for one and are two from here on are it no more."""
        found: dict[str, int] = {}
        if self._same and any(found.setdefault(key, value) != value for _, _, key, value in self._each(shapes)):
            self._same = {}
        one_a_name = {key: value for _, _, key, value in self._each(shapes)}
        for key, value in one_a_name.items():
            self._seen.setdefault(key, _Seen()).add(value)
        self._noted = [self._seen[key] for key in one_a_name]

    def _check(self, shapes: Shapes) -> None:
        """Refuse sizes outside of the limits that the user gave.

        Raises:
            ArgumentError: there is one.
        """
        for info, axis, key, value in self._each(shapes):
            dim = (self.given or {}).get(key)
            if dim is not None and (not dim.low <= value <= dim.high or value % dim.step):
                raise ArgumentError(
                    f"input {info.name!r}: axis {axis} has size {value}, and dims says {dim}: give dims other limits"
                )

    def _varying(self, shapes: Shapes) -> list[str]:
        """Names of the sizes that may vary in one capture; where they do not go together, the one that varies most."""
        keys = list(dict.fromkeys([key for _, _, key, _ in self._each(shapes)]))
        wanted = [k for k in keys if (k in self.given if self.given is not None else len(self._seen[k].values) > 1)]
        names = [name for name in wanted if frozenset((name,)) not in self.refused]
        if frozenset(names) not in self.refused:
            return names
        names = [max(names, key=lambda name: len(self._seen[name].values))]
        return [] if frozenset(names) in self.refused else names

    def _layout(self, shapes: Shapes, dims: Mapping[str, Dim]) -> Layout | None:
        """The axes with some sizes as variables; None where there are none, or where that takes too much memory."""
        if not dims:
            return None
        axes: list[tuple[int | Dim, ...] | None] = []
        for info, shape in zip(self.infos, shapes, strict=True):
            keys = [] if shape is None else self._keys(info, len(shape))
            axes.append(None if shape is None else tuple([dims.get(k or "", n) for k, n in zip(keys, shape)]))
        found = Layout(tuple(axes))
        if found.values(shapes) is None:  # a size of 0, or one that is no multiple
            return None
        return found if found.elements * 8 <= MOST_BYTES else None

    def _dim(self, name: str, ends: tuple[int, int]) -> Dim:
        """A size that varies, from a limit on and in steps."""
        if self.given is not None:
            return self.given[name]
        low, step = ends
        high = max(low * 2, step * LEAST_HIGH)
        while high < self._seen[name].most:
            high *= 2
        return Dim(name, low, high, step)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _are_tensors(inputs: Sequence[Any]) -> bool:
    """Whether what is given are tensors of numbers."""
    return all(v is None or (isinstance(v, Value) and not v.is_text) for v in inputs)


def _device(inputs: Sequence[Any]) -> str:
    return next((v.needed().device for v in inputs if v is not None), "CPU")


def _shapes(inputs: Sequence[Any]) -> Shapes:
    return tuple([None if v is None else tuple(v.shape) for v in inputs])


class SizePlan:
    """The captures for inputs of one layout, and the memory that calls fill.

    Attributes:
        layout: which sizes vary.
        refusal: why there is no result.
    """

    def __init__(self, layout: Layout, walk: Walk) -> None:
        self.layout = layout
        self.refusal = ""
        self._plan = Plan(walk, True)
        self._variables = layout.variables()
        self._largest = layout.largest()
        self._varies = [axes is not None and any(isinstance(size, Dim) for size in axes) for axes in layout.axes]
        self._arrays: list[Array | None] = []
        self._wholes: list[Tensor | None] = []
        self._tensors: dict[tuple[int, ...], list[Tensor | None]] = {}
        self._lock = threading.Lock()

    @property
    def is_short(self) -> bool:
        """Whether a call with arrays needs nothing but a replay."""
        return not self._plan.walked and bool(self._plan.captures) and bool(self._wholes)

    def results(self, inputs: Sequence[Any], values: Mapping[Dim, int]) -> list[Any] | None:
        """The outputs; None with a `refusal` where there are none."""
        given = [None if v is None else v.array() if v.on_host else v.needed().numpy() for v in inputs]
        with self._lock:
            made = self._inputs(inputs, given, values)
            self._plan.at_once = True
            replayed, _ = self._plan.results(made)
            if replayed is None:
                self.refusal = self._plan.reason or "an output is no tensor that is computed"
                return None
            return self._cut(replayed)

    def attempt(self, inputs: Sequence[Any], values: Mapping[Dim, int]) -> None:
        """Walk with such sizes.

        Raises:
            JitError: it cannot be captured.
        """
        given = [None if v is None else v.array() if v.on_host else v.needed().numpy() for v in inputs]
        before = refusals()
        self._plan.walk(self._inputs(inputs, given, values))
        if refusals() != before:
            raise JitError("it looks at numbers that a device computes")

    def replayed(self, given: Sequence[Any], values: Mapping[Dim, int]) -> list[Tensor] | None:
        """The outputs for arrays, None where other numbers decide."""
        with self._lock:
            plan = self._plan
            captured = plan.captures.get(tuple([(i, given[i].tobytes()) for i in sorted(plan.reads)]))
            if captured is None or plan.walked:
                return None
            self._fill(given)
            found = plan.replay(captured, [t for t in self._of(values) if t is not None])
            return None if found is None else self._cut(found)

    def captured(self, inputs: Sequence[Any], values: Mapping[Dim, int]) -> tuple[list[int], Any, list[Tensor]] | None:
        """As `Replays.captured`."""
        if not self._wholes:
            return None
        found = self._plan.captures.get(self._plan.key(inputs))
        return (
            None if found is None else (sorted(self._plan.reads), found, [t for t in self._of(values) if t is not None])
        )

    def _inputs(self, inputs: Sequence[Any], given: Sequence[Any], values: Mapping[Dim, int]) -> list[Any]:
        """The inputs in memory of the largest sizes. Numbers can be read of those whose sizes are fixed."""
        device = _device(inputs)
        if not self._arrays:
            self._arrays = [
                None if most is None else np.zeros(most, array.dtype) for most, array in zip(self._largest, given)
            ]
        if device.startswith("CPU") and not self._wholes:
            self._wholes = [None if a is None else Tensor(a, device, copy=False) for a in self._arrays]
        self._fill(given)
        if self._wholes:
            tensors = self._of(values)
        else:
            tensors = self._views([None if a is None else Tensor(a, device) for a in self._arrays], values)
        made: list[Any] = []
        for value, array, tensor, varies in zip(inputs, given, tensors, self._varies):
            if value is None or tensor is None:
                made.append(None)
            else:
                pull = None if varies or not value.on_host else _given(array)
                made.append(Value.of_tensor(tensor, value.elem, pull))
        return made

    def _fill(self, given: Sequence[Any]) -> None:
        for memory, array in zip(self._arrays, given):
            if memory is not None:
                memory[tuple([slice(size) for size in array.shape])] = array

    def _of(self, values: Mapping[Dim, int]) -> list[Tensor | None]:
        """The inputs with some values of the sizes."""
        key = tuple(values.values())
        found = self._tensors.get(key)
        if found is None:
            if len(self._tensors) >= MOST_SHAPES:
                del self._tensors[next(iter(self._tensors))]
            found = self._tensors[key] = self._views(self._wholes, values)
        return found

    def _views(self, wholes: Sequence[Tensor | None], values: Mapping[Dim, int]) -> list[Tensor | None]:
        bound = {dim: self._variables[dim].bind(value // dim.step) for dim, value in values.items()}
        sizes = {dim: node * dim.step if dim.step > 1 else node for dim, node in bound.items()}
        made: list[Tensor | None] = []
        for whole, axes, varies in zip(wholes, self.layout.axes, self._varies):
            if whole is None or axes is None or not varies:
                made.append(whole)
                continue
            made.append(whole[tuple([slice(0, sizes[s]) if isinstance(s, Dim) else slice(None) for s in axes])])
        return made

    def _cut(self, found: Sequence[Tensor]) -> list[Tensor]:
        """Results as tensors of numbers for sizes, in memory of their own."""
        mine = {id(bottom(t)) for t in self._wholes if t is not None}
        return [fixed(t, id(bottom(t)) in mine) for t in found]


def _given(array: Array) -> Callable[[], Array]:
    return lambda: array


def fixed(x: Tensor, copies: bool = False) -> Tensor:
    """A computed tensor with numbers for all of its sizes; `copies`: in any case in memory of its own."""
    if not copies and not has_size(x.shape):
        return x
    array = x.numpy()
    plain = array.dtype.name == numpy_name(x.dtype)
    made = Tensor(array, x.device, copy=False) if plain and x.device.startswith("CPU") else Tensor(array, x.device)
    return made if made.dtype is x.dtype else made.cast(x.dtype).realize()
