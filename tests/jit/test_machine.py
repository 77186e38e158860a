"""Random jitted programs beside the same functions un-jitted, on copies of what they touch: equal, or a clear error.

Two worlds hold equal tensors and equal Python values. A machine makes functions in both - jitted in one - and calls
them with arguments that are fresh, lazy, views, the same twice, state, or results of earlier calls, and between calls
writes to tensors, replaces them, changes values and drops results. After every step both worlds have to agree.
"""

from __future__ import annotations

import gc
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from gradlet import Tensor, Variable, jit
from gradlet.base.errors import JitError
from gradlet.tensor import random_state

SIZE = 6
N = Variable("n", 1, SIZE)
STATES = ("weight", "moment", "cache")


class BoomError(Exception):
    """What a program raises itself."""


class World:
    """State of all kinds: attributes, items, Python values, a module, a jitted method."""

    def __init__(self) -> None:
        start = np.arange(SIZE, dtype=np.float32)
        self.weight, self.moment, self.cache = Tensor(start), Tensor(start[::-1].copy()), Tensor.zeros(SIZE)
        self.items = [Tensor(start * 2), Tensor(start - 3)]
        self.named = {"a": Tensor(start + 1)}
        self.pair = (Tensor(start - 1), Tensor(start * 0))
        self.scale, self.flag, self.fails = 2, False, False
        self.config = types.ModuleType("config")
        self.config.rate = 3.0  # type: ignore[attr-defined]
        self.pool: list[Tensor] = [Tensor(start), Tensor(start + 5)]
        self.functions: list[Any] = []

    @jit
    def inner(self, x: Tensor) -> Tensor:
        """A jitted method, which others call."""
        self.cache += x
        return bounded(x * self.scale + self.moment)

    def tensors(self) -> list[Tensor]:
        """All of the state."""
        return [self.weight, self.moment, self.cache, *self.items, *self.named.values(), *self.pair]


def bounded(x: Tensor) -> Tensor:
    """Whole numbers that floats hold exactly."""
    return x.clip(-64, 64)


def interpret(world: World, program: tuple[tuple[str, int, int], ...], values: list[Tensor], n: Any) -> Any:
    """Run a program: each instruction adds a value, or changes the world."""
    for word, a, b in program:
        x, y = values[a % len(values)], values[b % len(values)]
        low, high = sorted((a % SIZE, b % SIZE + 1))
        match word:
            case "add":
                values.append(bounded(x + y))
            case "multiply":
                values.append(bounded(x * y))
            case "larger":
                values.append(x.maximum(y))
            case "flip":
                values.append(x.flip(0))
            case "roll":
                values.append(x.roll(b))
            case "select":
                values.append((x > y).where(x, y * 2).clip(-64, 64))
            case "pick":
                values.append(x[y.abs().cast("int32") % SIZE])
            case "running":
                values.append(bounded(x.cumsum(0)))
            case "total":
                values.append(bounded(x.sum() + y))
            case "part":
                values.append(x[low:high].pad(((low, SIZE - high),)))
            case "halves":
                values.append(x.reshape(2, 3).sum(0).cat(y[:3]).clip(-64, 64))
            case "realize":
                x.realize()
            case "contiguous":
                values.append((x + 1).contiguous().realize())
            case "weight":
                values.append(world.weight + b)
            case "item":
                values.append(world.items[b % 2] - x)
            case "named":
                values.append(world.named["a"] * 1)
            case "pair":
                values.append(world.pair[b % 2] + x)
            case "assign":
                world.weight.assign(x)
            case "assign item":
                world.items[a % 2].assign(y.flip(0))
            case "update":
                world.moment.assign(bounded(world.moment + x))
                values.append(world.moment * 2)
            case "write":
                world.cache[low:high] = x[low:high] + 1
            case "write named":
                world.named["a"][b % SIZE] = x[0]
            case "write argument":
                values[0].assign(bounded(x + 1))
            case "write argument in place":
                values[0][low:high] = 7
            case "replace":
                world.moment = bounded(x + world.moment)
            case "replace item":
                world.items[b % 2] = x + 1
            case "replace named":
                world.named["a"] = x.flip(0)
            case "replace pair":
                world.pair = (x * 1, world.pair[0])
            case "exchange":
                world.weight, world.moment = world.moment, world.weight
            case "keep argument":
                world.cache = values[0]
            case "count":
                world.scale = world.scale % 3 + 1
            case "scale":
                values.append(bounded(x * world.scale))
            case "branch":
                values.append(x if world.flag else -x)
            case "rate":
                values.append(bounded(x * world.config.rate))  # type: ignore[attr-defined]
            case "inner":
                values.append(world.inner(x))
            case "random":
                values.append(((Tensor.rand(SIZE) * 8).floor() + x).clip(-64, 64))
            case "gradient":
                values.append((x * world.weight * world.weight).sum().gradient(world.weight)[0].clip(-64, 64))
            case "symbolic":
                values.append(bounded(x[:n].sum() + y))
            case "symbolic write":
                world.cache[:n] = x[:n] + y[:n]
            case "fail":
                if world.fails:
                    raise BoomError  # nothing of what was done stays
    return [values[-1] * 1, {"other": values[b % len(values)] + 1}]


