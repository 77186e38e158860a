"""`jit`: the first call of a function is captured as kernel launches, later calls replay them.

Right or refused: every input that could change what the captured launches mean is part of a key (shapes, dtypes,
devices, aliasing, Python values, closed-over Python values), tensors that the function reads or writes are tracked by
object, random draws advance, results of earlier calls keep their values, and what cannot be replayed raises `JitError`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

from gradlet.base import settings
from gradlet.base.errors import JitError
from gradlet.engine import execute
from gradlet.engine.arenas import memory_line
from gradlet.engine.capture import CapturedProgram, CaptureRecorder
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import MOVEMENT, Op
from gradlet.runtime.buffer import buffer_of, new_buffer_node, protected
from gradlet.tensor import random_state, symbolic
from gradlet.tensor.fastcall import MISSED, FastCall, Replayed, UnfitError, signature_of
from gradlet.tensor.guards import SIMPLE, Guards
from gradlet.tensor.tensor import Tensor

MAX_CAPTURES = 16
MAX_FAST = 4  # captures among which calls may alternate and be short


@dataclass
class Arguments:
    """A call's arguments taken apart: tensors by path, the rest as a hashable key."""

    tensors: list[Tensor] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    bound: dict[str, int] = field(default_factory=dict)
    values: list[tuple[str, Any]] = field(default_factory=list)

    def add(self, path: str, value: Any) -> None:
        """Take one argument, containers element by element.

        Raises:
            JitError: a value whose changes could not be noticed.
        """
        if isinstance(value, Tensor):
            self.tensors.append(value)
            self.paths.append(path)
            self.values.append((path, "Tensor"))
            for node in symbolic.bound_sizes(value.uop):
                self.bind(path, node)
        elif isinstance(value, UOp) and value.op is Op.BIND:
            self.bind(path, value)
            self.values.append((path, value.src[0].arg))
        elif isinstance(value, SIMPLE):
            self.values.append((path, (type(value).__name__, repr(value))))
        elif isinstance(value, (list, tuple)):
            self.values.append((path, (type(value).__name__, len(value))))
            for number, item in enumerate(value):
                self.add(f"{path}[{number}]", item)
        elif isinstance(value, dict):
            self.values.append((path, ("dict", tuple(repr(k) for k in value))))
            for name, item in value.items():
                self.add(f"{path}[{name!r}]", item)
        elif callable(getattr(value, "__hash__", None)) and not hasattr(value, "__array__"):
            self.values.append((path, (type(value).__name__, id(value))))
        else:
            raise JitError(
                f"argument {path} of type {type(value).__name__} can change without the jit noticing; "
                "pass a Tensor, or a Python number, string, list, tuple or dict of these"
            )

    def bind(self, path: str, node: UOp) -> None:
        """Note the value of a variable.

        Raises:
            JitError: it has another value in another argument.
        """
        name, value = node.src[0].arg.name, int(node.src[1].arg)
        if self.bound.setdefault(name, value) != value:
            raise JitError(
                f"argument {path}: variable {name!r} is bound to {self.bound[name]} and to {value} in one call; use "
                "two variables"
            )


@dataclass
class Slot:
    """A buffer of the captured program that belongs to a live tensor: looked up again at every call."""

    number: int
    tensor: ref[Tensor]
    chain: tuple[Any, ...]


@dataclass
class Update:
    """A tensor that the function gave a new value: after a replay it takes the program's result.

    `argument` is its number among the tensor arguments, None for a tensor that is closed over.
    """

    tensor: ref[Tensor]
    argument: int | None
    node: UOp


@dataclass
class Capture:
    """One captured call."""

    program: CapturedProgram
    inputs: dict[int, int]  # slot -> number of the input tensor
    states: list[Slot]
    updates: list[Update]
    result: Any
    outputs: tuple[int, ...]  # produced slots that results or updates show to the outside
    in_place: tuple[int, ...]  # slots with values from before the call that the program overwrites
    leftovers: list[ref[Tensor]]
    draws: int
    draw_start: int
    kernels: int


def base_and_chain(node: UOp) -> tuple[UOp, tuple[Any, ...]]:
    """The node below the movement ops, and those ops as a key."""
    chain: list[Any] = []
    base = execute.base_buffer(node)
    while node is not base:
        chain.append((node.op, node.arg, *node.src[1:]))
        node = node.src[0]
    return base, tuple(chain)


