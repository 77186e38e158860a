"""The short way through a jitted call: arguments as last time, guards as last time, then one native call.

Whatever is not certain at a glance takes the long way, which decides. A `FastCall` is made after a call that replayed a
program as one graph; it knows where that graph has the addresses which may change, and whose they were.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter, call
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from gradlet.base import events, settings
from gradlet.engine import execute
from gradlet.engine.replay import GraphSegment, Runner
from gradlet.graph.extents import HAS_LIMIT
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import MOVEMENT, Op
from gradlet.runtime.buffer import buffer_of, new_buffer_node
from gradlet.tensor import random_state
from gradlet.tensor.core import wrap
from gradlet.tensor.elsewhere import Elsewhere
from gradlet.tensor.guards import Guards, Held
from gradlet.tensor.results import Intricate, Number
from gradlet.tensor.tensor import Tensor

if TYPE_CHECKING:
    from gradlet.engine.capture import CapturedProgram
    from gradlet.tensor.captured import Capture

MISSED: Final = object()
NOTHING_BOUND: Final[dict[str, int]] = {}
# Memory of results waits for the next call where nobody holds the result any more: that of the smallest outputs of a
# capture, so many bytes of it, and so many results of each: `x = step(x)` needs two.
MOST_KEPT_BYTES: Final = 1 << 22
MOST_KEPT: Final = 2
# Whether reference counts say who else holds an object.
_COUNTS: Final = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()

_uid_of: Final = attrgetter("uop.uid")
_stamp_of: Final = attrgetter("stamp")
_BUFFER: Final = Op.BUFFER


class Replayed(NamedTuple):
    """How a call was replayed.

    Attributes:
        part: what ran: all of the program, or what weights alone do not decide.
        runner: its runner, which nobody else uses.
        replaced: slots that held other buffers than in the capture.
    """

    part: CapturedProgram
    runner: Runner
    replaced: dict[int, UOp]


class UnfitError(Exception):
    """A call that has to take the long way."""


class _Result:
    """Memory of one output, and the nodes that show it. Nobody else may hold any of them when it is used again."""

    __slots__ = ("base", "buffer", "address", "nodes", "held")

    def __init__(self, like: UOp, chains: Sequence[Sequence[UOp]]) -> None:
        self.base = new_buffer_node(like.arg.device, like.dtype, like.arg.size)
        self.buffer = buffer_of(self.base)
        self.address = self.buffer.address
        self.nodes = [_view(chain, self.base) for chain in chains]
        self.held = self.references()

    def references(self) -> tuple[int, ...]:
        """How many references there are to what it holds."""
        counts = [getrefcount(self.buffer), getrefcount(self.base)]
        for node in self.nodes:
            while node is not self.base:
                counts.append(getrefcount(node))
                node = node.src[0]
        return tuple(counts)


def _view(chain: Sequence[UOp], base: UOp) -> UOp:
    for step in chain:
        base = mk(step.op, step.dtype, (base,), step.arg)
    return base


class _Output:
    """One slot whose memory is the caller's after the call."""

    __slots__ = ("like", "chains", "places", "is_kept", "waiting", "address", "nbytes")

    def __init__(self, like: UOp, places: list[tuple[memoryview, int]]) -> None:
        self.like = like
        self.nbytes = like.arg.size * like.dtype.itemsize
        self.chains: list[list[UOp]] = []
        self.places = places
        self.address = 0  # what the graph has
        self.is_kept = False
        self.waiting: deque[_Result] = deque()

    def take(self) -> _Result:
        """Memory for the result of this call, which nobody sees yet; the graph has its address."""
        waiting = self.waiting
        result = None
        for _ in range(len(waiting)):
            result = waiting.popleft()
            if result.references() == result.held:
                result.buffer.changed()
                break
            waiting.append(result)
            result = None
        if result is None:
            result = _Result(self.like, self.chains)
        address = result.address
        if address != self.address:
            for words, word in self.places:
                words[word] = address
            self.address = address
        return result

    def give(self, result: _Result) -> None:
        """Its tensor is made: it is used again when nobody holds that any more."""
        if self.is_kept and len(self.waiting) < MOST_KEPT:
            self.waiting.append(result)


class _Leaf:
    """A tensor of the result tree: which view of which output."""

    __slots__ = ("output", "view", "place")

    def __init__(self, output: int, view: int, place: str) -> None:
        self.output, self.view, self.place = output, view, place