WORDS = [
    "add", "multiply", "larger", "flip", "roll", "select", "pick", "running", "total", "part", "halves", "realize",
    "contiguous", "weight", "item", "named", "pair", "assign", "assign item", "update", "write", "write named",
    "write argument", "write argument in place", "replace", "replace item", "replace named", "replace pair", "exchange",
    "keep argument", "count", "scale", "branch", "rate", "inner", "random", "gradient", "symbolic", "symbolic write",
    "fail",
]  # fmt: skip
numbers = st.integers(0, 7)
programs = st.lists(st.tuples(st.sampled_from(WORDS), numbers, numbers), min_size=1, max_size=7).map(tuple)


def function_of(world: World, program: Any) -> Any:
    """The program as a function that closes over its world."""

    def function(x: Tensor, y: Tensor, n: Any) -> Any:
        return interpret(world, program, [x, y], n)

    return function


def plain_function(world: World, program: Any) -> Any:
    """The same without jit: a call that fails does nothing, and no value that depends on `n` waits for the next."""

    def function(x: Tensor, y: Tensor, n: Any) -> Any:
        if world.fails and any(word == "fail" for word, _, _ in program):
            raise BoomError
        result = interpret(world, program, [x, y], n)
        Tensor.realize(x, y, result[0], result[1]["other"], *world.tensors())
        return result

    return function


