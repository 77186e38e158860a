"""Memory that is shared: results with results, inputs with inputs, views, ring buffers, writes in place."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from gradlet import Tensor, dtypes, jit
from gradlet.base.errors import JitError


def tensor(*values: float) -> Tensor:
    return Tensor(list(values) or [3.0]).realize()


def test_results_of_many_calls_are_kept_or_dropped() -> None:
    """Field case A9, with some results let go in between, whose memory may be used again."""
    function = jit(lambda x: (x + 1, x * 2))
    kept: list[Any] = []
    for n in range(12):
        result = function(tensor(float(n)))
        if n % 3:
            kept.append((n, *result))
        del result
    for n, plus, times in kept:
        assert (plus.item(), times.item()) == (n + 1, 2 * n)


def test_comparing_two_results() -> None:
    function = jit(lambda x: x * 1.5)
    function(tensor(1.0))
    a, b = function(tensor(1.0)), function(tensor(2.0))
    assert not (a == b).all().item()


def test_ring_buffer_large() -> None:
    """Field case A10: output fed back as input, 4 MB, threads on."""
    size = 1 << 20
    function = jit(lambda buffer, new: (buffer[5:].cat(new), buffer[3:9]))
    expected = np.arange(size, dtype=np.int32)
    buffer = Tensor(expected)
    for step in range(10):
        new = np.full(5, -step, np.int32)
        middle = expected[3:9]
        expected = np.concatenate([expected[5:], new])
        buffer, seen = function(buffer, Tensor(new))
        np.testing.assert_array_equal(seen.numpy(), middle)
    np.testing.assert_array_equal(buffer.numpy(), expected)


def test_result_fed_to_both_arguments() -> None:
    function = jit(lambda a, b: a + 2 * b)
    x, expected = tensor(1.0), 1.0
    for _ in range(5):
        x, expected = function(x, x), 3 * expected
        assert x.item() == expected
    assert function(x, tensor(0.0)).item() == expected


def test_results_that_are_exchanged_as_inputs() -> None:
    function = jit(lambda a, b: (b + 1, a * 2))
    a, b = tensor(1.0), tensor(10.0)
    x, y = 1.0, 10.0
    for _ in range(6):
        a, b = function(a, b)
        x, y = y + 1, x * 2
        assert (a.item(), b.item()) == (x, y)


def test_input_returned_then_written() -> None:
    """A returned input is a value; writing to the input later does not change it."""
    function = jit(lambda x: x)
    for start in range(4):
        x = tensor(float(start))
        y = function(x)
        x.assign(x + 100)
        x.realize()
        assert (x.item(), y.item()) == (start + 100, start)
        y.assign(y - 1)
        assert (x.item(), y.item()) == (start + 100, start - 1)


def test_views_of_inputs_and_of_state_returned() -> None:
    state = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).realize()

    @jit
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[1:], x.reshape(2, 2).T, state[:, 1]

    for n in range(4):
        values = np.arange(4, dtype=np.float32) + n
        x = Tensor(values)
        tail, turned, column = function(x)
        x.assign(x * 0).realize()
        state.assign(state + 1).realize()
        assert tail.tolist() == values[1:].tolist()
        assert turned.tolist() == values.reshape(2, 2).T.tolist()
        assert column.tolist() == [1 + n, 4 + n]


def test_one_result_twice_and_results_within_results() -> None:
    @jit
    def function(x: Tensor) -> list[Any]:
        y = x + 1
        return [y, y, {"view": y.reshape(1, 1), "again": (y,)}]

    kept = []
    for n in range(4):
        first, second, inner = function(tensor(float(n)))
        assert first is second is inner["again"][0]
        first.assign(first * 10).realize()
        kept.append((n, second, inner["view"]))
    for n, same, view in kept:
        assert (same.item(), view.item()) == (10 * (n + 1), n + 1)


def test_constants_none_and_python_values_returned() -> None:
    class Pair(NamedTuple):
        loss: Tensor
        name: str

    @jit
    def function(x: Tensor) -> Any:
        return Pair(x * 2, "loss"), None, 7, Tensor.ones(2), [], {}, OrderedDict(a=x), "text"

    for n in range(4):
        pair, none, seven, ones, empty, table, ordered, text = function(tensor(float(n)))
        assert (type(pair).__name__, pair.loss.item(), pair.name) == ("Pair", 2 * n, "loss")
        assert (none, seven, ones.tolist(), empty, table, text) == (None, 7, [1, 1], [], {}, "text")
        assert type(ordered) is OrderedDict
        assert ordered["a"].item() == n
        empty.append(1)
        table["x"] = 1
        ones.assign(ones * 5).realize()


def test_nothing_returned_and_nothing_done() -> None:
    function = jit(lambda x: None)
    assert [function(tensor()) for _ in range(3)] == [None] * 3
    constant = jit(lambda: Tensor.full((2,), 4.0))
    assert [constant().tolist() for _ in range(3)] == [[4, 4]] * 3


def test_a_result_that_cannot_be_rebuilt_is_refused() -> None:
    """A tensor hidden in an object would be the first call's for ever."""

    class Output:
        def __init__(self, loss: Tensor) -> None:
            self.loss = loss

    with pytest.raises(JitError, match="Output"):
        jit(lambda x: Output(x * 2))(tensor())
    with pytest.raises(JitError, match="generator"):
        jit(lambda x: (x * n for n in range(3)))(tensor())
    with pytest.raises(JitError, match="function"):
        jit(lambda x: lambda: x * 2)(tensor())


def test_dataclass_results() -> None:
    import dataclasses

    @dataclasses.dataclass
    class Output:
        loss: Tensor
        rows: list[Tensor]

    function = jit(lambda x: Output(x * 2, [x + 1]))
    for n in range(3):
        out = function(tensor(float(n)))
        assert (out.loss.item(), out.rows[0].item()) == (2 * n, n + 1)


