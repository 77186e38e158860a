"""Results in the memory of inputs that nobody sees any more, and never in memory that somebody sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.runtime.buffer import buffer_of
from gradlet.schedule.moves import root_of
from gradlet.tensor import donation

DEVICES = ("CPU", "PYTHON")
START = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def also_small_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donation, "LEAST_BYTES", 0)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(device: str) -> Tensor:
    """Values in memory that belongs to the tensor alone."""
    return Tensor(START, device=device).realize()


def memory(x: Tensor) -> int:
    """Number of the buffer that holds a tensor."""
    node = root_of(x.uop)
    assert node.op is Op.BUFFER
    return int(node.arg.number)


def test_a_loop_needs_memory_once(device: str) -> None:
    x = made(device)
    first = memory(x)
    for _ in range(4):
        x = x + 1
        x.realize()
        assert memory(x) == first
    np.testing.assert_array_equal(x.numpy(), START + 4)


def test_states_of_an_optimizer(device: str) -> None:
    mean, weight = made(device), made(device)
    own = memory(mean), memory(weight)
    for _ in range(3):
        gradient = Tensor(np.ones((2, 3), np.float32), device=device)
        mean = mean * 0.5 + gradient * 0.5
        weight = weight - mean * 0.1
        Tensor.realize(mean, weight)
    assert memory(weight) == own[1]
    expected, state = START.copy(), START.copy()
    for _ in range(3):
        state = state * np.float32(0.5) + np.float32(0.5)
        expected = expected - state * np.float32(0.1)
    np.testing.assert_allclose(mean.numpy(), state, rtol=1e-6)
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5)


WITNESSES = {
    "the same tensor": lambda x: x,
    "another tensor of the node": lambda x: Tensor.of_node(x.uop),
    "a view": lambda x: x[1],
    "a transposed view": lambda x: x.T,
    "a lazy value": lambda x: x * 2,
    "a lazy value of a view": lambda x: x[0] + 1,
    "a view of a lazy value": lambda x: (x * 2).T,
    "a detached tensor": lambda x: x.detach(),
}


@pytest.mark.parametrize("kind", WITNESSES)
def test_whoever_sees_the_input_keeps_seeing_it(device: str, kind: str) -> None:
    x = made(device)
    witness = WITNESSES[kind](x)
    want = WITNESSES[kind](Tensor(START, device=device)).numpy()
    before = memory(x)
    x = x + 1
    x.realize()
    assert memory(x) != before
    np.testing.assert_array_equal(x.numpy(), START + 1)
    np.testing.assert_array_equal(witness.numpy(), want)


def test_nodes_that_somebody_keeps(device: str) -> None:
    for keep in (lambda node: node, root_of, lambda node: node.src):
        x = made(device)
        kept = keep(x.uop)
        before = memory(x)
        x = x + 1
        x.realize()
        assert memory(x) != before, kept


def test_an_expression_that_somebody_keeps(device: str) -> None:
    x = made(device)
    before = memory(x)
    x = x * 2 + 1
    inner = x.uop.src[0]
    x.realize()
    assert memory(x) != before
    np.testing.assert_array_equal(Tensor.of_node(inner).numpy(), START * 2)
    y = made(device)
    before = memory(y)
    y = y + 1
    node: UOp = y.uop
    y.realize()
    assert memory(y) != before
    np.testing.assert_array_equal(Tensor.of_node(node).numpy(), START + 1)


def test_memory_of_an_array_is_never_written(device: str) -> None:
    array = START.copy()
    x = Tensor.from_numpy(array, device=device, copy=False)
    x = x + 1
    x.realize()
    np.testing.assert_array_equal(array, START)
    np.testing.assert_array_equal(x.numpy(), START + 1)


def test_bytes_that_were_handed_out_do_not_change(device: str) -> None:
    x = made(device)
    view = buffer_of(root_of(x.uop)).memory()
    exported, array = x.data(), x.numpy()
    x = x + 1
    x.realize()
    assert bytes(view) == START.tobytes()
    np.testing.assert_array_equal(array, START)
    assert exported.tolist() == START.tolist()


def test_an_input_that_is_read_elsewhere_or_otherwise(device: str) -> None:
    for change, want in [
        (lambda x: x + x.sum(), START + START.sum()),
        (lambda x: x + x.flip(1), START + START[:, ::-1]),
        (lambda x: x * 2 + x[0], START * 2 + START[0]),
        (lambda x: x.T + 1, START.T + 1),
        (lambda x: x + x, START + START),
        (lambda x: (x + 1).sqrt() * x, np.sqrt(START + 1) * START),
    ]:
        x = made(device)
        x = change(x)
        x.realize()
        np.testing.assert_allclose(x.numpy(), want, rtol=1e-6)
    x = made(device)
    first, second = x + 1, x * 2
    del x
    Tensor.realize(first, second)
    np.testing.assert_array_equal(first.numpy(), START + 1)
    np.testing.assert_array_equal(second.numpy(), START * 2)


def test_other_types_and_sizes_take_new_memory(device: str) -> None:
    x = made(device)
    x = (x + 1).cast("int32")
    x.realize()
    np.testing.assert_array_equal(x.numpy(), (START + 1).astype(np.int32))
    y = made(device)
    y = y.reshape(1, 2, 3).expand(2, 2, 3) + 1
    y.realize()
    np.testing.assert_array_equal(y.numpy(), np.stack([START, START]) + 1)


def test_inputs_of_captured_functions_stay(device: str) -> None:
    @jit
    def step(x: Tensor) -> Tensor:
        return (x + 1).realize()

    inputs = [made(device) for _ in range(4)]
    for x in inputs:
        np.testing.assert_array_equal(step(x).numpy(), START + 1)
        np.testing.assert_array_equal(x.numpy(), START)


def test_memory_that_a_captured_function_uses_stays(device: str) -> None:
    weight = made(device)

    @jit
    def step(x: Tensor) -> Tensor:
        return (x * weight).realize()

    for _ in range(3):
        np.testing.assert_array_equal(step(made(device)).numpy(), START * START)
    held = weight
    weight = weight + 1
    weight.realize()
    np.testing.assert_array_equal(held.numpy(), START)


def test_programs_without_names_for_intermediate_values(device: str) -> None:
    rng = np.random.default_rng(0)
    x, array = made(device), START.copy()
    seen: list[tuple[Tensor, Any]] = []
    for i in range(60):
        kind = rng.integers(6)
        if kind == 0:
            seen.append((x, array.copy()))
        elif kind == 1:
            seen.append((x[i % 2], array[i % 2].copy()))
        elif kind == 2 and seen:
            seen.pop(int(rng.integers(len(seen))))
        elif kind == 3:
            seen.append((x * 2, array * 2))
        x, array = x * 0.5 + i, array * np.float32(0.5) + np.float32(i)
        if kind != 5:
            x.realize()
        for tensor, want in seen:
            np.testing.assert_allclose(tensor.numpy(), want, rtol=1e-6)
    np.testing.assert_allclose(x.numpy(), array, rtol=1e-6)