class Beside(RuleBasedStateMachine):
    """A world whose functions are jitted, and one whose functions are not."""

    replays = refused = 0

    def __init__(self) -> None:
        super().__init__()
        self.worlds = World(), World()
        for world in self.worlds:
            _ = world.inner  # the method of an instance is made when it is asked for
        self.worlds[1].inner = types.MethodType(World.inner.function, self.worlds[1])  # type: ignore[method-assign]

    @initialize(program=programs)
    def first_function(self, program: Any) -> None:
        self.make_function(program)

    @precondition(lambda self: len(self.worlds[0].functions) < 3)
    @rule(program=programs)
    def make_function(self, program: Any) -> None:
        jitted, plain = self.worlds
        jitted.functions.append(jit(function_of(jitted, program)))
        plain.functions.append(plain_function(plain, program))

    @rule(which=numbers, a=numbers, b=numbers, n=st.integers(1, SIZE), times=st.integers(1, 4), how=st.integers(0, 3))
    def call(self, which: int, a: int, b: int, n: int, times: int, how: int) -> None:
        keeps, reads = how % 2, how < 2
        for time in range(times):
            made = []
            draws = random_state.draws()
            for world in self.worlds:
                random_state.advance(draws - random_state.draws())
                pool = [*world.pool, *world.tensors()]
                function = world.functions[which % len(world.functions)]
                try:
                    made.append(function(pool[a % len(pool)], pool[b % len(pool)], N.bind((n + time) % SIZE + 1)))
                except BoomError:
                    made.append(BoomError)
                except JitError:
                    assert world is self.worlds[0]
                    type(self).refused += 1
                    self.agree()
                    return  # nothing was done
            if reads or not keeps:
                self.same_results(*made)
            if keeps and made[0] is not BoomError:  # what is not read here stays lazy in the plain world
                for world, result in zip(self.worlds, made, strict=True):
                    world.pool += [result[0], result[1]["other"]]
                    del world.pool[2:-4]
            del made
            if reads:
                self.agree()

    def same_results(self, found: Any, wanted: Any) -> None:
        if wanted is BoomError or found is BoomError:
            assert found is wanted
            return
        np.testing.assert_array_equal(found[0].numpy(), wanted[0].numpy())
        np.testing.assert_array_equal(found[1]["other"].numpy(), wanted[1]["other"].numpy())

    def agree(self) -> None:
        found, wanted = ([*w.tensors(), *w.pool] for w in self.worlds)
        for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=f"tensor {number}")
        assert [self.worlds[0].scale, self.worlds[0].flag] == [self.worlds[1].scale, self.worlds[1].flag]

    @rule(kind=st.integers(0, 4), which=numbers, values=st.lists(st.integers(-9, 9), min_size=SIZE, max_size=SIZE))
    def new_tensor(self, kind: int, which: int, values: list[int]) -> None:
        array = np.array(values, np.float32)
        for world in self.worlds:
            other = world.pool[which % len(world.pool)]
            made = [
                lambda: Tensor(array),
                lambda: Tensor(array) * 2 + 1,
                lambda: Tensor(np.stack([array, array + 1]))[1],
                lambda: Tensor.full((SIZE,), float(array[0])),
                lambda other=other: other.flip(0) + 1,
            ]
            world.pool[which % len(world.pool)] = made[kind]()

    @rule(kind=st.integers(0, 8), which=numbers, value=st.integers(-3, 3))
    def change_outside(self, kind: int, which: int, value: int) -> None:
        for world in self.worlds:
            tensor = [*world.tensors(), *world.pool][which % (8 + len(world.pool))]
            match kind:
                case 0:
                    world.scale = value % 3 + 1
                case 1:
                    world.flag = bool(value % 2)
                case 2:
                    world.config.rate = float(value % 2)  # type: ignore[attr-defined]
                case 3:
                    world.fails = value > 0
                case 4:
                    tensor.assign(tensor * 0 + value)
                case 5:
                    tensor[value % SIZE] = float(value)
                case 6:
                    setattr(world, STATES[which % 3], Tensor.full((SIZE,), float(value)).contiguous())
                case 7:
                    world.items[which % 2] = Tensor(np.full(SIZE, value, np.float32))
                case 8:
                    world.pool.append(world.tensors()[which % 8] * 3)  # lazy: sees what is there now
                    del world.pool[2:-4]
        if which % 2:
            self.agree()

    @precondition(lambda self: len(self.worlds[0].functions) == 3)
    @rule(which=numbers, drops=st.booleans())
    def forget(self, which: int, drops: bool) -> None:
        functions = self.worlds[0].functions
        if drops:
            for world in self.worlds:
                del world.functions[which % 3]
        else:
            functions[which % len(functions)].reset()

    def teardown(self) -> None:
        type(self).replays += sum(
            capture.replays for function in self.worlds[0].functions for capture in function.captures.values()
        )
        del self.worlds
        gc.collect(0)


def drive(examples: int, steps: int, **more: Any) -> None:
    Beside.replays = Beside.refused = 0
    run_state_machine_as_test(
        Beside,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None,
            suppress_health_check=list(HealthCheck), **more,
        ),
    )  # fmt: skip


def test_jitted_programs_beside_plain_ones() -> None:
    drive(5, 10, derandomize=True, database=None)
    assert Beside.replays > 0


@pytest.mark.slow
def test_many_jitted_programs_beside_plain_ones() -> None:
    drive(400, 30, derandomize=False)
    assert Beside.replays > 10 * Beside.refused
