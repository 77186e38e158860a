"""`jit`: the first call of a function is captured as kernel launches, later calls replay them.

Right or refused: every input that could change what the captured launches mean is part of a key (shapes, dtypes,
devices, aliasing, Python values, closed-over Python values), tensors that the function reads or writes are tracked by
object, random draws advance, results of earlier calls keep their values, and what cannot be replayed raises `JitError`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import ref

from gradlet.base import settings
from gradlet.base.dtype import dtypes
from gradlet.base.errors import JitError
from gradlet.engine import execute
from gradlet.engine.arenas import memory_line
from gradlet.engine.capture import CapturedProgram, CaptureRecorder
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.runtime.buffer import new_buffer_node
from gradlet.tensor import jitreport, random_state, reachable, symbolic
from gradlet.tensor.callarguments import Arguments
from gradlet.tensor.captured import (
    Capture,
    Slot,
    Update,
    base_and_chain,
    current_states,
    depends,
    for_any_size,
    of_this_call,
    save_from_overwriting,
    temporary,
)
from gradlet.tensor.fastcall import MISSED, FastCall, Replayed, UnfitError, signature_of
from gradlet.tensor.guards import Guards
from gradlet.tensor.results import Results
from gradlet.tensor.snapshot import Before, Snapshot
from gradlet.tensor.tensor import Tensor

MAX_CAPTURES = 16
MAX_FAST = 4  # captures among which calls may alternate and be short

# One call at a time: a capture looks at all tensors, and a replay at those that it overwrites.
_one_at_a_time: Final = threading.RLock()


class jit:
    """Capture a function at its first call and replay its kernels from then on.

    The function may take and return tensors inside lists, tuples, dicts and dataclasses. Python numbers and strings
    among the arguments, in closures and in attributes of closed-over objects are part of what was captured: a new
    value captures again, at most 16 times. Tensors that are closed over (weights, optimizer state) are tracked by
    object, also when the function writes them. A capture that leaves new tensors behind (a gradient, a cache) is made
    once more at the second call, when those exist; replay starts after that. A call that raises leaves everything as
    it was.

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
        if not callable(function) or isinstance(function, Tensor):
            raise JitError(f"jit takes a function, not {type(function).__name__}; write @jit above a def")
        for is_one, kind in (
            (inspect.isgeneratorfunction, "generator"),
            (inspect.iscoroutinefunction, "coroutine"),
            (inspect.isasyncgenfunction, "asynchronous generator"),
        ):
            if is_one(function):
                raise JitError(f"jit takes a function that returns its results, not a {kind}; return a list of tensors")
        functools.update_wrapper(self, function)
        self.function = self.jitted_function = function
        self.captures: dict[tuple[Any, ...], Capture] = {}
        self.calls = 0
        self._history: list[str] = []
        self._tried: set[tuple[Any, ...]] = set()
        self._again: dict[tuple[Any, ...], int] = {}
        self._in_row = 0  # captures since the last replay
        self._fast: list[FastCall] = []  # the last one used first
        self._latest: Capture | None = None
        self._last_key: tuple[Any, ...] | None = None
        self._guards: Guards | None = None
        self._bound: dict[int, tuple[ref[Any], jit]] = {}

    def __get__(self, instance: Any, owner: type | None = None) -> jit:
        """Methods capture per instance."""
        if instance is None:
            return self
        found = self._bound.get(id(instance))
        if found is None or found[0]() is not instance:
            try:
                # A weak reference: the capture of a method must not keep its instance alive.
                key, bound = id(instance), self._bound
                reference = ref(instance, lambda gone: bound.pop(key, None) and None)
            except TypeError:
                raise JitError(
                    f"{self._name()} is a method of {type(instance).__name__}, which has __slots__ and takes no weak "
                    "reference, so nothing tells when an instance is gone; add '__weakref__' to its __slots__"
                ) from None
            found = self._bound[key] = (reference, jit(_weak_method(self.function, reference)))
        return found[1]

    def __copy__(self) -> jit:
        return jit(self.function)

    def __deepcopy__(self, memo: dict[int, Any]) -> jit:
        return jit(self.function)  # functions are not copied either

    def __reduce__(self) -> Any:
        """Captures stay here: whoever loads it captures anew."""
        module, name = getattr(self.function, "__module__", ""), getattr(self.function, "__qualname__", "")
        target: Any = sys.modules.get(module)
        for part in name.split("."):
            target = getattr(target, part, None)
        return name if target is self else (jit, (self.function,))

    def reset(self) -> None:
        """Forget every capture; the next call captures anew."""
        self.captures.clear()
        self._tried.clear()
        self._again.clear()
        self._in_row = 0
        self._history.clear()
        self._fast.clear()
        self._latest = self._last_key = self._guards = None
        self.calls = 0

    @property
    def kernels(self) -> int:
        """Kernels that one replay of the latest capture launches; 0 before the first call."""
        return 0 if self._latest is None else self._latest.kernels

    @property
    def inputs(self) -> list[str]:
        """The tensors that the latest capture takes: name, shape and type of each."""
        return [] if self._latest is None else jitreport.inputs(self._latest)

    @property
    def outputs(self) -> list[str]:
        """The tensors that the latest capture returns: where in the result, shape and type of each."""
        return [] if self._latest is None else jitreport.outputs(self._latest)

    def explain(self) -> str:
        """What was captured, in words: launches, inputs, results, guards, state, and why it was captured again."""
        return jitreport.explain(self._name(), self.calls, list(self.captures.items()), self._history)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if execute.recording():
            return self.function(*args, **kwargs)  # a jitted function inside another is part of the outer capture
        for fast in self._fast:
            result = fast.call(args, kwargs)
            if result is not MISSED:
                self.calls += 1
                fast.capture.replays += 1
                return result
        with _one_at_a_time:
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        arguments = Arguments(args, kwargs)
        if any(execute.base_buffer(t.uop).op is not Op.BUFFER for t in arguments.tensors):
            Tensor.realize(*arguments.tensors)
        roots = _roots_of(self.function)
        guards = self._guards
        if guards is None or not guards.unchanged(*[value for _, value in roots]):
            guards = self._guards = Guards(*roots)
        tracked = guards.tensors
        if any(execute.base_buffer(t.uop).op is not Op.BUFFER for t in tracked):
            Tensor.realize(*tracked)
        key = self._key(arguments, guards)
        capture = self.captures.get(key)
        reason = "" if capture is None else "the tensors that it reads are not what they were"
        if capture is not None:
            states = current_states(capture, arguments)
            if states is not None:
                guards.let_go()
                self._again.pop(key, None)
                self._in_row = 0
                self._latest, self._last_key = capture, key
                capture.replays += 1
                result, replayed = self._replay(capture, arguments, states)
                self._prepare(capture, replayed, guards, arguments, args, kwargs)
                replayed.part.idle.append(replayed.runner)
                return result
        if not guards.is_whole:
            guards = self._guards = Guards(*roots)
        reason = self._may_capture(key, guards, reason)
        try:
            return self._capture(key, arguments, guards, args, kwargs, reason)
        finally:
            guards.let_go()

    def _prepare(
        self, capture: Capture, replayed: Replayed, guards: Guards, arguments: Arguments, args: Any, kwargs: Any
    ) -> None:
        """Make the next call short if it is like this one, whose replay has just ended."""
        # Threads that call at the same time have a runner each.
        others = [fast for fast in self._fast if fast.runner is not replayed.runner and not fast.is_stale]
        try:
            if capture.without_gradient or any(slot.is_gradient for slot in capture.states):
                raise UnfitError
            signature = signature_of(args, kwargs)
            function = self.function

            def unchanged() -> bool:
                return guards.unchanged(*[value for _, value in _roots_of(function)])

            fast = FastCall(capture, replayed, unchanged, guards.tensors, arguments.tensors, signature)
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
        return (tuple(arguments.values), tuple(views), guards.key, bool(Tensor.training))

    def _may_capture(self, key: tuple[Any, ...], guards: Guards, reason: str) -> str:
        """Why this call is captured.

        Raises:
            JitError: it was too often, or something could change unnoticed.
        """
        if guards.large:
            raise JitError(
                f"{self._name()} reads the array {guards.large[0]}, which is too large to compare at every call; make "
                "it a Tensor outside, or take the numbers that are needed before"
            )
        if key not in self.captures and len(self.captures) >= MAX_CAPTURES:
            moving = jitreport.moving(self.captures, self._last_key, key)
            raise JitError(
                f"{self._name()} was captured {MAX_CAPTURES} times and still meets new {moving}; make it a "
                "Tensor argument or a bound Variable, or call reset()"
            )
        self._in_row += 1
        if self._in_row > 2 * MAX_CAPTURES and key not in self._tried and self._last_key is not None:
            raise JitError(
                f"{self._name()} was captured {self._in_row - 1} times in a row and still meets new "
                f"{jitreport.moving(self.captures, self._last_key, key)}; make it a Tensor argument or a bound "
                "Variable, or call reset()"
            )
        if reason or key in self._tried:
            reason = reason or "the first capture left tensors behind that later calls use"
            self._again[key] = self._again.get(key, 0) + 1
            if self._again[key] > MAX_CAPTURES:
                raise JitError(
                    f"{self._name()} was captured {MAX_CAPTURES} times for the same arguments: {reason}, because each "
                    "call drops them or gives them another form; write to one tensor with assign(), or return the "
                    "new one"
                )
            return reason
        if self._last_key is None:
            return "the first call"
        return f"new {jitreport.moving(self.captures, self._last_key, key)}"

    def _capture(
        self, key: tuple[Any, ...], arguments: Arguments, guards: Guards, args: Any, kwargs: Any, reason: str
    ) -> Any:
        first_new = _mark()
        before = Snapshot()
        generators = [(name, g, reachable.generator_state(g)) for name, g in guards.generators]
        given = [execute.base_buffer(tensor.uop) for tensor in arguments.tensors]
        recorder = CaptureRecorder(lambda node: node.arg.number < first_new, given)
        execute.set_recorder(recorder)
        try:
            result = self.function(*args, **kwargs)
            _refuse_generators(generators)
            written = before.changed(recorder)
            _refuse_written_views(written, arguments)
            closed_over = {id(t) for t in guards.tensors}
            results = Results(result, lambda t: id(t) in closed_over)
            recorder.saves = False  # what can still fail is the compiler
            gradients = [b for b in before.new_gradients() if b.tensor.grad.has_value]
            _realize_all([*results.tensors, *written, *[b.tensor.grad for b in gradients]])
            made = _detach_results(results.tensors, first_new)
            results.use(made)
        except BaseException:
            execute.set_recorder(None)
            before.restore(recorder)
            raise
        finally:
            execute.set_recorder(None)
        settled = all(base_and_chain(before.tensors[id(t)].uop)[0].op is Op.BUFFER for t in written)
        capture = self._describe(recorder, before, arguments, guards, results, made, gradients, reason)
        before.tensors.clear()
        if not settled or not capture.is_tracked or (capture.leftovers and key not in self._tried):
            # Tensors that got their first memory inside, or were made inside and live on (gradients, lazily made
            # state): they are known at the next call, capture then.
            self._tried.add(key)
            self.captures.pop(key, None)
        else:
            self.captures[key] = capture
            if settings.DEBUG >= 1:
                print(f"{self._name()} captured: {capture.kernels} kernels, {memory_line(capture.program.memory)}")
        self._fast.clear()
        self._latest, self._last_key = capture, key
        self._history = [*self._history[-99:], f"call {self.calls}: {reason}"]
        return results.build(made)

    def _describe(
        self, recorder: execute.Recorder, before: Snapshot, arguments: Arguments, guards: Guards, results: Results,
        made: Sequence[Tensor], gradients: Sequence[Before], reason: str,
    ) -> Capture:  # fmt: skip
        program: CapturedProgram = recorder.program  # type: ignore[attr-defined]
        closed_over = {id(t) for t in guards.tensors}
        paths = {v[1]: path for path, v in guards.values.items() if type(v) is tuple and v[0] == "Tensor"}
        owners = {id(b.grad): b.tensor for b in before.tensors.values() if isinstance(b.grad, Tensor)}
        of_arguments = {id(t): n for n, t in enumerate(arguments.tensors)}
        touched = {id(r()) for r in recorder.touched}
        overwritten = {call.slots[w] for call in program.calls for w in call.written}
        inputs: dict[int, int] = {}
        names: dict[int, str] = {}
        for number, tensor in enumerate(arguments.tensors):
            slot = program.slot_of.get(execute.base_buffer(before.tensors[id(tensor)].uop))
            if slot is not None:
                inputs.setdefault(slot, number)
                names.setdefault(slot, f"argument {arguments.paths[number]}")
        states: list[Slot] = []
        shared: list[tuple[int, ref[Tensor]]] = []
        updates: list[Update] = []
        others: dict[int, Slot] = {}
        for own, entry in before.tensors.items():
            base, chain = base_and_chain(entry.uop)
            held = program.slot_of.get(base) if base.op is Op.BUFFER else None
            if held is not None and held not in program.produced:
                owner = owners.get(own)
                if held in inputs:
                    if own in closed_over:
                        shared.append((held, ref(entry.tensor)))
                elif own in closed_over:
                    # Of tensors that share memory all that are closed over count: one may be given another.
                    states.append(Slot(held, ref(entry.tensor), chain))
                    names[held] = paths[own]
                elif owner is not None:
                    states.append(Slot(held, ref(owner), chain, True))
                    names.setdefault(held, f"{paths.get(id(owner), 'a tensor')}.grad")
                else:
                    others.setdefault(held, Slot(held, ref(entry.tensor), chain))
            moved = own in touched and entry.tensor.uop is not entry.uop
            if moved or (held is not None and held in overwritten):
                updates.append(Update(ref(entry.tensor), of_arguments.get(own), entry.tensor.uop))
        seen = {slot.number for slot in states}
        states += [slot for held, slot in others.items() if held not in seen]
        known = {*inputs, *program.produced, *[slot.number for slot in states]}
        is_tracked = len(known) == len(program.nodes)
        added = [
            b for b in gradients if b.grad is not None and program.slot_of.get(_base_before(before, b.grad)) in known
        ]
        updates += [Update(ref(b.tensor), None, b.tensor.grad.uop, True) for b in added]
        kept = {id(t) for t in (*made, *results.tensors, *[b.tensor.grad for b in added])}
        leftovers = [
            ref(t) for t in Tensor.all_live() if not before.has(t) and id(t) not in kept and depends(t, program)
        ]
        shown = [execute.base_buffer(t.uop) for t in made] + [execute.base_buffer(u.node) for u in updates]
        outputs = tuple(dict.fromkeys(s for n in shown if (s := program.slot_of.get(n)) in program.produced))
        program.temporary = temporary(program, outputs)
        changing = {id(update.tensor()) for update in updates}
        program.settle({*inputs, *outputs, *[s.number for s in states if s.is_gradient or id(s.tensor()) in changing]})
        program.share_memory(outputs)
        return Capture(
            program, inputs, states, shared,
            without_gradient=[ref(b.tensor) for b in gradients if b.grad is None],
            updates=updates,
            result=results.tree,
            results=[t.uop for t in made],
            result_paths=results.paths,
            build=results.build,
            outputs=outputs,
            in_place=program.in_place,
            leftovers=leftovers,
            draws=random_state.draws() - before.draws,
            draw_start=before.draws,
            kernels=sum(call.kernel is not None for call in program.calls),
            names=names,
            reason=reason,
            is_tracked=is_tracked,
        )  # fmt: skip

    def _replay(self, capture: Capture, arguments: Arguments, states: dict[int, UOp]) -> tuple[Any, Replayed]:
        program = capture.program
        replaced = dict(states)
        for slot, number in capture.inputs.items():
            replaced[slot] = execute.base_buffer(arguments.tensors[number].uop)
        for slot in capture.outputs:
            replaced[slot] = program.fresh_buffer(slot)
        moved = save_from_overwriting(capture, replaced, arguments)
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
                node = of_this_call(symbolic.rebound(update.node, arguments.bound), changes)
                if update.is_gradient:
                    tensor.grad = Tensor.of_node(node)
                else:
                    tensor.uop = node
        made = [Tensor.of_node(of_this_call(symbolic.rebound(n, arguments.bound), changes)) for n in capture.results]
        return capture.build(made), replayed

    def _name(self) -> str:
        return f"jitted function {getattr(self.function, '__name__', repr(self.function))!r}"