class _Input:
    """A tensor argument: what it has to be, and where its address goes."""

    __slots__ = ("chain", "dtype", "memory", "places")

    def __init__(self, node: UOp, places: list[tuple[memoryview, int]]) -> None:
        if node.mask & HAS_LIMIT:
            raise UnfitError
        self.chain: list[tuple[Op, Any]] = []
        while node.op in MOVEMENT:
            self.chain.append((node.op, node.arg))
            node = node.src[0]
        self.dtype, self.memory = node.dtype, node.arg[1:]
        self.places = places

    def base(self, node: UOp) -> UOp | None:
        """The BUFFER node below a node of this form, None for another form."""
        for op, arg in self.chain:
            if node.op is not op or node.arg != arg:
                return None
            node = node.src[0]
        fits = node.op is _BUFFER and node.dtype is self.dtype and node.arg[1:] == self.memory
        return node if fits else None


class _State(NamedTuple):
    """A tracked tensor that the program reads."""

    path: str | None
    number: int
    slot: int
    places: list[tuple[memoryview, int]]
    is_written: bool

    def move(self, address: int) -> None:
        """Let the graph find it there."""
        for words, word in self.places:
            words[word] = address


class _Update(NamedTuple):
    """A tensor that gets new memory at every call; `state` where the program reads it."""

    tensor: ref[Tensor]
    leaf: _Leaf
    state: _State | None