def for_any_size(chain: tuple[Any, ...]) -> tuple[Any, ...]:
    """A chain whose bound variables may have other values in another call."""
    return tuple([(*step[:2], *[symbolic.unbound(size) for size in step[2:]]) for step in chain])


class jit:
    """Capture a function at its first call and replay its kernels from then on.

    The function may take and return tensors inside lists, tuples and dicts. Python numbers and strings among the
    arguments, in closures and in attributes of closed-over objects are part of what was captured: a new value captures
    again, at most 16 times. Tensors that are closed over (weights, optimizer state) are tracked by object, also when
    the function writes them. A capture that leaves new tensors behind (a gradient, a cache) is made once more at the
    second call, when those exist; replay starts after that.

    Raises:
        JitError: for what replay could not repeat: reading values (`item`, `numpy`, `tolist`, printing) or creating
            tensors from host data inside, unnoticed argument kinds, too many captures.

    >>> from gradlet import Tensor, jit
    >>> @jit
    ... def double(x):
    ...     return (x * 2).realize()
    >>> [double(Tensor([float(n)])).item() for n in range(4)]
    [0.0, 2.0, 4.0, 6.0]
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise JitError(f"jit takes a function, not {type(function).__name__}; write @jit above a def")
        functools.update_wrapper(self, function)
        self.function = self.jitted_function = function
        self.captures: dict[tuple[Any, ...], Capture] = {}
        self._tried: set[tuple[Any, ...]] = set()
        self._fast: list[FastCall] = []  # the last one used first
        self._bound: WeakKeyDictionary[Any, jit] = WeakKeyDictionary()

    def __get__(self, instance: Any, owner: type | None = None) -> jit:
        """Methods capture per instance."""
        if instance is None:
            return self
        found = self._bound.get(instance)
        if found is None:
            # A weak reference: the capture of a method must not keep its instance alive.
            found = self._bound[instance] = jit(_weak_method(self.function, instance))
        return found

    def reset(self) -> None:
        """Forget every capture; the next call captures anew."""
        self.captures.clear()
        self._tried.clear()
        self._fast.clear()

    @property
    def kernels(self) -> int:
        """Kernels that one replay of the latest capture launches; 0 before the first call."""
        captures = list(self.captures.values())
        return captures[-1].kernels if captures else 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if execute.recording():
            return self.function(*args, **kwargs)  # a jitted function inside another is part of the outer capture
        for fast in self._fast:
            result = fast.call(args, kwargs)
            if result is not MISSED:
                return result
        arguments = Arguments()
        for number, value in enumerate(args):
            arguments.add(str(number), value)
        for name in sorted(kwargs):
            arguments.add(name, kwargs[name])
        guards = Guards(self.function)
        tensors = [*arguments.tensors, *guards.tensors]
        if any(execute.base_buffer(t.uop).op is not Op.BUFFER for t in tensors):
            Tensor.realize(*tensors)
        key = self._key(arguments, guards)
        capture = self.captures.get(key)
        if capture is not None:
            states = _current_states(capture, arguments)
            if states is not None:
                result, replayed = self._replay(capture, arguments, states)
                self._prepare(capture, replayed, guards, arguments, args, kwargs)
                replayed.part.idle.append(replayed.runner)
                return result
        return self._capture(key, arguments, {id(t) for t in guards.tensors}, args, kwargs)

    def _prepare(
        self, capture: Capture, replayed: Replayed, guards: Guards, arguments: Arguments, args: Any, kwargs: Any
    ) -> None:
        """Make the next call short if it is like this one, whose replay has just ended."""
        # Threads that call at the same time have a runner each.
        others = [fast for fast in self._fast if fast.runner is not replayed.runner and not fast.is_stale]
        try:
            signature = signature_of(args, kwargs)
            fast = FastCall(capture, replayed, guards.unchanged, guards.tensors, arguments.tensors, signature)
            self._fast = [fast, *others[: MAX_FAST - 1]]
        except UnfitError:
            self._fast = others

    def _key(self, arguments: Arguments, guards: Guards) -> tuple[Any, ...]:
        bases: dict[UOp, int] = {}
        views = []
        for tensor in arguments.tensors:
            base, chain = base_and_chain(tensor.uop)
            if base.op is not Op.BUFFER:
                base = tensor.contiguous().realize().uop  # a constant: give it memory of its own
            views.append(
                (for_any_size(chain), base.dtype, base.arg.size, base.arg.device, bases.setdefault(base, len(bases)))
            )
        # A tensor that is closed over may also be an argument, or share its memory.
        found = [(n, bases.get(execute.base_buffer(t.uop))) for n, t in enumerate(guards.tensors)]
        shared = tuple([pair for pair in found if pair[1] is not None])
        return (tuple(arguments.values), (tuple(views), shared), guards.key, bool(Tensor.training))

    def _capture(
        self, key: tuple[Any, ...], arguments: Arguments, closed_over: set[int], args: Any, kwargs: Any
    ) -> Any:
        if key not in self.captures and len(self.captures) >= MAX_CAPTURES:
            raise JitError(
                f"{self._name()} was captured {MAX_CAPTURES} times and still meets new {self._moving(key)}; make it a "
                "Tensor argument or a bound Variable, or call reset()"
            )
        first_new = new_buffer_node("CPU", arguments.tensors[0].dtype, 0).arg.number if arguments.tensors else _mark()
        before = {id(t): (ref(t), t.uop) for t in Tensor.all_live()}
        given = [execute.base_buffer(tensor.uop) for tensor in arguments.tensors]
        recorder = CaptureRecorder(lambda node: node.arg.number < first_new, given)
        draw_start = random_state.draws()
        execute.set_recorder(recorder)
        try:
            result = self.function(*args, **kwargs)
            changed = [t for r, uop in before.values() if (t := r()) is not None and t.uop is not uop]
            _refuse_written_views(changed, arguments)
            _realize_all(changed, result)
            result = _detach_results(result, recorder.program, first_new, arguments)
        finally:
            execute.set_recorder(None)
        capture = self._describe(recorder.program, before, arguments, result, draw_start, first_new, closed_over)
        unsettled = any(base_and_chain(before[id(t)][1])[0].op is not Op.BUFFER for t in changed)
        if unsettled or (capture.leftovers and key not in self._tried):
            # Tensors that got their first memory inside, or were made inside and live on (gradients, lazily made
            # state): they are known at the next call, capture then.
            self._tried.add(key)
            self.captures.pop(key, None)
            self._fast.clear()
        else:
            self._fast.clear()
            self.captures[key] = capture
            if settings.DEBUG >= 1:
                print(f"{self._name()} captured: {capture.kernels} kernels, {memory_line(capture.program.memory)}")
        return result

    def _describe(
        self, program: CapturedProgram, before: dict[int, Any], arguments: Arguments, result: Any, draw_start: int,
        first_new: int, closed_over: set[int],
    ) -> Capture:  # fmt: skip
        inputs: dict[int, int] = {}
        for number, tensor in enumerate(arguments.tensors):
            slot = program.slot_of.get(execute.base_buffer(tensor.uop))
            if slot is not None:
                inputs.setdefault(slot, number)
        written = {call.slots[w] for call in program.calls for w in call.written}
        states: list[Slot] = []
        updates: list[Update] = []
        seen: set[int] = set()
        others: dict[int, Slot] = {}
        for reference, old in before.values():
            tensor = reference()
            if tensor is None:
                continue
            base, chain = base_and_chain(old)
            held = program.slot_of.get(base) if base.op is Op.BUFFER else None
            if held is not None and held not in inputs and held not in program.produced:
                # Of tensors that share memory all that are closed over count: one of them may be given another.
                if id(tensor) in closed_over:
                    states.append(Slot(held, reference, chain))
                    seen.add(held)
                else:
                    others.setdefault(held, Slot(held, reference, chain))
            if tensor.uop is not old or (held is not None and held in written):
                given = next((n for n, a in enumerate(arguments.tensors) if a is tensor), None)
                updates.append(Update(reference, given, tensor.uop))
        states += [slot for held, slot in others.items() if held not in seen]
        returned = {id(t) for t in _tensors_in(result)}
        leftovers = [
            ref(t)
            for t in Tensor.all_live()
            if not _was_there(t, before) and id(t) not in returned and _depends(t, program)
        ]
        shown = [execute.base_buffer(t.uop) for t in _tensors_in(result)]
        shown += [execute.base_buffer(u.node) for u in updates]
        outputs = tuple(dict.fromkeys(s for n in shown if (s := program.slot_of.get(n)) in program.produced))
        program.temporary = _temporary(program, outputs)
        changing = {id(update.tensor()) for update in updates}
        program.settle({*inputs, *outputs, *[s.number for s in states if id(s.tensor()) in changing]})
        program.share_memory(outputs)
        in_place = program.in_place
        kernels = sum(call.kernel is not None for call in program.calls)
        draws = random_state.draws() - draw_start
        template = _map_tensors(result, lambda t: t.uop)
        return Capture(
            program, inputs, states, updates, template, outputs, in_place, leftovers, draws, draw_start, kernels
        )

    def _replay(self, capture: Capture, arguments: Arguments, states: dict[int, UOp]) -> tuple[Any, Replayed]:
        program = capture.program
        replaced = dict(states)
        for slot, number in capture.inputs.items():
            replaced[slot] = execute.base_buffer(arguments.tensors[number].uop)
        for slot in capture.outputs:
            replaced[slot] = program.fresh_buffer(slot)
        moved = _save_from_overwriting(capture, replaced, arguments)
        values = program.values
        if capture.draws or arguments.bound:
            values = random_state.rebased(values, capture.draw_start)
            for variable in values:
                if variable.arg.name in arguments.bound:
                    values[variable] = arguments.bound[variable.arg.name]
        for leftover in capture.leftovers:
            tensor = leftover()
            if tensor is not None:
                tensor.invalidate(
                    f"this tensor was made inside {self._name()} and is not one of its results, so a replay does not "
                    "update it; return it from the jitted function"
                )
        capture.leftovers.clear()
        replayed = Replayed(*program.replay(replaced, values), replaced)
        random_state.advance(capture.draws)
        changes = {program.nodes[slot]: node for slot, node in replaced.items()}
        for reference, node in moved:
            tensor = reference()
            if tensor is not None:
                tensor.uop = node
        for update in capture.updates:
            tensor = update.tensor() if update.argument is None else arguments.tensors[update.argument]
            if tensor is not None:
                tensor.uop = _of_this_call(symbolic.rebound(update.node, arguments.bound), changes)
        result = _map_nodes(
            capture.result,
            lambda node: Tensor.of_node(_of_this_call(symbolic.rebound(node, arguments.bound), changes)),
        )
        return result, replayed

    def _name(self) -> str:
        return f"jitted function {getattr(self.function, '__name__', repr(self.function))!r}"

    def _moving(self, key: tuple[Any, ...]) -> str:
        """Which part of the key differs between captures, in words."""
        last = list(self.captures)[-1]
        for old, new in zip(last[0], key[0], strict=False):
            if old != new:
                return f"values of argument {new[0]} (now {new[1][-1]})"
        if last[1] != key[1]:
            return "shapes, dtypes, devices or aliasing of its tensor arguments"
        changed = sorted(dict(key[2]).items() - dict(last[2]).items())
        return f"values of {changed[0][0]}" if changed else "training mode"


TinyJit = jit


def _mark() -> int:
    """A buffer number above all given out so far."""
    from gradlet.base.dtype import dtypes

    return int(new_buffer_node("CPU", dtypes.uint8, 0).arg.number)


def _weak_method(function: Callable[..., Any], instance: Any) -> Callable[..., Any]:
    reference = ref(instance)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(reference(), *args, **kwargs)

    call.guarded_instance = reference  # type: ignore[attr-defined]
    return call


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)


def _map_tree(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tree(v, kind, change) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tree(v, kind, change) for v in value)
    if isinstance(value, dict):
        return {k: _map_tree(v, kind, change) for k, v in value.items()}
    return value


def _map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    return _map_tree(value, Tensor, change)


def _of_this_call(node: UOp, changes: dict[UOp, UOp]) -> UOp:
    """A graph of the capture on the buffers of this call: mostly a view or two of one of them."""
    views: list[UOp] = []
    base = node
    while base.op in MOVEMENT and len(base.src) == 1:
        views.append(base)
        base = base.src[0]
    if base.op is not Op.BUFFER:
        return node.substitute(changes)
    base = changes.get(base, base)
    for view in reversed(views):
        base = mk(view.op, view.dtype, (base,), view.arg)
    return base


def _map_nodes(value: Any, change: Callable[[UOp], Any]) -> Any:
    return _map_tree(value, UOp, change)


def _realize_all(changed: Sequence[Tensor], result: Any) -> None:
    """Compute results and written tensors in one schedule."""
    tensors = list(dict.fromkeys([*_tensors_in(result), *changed]))
    if tensors:
        Tensor.realize(*tensors)


def _refuse_written_views(changed: Sequence[Tensor], arguments: Arguments) -> None:
    """A write to a view changes the tensor it was taken from, which is another one at every call.

    Raises:
        JitError: naming the argument.
    """
    for tensor, path in zip(arguments.tensors, arguments.paths, strict=True):
        view = tensor._view
        if view is not None and view[0]() is not None and any(tensor is c for c in changed):
            raise JitError(
                f"argument {path} is a view of another tensor and is written inside the jitted function; pass the "
                "whole tensor, or a clone() of the view"
            )


def _detach_results(result: Any, program: CapturedProgram, first_new: int, arguments: Arguments) -> Any:
    """Give results memory of their own where it is an input's, a state's, or another result's."""
    owned = {execute.base_buffer(t.uop) for t in Tensor.all_live() if t not in set(_tensors_in(result))}
    seen: dict[UOp, Tensor] = {}

    def separate(tensor: Tensor) -> Tensor:
        base = execute.base_buffer(tensor.uop)
        if base.op is not Op.BUFFER or base.arg.number < first_new or base in owned:
            return tensor.clone().realize()
        seen[base] = tensor
        return tensor

    return _map_tensors(result, separate)


