"""Python values that a jitted function meets: arguments, closures, globals, attributes, containers. Never frozen."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import random
import sys
import types
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest

from gradlet import Tensor, Variable, dtypes, jit
from gradlet.base.errors import JitError
from gradlet.tensor import reachable

LEVELS = [1.0, 2.0]
SWITCH = {"mode": "add"}


def tensor(*values: float) -> Tensor:
    return Tensor(list(values) or [3.0]).realize()


def test_ints_branches_and_keywords() -> None:
    """A frozen branch gives quietly the answer of the first call (field case A12)."""

    @jit
    def function(x: Tensor, i: int, flag: bool = False) -> Tensor:
        return x * i if flag else x + i

    for i in (0, 1, 2):
        for flag in (True, False, True):
            assert function(tensor(), i, flag=flag).item() == (3 * i if flag else 3 + i)


def test_a_number_equal_to_another_of_another_type() -> None:
    """1, 1.0 and True are one dictionary key, and give three dtypes."""
    function = jit(lambda x, n: x + n)
    x = Tensor([1]).realize()
    for _ in range(2):
        assert function(x, 1).dtype is dtypes.int32
        assert function(x, 1.0).dtype is dtypes.float32
        assert function(x, True).dtype is dtypes.int32
    assert function(Tensor([0.0]), -0.0).numpy().view(np.uint32)[0] == 0
    assert function(Tensor([-0.0]), -0.0).numpy().view(np.uint32)[0] == 1 << 31


def test_nan_as_a_value_is_one_capture() -> None:
    function = jit(lambda x, n: x + n)
    for _ in range(40):
        assert np.isnan(function(tensor(), float("nan")).item())
    assert len(function.captures) == 1


def test_positional_or_by_name() -> None:
    function = jit(lambda x, y: x - y)
    one, two = tensor(1.0), tensor(2.0)
    for _ in range(2):
        assert function(one, two).item() == -1
        assert function(one, y=two).item() == -1
        assert function(y=one, x=two).item() == 1
        assert function(x=one, y=two).item() == -1


def test_default_argument_changed_in_place() -> None:
    def plain(x: Tensor, scale: list[float] = [2.0]) -> Tensor:  # noqa: B006
        return x * scale[0]

    function = jit(plain)
    assert [function(tensor()).item() for _ in range(3)] == [6, 6, 6]
    plain.__defaults__[0][0] = 5.0  # type: ignore[index]
    assert function(tensor()).item() == 15
    plain.__defaults__ = ([7.0],)
    assert function(tensor()).item() == 21


def test_keyword_only_default() -> None:
    def plain(x: Tensor, *, scale: float = 2.0) -> Tensor:
        return x * scale

    function = jit(plain)
    assert function(tensor()).item() == 6
    plain.__kwdefaults__ = {"scale": 4.0}
    assert function(tensor()).item() == 12


def test_global_list_and_dict_changed_in_place() -> None:
    @jit
    def function(x: Tensor) -> Tensor:
        return x + LEVELS[-1] if SWITCH["mode"] == "add" else x - LEVELS[-1]

    try:
        assert [function(tensor()).item() for _ in range(2)] == [5, 5]
        LEVELS.append(10.0)
        assert function(tensor()).item() == 13
        LEVELS[-1] = 20.0
        assert function(tensor()).item() == 23
        SWITCH["mode"] = "sub"
        assert function(tensor()).item() == -17
    finally:
        del LEVELS[2:]
        SWITCH["mode"] = "add"


def test_dict_with_the_same_values_in_another_order() -> None:
    """`sum over d.values()` is the same, `list(d)[0]` is not."""
    function = jit(lambda x, d: x * next(iter(d.values())) + list(d).index("a"))
    for _ in range(2):
        assert function(tensor(), {"a": 2, "b": 5}).item() == 6
        assert function(tensor(), {"b": 5, "a": 2}).item() == 16


def test_closed_over_dict_in_another_order() -> None:
    settings = {"a": 2.0, "b": 5.0}
    function = jit(lambda x: x * next(iter(settings.values())))
    assert [function(tensor()).item() for _ in range(2)] == [6, 6]
    settings["a"] = settings.pop("a")
    assert function(tensor()).item() == 15


def test_nonlocal_counter_that_the_function_changes_itself() -> None:
    """Each call is another function: nothing to replay, so no wrong number and at last an error that says so."""
    calls = 0

    @jit
    def function(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x + calls

    seen = []
    with pytest.raises(JitError, match="calls"):
        for _ in range(40):
            seen.append(function(tensor(0.0)).item())
    assert seen == list(range(1, len(seen) + 1))


class Slotted:
    """An object without a `__dict__`."""

    __slots__ = ("rate", "weight")

    def __init__(self, rate: float, weight: Tensor | None = None) -> None:
        self.rate = rate
        self.weight = weight


class Derived(Slotted):
    """Slots of its own beside inherited ones."""

    __slots__ = ("shift",)

    def __init__(self, rate: float, shift: float) -> None:
        super().__init__(rate)
        self.shift = shift


def test_attributes_in_slots() -> None:
    settings = Slotted(2.0)
    function = jit(lambda x: x * settings.rate)
    assert [function(tensor()).item() for _ in range(2)] == [6, 6]
    settings.rate = 5.0
    assert function(tensor()).item() == 15


def test_inherited_slots_and_tensors_in_slots() -> None:
    derived = Derived(2.0, 1.0)
    holder = Slotted(1.0, tensor(10.0))
    function = jit(lambda x: x * derived.rate + derived.shift + holder.weight)
    assert [function(tensor()).item() for _ in range(2)] == [17, 17]
    derived.rate = 3.0
    assert function(tensor()).item() == 20
    derived.shift = 2.0
    assert function(tensor()).item() == 21
    assert holder.weight is not None
    holder.weight.assign(tensor(20.0))
    assert function(tensor()).item() == 31
    holder.weight = tensor(30.0)
    assert function(tensor()).item() == 41


def test_slotted_dataclass_and_named_tuple() -> None:
    @dataclasses.dataclass(slots=True)
    class Options:
        rate: float = 2.0

    class Pair(NamedTuple):
        first: float
        second: float

    options, pair = Options(), Pair(1.0, 2.0)
    function = jit(lambda x: x * options.rate + pair.second)
    assert [function(tensor()).item() for _ in range(2)] == [8, 8]
    options.rate = 3.0
    assert function(tensor()).item() == 11
    pair = Pair(1.0, 5.0)
    assert function(tensor()).item() == 14


def test_property_over_hidden_attributes() -> None:
    class Model:
        def __init__(self) -> None:
            self.__rate = 2.0

        @property
        def rate(self) -> float:
            return self.__rate

        def slower(self) -> None:
            self.__rate /= 2

    model = Model()
    function = jit(lambda x: x * model.rate)
    assert [function(tensor()).item() for _ in range(2)] == [6, 6]
    model.slower()
    assert function(tensor()).item() == 3


def test_attribute_deep_inside() -> None:
    class Box:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

    box = Box([Box({"rate": Box((1, Box(2.0)))})])
    function = jit(lambda x: x * box.inner[0].inner["rate"].inner[1].inner)
    assert [function(tensor()).item() for _ in range(2)] == [6, 6]
    box.inner[0].inner["rate"].inner[1].inner = 4.0
    assert function(tensor()).item() == 12


def test_a_list_inside_twenty_lists() -> None:
    """However deep: looked at, or refused; never frozen."""
    nest: Any = [2.0]
    bottom = nest
    for _ in range(20):
        nest = [nest]

    @jit
    def function(x: Tensor) -> Tensor:
        value = nest
        while isinstance(value, list):
            value = value[0]
        return x * value

    try:
        first = [function(tensor()).item() for _ in range(2)]
        bottom[0] = 5.0
        last = function(tensor()).item()
    except JitError as error:
        assert "nest" in str(error)
    else:
        assert (first, last) == ([6, 6], 15)


def test_containers_that_hold_themselves() -> None:
    ring: list[Any] = [2.0]
    ring.append(ring)
    table: dict[str, Any] = {"rate": 1.0}
    table["self"] = table
    function = jit(lambda x: x * ring[0] + table["rate"])
    assert [function(tensor()).item() for _ in range(2)] == [7, 7]
    ring[0] = 5.0
    assert function(tensor()).item() == 16


def test_an_argument_that_holds_itself() -> None:
    ring: list[Any] = [tensor()]
    ring.append(ring)
    function = jit(lambda x: x[0] * 2)
    with pytest.raises(JitError, match="contains itself"):
        function(ring)


def test_enum_partial_and_callable_objects() -> None:
    class Mode(enum.Enum):
        TWICE = 2
        THRICE = 3

    class Scale:
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.rate

    by_mode = jit(lambda x, mode: x * mode.value)
    for mode in (Mode.TWICE, Mode.THRICE, Mode.TWICE):
        assert by_mode(tensor(), mode).item() == 3 * mode.value
    factor = {"rate": 2.0}
    partial = jit(functools.partial(lambda table, x: x * table["rate"], factor))
    assert [partial(tensor()).item() for _ in range(2)] == [6, 6]
    factor["rate"] = 4.0
    assert partial(tensor()).item() == 12
    scale = Scale(2.0)
    called = jit(scale)
    assert [called(tensor()).item() for _ in range(2)] == [6, 6]
    scale.rate = 5.0
    assert called(tensor()).item() == 15


def test_an_object_as_argument_is_looked_into() -> None:
    """Its identity says nothing of its attributes."""

    class Config:
        def __init__(self, rate: float) -> None:
            self.rate = rate

    function = jit(lambda x, config: x * config.rate)
    config = Config(2.0)
    assert [function(tensor(), config).item() for _ in range(2)] == [6, 6]
    config.rate = 5.0
    assert function(tensor(), config).item() == 15
    for rate in (1.0, 2.0, 3.0):  # one after another at the same address
        assert function(tensor(), Config(rate)).item() == 3 * rate


def test_a_function_as_argument() -> None:
    rate = 2.0

    def scale(x: Tensor) -> Tensor:
        return x * rate

    function = jit(lambda x, f: f(x))
    assert [function(tensor(), scale).item() for _ in range(2)] == [6, 6]
    rate = 5.0
    assert function(tensor(), scale).item() == 15
    assert function(tensor(), lambda x: x - 1).item() == 2


def test_mutable_values_that_cannot_be_watched_are_refused() -> None:
    for value in ({1, 2}, bytearray(b"ab"), np.ones(3), count(), iter([1])):
        function = jit(lambda x, v: x + 1)
        with pytest.raises(JitError, match="argument 1"):
            function(tensor(), value)


def test_closed_over_arrays_and_deques() -> None:
    """A closed-over array may only be used through a Tensor, whose making inside is refused."""
    array = np.array([2.0], np.float32)
    with pytest.raises(JitError):
        jit(lambda x: x + Tensor(array))(tensor())
    queue = collections.deque([1.0, 2.0], maxlen=2)
    function = jit(lambda x: x * queue[-1])
    assert [function(tensor()).item() for _ in range(2)] == [6, 6]
    queue.append(5.0)
    assert function(tensor()).item() == 15


def test_a_number_out_of_a_closed_over_array() -> None:
    array = np.array([2.0], np.float32)
    function = jit(lambda x: x * float(array[0]))
    assert [function(tensor()).item() for _ in range(2)] == [6, 6]
    array[0] = 5.0
    assert function(tensor()).item() == 15


def test_python_random_inside() -> None:
    """The state of Python's generator is a value from outside that every call changes."""
    generator = random.Random(7)

    @jit
    def function(x: Tensor) -> Tensor:
        return x + generator.random()

    expected = random.Random(7)
    seen, right = [], []
    with contextlib.suppress(JitError):
        for _ in range(3):
            seen.append(function(tensor(0.0)).item())
            right.append(expected.random())
    np.testing.assert_allclose(seen, right, rtol=1e-6)


