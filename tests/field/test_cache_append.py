"""Appending to a cache of keys and values and attending over it: the cache is never copied, positions share kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable
from gradlet.schedule.moves import root_of

HEADS, LENGTH, WIDTH = 2, 64, 16
POSITIONS = (20, 21, 60)


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return ((query @ keys.transpose(1, 2)) * 0.25).softmax(-1) @ values


def expected(query: Any, keys: Any, values: Any) -> Any:
    scores = query @ keys.transpose(0, 2, 1) * 0.25
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


def new_buffers(schedule: Any, known: set[Any]) -> list[int]:
    return [b.arg.size for b in {b for c in schedule.calls for b in c.buffers} - known]


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("kind", ["numbers", "variable", "masked variable"])
def test_append_and_attend(device: str, kind: str) -> None:
    rng = np.random.default_rng(0)

    def made(*shape: int) -> tuple[Tensor, Any]:
        array = rng.standard_normal(shape).astype(np.float32)
        return Tensor(array, device=device).realize(), array.copy()

    (k, keys), (v, values) = made(HEADS, LENGTH, WIDTH), made(HEADS, LENGTH, WIDTH)
    memory = {root_of(k.uop), root_of(v.uop)}
    position = Variable("position", 0, LENGTH - 1)
    kernels = set()
    for at in POSITIONS:
        (q, query), (new_k, key), (new_v, value) = (made(HEADS, 1, WIDTH) for _ in range(3))
        keys[:, at : at + 1], values[:, at : at + 1] = key, value
        p: Any = at if kind == "numbers" else position.bind(at)
        k[:, p : p + 1] = new_k
        v[:, p : p + 1] = new_v
        if kind == "masked variable":
            seen = (Tensor.arange(LENGTH, device=device) <= Tensor(p)).reshape(1, 1, LENGTH)
            scores = seen.where((q @ k.transpose(1, 2)) * 0.25, -1e30)
            result = scores.softmax(-1) @ v
        else:
            result = attend(q, k[:, : p + 1], v[:, : p + 1])
        schedule = result.schedule(k, v)
        inputs = {root_of(t.uop) for t in (q, new_k, new_v)} | memory
        others = [size for size in new_buffers(schedule, inputs) if size >= HEADS * LENGTH * WIDTH]
        assert others == [] or (kind == "masked variable" and others == [4096])  # the table of positions
        if kind != "numbers":
            kernels.add(tuple(call.ast for call in schedule.calls))
        result.realize(k, v)
        assert {root_of(k.uop), root_of(v.uop)} == memory
        want = expected(query, keys[:, : at + 1], values[:, : at + 1])
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(k.numpy(), keys)
        np.testing.assert_array_equal(v.numpy(), values)
    assert len(kernels) <= 1