class FastCall:
    """The last replay of a capture, ready to be done again with other memory.

    It has no thread for itself: whoever takes the runner out of the idle ones may use it.
    """

    def __init__(
        self, capture: Capture, replayed: Replayed, guards: Guards, roots: Callable[[], list[Any]],
        tensors: Sequence[Tensor], signature: Any,
    ) -> None:  # fmt: skip
        """What `capture` does with arguments like these.

        Args:
            capture: a capture that has just been replayed.
            replayed: how.
            guards: what the function closes over, as it is now.
            roots: gives where the guards begin.
            tensors: the tensor arguments.
            signature: the arguments with their tensors and the values of variables taken out; None where all of them
                are tensors by position.

        Raises:
            UnfitError: this capture needs the long way.
        """
        part, runner = replayed.part, replayed.runner
        self.capture, self.runner = capture, runner
        program = capture.program
        if not (runner.is_one_call and runner.is_set) or capture.leftovers:
            raise UnfitError
        segment = runner.segments[0]
        assert isinstance(segment, GraphSegment)
        self._graph, self._idle, self._version = segment.graph, part.idle, runner.version
        self._guards, self._roots, self._signature = guards, roots, signature
        self._training = Tensor.training
        self._changes = settings.Setting.changes
        self._set_inputs(tensors)
        self._outputs = [_Output(program.nodes[slot], runner.places.get(slot, [])) for slot in capture.outputs]
        kept = 0
        for output in sorted(self._outputs, key=lambda output: output.nbytes):
            kept += MOST_KEPT * output.nbytes
            output.is_kept = _COUNTS and kept <= MOST_KEPT_BYTES
        self._number_of = {program.nodes[slot]: number for number, slot in enumerate(capture.outputs)}
        self._leaves = [self._leaf(node) for node in capture.results]
        self._set_states(guards.tensors)
        self._set_puts()
        # Weights from which something was computed before: as long as they are the same it stays.
        prologue = program.prologue if part is not program else None
        self._sources = [] if prologue is None else prologue.sources(replayed.replaced)
        self._stamps = [*map(_stamp_of, self._sources)]
        self._tree = capture.result
        if isinstance(self._tree, Intricate):
            raise UnfitError
        self._draws = capture.draws
        self._ends = bool(capture.draws or capture.in_place or self._updates)
        is_plain = self._tree.__class__ is Number and len(self._outputs) == 1 and not (self._ends or self._puts)
        only = self._leaves[0] if self._leaves else None
        self._only = (self._outputs[0], only.view, only.place) if only is not None and is_plain else None
        for slot in (*capture.inputs, *capture.outputs):
            runner.forget(slot)  # their addresses are set here from now on

    def _set_inputs(self, tensors: Sequence[Tensor]) -> None:
        slots = {number: slot for slot, number in self.capture.inputs.items()}
        places = self.runner.places
        self._uids = [t.uop.uid for t in tensors]
        self._inputs = [_Input(t.uop, places.get(slots[n], []) if n in slots else []) for n, t in enumerate(tensors)]
        self._bases = [execute.base_buffer(t.uop).uid for t in tensors]
        self._are_apart = len(set(self._bases)) == len(self._bases)

    def _set_states(self, closed_over: Sequence[Tensor]) -> None:
        capture, places = self.capture, self.runner.places
        tracked: dict[int, _State] = {}
        alive: list[Tensor] = []
        owners: dict[UOp, int] = {}
        for state in capture.states:
            tensor = state.now(self._guards)
            if tensor is None or id(tensor) in tracked:
                raise UnfitError
            number = state.number
            tracked[id(tensor)] = _State(
                state.tensor.path, len(tracked), number, places.get(number, []), number in capture.in_place
            )
            alive.append(tensor)
            if state.number in capture.in_place:
                owners[execute.base_buffer(tensor.uop)] = id(tensor)
        if len(owners) != len(capture.in_place):
            raise UnfitError  # it writes to arguments
        self._updates: list[_Update] = []
        for update in capture.updates:
            tensor = update.tensor.now(self._guards)
            found = tracked.get(id(tensor))
            if capture.program.slot_of.get(execute.base_buffer(update.node)) in capture.outputs:
                if update.argument is not None or tensor is None or update.tensor.path in capture.puts.moved:
                    raise UnfitError
                self._updates.append(_Update(ref(tensor), self._leaf(update.node), found))
            elif found is None:
                raise UnfitError  # nothing tells whether it is as the last call left it
        self._states = [ref(tensor) for tensor in alive]
        self._tracked = list(tracked.values())
        self._state_uids = [tensor.uop.uid for tensor in alive]
        self._state_bases = [execute.base_buffer(tensor.uop).uid for tensor in alive]
        self._other_bases = [execute.base_buffer(t.uop).uid for t in closed_over if id(t) not in tracked]
        if not {*self._state_bases, *self._other_bases}.isdisjoint(self._bases):
            raise UnfitError  # what is closed over is an argument too
        self._targets = {node: buffer_of(node) for node in owners}
        self._elsewhere = Elsewhere(owners, owners.values())
        moved = self.capture.puts.moved
        for own in self._tracked:
            if own.path in moved or any(changing.state is own for changing in self._updates):
                self.runner.forget(own.slot)  # its address is set here from now on
                own.move(buffer_of(execute.base_buffer(alive[own.number].uop)).address)

    def _set_puts(self) -> None:
        """What goes into places, where all of it is new at every call and looks as what was there."""
        puts = self.capture.puts
        self._puts = [(put.step, put.position, put.tree) for put in puts.all]
        if puts.known or not puts.is_steady or any(isinstance(put.tree, Intricate) for put in puts.all):
            raise UnfitError
        self._moved = [state for state in self._tracked if state.path in puts.moved]
        if any(state.is_written for state in self._moved):
            raise UnfitError

    def _leaf(self, node: UOp) -> _Leaf:
        """A tensor of the result: which view of which output."""
        if node.mask & HAS_LIMIT:
            raise UnfitError
        chain, base = [], node
        while base.op in MOVEMENT:
            chain.append(base)
            base = base.src[0]
        number = self._number_of.get(base)
        if number is None:
            raise UnfitError
        self._outputs[number].chains.append(chain[::-1])
        return _Leaf(number, len(self._outputs[number].chains) - 1, base.arg.device)

    @property
    def is_stale(self) -> bool:
        """Whether it can never be taken again."""
        return self.runner.version != self._version

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result, or MISSED: nothing was done, take the long way."""
        idle, runner = self._idle, self.runner
        try:
            idle.remove(runner)
        except ValueError:  # another thread uses it
            return MISSED
        try:
            if runner.version != self._version:
                return MISSED
            bound = self._match(args, kwargs)
            if bound is None:
                return MISSED
            roots = self._roots()
            held = self._guards.look(*roots)
            if held is None or self._elsewhere.is_seen():
                return MISSED
            if bound or self._draws:
                self._give_values(bound)
            if self._only is not None:  # one tensor, and nothing else to do
                output, view, place = self._only
                result = output.take()
                self._graph.run()
                runner.count()
                made: Any = wrap(result.nodes[view], place)
                output.give(result)
                return made
            results = [output.take() for output in self._outputs]
            if self._ends:
                self._run_with_end(results)
            else:
                self._graph.run()
            runner.count()
            tensors = [wrap(results[leaf.output].nodes[leaf.view], leaf.place) for leaf in self._leaves]
            if self._puts:
                self._put(tensors, held, roots)
            made = _built(self._tree, tensors)
            for output, result in zip(self._outputs, results, strict=True):
                output.give(result)
            return made
        finally:
            idle.append(runner)

    def _match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int] | None:
        """The values of variables if this call is like the last one, else None. Inputs have their places then."""
        if Tensor.training is not self._training or events.active():
            return None
        if self._changes != settings.Setting.changes:
            if settings.DEBUG >= 1:
                return None
            self._changes = settings.Setting.changes
        bound = NOTHING_BOUND
        tensors: Sequence[Any] = args
        try:
            if self._signature is not None:
                tensors, bound = [], {}
                if take_apart(args, kwargs, tensors, bound) != self._signature:
                    return None
            elif kwargs:
                return None
            uids = [*map(_uid_of, tensors)]
            if self._states and [*map(_uid_of, map(call, self._states))] != self._state_uids:
                return None
            if self._sources and [*map(_stamp_of, self._sources)] != self._stamps:
                return None
        except (AttributeError, UnfitError):  # no tensor; a tensor that is no more
            return None
        if uids != self._uids and not self._move(tensors, uids):
            return None
        return bound

    def _move(self, tensors: Sequence[Any], uids: list[int]) -> bool:
        """Put the addresses of other arguments into place; False where they are not like the last ones."""
        inputs = self._inputs
        if len(uids) != len(inputs) or not self._are_apart:
            return False
        bases = self._bases.copy()
        moved = []
        for number, uid in enumerate(uids):
            if uid != self._uids[number]:
                tensor = tensors[number]
                if tensor.__class__ is not Tensor:
                    return False
                if not tensor.is_realized:
                    tensor.realize()
                    uids[number] = tensor.uop.uid
                base = inputs[number].base(tensor.uop)
                if base is None:
                    return False
                bases[number] = base.uid
                moved.append((number, base))
        if len(set(bases)) < len(bases) or not set(bases).isdisjoint((*self._state_bases, *self._other_bases)):
            return False
        for number, base in moved:
            places = inputs[number].places
            if places:
                address = buffer_of(base).address
                for words, word in places:
                    words[word] = address
        self._uids, self._bases = uids, bases
        return True

    def _give_values(self, bound: dict[str, int]) -> None:
        values = random_state.rebased(self.capture.program.values, self.capture.draw_start)
        for variable in values:
            if variable.arg.name in bound:
                values[variable] = bound[variable.arg.name]
        self.runner.give_values(values)

    def _run_with_end(self, results: Sequence[_Result]) -> None:
        """Run the graph, and do what belongs to it even where an interrupt comes right after."""
        graph = self._graph
        runs = graph.runs
        try:
            graph.run()
        finally:
            if graph.runs != runs:
                random_state.advance(self.capture.draws)
                for buffer in self._targets.values():
                    buffer.changed()
                for update in self._updates:
                    self._update(update, results[update.leaf.output])

    def _update(self, update: _Update, result: _Result) -> None:
        """Give a tensor its new value; where the function reads it, the next call reads that."""
        node = result.nodes[update.leaf.view]
        tensor = update.tensor()
        if tensor is not None:
            tensor.uop = node
        state = update.state
        if state is not None:
            self._state_uids[state.number] = node.uid
            self._state_bases[state.number] = result.base.uid
            state.move(result.address)

    def _put(self, tensors: Sequence[Tensor], held: Held, roots: Sequence[Any]) -> None:
        """Put new tensors into places; the next call reads those."""
        guards = self._guards
        guards.put(held, roots, [(step, place, _built(tree, tensors)) for step, place, tree in self._puts])
        for state in self._moved:
            tensor = guards.tensor(state.path)  # type: ignore[arg-type]
            assert tensor is not None  # it was just put there
            node = tensor.uop
            base = execute.base_buffer(node)
            number = state.number
            self._states[number], self._state_uids[number] = ref(tensor), node.uid
            self._state_bases[number] = base.uid
            state.move(buffer_of(base).address)


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call without their tensors and without values of variables; None where all are tensors.

    Raises:
        UnfitError: an argument that cannot be compared at a glance.
    """
    if not kwargs and all(value.__class__ is Tensor for value in args):
        return None
    return take_apart(args, kwargs, [], {})


