"""A jitted function as data: one call of it is captured and undone, and everything gets a number, a name and a role."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from math import prod
from typing import Any, Final, NamedTuple

from gradlet import __version__
from gradlet.base.errors import JitError
from gradlet.base.symint import Size
from gradlet.device.cpu.plan import launch_plan
from gradlet.device.cpu.target import host_target
from gradlet.engine.capture import CapturedCall, CapturedProgram
from gradlet.engine.compile import CompiledKernel
from gradlet.graph.node import UOp
from gradlet.graph.program import AnyProgram
from gradlet.io.manifest import Extent, KernelRow, Launch, Manifest, Place, Shape, Value, Variable
from gradlet.ops.op import Op, VariableArg
from gradlet.tensor import random_state, symbolic
from gradlet.tensor.apart import captured_before, traced_apart
from gradlet.tensor.callarguments import Arguments
from gradlet.tensor.captured import Capture, Whose, base_and_chain
from gradlet.tensor.function import jit
from gradlet.tensor.guards import Guards
from gradlet.tensor.results import Results
from gradlet.tensor.tensor import Tensor

ALIGN: Final = 64  # bytes; a line of the cache, and the widest vector


@dataclass
class Exported:
    """What a program consists of.

    Attributes:
        manifest: all but its data.
        weights, state: the data by name; tensors over the live memory.
        asts: the graph of each kernel.
        lowered: the instructions of each kernel.
    """

    manifest: Manifest
    weights: dict[str, Tensor]
    state: dict[str, Tensor]
    asts: list[UOp]
    lowered: list[AnyProgram]


class Described(NamedTuple):
    """A program whose kernels are known by what they were compiled to: its manifest has no rows for them."""

    manifest: Manifest
    weights: dict[str, Tensor]
    state: dict[str, Tensor]
    kernels: list[CompiledKernel]


def described(function: jit, args: Sequence[Any]) -> Described | None:
    """The program that calls with arguments like these replay, None where there is none yet.

    Raises:
        JitError: it does something that cannot be written down.
    """
    found = captured_before(function, tuple(args), {})
    return None if found is None else _Description(function, *found).describe()


def exported(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exported:
    """The program of a jitted function for arguments like these. The function and its state stay as they are.

    Raises:
        JitError: the function cannot be captured, or does something that a file cannot hold.
    """
    if not isinstance(function, jit):
        raise JitError(f"export takes a jitted function, not {type(function).__name__}; write @jit above its def")
    given = Results((tuple(args), dict(kwargs)), lambda tensor: True)
    dense = [tensor.to("CPU").clone().realize() for tensor in given.tensors]
    args, kwargs = given.build(dense)
    capture, arguments, guards = traced_apart(function, tuple(args), dict(kwargs))
    return _Description(function, capture, arguments, guards).build()


class _Description:
    """Numbers buffers as the capture numbers slots, and adds what only a file needs."""

    def __init__(self, function: jit, capture: Capture, arguments: Arguments, guards: Guards) -> None:
        self.function, self.capture, self.arguments, self.guards = function, capture, arguments, guards
        self.program: CapturedProgram = capture.program
        prologue = self.program.prologue
        self.once: list[CapturedCall] = prologue.once.calls if prologue is not None else []  # type: ignore[attr-defined]
        self.rest = prologue.rest.calls if prologue is not None else self.program.calls
        self.name = getattr(function.function, "__name__", "program")
        self.places: list[Place] = []
        self.variables: dict[str, Variable] = {}
        self.kernels: dict[CompiledKernel, int] = {}
        self.lowered: list[AnyProgram] = []
        self.extra_state: list[tuple[str, Tensor, int]] = []

    def build(self) -> Exported:
        """All of it."""
        found = self.describe()
        self.lowered = [kernel.lowered() for kernel in self.kernels]
        found.manifest.kernels = [_row(program) for program in self.lowered]
        return Exported(
            found.manifest, found.weights, found.state, [kernel.ast for kernel in self.kernels], self.lowered
        )

    def describe(self) -> Described:
        """All but what the kernels consist of."""
        for call in (*self.once, *self.rest):
            self.check(call)
        for node in [base_and_chain(result)[0] for result in self.capture.results]:
            if node.arg.size == 0:  # no launch writes it
                self.program.produced.add(self.program.slot(node))
        structure = self.capture.build([_Output(n) for n in range(len(self.capture.results))])
        self.returned = list(dict.fromkeys(_numbers(structure)))
        moves = self.moves()
        targets = [to for to, _ in moves]
        self.lay_out(set(targets))
        moves = self.staged(moves)
        for variable, value in self.program.values.items():
            self.note_variable(variable, value)
        inputs = self.inputs()
        outputs = self.outputs()
        weights, state = self.constants_and_state()
        written = {*self.program.in_place, *targets}
        target = host_target()
        manifest = Manifest(
            name=self.name, version=__version__,
            target={"name": target.name, "triple": target.triple, "cpu": target.cpu, "features": target.features},
            variables=list(self.variables.values()), buffers=self.places, arena=self.arena,
            inputs=inputs, outputs=outputs, updated=[v.name for v in inputs if v.buffer in written],
            result=_structure(structure, self.returned),
            weights=[value for value, _ in weights], state=[value for value, _ in state],
            random=self.random(), kernels=[], once=self.launches(self.once), launches=self.launches(self.rest),
            moves=moves,
        )  # fmt: skip
        return Described(manifest, {v.name: t for v, t in weights}, {v.name: t for v, t in state}, list(self.kernels))

    def refuse(self, problem: str) -> JitError:
        """An error about this function."""
        return JitError(f"jitted function {self.name!r} cannot be exported: {problem}")

    def check(self, call: CapturedCall) -> None:
        """Only kernels on the CPU can be written.

        Raises:
            JitError: this is something else.
        """
        if not isinstance(call.kernel, CompiledKernel) or call.device != "CPU":
            what = "copies between devices" if call.kernel is None else f"runs {call.kernel.name} on {call.device}"
            raise self.refuse(f"it {what}; put all of it on the CPU: Device.DEFAULT = 'CPU'")

    # memory
    def moves(self) -> list[tuple[int, int]]:
        """Which buffer takes the value of which other one after a call: new values of state and written inputs."""
        found: dict[int, int] = {}
        for update in self.capture.updates:
            if update.argument is not None:
                target = next((s for s, n in self.capture.inputs.items() if n == update.argument), None)
                before = base_and_chain(self.arguments.tensors[update.argument].uop)[1]
                if target is not None:  # else it is never read
                    self.move(found, target, update.node, before, self.arguments.paths[update.argument])
            elif update.tensor.path not in self.capture.puts.moved:
                self.new_value(found, update.tensor, update.node, update.is_gradient)
        for path, node in self.put_tensors():
            self.new_value(found, Whose(path), node, False)
        return list(found.items())

    def move(self, found: dict[int, int], target: int, node: UOp, before: tuple[Any, ...], name: str) -> None:
        """A buffer takes the value of a node.

        Raises:
            JitError: it has another form, or takes two values.
        """
        base, chain = base_and_chain(node)
        source = self.program.slot_of.get(base)
        if source is None or not _same_form(chain, before) or base.arg.size != self.program.nodes[target].arg.size:
            raise self.refuse(f"{name} has another form after a call; write to it with assign(), in place")
        if source != target and found.setdefault(target, source) != source:
            raise self.refuse(f"{name} shares memory with another tensor, and they take different values")

    def new_value(self, found: dict[int, int], whose: Whose, node: UOp, is_gradient: bool) -> None:
        """A tensor from outside becomes a node. One that is never read is state too: somebody may look at it."""
        for state in self.capture.states:
            same = state.tensor.path == whose.path and state.tensor.reference is whose.reference
            if same and state.is_gradient == is_gradient:
                self.move(found, state.number, node, state.chain, self.capture.names.get(state.number, "a tensor"))
                return
        base, chain = base_and_chain(node)
        source = self.program.slot_of.get(base)
        tensor = None if whose.path is None else self.guards.tensor(whose.path)
        if tensor is not None and source is not None and not is_gradient and _same_form(chain, ()):
            self.extra_state.append((str(whose.path), tensor, source))

    def put_tensors(self) -> Iterator[tuple[str, UOp]]:
        """The tensors that the function puts into places, as `self.h = h` does, by the names that the guards have.

        Raises:
            JitError: it puts other values there, new ones at every call.
        """
        puts = self.capture.puts
        if puts.all and not puts.is_steady:
            raise self.refuse(f"each call puts new values into {puts.all[0].name}; what a program keeps are tensors")
        known = [self.known(k) for k in puts.known]
        for put in puts.all:
            for path, node in _leaves(put.name, put.build([*self.capture.results, *known[::-1]])):
                if self.guards.tensor(path) is None:
                    raise self.refuse(f"the first call makes {path}: call it before, or make that outside")
                yield path, node

    def known(self, whose: int | Whose) -> UOp | None:
        """The node of a tensor that is not new."""
        tensor = self.arguments.tensors[whose] if isinstance(whose, int) else whose.now(self.guards)
        return None if tensor is None else tensor.uop

    def lay_out(self, targets: set[int]) -> None:
        """Give every slot of the capture a role, and scratch its place."""
        program = self.program
        prologue = program.prologue
        made = set(prologue.makes) if prologue is not None else set()
        results = {program.slot_of[base_and_chain(self.capture.results[n])[0]] for n in self.returned}
        written = {*program.in_place, *targets}
        plan = program.memory
        self.arena = plan.arenas.get("CPU", 0)
        for slot, node in enumerate(program.nodes):
            role, offset = "scratch", plan.places.get(node, -1)
            if slot in self.capture.inputs:
                role = "input"
            elif slot in made:
                role = "made"
            elif slot in results:
                role = "output"
            elif slot not in program.produced:
                role = "state" if slot in written else "weight"
            self.add(node.dtype, node.arg.size, role, offset)

    def add(self, dtype: Any, size: int, role: str, offset: int = -1) -> int:
        """A new buffer; scratch that has no place yet gets one of its own."""
        if role == "scratch" and offset < 0:
            offset = -(-self.arena // ALIGN) * ALIGN
            self.arena = offset + size * dtype.itemsize
        self.places.append(Place(dtype, size, role, max(0, offset)))
        return len(self.places) - 1

    def staged(self, moves: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The moves in an order in which none overwrites what another one takes; and those of state never read."""
        targets = {to for to, _ in moves}
        first: dict[int, int] = {}
        for _, source in moves:
            if source in targets and source not in first:
                first[source] = self.add(self.places[source].dtype, self.places[source].size, "scratch")
        found = [(copy, source) for source, copy in first.items()]
        found += [(to, first.get(source, source)) for to, source in moves]
        for number, (path, tensor, source) in enumerate(self.extra_state):
            to = self.add(self.places[source].dtype, self.places[source].size, "state")
            self.extra_state[number] = (path, tensor, to)
            found.append((to, source))
        return found

    # values
    def note_variable(self, node: UOp, value: int) -> None:
        """A variable of launches."""
        arg = node.arg
        draw, seed = re.fullmatch(r"draw(\d+)", arg.name), re.fullmatch(r"seed(\d+)([ab])", arg.name)
        if arg.name in self.arguments.bound:
            found = Variable(arg.name, arg.low, arg.high)
        elif self.capture.draws and draw:
            found = Variable(arg.name, arg.low, arg.high, "draw", int(draw[1]) - self.capture.draw_start)
        elif self.capture.draws and seed:
            found = Variable(arg.name, arg.low, arg.high, "seed", "ab".index(seed[2]))
        else:
            found = Variable(arg.name, arg.low, arg.high, "constant", value)
        if self.variables.setdefault(arg.name, found) != found:
            raise self.refuse(f"two variables are called {arg.name!r}")

    def shape(self, node: UOp) -> Shape:
        """The shape of a tensor, sizes that are known at the call as expressions."""
        found: list[int | Extent] = []
        for size in symbolic.shape_of(node):
            if isinstance(size, Size):
                for unknown in size.terms:
                    self.note_variable(unknown.node.src[0], unknown.value)
                terms = tuple(sorted([(unknown.name, factor) for unknown, factor in size.terms.items()]))
                found.append(Extent(terms, size.constant, size.high))
            else:
                found.append(int(size))
        return tuple(found)

    def inputs(self) -> list[Value]:
        """The tensor arguments by the names that the function gives them."""
        slots = {number: slot for slot, number in self.capture.inputs.items()}
        names = _unique([self.argument_name(path) for path in self.arguments.paths])
        for _, passed in self.arguments.values:
            if isinstance(passed, VariableArg):  # also one that nothing depends on
                self.variables.setdefault(passed.name, Variable(passed.name, passed.low, passed.high))
        return [
            Value(name, tensor.dtype, self.shape(tensor.uop), slots.get(number, -1))
            for number, (name, tensor) in enumerate(zip(names, self.arguments.tensors, strict=True))
        ]

    def argument_name(self, path: str) -> str:
        """`0['mask']` of `step(state, x)` is `state.mask`."""
        head, rest = re.fullmatch(r"(\w+)(.*)", path, re.DOTALL).groups()  # type: ignore[union-attr]
        if head.isdigit():
            head = self.parameter(int(head))
        return _joined(head, rest)

    def parameter(self, number: int) -> str:
        """The name of a positional parameter."""
        function = self.function.function
        inner = getattr(function, "guarded_function", None)
        try:
            names = list(inspect.signature(inner or function).parameters.values())[1 if inner is not None else 0 :]
        except (TypeError, ValueError):
            return f"input{number}"
        for position, parameter in enumerate(names):
            if parameter.kind is parameter.VAR_POSITIONAL:
                return f"{parameter.name}{number - position}"
            if position == number:
                return parameter.name
        return f"input{number}"

    def outputs(self) -> list[Value]:
        """The tensors of the result."""
        paths = [self.capture.result_paths[n] for n in self.returned]
        names = _unique([_joined("", path.removeprefix("result")) for path in paths])
        found = []
        for name, node in zip(names, [self.capture.results[n] for n in self.returned], strict=True):
            base, chain = base_and_chain(node)
            if any(step[0] not in (Op.RESHAPE, Op.LIMIT) for step in chain) or prod(node.shape) != base.arg.size:
                raise self.refuse(f"{name} is a view of memory; return its contiguous()")
            found.append(Value(name, node.dtype, self.shape(node), self.program.slot_of[base]))
        return found

    def constants_and_state(self) -> tuple[list[tuple[Value, Tensor]], list[tuple[Value, Tensor]]]:
        """Weights and state, with tensors over the memory that they have now."""
        shapes: dict[int, tuple[int, ...]] = {}
        now: dict[int, UOp] = {}
        for slot in self.capture.states:
            tensor = slot.now(self.guards)
            if tensor is None:
                continue
            base, chain = base_and_chain(tensor.uop)
            now.setdefault(slot.number, base)
            if all(step[0] is Op.RESHAPE for step in chain) and slot.number not in shapes:
                shapes[slot.number] = tensor.uop.shape
        named = [i for i, p in enumerate(self.places) if p.role in ("weight", "state") and i < len(self.program.nodes)]
        names = [self.capture.names.get(i, f"tensor{i}") for i in named] + [path for path, _, _ in self.extra_state]
        found: dict[str, list[tuple[Value, Tensor]]] = {"weight": [], "state": []}
        unique = _unique(names)
        for name, number in zip(unique, named, strict=False):
            place = self.places[number]
            shape = shapes.get(number, (place.size,))
            data = Tensor.of_node(now.get(number, self.program.nodes[number])).reshape(*shape)
            found[place.role].append((Value(name, place.dtype, shape, number), data))
        for name, (_, tensor, number) in zip(unique[len(named) :], self.extra_state, strict=True):
            place = self.places[number]
            fits = tensor.dtype is place.dtype and not symbolic.is_symbolic(tensor.uop) and tensor.numel() == place.size
            data = tensor.contiguous() if fits else Tensor.zeros(place.size, dtype=place.dtype).contiguous()
            found["state"].append((Value(name, place.dtype, tuple(data.shape), number), data))
        return found["weight"], found["state"]

    def random(self) -> dict[str, int] | None:
        """The state of random numbers now."""
        if not self.capture.draws:
            return None
        low, high = random_state.seed_words()
        return {
            "seed": low + high * random_state.WORD, "draws": random_state.draws(), "each": self.capture.draws,
        }  # fmt: skip

    def launches(self, calls: Sequence[CapturedCall]) -> list[Launch]:
        """The launches over buffers and variables by number."""
        numbers = {name: len(self.places) + number for number, name in enumerate(self.variables)}
        found = []
        for call in calls:
            assert isinstance(call.kernel, CompiledKernel)
            kernel = self.kernels.setdefault(call.kernel, len(self.kernels))
            found.append(Launch(kernel, (*call.slots, *[numbers[v.arg.name] for v in call.variables])))
        return found