def test_generator_function_is_refused() -> None:
    def rows(x: Tensor) -> Any:
        yield x + 1

    async def later(x: Tensor) -> Tensor:
        return x

    for function in (rows, later):
        with pytest.raises(JitError, match="generator|coroutine"):
            jit(function)


def test_in_place_on_inputs() -> None:
    @jit
    def function(x: Tensor) -> Tensor:
        x += 1
        x[0] = 9.0
        return x.sum()

    for start in range(4):
        x = tensor(float(start), 2.0)
        other = x + 0
        assert function(x).item() == 9 + 3
        assert x.tolist() == [9, 3]
        assert other.tolist() == [start, 2]


def test_the_same_input_written_again_and_again() -> None:
    @jit
    def function(x: Tensor) -> None:
        x.assign(x * 2)

    x = tensor(1.0)
    history = []
    for _ in range(5):
        history.append(x + 0)
        function(x)
    assert x.item() == 32
    assert [h.item() for h in history] == [1, 2, 4, 8, 16]


def test_an_array_of_the_caller_as_input() -> None:
    """What numpy lends is read at each call, and not written behind its back."""
    array = np.ones(4, np.float32)
    function = jit(lambda x: x * 2)
    for value in range(4):
        array[:] = value
        assert function(Tensor(array)).tolist() == [2 * value] * 4


def test_overlapping_views_read_only() -> None:
    base = Tensor(np.arange(8, dtype=np.float32)).realize()
    function = jit(lambda x, y: x + y)
    pairs = [(0, 4), (0, 2), (2, 2), (4, 0), (1, 3)]
    for a, b in pairs * 2:
        expected = np.arange(a, a + 4) + np.arange(b, b + 4)
        assert function(base[a : a + 4], base[b : b + 4]).tolist() == expected.tolist()


def test_overlapping_views_with_one_written() -> None:
    """Field case A16: disjoint at the first call, overlapping at the second."""

    @jit
    def function(x: Tensor, y: Tensor) -> Tensor:
        x *= 2
        return x + y

    one, two = Tensor.ones(4).contiguous().realize(), Tensor.ones(4).contiguous().realize()
    assert function(one, two).tolist() == [3, 3, 3, 3]
    base = Tensor.ones(8).contiguous().realize()
    try:
        result = function(base[:4], base[2:6])
    except JitError as error:
        assert "view" in str(error)
        assert base.tolist() == [1] * 8
    else:
        assert result.tolist() in ([4, 4, 3, 3], [3, 3, 3, 3])


def test_input_that_is_also_closed_over() -> None:
    weight = tensor(2.0)

    @jit
    def function(x: Tensor) -> Tensor:
        weight.assign(weight + 1)
        return x * 10 + weight

    assert function(tensor(1.0)).item() == 13
    assert function(tensor(1.0)).item() == 14
    assert function(weight).item() in (55.0, 45.0)
    assert weight.item() == 5
    assert function(tensor(1.0)).item() == 16


def test_shape_dtype_and_layout_change() -> None:
    function = jit(lambda x: (x * 2).sum(0))
    rng = np.random.default_rng(0)
    for _ in range(2):
        for shape in ((3, 4), (4, 3), (1, 12), (0, 4)):
            values = rng.standard_normal(shape).astype(np.float32)
            np.testing.assert_allclose(function(Tensor(values)).numpy(), (values * 2).sum(0), rtol=1e-5)
            np.testing.assert_allclose(function(Tensor(values).T).numpy(), (values * 2).sum(1), rtol=1e-5, atol=1e-6)
        assert function(Tensor([[1, 2]], dtype=dtypes.int64)).dtype is dtypes.int64
        assert function(Tensor([[True]])).tolist() == [2]


def test_expanded_and_strided_inputs() -> None:
    function = jit(lambda x: x.contiguous() + 1)
    x = Tensor(np.arange(6, dtype=np.float32)).realize()
    for _ in range(3):
        assert function(x[:1].expand(4)).tolist() == [1] * 4
        assert function(x[::2]).tolist() == [1, 3, 5]
        assert function(x.flip(0)).tolist() == [6, 5, 4, 3, 2, 1]
        assert function(x[1::2]).tolist() == [2, 4, 6]


def test_device_changes() -> None:
    function = jit(lambda x: x + 1)
    for _ in range(3):
        here, there = tensor(1.0), Tensor([5.0], device="PYTHON").realize()
        assert function(here).item() == 2
        out = function(there)
        assert (out.item(), out.device) == (6, "PYTHON")


def test_a_large_lazy_input_keeps_its_own_value() -> None:
    """Donated memory: `x + 1` handed over may be computed in place of x only when nobody has x."""
    size = 1 << 19
    function = jit(lambda x: x * 2)
    x = Tensor.ones(size).contiguous().realize()
    for _ in range(3):
        lazy = x + 1
        assert function(lazy)[0].item() == 4
        assert (x[0].item(), lazy[0].item()) == (1, 2)
        assert function(x + 5)[-1].item() == 12
        assert x[-1].item() == 1


def test_read_then_written_in_one_call() -> None:
    cache = Tensor.zeros(4).contiguous().realize()

    @jit
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        old = cache + 0
        cache.assign(cache.flip(0) + x)
        return old, cache + old

    state = np.zeros(4, np.float32)
    for n in range(5):
        old, both = function(Tensor([1.0, 2.0, 3.0, float(n)]))
        new = state[::-1] + np.array([1, 2, 3, n], np.float32)
        assert old.tolist() == state.tolist()
        assert both.tolist() == (new + state).tolist()
        state = new
    assert cache.tolist() == state.tolist()