def test_bound_to_many_values_and_then_other_values() -> None:
    n = Variable("n", 1, 64)
    function = jit(lambda x, size: x[:size].sum())
    x = Tensor(np.arange(64, dtype=np.float32)).realize()
    for size in (3, 64, 1, 7):
        assert function(x, n.bind(size)).item() == size * (size - 1) / 2
    assert len(function.captures) == 1
    with pytest.raises(Exception, match="65"):
        n.bind(65)


def test_too_many_values_say_which_one_moves() -> None:
    class Config:
        rate = 0.0

    config = Config()
    by_attribute = jit(lambda x: x * config.rate)
    by_shape = jit(lambda x: x.sum())
    by_keyword = jit(lambda x, *, step: x + step)
    with pytest.raises(JitError, match=r"config\.rate"):
        for number in range(40):
            config.rate = float(number)
            by_attribute(tensor())
    with pytest.raises(JitError, match="shapes.*argument 0"):
        for number in range(1, 40):
            by_shape(Tensor.ones(number).contiguous().realize())
    with pytest.raises(JitError, match="argument step"):
        for number in range(40):
            by_keyword(tensor(), step=number)


def test_a_script_that_an_installed_tool_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = types.ModuleType("__main__")
    tool.__file__ = "/usr/lib/python3/dist-packages/tool/__main__.py"
    monkeypatch.setitem(sys.modules, "__main__", tool)
    reachable.is_library.cache_clear()
    script: dict[str, Any] = {"__name__": "__main__", "jit": jit, "factor": 2}
    exec("@jit\ndef scaled(x):\n    return x * factor\n", script)
    assert script["scaled"](Tensor([1.0])).item() == 2
    script["factor"] = 3
    assert script["scaled"](Tensor([1.0])).item() == 3


def test_explain_counts_every_call_and_names_what_is_watched() -> None:
    offset = 5

    @jit
    def shifted(x: Tensor) -> Tensor:
        return x + offset

    for _ in range(6):
        shifted(Tensor([1.0, 2.0]).realize())
    text = shifted.explain()
    assert "6 calls, 1 capture" in text and "replayed 5 times" in text
    assert "offset = 5" in text and "default of" not in text
