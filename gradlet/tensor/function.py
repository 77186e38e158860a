"""`jit`: the first call of a function is captured as kernel launches, later calls replay them.

Right or refused: every input that could change what the captured launches mean is part of a key (shapes, dtypes,
devices, aliasing, Python values, closed-over Python values), tensors that the function reads or writes are tracked by
object, random draws advance, results of earlier calls keep their values, and what cannot be replayed raises `JitError`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
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
    Put,
    Puts,
    Slot,
    Traced,
    Update,
    Whose,
    base_and_chain,
    current_states,
    depends,
    for_any_size,
    is_dense,
    of_this_call,
    save_from_overwriting,
    temporary,
)
from gradlet.tensor.exporting import Exporting
from gradlet.tensor.fastcall import MISSED, FastCall, Replayed, UnfitError, signature_of
from gradlet.tensor.guards import Change, Guards, Held
from gradlet.tensor.results import Results, can_put, tensors_in
from gradlet.tensor.snapshot import Before, Snapshot
from gradlet.tensor.tensor import Tensor
from gradlet.tensor.turns import Turns

MAX_CAPTURES = 16
MAX_FAST = 4  # captures among which calls may alternate and be short

# One call at a time: a capture looks at all tensors, and a replay at those that it overwrites.
_one_at_a_time: Final = Turns()


class jit(Exporting):
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
        self._tried: dict[tuple[Any, ...], str] = {}  # why their capture is not replayed
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
    def kernels(self) -> list[jitreport.ReplayedKernel]:
        """The launches of the latest capture in order: name, device, memory, opts; none before the first call."""
        return [] if self._latest is None else jitreport.kernels(self._latest)

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
        _one_at_a_time.take(self._name())
        try:
            return self._call(args, kwargs)
        finally:
            _one_at_a_time.give()

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
            states = current_states(capture, arguments, guards)
            held = guards.look(*[value for _, value in roots]) if capture.puts.all else []
            if states is not None and held is not None:
                guards.let_go()
                self._again.pop(key, None)
                self._in_row = 0
                self._latest, self._last_key = capture, key
                capture.replays += 1
                result, replayed = self._replay(capture, arguments, states, guards, held)
                if self._guards is not None:
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
            if capture.shared or any(isinstance(name, str) for name in self._last_key[-1]):  # type: ignore[index]
                raise UnfitError  # an argument was closed over too, and need not be any more
            signature = signature_of(args, kwargs)
            function = self.function

            if hasattr(function, "guarded_instance"):

                def roots() -> list[Any]:
                    return [value for _, value in _roots_of(function)]

            else:
                always: list[Any] = [function]

                def roots() -> list[Any]:
                    return always

            fast = FastCall(capture, replayed, guards, roots, arguments.tensors, signature)
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
        found = guards.by_path
        forms = tuple([(path, *_form(tensor)) for path, tensor in found.items()])
        # Which arguments are one object, and which are closed over too: places may get the object itself.
        names: dict[int, Any] = {id(tensor): path for path, tensor in found.items()}
        objects = tuple([names.setdefault(id(tensor), n) for n, tensor in enumerate(arguments.tensors)])
        return (tuple(arguments.values), tuple(views), guards.key, bool(Tensor.training), forms, objects)

    def _refuse_large(self, guards: Guards) -> None:
        """Look at nothing that cannot be compared at every call.

        Raises:
            JitError: there is something.
        """
        if guards.large:
            raise JitError(
                f"{self._name()} reads the array {guards.large[0]}, which is too large to compare at every call; make "
                "it a Tensor outside, or take the numbers that are needed before"
            )

    def _may_capture(self, key: tuple[Any, ...], guards: Guards, reason: str) -> str:
        """Why this call is captured.

        Raises:
            JitError: it was too often, or something could change unnoticed.
        """
        self._refuse_large(guards)
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
            reason = reason or self._tried[key]
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
        traced = self._trace(arguments, guards, args, kwargs, reason)
        capture, unclear = traced.capture, traced.unclear
        if capture.leftovers and key not in self._tried:
            capture.forget_garbage()
        if unclear or not traced.is_settled or (capture.leftovers and key not in self._tried):
            # Tensors that got their first memory inside, or were made inside and live on (gradients, lazily made
            # state): they are known at the next call, capture then.
            self._tried[key] = (
                f"the call changes {unclear[0]}, and not to tensors or plain values in lists, tuples and dicts"
                if unclear
                else "the first capture left tensors behind that later calls use"
            )
            self.captures.pop(key, None)
        else:
            self.captures[key] = capture
            if settings.DEBUG >= 1:
                print(f"{self._name()} captured: {capture.kernels} kernels, {memory_line(capture.program.memory)}")
        self._fast.clear()
        if traced.changes or unclear:
            self._guards = None
        self._latest, self._last_key = capture, key
        self._history = [*self._history[-99:], f"call {self.calls}: {reason}"]
        return traced.results.build(traced.made)

    def _trace(
        self, arguments: Arguments, guards: Guards, args: Any, kwargs: Any, reason: str, undo: bool = False
    ) -> Traced:
        """Run the function once and describe what ran. `undo`: all is as it was afterwards, and results are dense."""
        first_new = _mark()
        before = Snapshot()
        generators = [(name, g, reachable.generator_state(g)) for name, g in guards.generators]
        given = [execute.base_buffer(tensor.uop) for tensor in arguments.tensors]
        recorder = CaptureRecorder(lambda node: node.arg.number < first_new, given)
        held = guards.look(*[value for _, value in _roots_of(self.function)])
        changes: list[Change] = []
        execute.set_recorder(recorder)
        try:
            result = self.function(*args, **kwargs)
            _refuse_generators(generators)
            written = before.changed(recorder)
            _refuse_written_views(written, arguments)
            found = guards.by_path
            closed_over = {id(t) for t in found.values()}
            results = Results(result, lambda t: id(t) in closed_over)
            changes, unclear, moved = self._changes(guards, held)
            puts = _puts(changes, moved, results, arguments, found)
            recorder.saves = undo  # what can still fail is the compiler
            gradients = [b for b in before.new_gradients() if b.tensor.grad.has_value]
            _realize_all([*results.tensors, *written, *[b.tensor.grad for b in gradients]])
            made = _detach_results(results.tensors, first_new)
            if undo:
                made = [tensor if is_dense(tensor) else tensor.contiguous().realize() for tensor in made]
        except BaseException:
            execute.set_recorder(None)
            before.restore(recorder)
            if held is not None:
                self._put_back(guards, held)
            raise
        finally:
            execute.set_recorder(None)
        if held is not None and puts.all:
            if not undo:
                self._put(guards, held, puts, made, arguments)
            puts.is_steady = Guards(*_roots_of(self.function)).key == guards.key
        settled = all(base_and_chain(before.tensors[id(t)].uop)[0].op is Op.BUFFER for t in written)
        capture = self._describe(recorder, before, arguments, found, results, made, gradients, puts, reason)
        if undo:
            before.restore(recorder)
            if held is not None:
                self._put_back(guards, held)
        before.tensors.clear()
        return Traced(capture, results, made, changes, unclear, settled and capture.is_tracked)

    def _describe(
        self, recorder: execute.Recorder, before: Snapshot, arguments: Arguments, found: Mapping[str, Tensor],
        results: Results, made: Sequence[Tensor], gradients: Sequence[Before], puts: Puts, reason: str,
    ) -> Capture:  # fmt: skip
        program: CapturedProgram = recorder.program  # type: ignore[attr-defined]
        paths = {id(tensor): path for path, tensor in found.items()}
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
        shared: list[tuple[int, Whose]] = []

        def whose(tensor: Tensor) -> Whose:
            path = paths.get(id(tensor))
            return Whose(None, ref(tensor)) if path is None else Whose(path)

        updates: list[Update] = []
        others: dict[int, Slot] = {}
        for own, entry in before.tensors.items():
            base, chain = base_and_chain(entry.uop)
            held = program.slot_of.get(base) if base.op is Op.BUFFER else None
            if held is not None and held not in program.produced:
                owner = owners.get(own)
                if held in inputs:
                    if own in paths:
                        shared.append((held, Whose(paths[own])))
                elif own in paths:
                    # Of tensors that share memory all that are closed over count: one may be given another.
                    states.append(Slot(held, Whose(paths[own]), chain))
                    names[held] = paths[own]
                elif owner is not None:
                    states.append(Slot(held, whose(owner), chain, True))
                    names.setdefault(held, f"{paths.get(id(owner), 'a tensor')}.grad")
                else:
                    others.setdefault(held, Slot(held, whose(entry.tensor), chain))
            moved = own in touched and entry.tensor.uop is not entry.uop
            if moved or (held is not None and held in overwritten):
                updates.append(Update(whose(entry.tensor), of_arguments.get(own), entry.tensor.uop))
        seen = {slot.number for slot in states}
        states += [slot for held, slot in others.items() if held not in seen]
        known = {*inputs, *program.produced, *[slot.number for slot in states]}
        is_tracked = len(known) == len(program.nodes)
        added = [
            b for b in gradients if b.grad is not None and program.slot_of.get(_base_before(before, b.grad)) in known
        ]
        updates += [Update(whose(b.tensor), None, b.tensor.grad.uop, True) for b in added]
        kept = {id(t) for t in (*made, *results.tensors, *[b.tensor.grad for b in added])}
        leftovers = [
            ref(t) for t in Tensor.all_live() if not before.has(t) and id(t) not in kept and depends(t, program)
        ]
        shown = [execute.base_buffer(t.uop) for t in made] + [execute.base_buffer(u.node) for u in updates]
        outputs = tuple(dict.fromkeys(s for n in shown if (s := program.slot_of.get(n)) in program.produced))
        program.temporary = temporary(program, outputs)
        changing = {update.tensor for update in updates}
        moving = [s.number for s in states if s.is_gradient or s.tensor in changing or s.tensor.path in puts.moved]
        program.settle({*inputs, *outputs, *moving})
        program.share_memory(outputs)
        return Capture(
            program, inputs, states, shared,
            without_gradient=[whose(b.tensor) for b in gradients if b.grad is None],
            updates=updates,
            puts=puts,
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

    def _replay(
        self, capture: Capture, arguments: Arguments, states: dict[int, UOp], guards: Guards, held: Held
    ) -> tuple[Any, Replayed]:
        program = capture.program
        targets = [update.tensor.now(guards) if update.argument is None else None for update in capture.updates]
        replaced = dict(states)
        for slot, number in capture.inputs.items():
            replaced[slot] = execute.base_buffer(arguments.tensors[number].uop)
        for slot in capture.outputs:
            replaced[slot] = program.fresh_buffer(slot)
        moved = save_from_overwriting(capture, replaced, arguments, guards)
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
        for update, target in zip(capture.updates, targets, strict=True):
            tensor = target if update.argument is None else arguments.tensors[update.argument]
            if tensor is not None:
                node = of_this_call(symbolic.rebound(update.node, arguments.bound), changes)
                if update.is_gradient:
                    tensor.grad = Tensor.of_node(node)
                else:
                    tensor.uop = node
        made = [Tensor.of_node(of_this_call(symbolic.rebound(n, arguments.bound), changes)) for n in capture.results]
        if capture.puts.all:
            self._put(guards, held, capture.puts, made, arguments)
            if not capture.puts.is_steady:
                self._guards = None
        return capture.build(made), replayed

    def _changes(self, guards: Guards, held: Held | None) -> tuple[list[Change], list[str], set[str]]:
        """What the function put into places that the guards see; what of that cannot be done again."""
        if held is None:
            return [], ["what the function reads changes by itself"], set()
        changes, unclear, moved = guards.changes(held, *[value for _, value in _roots_of(self.function)])
        unclear += [change.path for change in changes if not can_put(change.new)]
        return [change for change in changes if can_put(change.new)], unclear, moved

    def _put(self, guards: Guards, held: Held, puts: Puts, made: Sequence[Tensor], arguments: Arguments) -> None:
        """Put new values into their places."""
        known = [arguments.tensors[k] if isinstance(k, int) else k.now(guards) for k in puts.known]
        tensors = [*made, *known[::-1]]
        values = [(put.step, put.position, put.build(tensors)) for put in puts.all]
        guards.put(held, [value for _, value in _roots_of(self.function)], values)

    def _put_back(self, guards: Guards, held: Held) -> None:
        """Let places hold again what they held before a call that failed."""
        roots = [value for _, value in _roots_of(self.function)]
        changes, _, _ = guards.changes(held, *roots)
        guards.put(held, roots, [(c.step, c.position, c.old) for c in changes])

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


def _puts(
    changes: Sequence[Change], moved: set[str], results: Results, arguments: Arguments, found: Mapping[str, Tensor]
) -> Puts:
    """How to put the same into the same places in another call."""
    puts = Puts(moved=moved)
    known: dict[int, int] = {}
    for change in changes:
        for tensor in tensors_in(change.new):
            argument = next((n for n, t in enumerate(arguments.tensors) if t is tensor), None)
            path = next((path for path, t in found.items() if t is tensor), None)
            if id(tensor) not in known and not (argument is None and path is None):
                puts.known.append(Whose(path) if argument is None else argument)
                known[id(tensor)] = -len(puts.known)
    for change in changes:
        puts.all.append(Put(change.step, change.position, change.path, *results.more(change.path, change.new, known)))
    return puts


def _form(tensor: Tensor) -> tuple[Any, ...]:
    """What of a tensor a capture depends on."""
    base, chain = base_and_chain(tensor.uop)
    if base.op is not Op.BUFFER:
        return (tensor.uop,)
    return (chain, base.dtype, *base.arg[1:])


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