def take_apart(args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Any], bound: dict[str, int]) -> Any:
    """Collect the tensors and the values of variables in the arguments of a call; the rest is returned.

    Raises:
        UnfitError: an argument that cannot be compared at a glance.
    """
    rest = [_rest(value, tensors, bound) for value in args]
    return rest, [(name, _rest(kwargs[name], tensors, bound)) for name in sorted(kwargs)]


def _rest(value: Any, tensors: list[Any], bound: dict[str, int]) -> Any:
    kind = value.__class__
    if kind is Tensor:
        tensors.append(value)
        return kind
    if kind is int or kind is bool or kind is str or value is None:
        return kind, value
    if kind is UOp and value.op is Op.BIND:
        variable, number = value.src[0], int(value.src[1].arg)
        if bound.setdefault(variable.arg.name, number) != number:
            raise UnfitError
        return variable
    if kind is list or kind is tuple:
        return kind, [_rest(item, tensors, bound) for item in value]
    if kind is dict:
        return kind, [(_rest(k, tensors, bound), _rest(v, tensors, bound)) for k, v in value.items()]
    if kind is float or kind is complex:
        return kind, repr(value)
    raise UnfitError


def _built(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """A tree with tensors in place of their numbers."""
    if tree.__class__ is Number:
        return tensors[tree]
    return _map_children(tree, lambda child: _built(child, tensors))


def _map_children(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[change(v) for v in value])
    if isinstance(value, (list, tuple)):
        return type(value)([change(v) for v in value])
    if isinstance(value, dict):
        return {k: change(v) for k, v in value.items()}
    return value
