"""What happens while a call is captured: reading, exceptions, recursion, nested jits, threads, random numbers."""

from __future__ import annotations

import concurrent.futures
import copy
import threading
from typing import Any

import numpy as np
import pytest

from gradlet import Context, Tensor, Variable, jit
from gradlet.base.errors import JitError


def tensor(*values: float) -> Tensor:
    return Tensor(list(values) or [3.0]).realize()


READS: dict[str, Any] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "print": lambda x: str(x),
    "repr": lambda x: repr(x),
    "format": lambda x: f"{x}",
    "if": lambda x: 1 if (x.sum() > 0) else 0,
    "while": lambda x: bool(x.sum() > 0),
    "and": lambda x: (x.sum() > 0) and x,
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.sum()),
    "index": lambda x: [1, 2, 3, 4][x.sum().cast("int32")],
    "in": lambda x: 3.0 in x,
    "dlpack": lambda x: np.from_dlpack(x),
    "max of two": lambda x: max(x.sum(), x.max()),
    "sorted": lambda x: sorted([x.sum(), x.max() + 1]),
    "assert": lambda x: _assert(x),
    "range": lambda x: range(x.sum().cast("int32")),
    "nonzero": lambda x: x.nonzero(),
    "masked select": lambda x: x.masked_select(x > 0),
}


def _assert(x: Tensor) -> None:
    assert (x > 0).all()


@pytest.mark.parametrize("read", READS)
def test_reading_values_is_refused_at_the_first_call(read: str) -> None:
    """Some of these need not read anything; whoever does is refused, and nothing is left behind."""
    function = jit(lambda x: (READS[read](x), x + 1)[1])
    try:
        results = [function(tensor(v)).item() for v in (3.0, -5.0)]
    except JitError as error:
        assert "inside a jitted function" in str(error)
        assert read not in ("print", "repr")
    else:
        assert results == [4, -4]
        assert read in ("print", "repr", "format")
    assert (tensor() + 1).item() == 4


def test_the_error_names_the_line() -> None:
    @jit
    def function(x: Tensor) -> Tensor:
        return x * x.sum().item()  # the line

    with pytest.raises(JitError) as caught:
        function(tensor())
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "test_tracing.py" in text
    assert "x.sum().item()" in text


def test_host_data_inside_is_refused_and_constants_are_not() -> None:
    for make in (lambda: Tensor(np.ones(3, np.float32)), lambda: Tensor([1.0, 2.0, 3.0])):
        try:
            function = jit(lambda x: x + make())
            results = [function(tensor(0.0, 0.0, 0.0)).tolist() for _ in range(3)]
        except JitError as error:
            assert "argument" in str(error)
        else:
            assert results[0] == results[1] == results[2]
    constants = jit(lambda x: x + Tensor.ones(3) + Tensor.arange(3) + 1.5)
    assert [constants(tensor(0.0)).tolist() for _ in range(2)] == [[2.5, 3.5, 4.5]] * 2


def test_an_exception_leaves_everything_as_before() -> None:
    state = tensor(1.0)
    lazy = tensor(2.0) + 5
    fail = True

    @jit
    def function(x: Tensor) -> Tensor:
        state.assign(state + x)
        (state * 2).realize()
        Tensor.rand(4)
        if fail:
            raise ValueError("mine")
        return state * 1

    Tensor.manual_seed(3)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            function(tensor(10.0))
        assert state.item() == 1
        assert lazy.item() == 7
    draws = Tensor.rand(3).tolist()
    Tensor.manual_seed(3)
    assert Tensor.rand(3).tolist() == draws
    fail = False
    assert [function(tensor(10.0)).item() for _ in range(3)] == [11, 21, 31]


def test_an_exception_in_an_argument_check_leaves_state_alone() -> None:
    state = tensor(1.0)

    @jit
    def function(x: Tensor, y: Tensor) -> Tensor:
        state.assign(state + 1)
        return x @ y

    assert function(Tensor.ones(2, 3), Tensor.ones(3, 2)).shape == (2, 2)
    with pytest.raises(Exception, match="shape|matmul"):
        function(Tensor.ones(2, 3), Tensor.ones(2, 2))
    assert state.item() == 2
    with pytest.raises(TypeError):
        function(Tensor.ones(2, 3))
    assert function(Tensor.ones(2, 3), Tensor.ones(3, 2)).shape == (2, 2)
    assert state.item() == 3


def test_nested_jits_with_state_of_the_inner_one() -> None:
    total = tensor(0.0)

    @jit
    def inner(x: Tensor) -> Tensor:
        total.assign(total + x)
        return total * 1

    outer = jit(lambda x: inner(x) * 10)
    seen = []
    for n in range(1, 5):
        seen.append(outer(tensor(float(n))).item())
        seen.append(inner(tensor(100.0)).item())
    assert seen == [10, 101, 1030, 203, 2060, 306, 3100, 410]


def test_python_value_of_a_nested_jit() -> None:
    rate = 2.0
    inner = jit(lambda x: x * rate)
    outer = jit(lambda x: inner(x) + 1)
    assert [outer(tensor()).item() for _ in range(2)] == [7, 7]
    rate = 5.0
    assert outer(tensor()).item() == 16


def test_recursion() -> None:
    @jit
    def power(x: Tensor, n: int) -> Tensor:
        return x if n == 0 else power(x, n - 1) * 2

    for n in (0, 3, 1, 3):
        assert power(tensor(), n).item() == 3 * 2**n

    @jit
    def endless(x: Tensor) -> Tensor:
        return endless(x) + 1

    with pytest.raises(RecursionError):
        endless(tensor())
    assert power(tensor(), 2).item() == 12


