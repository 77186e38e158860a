"""What one captured call is: its program, what belongs to it, and whose memory a replay of it reads and writes now."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple
from weakref import ref

from gradlet.engine import execute
from gradlet.engine.capture import CapturedProgram
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import MOVEMENT, Op
from gradlet.runtime.buffer import buffer_of, protected
from gradlet.tensor import symbolic
from gradlet.tensor.callarguments import Arguments
from gradlet.tensor.guards import Change, Guards
from gradlet.tensor.results import Build, Results
from gradlet.tensor.tensor import Tensor


class Whose(NamedTuple):
    """A tensor from outside: by the name under which the guards find it, or else the object itself."""

    path: str | None
    reference: ref[Tensor] | None = None

    def now(self, guards: Guards) -> Tensor | None:
        """The tensor that it is in this call, None when it is gone."""
        if self.path is not None:
            return guards.tensor(self.path)
        return None if self.reference is None else self.reference()


@dataclass
class Slot:
    """A buffer of the captured program that belongs to a live tensor, or to its gradient: looked up at every call."""

    number: int
    tensor: Whose
    chain: tuple[Any, ...]
    is_gradient: bool = False

    def now(self, guards: Guards) -> Tensor | None:
        """The tensor, None when it is gone."""
        tensor = self.tensor.now(guards)
        return tensor.grad if self.is_gradient and tensor is not None else tensor


@dataclass
class Update:
    """A tensor that the function gave a new value: after a replay it takes the program's result.

    `argument` is its number among the tensor arguments, None for a tensor that is closed over.
    """

    tensor: Whose
    argument: int | None
    node: UOp
    is_gradient: bool = False


@dataclass
class Put:
    """What the function puts into a place that others see: an attribute, an item, a closed-over name.

    Attributes:
        step, position: the place, as the guards know it.
        name: what users call it.
        build: puts the value together around the new tensors, and behind them those in `Puts.known`, last one first.
        tree: the value with numbers in place of tensors, where it is simple enough.
    """

    step: str
    position: int
    name: str
    build: Build
    tree: Any


@dataclass
class Puts:
    """All that a call puts into places.

    Attributes:
        all: in the order of the guards.
        known: tensors in them that are not new: number of an argument, or whose.
        moved: names of tensors that are other tensors after the call.
        is_steady: whether the guards are after the call what they were before.
    """

    all: list[Put] = field(default_factory=list)
    known: list[int | Whose] = field(default_factory=list)
    moved: set[str] = field(default_factory=set)
    is_steady: bool = True


@dataclass
class Capture:
    """One captured call."""

    program: CapturedProgram
    inputs: dict[int, int]  # slot -> number of the input tensor
    states: list[Slot]
    shared: list[tuple[int, Whose]]  # slot of an input whose memory is this closed-over tensor's as well
    without_gradient: list[Whose]  # they had none, and got one
    updates: list[Update]
    puts: Puts
    result: Any  # as the function returned it, with numbers in place of tensors, where that is plain
    results: list[UOp]
    result_paths: list[str]
    build: Build
    outputs: tuple[int, ...]  # produced slots that results or updates show to the outside
    in_place: tuple[int, ...]  # slots with values from before the call that the program overwrites
    leftovers: list[ref[Tensor]]
    draws: int
    draw_start: int
    kernels: int
    names: dict[int, str]  # what the user calls the tensor of a slot
    reason: str
    is_tracked: bool  # whether it is known where everything that it reads comes from
    replays: int = 0

    def forget_garbage(self) -> None:
        """Leave out tensors that live only because frames and closures hold one another: nobody uses them later."""
        gc.collect()
        self.leftovers[:] = [reference for reference in self.leftovers if reference() is not None]


class Traced(NamedTuple):
    """What one run of a function gave: its capture, and whether a replay of that would do the same."""

    capture: Capture
    results: Results
    made: list[Tensor]
    changes: list[Change]
    unclear: list[str]
    is_settled: bool


def base_and_chain(node: UOp) -> tuple[UOp, tuple[Any, ...]]:
    """The node below the movement ops, and those ops as a key."""
    chain: list[Any] = []
    base = execute.base_buffer(node)
    while node is not base:
        chain.append((node.op, node.arg, *node.src[1:]))
        node = node.src[0]
    return base, tuple(chain)


def is_dense(tensor: Tensor) -> bool:
    """Whether a computed tensor is all of its memory, in order."""
    base, chain = base_and_chain(tensor.uop)
    return all(step[0] in (Op.RESHAPE, Op.LIMIT) for step in chain) and prod(tensor.uop.shape) == base.arg.size


def for_any_size(chain: tuple[Any, ...]) -> tuple[Any, ...]:
    """A chain whose bound variables may have other values in another call."""
    return tuple([(*step[:2], *[symbolic.unbound(size) for size in step[2:]]) for step in chain])


def of_this_call(node: UOp, changes: dict[UOp, UOp]) -> UOp:
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


def depends(tensor: Tensor, program: CapturedProgram) -> bool:
    """Whether the tensor's value would change with a replay: its graph reads a buffer of the program."""
    return any(n.op is Op.BUFFER and n in program.slot_of for n in toposort((tensor.uop,)))


def current_states(capture: Capture, arguments: Arguments, guards: Guards) -> dict[int, UOp] | None:
    """The buffers that tracked tensors have now, or None when one changed its form and capture must run again."""
    if capture.without_gradient:
        for whose in capture.without_gradient:
            owner = whose.now(guards)
            if owner is not None and owner.grad is not None:
                return None  # that one is to be added to
    for slot, whose in capture.shared:
        owner = whose.now(guards)
        if owner is None or execute.base_buffer(owner.uop) is not _input_base(capture, arguments, slot):
            return None
    states: dict[int, UOp] = {}
    inputs = {execute.base_buffer(t.uop) for t in arguments.tensors}
    for state in capture.states:
        tensor = state.now(guards)
        if tensor is None or not tensor.has_value:
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


def temporary(program: CapturedProgram, outputs: Sequence[int]) -> set[int]:
    """The slots that are written first in every call, and that no tensor reads."""
    seen = {program.slot_of.get(n) for n in toposort([t.uop for t in Tensor.all_live()]) if n.op is Op.BUFFER}
    found: set[int] = set()
    touched: set[int] = set()
    for call in program.calls:
        found.update({call.slots[w] for w in call.written} - touched)
        touched.update(call.slots)
    return (found & program.produced) - seen - set(outputs)


def _input_base(capture: Capture, arguments: Arguments, slot: int) -> UOp:
    return execute.base_buffer(arguments.tensors[capture.inputs[slot]].uop)


def save_from_overwriting(
    capture: Capture, replaced: dict[int, UOp], arguments: Arguments, guards: Guards
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
        held_by = state.now(guards)
        if held_by is not None:
            owners[replaced.get(state.number, program.nodes[state.number])] = ref(held_by)
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