TinyJit = jit


def _mark() -> int:
    """A buffer number above all given out so far."""
    return int(new_buffer_node("CPU", dtypes.uint8, 0).arg.number)


def _roots_of(function: Any) -> list[tuple[str, Any]]:
    """Where guards begin: the function, and the instance of a method."""
    reference = getattr(function, "guarded_instance", None)
    if reference is not None:
        return [("self", reference()), ("", function.guarded_function)]
    return [("" if isinstance(function, reachable.CALLED) else "self", function)]


def _weak_method(function: Callable[..., Any], reference: ref[Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(reference(), *args, **kwargs)

    call.guarded_instance = reference  # type: ignore[attr-defined]
    call.guarded_function = function  # type: ignore[attr-defined]
    return call


def _base_before(before: Snapshot, tensor: Tensor) -> UOp:
    entry = before.tensors.get(id(tensor))
    return execute.base_buffer(entry.uop if entry is not None else tensor.uop)


def _refuse_generators(generators: Sequence[tuple[str, Any, str]]) -> None:
    """Numbers that Python drew are the same in every replay.

    Raises:
        JitError: some were drawn.
    """
    for name, generator, state in generators:
        if reachable.generator_state(generator) != state:
            raise JitError(
                f"{name or 'a random number generator'} was drawn from inside a jitted function: its numbers would be "
                "frozen at the first call's; draw outside and pass the number, or use Tensor.rand"
            )


def _realize_all(tensors: Sequence[Tensor]) -> None:
    """Compute results and written tensors in one schedule."""
    chosen = list(dict.fromkeys(tensors))
    if chosen:
        Tensor.realize(*chosen)


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


def _detach_results(results: Sequence[Tensor], first_new: int) -> list[Tensor]:
    """Give results memory of their own where it is an input's, a state's, or another result's."""
    chosen = {id(t) for t in results}
    owned = {execute.base_buffer(t.uop) for t in Tensor.all_live() if id(t) not in chosen}
    made = []
    for tensor in results:
        base = execute.base_buffer(tensor.uop)
        is_new = base.op is Op.BUFFER and base.arg.number >= first_new and base not in owned
        made.append(tensor if is_new else tensor.clone().realize())
    return made