def _was_there(tensor: Tensor, before: dict[int, Any]) -> bool:
    """Whether the tensor was alive at the start of the capture (an id alone may have been used again)."""
    found = before.get(id(tensor))
    return found is not None and found[0]() is tensor


def _depends(tensor: Tensor, program: CapturedProgram) -> bool:
    """Whether the tensor's value would change with a replay: its graph reads a buffer of the program."""
    return any(n.op is Op.BUFFER and n in program.slot_of for n in toposort((tensor.uop,)))


def _temporary(program: CapturedProgram, outputs: Sequence[int]) -> set[int]:
    """The slots that are written first in every call, and that no tensor reads."""
    seen = {program.slot_of.get(n) for n in toposort([t.uop for t in Tensor.all_live()]) if n.op is Op.BUFFER}
    found: set[int] = set()
    touched: set[int] = set()
    for call in program.calls:
        found.update({call.slots[w] for w in call.written} - touched)
        touched.update(call.slots)
    return (found & program.produced) - seen - set(outputs)


def _current_states(capture: Capture, arguments: Arguments) -> dict[int, UOp] | None:
    """The buffers that tracked tensors have now, or None when one changed its form and capture must run again."""
    states: dict[int, UOp] = {}
    inputs = {execute.base_buffer(t.uop) for t in arguments.tensors}
    for state in capture.states:
        tensor = state.tensor()
        if tensor is None:
            return None  # what the function reads now cannot be what it read then
        base, chain = base_and_chain(tensor.uop)
        if base.op is not Op.BUFFER:
            tensor.realize()
            base, chain = base_and_chain(tensor.uop)
        captured = capture.program.nodes[state.number]
        same = base.op is Op.BUFFER and chain == state.chain and base.dtype is captured.dtype
        if not same or base.arg[1:] != captured.arg[1:] or base in inputs:
            return None
        if states.setdefault(state.number, base) is not base:
            return None  # two tensors shared this memory and do not any more
    return states


