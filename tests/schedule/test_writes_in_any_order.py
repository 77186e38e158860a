"""Random programs of in-place writes against an interpreter that copies everything, in many legal orders of their
kernels: what the schedule says must come first is all that has to come first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.engine import execute
from gradlet.graph.node import UOp, no_gc, toposort
from gradlet.graph.passes import Pass, Pipeline
from gradlet.ops.op import Op
from gradlet.schedule import pipeline
from gradlet.schedule.boxes import Box, box_of_address, disjoint
from gradlet.schedule.calls import CopyCall, KernelCall, Schedule
from gradlet.schedule.order import dependences
from gradlet.tensor import donation

ROWS, COLUMNS = 4, 6
Index = tuple[Any, ...]


# the interpreter
@dataclass(eq=False)
class Value:
    """A variable of the interpreter: an array, and for a view where in another variable its elements lie."""

    array: Any
    origin: Value | None = None
    positions: Any = None
    alive: bool = True

    def store(self, positions: Any, new: Any) -> None:
        """Write to the deepest living variable, and show its new values in all on the way."""
        way = [self]
        places = [positions]
        top = self
        place = positions
        while top.origin is not None:
            place = top.positions.reshape(-1)[place]
            top = top.origin
            way.append(top)
            places.append(place)
        owner = max(i for i, v in enumerate(way) if v.alive)
        array = way[owner].array.copy()
        array.reshape(-1)[places[owner]] = new
        way[owner].array = array
        shown = array
        for link, above in zip(reversed(way[: owner + 1]), [None, *reversed(way[1 : owner + 1])]):
            if above is not None:
                shown = shown.reshape(-1)[link.positions]
                if link.alive:
                    link.array = shown.copy()


def numbers(array: Any) -> Any:
    return np.arange(array.size).reshape(array.shape)


@dataclass
class Program:
    """Instructions, made while the interpreter runs them; `variables` are its variables."""

    seed: int
    random: random.Random = field(init=False)
    variables: list[Value] = field(default_factory=list)
    code: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        for i in range(self.random.randint(1, 3)):
            self.variables.append(Value(start(i)))
        self.inputs = len(self.variables)
        for _ in range(self.random.randint(2, 9)):
            self.instruction()

    def instruction(self) -> None:
        kind = self.random.choice(
            ["write", "write", "write", "add", "assign", "swap", "shift", "rows", "late", "view", "view", "new", "new",
             "realize", "read", "drop"]
        )  # fmt: skip
        which = self.random.randrange(len(self.variables))
        getattr(self, kind)(which)

    # parts
    def box(self, shape: Sequence[int]) -> Index:
        """Slices and numbers, an entry an axis."""
        parts: list[Any] = []
        for size in shape:
            low = self.random.randrange(size)
            high = self.random.randint(low + 1, size)
            kind = self.random.choice(["all", "range", "range", "step", "one", "last"])
            if kind == "all":
                parts.append(slice(None))
            elif kind == "range":
                parts.append(slice(low, high))
            elif kind == "step":
                parts.append(slice(low, None, 2))
            elif kind == "one":
                parts.append(slice(low, low + 1))
            else:
                parts.append(slice(size - 1, size))
        return tuple(parts)

    def view_of(self, which: int) -> tuple[tuple[Any, ...], Any]:
        """How to take a view of a variable, and the positions it shows."""
        found = numbers(self.variables[which].array)
        steps: list[Any] = []
        for _ in range(self.random.randint(0, 2)):
            kind = self.random.choice(["box", "box", "T", "flat", "flip"])
            if kind == "flip":
                steps.append(("flip", self.random.randrange(found.ndim)))
            elif kind == "box":
                steps.append(("box", self.box(found.shape)))
            elif kind == "T" and found.ndim == 2:
                steps.append(("T",))
            elif kind == "flat" and found.ndim == 2:
                steps.append(("flat",))
            else:
                continue
            found = take(found, steps[-1])
        return tuple(steps), found

    def value(self, shape: tuple[int, ...]) -> tuple[tuple[Any, ...], Any]:
        """How to compute a value of a shape, and the value."""
        kind = self.random.choice(["number", "view", "view", "mix", "mix", "sum"])
        if kind == "number":
            number = self.random.randint(-5, 5)
            return ("number", number), np.full(shape, number, np.int32)
        which = self.random.randrange(len(self.variables))
        if kind != "sum":
            for _ in range(12):
                steps, positions = self.view_of(which)
                if positions.shape == shape:
                    shown = self.variables[which].array.reshape(-1)[positions]
                    if kind == "view":
                        return ("view", which, steps), shown
                    other = self.random.randrange(len(self.variables))
                    total = self.variables[other].array.sum(dtype=np.int32)
                    return ("mix", which, steps, other), shown * np.int32(3) + total
                which = self.random.randrange(len(self.variables))
        total = self.variables[which].array.sum(dtype=np.int32)
        return ("sum", which, shape), np.full(shape, total, np.int32)

    # instructions
    def write(self, which: int) -> None:
        target = self.variables[which]
        index = self.box(target.array.shape)
        positions = numbers(target.array)[index]
        how, new = self.value(positions.shape)
        self.code.append(("write", which, index, how))
        target.store(positions, new)

    def add(self, which: int) -> None:
        target = self.variables[which]
        index = self.box(target.array.shape)
        positions = numbers(target.array)[index]
        how, new = self.value(positions.shape)
        self.code.append(("add", which, index, how))
        target.store(positions, target.array[index] + new)

    def assign(self, which: int) -> None:
        target = self.variables[which]
        how, new = self.value(target.array.shape)
        self.code.append(("assign", which, how))
        target.store(numbers(target.array), new)

    def swap(self, which: int) -> None:
        """Two rectangles exchanged, of one variable or of two."""
        first = self.variables[which]
        other = self.random.choice([i for i, v in enumerate(self.variables) if v.array.shape == first.array.shape])
        second = self.variables[other]
        a = self.box(first.array.shape)
        b = self.box(second.array.shape)
        if numbers(first.array)[a].shape != numbers(second.array)[b].shape:
            b = a
        self.code.append(("swap", which, a, other, b))
        left, right = first.array[a].copy(), second.array[b].copy()
        first.store(numbers(first.array)[a], right)
        second.store(numbers(second.array)[b], left)

    def shift(self, which: int) -> None:
        """A rectangle moved over itself."""
        target = self.variables[which]
        axis = self.random.randrange(target.array.ndim)
        size = target.array.shape[axis]
        if size < 2:
            return
        step = self.random.randint(1, size - 1)
        here, there = slice(step, None), slice(None, size - step)
        if self.random.random() < 0.5:
            here, there = there, here
        lead = (slice(None),) * axis
        factor = self.random.choice([1, 2])
        self.code.append(("shift", which, (*lead, here), (*lead, there), factor))
        target.store(numbers(target.array)[*lead, here], target.array[*lead, there] * np.int32(factor))

    def rows(self, which: int) -> None:
        """Rows by number: read elsewhere and written here; the last of equal numbers stays."""
        target = self.variables[which]
        size = target.array.shape[0]
        chosen = [self.random.randrange(size) for _ in range(self.random.randint(1, 3))]
        source = self.random.choice([i for i, v in enumerate(self.variables) if v.array.shape == target.array.shape])
        others = [self.random.randrange(size) for _ in chosen]
        how = self.random.choice(["set", "add"])
        self.code.append(("rows", which, chosen, source, others, how))
        new = self.variables[source].array[others].copy()
        result = target.array.copy()
        written = list(range(size))
        if how == "add":  # by assignment of the whole
            np.add.at(result, chosen, new)
        else:
            written = sorted(set(chosen))  # the rows beside them keep what others wrote there through another view
            for row, values in zip(chosen, new):
                result[row] = values
        target.store(numbers(target.array)[written], result[written])

    def late(self, which: int) -> None:
        """A value of what was there before a write and of what is there after it."""
        target = self.variables[which]
        old = target.array
        index = self.box(old.shape) if self.random.random() < 0.3 else (self.random.randrange(old.shape[0]),)
        positions = numbers(old)[index]
        how, new = self.value(positions.shape)
        self.code.append(("late", which, index, how))
        target.store(positions, new)
        self.variables.append(Value(old * np.int32(3) + target.array))

    def view(self, which: int) -> None:
        steps, positions = self.view_of(which)
        if len(self.variables) > 6 or any(s[0] == "flip" for s in steps):
            return
        if np.array_equal(positions, numbers(self.variables[which].array)):
            return  # `x[:]` is x
        self.code.append(("view", which, steps))
        source = self.variables[which]
        self.variables.append(Value(source.array.reshape(-1)[positions], source, positions))

    def new(self, which: int) -> None:
        if len(self.variables) > 6:
            return
        how, array = self.value(self.variables[which].array.shape)
        self.code.append(("new", how, array.shape))
        self.variables.append(Value(np.array(array)))

    def realize(self, which: int) -> None:
        count = self.random.randint(1, len(self.variables))
        self.code.append(("realize", self.random.sample(range(len(self.variables)), count)))

    def read(self, which: int) -> None:
        self.code.append(("read", which, self.variables[which].array.copy()))

    def drop(self, which: int) -> None:
        if len(self.variables) > 1:
            self.variables.pop(which).alive = False
            self.code.append(("drop", which))


def start(number: int) -> Any:
    return np.random.default_rng(number).integers(-4, 5, (ROWS, COLUMNS)).astype(np.int32)


def take(x: Any, step: tuple[Any, ...]) -> Any:
    """One step of a view, of an array or a tensor."""
    if step[0] == "box":
        return x[step[1]]
    if step[0] == "T":
        return x.T
    if step[0] == "flip":
        return np.flip(x, step[1]) if isinstance(x, np.ndarray) else x.flip(step[1])
    return x.reshape(-1)


# the same instructions on tensors
class Run:
    """A program on tensors of a device."""

    def __init__(self, program: Program, device: str) -> None:
        self.device = device
        self.tensors = [Tensor(start(i), device=device) for i in range(program.inputs)]
        if program.seed % 3:
            Tensor.realize(*self.tensors)
        for instruction in program.code:
            getattr(self, instruction[0])(*instruction[1:])
        if program.seed % 2:
            Tensor.realize(*self.tensors)
        for tensor, value in zip(self.tensors, program.variables, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), value.array)

    def shown(self, which: int, steps: Sequence[Any]) -> Tensor:
        x = self.tensors[which]
        for step in steps:
            x = take(x, step)
        return x

    def value(self, how: tuple[Any, ...]) -> Any:
        if how[0] == "number":
            return how[1]
        if how[0] == "view":
            return self.shown(how[1], how[2])
        if how[0] == "mix":
            return self.shown(how[1], how[2]) * 3 + self.tensors[how[3]].sum().cast("int32")
        return self.tensors[how[1]].sum().cast("int32").reshape((1,) * len(how[2])).expand(*how[2])

    def write(self, which: int, index: Index, how: tuple[Any, ...]) -> None:
        self.tensors[which][index] = self.value(how)

    def add(self, which: int, index: Index, how: tuple[Any, ...]) -> None:
        self.tensors[which][index] += self.value(how)

    def assign(self, which: int, how: tuple[Any, ...]) -> None:
        value = self.value(how)
        if how[0] == "number":
            value = Tensor.full(self.tensors[which].shape, value, dtype="int32", device=self.device)
        self.tensors[which].assign(value)

    def swap(self, which: int, a: Index, other: int, b: Index) -> None:
        left, right = self.tensors[which][a] * 1, self.tensors[other][b] * 1
        self.tensors[which][a] = right
        self.tensors[other][b] = left

    def shift(self, which: int, here: Index, there: Index, factor: int) -> None:
        x = self.tensors[which]
        x[here] = x[there] if factor == 1 else x[there] * factor

    def rows(self, which: int, chosen: list[int], source: int, others: list[int], how: str) -> None:
        x = self.tensors[which]
        new = self.tensors[source][others]
        if how == "set":
            x[chosen] = new
        else:
            index = Tensor(np.array(chosen, np.int32), device=x.device).reshape(-1, *(1,) * (x.ndim - 1))
            x.assign(x.scatter_reduce(0, index.expand(*new.shape).contiguous(), new, "sum"))

    def late(self, which: int, index: Index, how: tuple[Any, ...]) -> None:
        before = self.tensors[which] * 3
        self.tensors[which][index] = self.value(how)
        self.tensors.append(before + self.tensors[which])

    def view(self, which: int, steps: Sequence[Any]) -> None:
        self.tensors.append(self.shown(which, steps))

    def new(self, how: tuple[Any, ...], shape: tuple[int, ...]) -> None:
        value = self.value(how)
        if how[0] == "number":
            value = Tensor.full(shape, value, dtype="int32", device=self.device)
        self.tensors.append(value + 0 if how[0] == "view" else value)

    def realize(self, which: list[int]) -> None:
        Tensor.realize(*[self.tensors[i] for i in which])

    def read(self, which: int, array: Any) -> None:
        np.testing.assert_array_equal(self.tensors[which].numpy(), array)

    def drop(self, which: int) -> None:
        del self.tensors[which]


# orders
def any_order(needs: Sequence[Sequence[int]], rng: random.Random) -> list[int]:
    """A random topological order."""
    left = [set(n) for n in needs]
    open_ones = set(range(len(needs)))
    order: list[int] = []
    while open_ones:
        ready = [n for n in open_ones if left[n].isdisjoint(open_ones)]
        assert ready, "the kernels wait for each other"
        order.append(rng.choice(ready))
        open_ones.discard(order[-1])
    return order


def accesses(call: KernelCall | CopyCall) -> list[tuple[UOp, Box | None, bool]]:
    """What a call touches: buffer, elements (None for all that it has), whether it stores."""
    if isinstance(call, CopyCall):
        return [(call.destination, None, True), (call.source, None, False)]
    if any(b.op is Op.SINK for b in call.ast.src):
        return [(b, None, slot in call.written) for slot, b in enumerate(call.buffers)]
    found: list[tuple[UOp, Box | None, bool]] = []
    for node in toposort((call.ast,)):
        if node.op in (Op.LOAD, Op.STORE):
            address = node.src[0]
            box = box_of_address(address.src[1])
            # The variables of two calls are not the same ones.
            found.append((call.buffers[address.src[0].arg.slot], None if box.variables else box, node.op is Op.STORE))
    return found


def conflict(first: KernelCall | CopyCall, second: KernelCall | CopyCall) -> bool:
    """Whether one stores what the other touches."""
    return any(
        a is b and (stores or also) and (x is None or y is None or not disjoint(x, y))
        for a, x, stores in accesses(first)
        for b, y, also in accesses(second)
    )


def shuffled_calls(calls: Sequence[KernelCall | CopyCall], rng: random.Random) -> list[KernelCall | CopyCall]:
    """The calls in another order that keeps those apart that touch the same elements."""
    needs = [[i for i in range(j) if conflict(calls[i], calls[j])] for j in range(len(calls))]
    return [calls[i] for i in any_order(needs, rng)]


def reordering(rng: random.Random) -> Callable[..., Schedule]:
    """`create_schedule` with everything in a random legal order."""

    def order(node: UOp, context: Any) -> UOp:
        needs = dependences(context.launches, context.steps)
        context.launches = [context.launches[i] for i in any_order(needs, rng)]
        return node

    passes = [Pass(p.name, order, p.requires, p.ensures, doc=p.doc) if p.name == "order kernels" else p
              for p in pipeline.PIPELINE.passes]  # fmt: skip
    shuffled = Pipeline("in any order", passes)

    def create(
        roots: Any, target_of: Any, live: Any = (), observers: Any = (), default_device: str = "CPU", **others: Any
    ) -> Schedule:
        usual = pipeline.PIPELINE
        pipeline.PIPELINE = shuffled  # type: ignore[misc]
        try:
            with no_gc():
                made = pipeline.make_schedule(roots, target_of, live, (), default_device)
        finally:
            pipeline.PIPELINE = usual  # type: ignore[misc]
        # Every temporary buffer has memory of its own: the places that they share are those of one order.
        return Schedule(tuple(shuffled_calls(made.calls, rng)), made.results, made.values)

    return create


@contextmanager
def in_any_order(seed: int) -> Iterator[None]:
    """Every schedule inside is made anew, and runs in a random legal order."""
    usual = execute.create_schedule
    execute.create_schedule = reordering(random.Random(seed))
    try:
        yield
    finally:
        execute.create_schedule = usual


@pytest.fixture(autouse=True)
def small_results_are_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donation, "LEAST_BYTES", 0)


def check_program(seed: int, orders: int = 3) -> None:
    program = Program(seed)
    Run(program, "PYTHON")
    for order in range(orders):
        with in_any_order(seed * 10 + order):
            Run(program, "PYTHON")


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_programs_in_any_order(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        check_program(seed)


@pytest.mark.parametrize("seed", [172, *range(20)])
def test_programs_whose_schedules_are_found_again(seed: int) -> None:
    """In 172 somebody holds a write that simplifies to the one below it: neither may run again."""
    for _ in range(3):
        Run(Program(seed), "PYTHON")


def test_random_programs_on_the_processor() -> None:
    for seed in range(1000, 1020):
        Run(Program(seed), "CPU")


@pytest.mark.parametrize("seed", [11590, 12727, 16500, 16514, 17357, 30641, 120820])
def test_programs_that_the_long_run_found(seed: int) -> None:
    check_program(seed)


@pytest.mark.slow
def test_many_random_programs_in_any_order() -> None:
    for seed in range(10_000, 30_000):
        check_program(seed)