def test_jit_of_a_jit_and_of_wrapped_functions() -> None:
    import functools

    rate = 2.0

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    @jit
    @logged
    def scaled(x: Tensor) -> Tensor:
        return x * rate

    twice = jit(jit(lambda x: x * rate))
    for function in (scaled, twice):
        rate = 2.0
        assert [function(tensor()).item() for _ in range(2)] == [6, 6]
        rate = 5.0
        assert function(tensor()).item() == 15


def test_a_wrapper_with_values_of_its_own() -> None:
    """`functools.wraps` hides the wrapper: what it closes over counts as well."""
    import functools

    factor = 2.0

    def scale(function: Any) -> Any:
        @functools.wraps(function)
        def call(x: Tensor) -> Tensor:
            return function(x) * factor

        return call

    function = jit(scale(lambda x: x + 1))
    assert [function(tensor()).item() for _ in range(2)] == [8, 8]
    factor = 5.0
    assert function(tensor()).item() == 20


def test_threads_with_functions_of_their_own() -> None:
    def work(number: int) -> list[float]:
        state = tensor(0.0)

        @jit
        def step(x: Tensor) -> Tensor:
            state.assign(state + x)
            return state * number

        return [step(tensor(1.0)).item() for _ in range(6)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(8)))
    assert results == [[number * n for n in range(1, 7)] for number in range(8)]


def test_one_function_from_many_threads() -> None:
    function = jit(lambda x: (x * 2 + 1).sum())
    barrier = threading.Barrier(4)

    def work(number: int) -> list[float]:
        barrier.wait()
        return [function(tensor(float(number), float(n))).item() for n in range(20)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert results == [[2.0 * (number + n) + 2 for n in range(20)] for number in range(4)]


def test_state_updated_from_many_threads_loses_nothing() -> None:
    total = tensor(0.0)

    @jit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        return total * 1

    add(tensor(1.0))
    barrier = threading.Barrier(4)

    def work(_: int) -> None:
        barrier.wait()
        for _ in range(25):
            add(tensor(1.0))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert total.item() == 101


def test_random_numbers_advance_and_agree_with_plain_calls() -> None:
    """Field case A14."""

    def draws(x: Tensor) -> Tensor:
        return (x + Tensor.randn(4)).dropout(0.5)

    def run(function: Any) -> list[list[float]]:
        Tensor.manual_seed(11)
        with Tensor.train():
            rows = [function(tensor(0.0)).tolist()]
            Tensor.rand(3).realize()
            return rows + [function(tensor(0.0)).tolist() for _ in range(4)]

    function = jit(draws)
    first = run(function)
    assert first == run(function) == run(draws)
    assert len({tuple(row) for row in first}) == 5


def test_seed_set_inside_is_refused() -> None:
    def draw() -> Tensor:
        Tensor.manual_seed(5)
        return Tensor.rand(3)

    function = jit(draw)
    try:
        results = [function().tolist() for _ in range(3)]
    except JitError as error:
        assert "manual_seed" in str(error)
    else:
        assert results[0] == results[1] == results[2] == draw().tolist()


def test_settings_that_change_what_is_computed() -> None:
    """Training mode is a guard, and so is what Context changes of code."""
    function = jit(lambda x: x.dropout(0.5) * 2)
    ones = Tensor.ones(64).contiguous().realize()
    for _ in range(2):
        assert function(ones).tolist() == [2] * 64
        with Tensor.train():
            assert set(function(ones).tolist()) == {0.0, 4.0}
        with Context(NOOPT=1):
            assert function(ones).tolist() == [2] * 64


def test_variable_values_and_names() -> None:
    """Field case A17: two variables whose names sort differently from the arguments."""
    x = Tensor(np.arange(8, dtype=np.float32)).realize()
    z, a = Variable("z", 1, 8), Variable("a", 1, 8)
    function = jit(lambda x, y: (x.sum() * 100 + y.sum(), x * 2))
    for i, j in ((2, 5), (5, 2), (1, 8), (8, 1)):
        total, doubled = function(x[: z.bind(i)], x[: a.bind(j)])
        assert total.item() == sum(range(i)) * 100 + sum(range(j))
        assert doubled.numpy().shape == (i,)
        assert doubled.tolist() == [2 * k for k in range(i)]
    assert len(function.captures) == 1


def test_copies_of_a_jitted_function() -> None:
    state = tensor(1.0)

    @jit
    def function(x: Tensor) -> Tensor:
        return x + state

    function(tensor())
    function(tensor())
    for other in (copy.copy(function), copy.deepcopy(function)):
        assert other(tensor()).item() == 4
        state.assign(state + 1)
        assert function(tensor()).item() == other(tensor()).item() == 5
        state.assign(state - 1)


def test_wrong_things_to_jit() -> None:
    for wrong in (3, None, "x", tensor(), [lambda x: x]):
        with pytest.raises(JitError, match="takes a function"):
            jit(wrong)


def test_arguments_that_are_not_there() -> None:
    function = jit(lambda x, y=None, *rest: x + (0 if y is None else y) + len(rest))
    for _ in range(2):
        assert function(tensor()).item() == 3
        assert function(tensor(), None).item() == 3
        assert function(tensor(), tensor(1.0)).item() == 4
        assert function(tensor(), 1, 2, 3).item() == 6