class _Output:
    """In place of an output while the result is put together."""

    def __init__(self, number: int) -> None:
        self.number = number


def _numbers(value: Any) -> Iterator[int]:
    """The outputs in a result, in order."""
    if isinstance(value, _Output):
        yield value.number
    for _, item in _items(value):
        yield from _numbers(item)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    """What a container or a dataclass holds, each with how a name goes on."""
    if isinstance(value, dict):
        return [(f"[{name!r}]", item) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{number}]", item) for number, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{name}", item) for name, item in vars(value).items()]
    return []


def _leaves(path: str, value: Any) -> Iterator[tuple[str, UOp]]:
    """The nodes in a value by name."""
    if isinstance(value, UOp):
        yield path, value
    for rest, item in _items(value):
        yield from _leaves(path + rest, item)


def _structure(value: Any, numbers: Sequence[int]) -> Any:
    """A result as JSON; of the outputs only those with these numbers are there."""
    if isinstance(value, _Output):
        return {"output": numbers.index(value.number)}
    if isinstance(value, dict):
        return {"dict": {str(name): _structure(item, numbers) for name, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_structure(item, numbers) for item in value]}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if is_dataclass(value):
        return {"dict": {name: _structure(item, numbers) for name, item in vars(value).items()}}
    return {"value": str(value)}


def _row(program: AnyProgram) -> KernelRow:
    plan = launch_plan(program)
    segments = tuple([tuple([(s.blocks, s.seconds) for s in stage]) for stage in plan.segments])
    return KernelRow(plan.name, plan.stages, plan.entries, segments, plan.words)


def _same_form(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two chains of views show memory in the same way: dense ones do, whatever shapes they went through."""
    return one == other or all(step[0] is Op.RESHAPE for step in (*one, *other))


def _joined(head: str, rest: str) -> str:
    """`x`, `[0]['mask'].weight` becomes `x.0.mask.weight`."""
    parts = re.findall(r"\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[([^]]*)\]|\.(\w+)", rest)
    words = [next((word for word in part if word), "") for part in parts]
    if not head:
        head = "output" if not words or words[0].isdigit() else ""
        if head and words:
            head, words = f"output{words[0]}", words[1:]
    return ".".join([head, *words] if head else words)


def _unique(names: Sequence[str]) -> list[str]:
    """The names, those that were taken with a number behind."""
    taken: set[str] = set()
    found = []
    for name in names:
        number, chosen = 1, name
        while chosen in taken:
            number += 1
            chosen = f"{name}_{number}"
        taken.add(chosen)
        found.append(chosen)
    return found