def _save_from_overwriting(
    capture: Capture, replaced: dict[int, UOp], arguments: Arguments
) -> list[tuple[ref[Tensor], UOp]]:
    """Copy buffers that replay will overwrite while another live graph still reads them.

    The tracked tensor moves to the copy. Returns the tensors to re-point after the replay.
    """
    if not capture.in_place:
        return []
    program = capture.program
    targets = {replaced.get(slot, program.nodes[slot]): slot for slot in capture.in_place}
    owners: dict[UOp, ref[Tensor]] = {}
    for state in capture.states:
        owners[replaced.get(state.number, program.nodes[state.number])] = state.tensor
    held: set[UOp] = set()
    for tensor in Tensor.all_live():
        node = tensor.uop
        if node.op is Op.BUFFER or execute.base_buffer(node).op is Op.BUFFER:
            base = execute.base_buffer(node)
            owner = owners.get(base)
            is_input = any(tensor is a for a in arguments.tensors)
            if base in targets and not is_input and (owner is None or owner() is not tensor):
                held.add(base)
        else:
            held.update(n for n in toposort((node,)) if n in targets)
    held.update(node for node in protected() if node in targets)  # somebody outside reads these
    moved = []
    for node in held:
        slot = targets[node]
        copy = program.fresh_buffer(slot)
        execute.copy(buffer_of(copy), buffer_of(node))
        replaced[slot] = copy
        owner = owners.get(node)
        owning = owner() if owner is not None else None
        if owner is not None and owning is not None:
            moved.append((owner, owning.uop.substitute({node: copy})))
        for argument in arguments.tensors:
            if execute.base_buffer(argument.uop) is node:
                moved.append((ref(argument), argument.uop.substitute({node: copy})))
    return moved
