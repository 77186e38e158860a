"""The programs whose kernels are counted, once with fixed sizes and once with an axis whose size is a variable.

No launches are added, results are those of torch for several sizes, and all sizes share their kernels.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import ShapeError
from gradlet.tensor.tensor import Variable

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from fusion import GradletApi, TorchApi
from fusion_programs import PROGRAMS

# The axis of each input that is a variable; inputs that are not listed stay whole.
SYMBOLIC: dict[str, dict[str, int]] = {
    "chain of 10 element-wise": {"x": 0},
    "x.sum()": {"x": 0},
    "mean and variance over rows": {"x": 0},
    "softmax over rows": {"x": 0},
    "log_softmax and nll": {"x": 0, "y": 0},
    "log_softmax and nll, gradient": {"x": 0, "y": 0},
    "layer norm": {"x": 0},
    "layer norm, gradient": {"x": 0, "g": 0},
    "rms norm": {"x": 0},
    "batch norm, training, gradient": {"x": 0, "g": 0},
    "masked sum and count": {"x": 0, "m": 0},
    "row norm and its users": {"x": 0},
    "(x.T + y).sum(-1)": {"x": 0, "y": 1},
    "max and sum over rows": {"x": 0},
    "argmax over rows": {"x": 0},
    "group norm": {"x": 0},
    "rotary embedding": {"x": 1, "c": 0, "s": 0},
    "cat of four": {"a": 1, "b": 1, "c": 1, "d": 1},
    "bilinear, twice the size": {"x": 0},
    "two independent vectors": {"a": 0},
    "dropout": {"x": 0},
    "embedding": {"ids": 0},
    "embedding, gradient": {"ids": 0, "g": 0},
    "one_hot @ W": {"ids": 0},
    "cumsum over rows": {"x": 0},
    "cumsum of 262144": {"x": 0},
    "top 8 of 1024": {"x": 0},
    "gather in rows": {"x": 0, "ids": 0},
    "scatter_add in rows": {"x": 0, "v": 0, "ids": 0},
    "linear, bias, gelu, gradient": {"x": 0, "g": 0},
    "conv, batch norm, relu, gradient": {"x": 0, "g": 0},
    "A @ B @ C": {"a": 0},
    "attention": {"k": 2, "v": 2},
    "attention, gradient": {"q": 0, "k": 0, "v": 0, "g": 0},
    "pad and conv 3x3": {"x": 0},
    "max_pool 2x2, gradient": {"x": 0, "g": 0},
    "logits and cross-entropy, gradient, 32000 classes": {"h": 0, "y": 0},
    "GRU cell": {"x": 0, "h": 0},
    "rms norm, query/key/value, rotary": {"x": 0},
    "SwiGLU, gradient": {"x": 0, "g": 0},
    "GPT-2 block, gradient": {"x": 0, "g": 0},
    "ResNet block, training, gradient": {"x": 0, "g": 0},
    "sort of 1024": {"x": 0},
}
# The same along the axis of time.
IN_TIME: dict[str, dict[str, int]] = {
    "attention": {"q": 2, "k": 2, "v": 2},
    "attention, gradient": {"q": 2, "k": 2, "v": 2, "g": 2},
    "rms norm, query/key/value, rotary": {"x": 1, "c": 0, "s": 0},
    "GPT-2 block, gradient": {"x": 1, "g": 1},
}
# What goes along an axis in a way that needs its size, and the operation that says so.
REFUSED = {"box written in place": ({"x": 1, "v": 1}, "write")}
# Not about one axis that inputs share: lists of parameters, and a cache that is appended to (see tests/tensor).
NO_AXIS = {
    "SGD with momentum, 20 parameters", "Adam, 20 parameters", "gradient norm clipped, 20 parameters",
    "key/value append and decode attention",
}  # fmt: skip
# Too long to run in a test: kernels are counted only.
LONG = {
    "logits and cross-entropy, gradient, 32000 classes", "GPT-2 block, gradient", "ResNet block, training, gradient",
}  # fmt: skip


def cut(arrays: dict[str, Any], axes: dict[str, int], size: Any) -> dict[str, Any]:
    return {k: a[(slice(None),) * axes[k] + (slice(0, size),)] if k in axes else a for k, a in arrays.items()}


def first_axis(arrays: dict[str, Any], axes: dict[str, int]) -> int:
    key, axis = next(iter(axes.items()))
    return int(arrays[key].shape[axis])


def test_every_program_has_its_row() -> None:
    assert {*SYMBOLIC, *REFUSED, *NO_AXIS} == set(PROGRAMS)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *[pytest.param(name, axes, id=name) for name, axes in SYMBOLIC.items()],
        *[pytest.param(name, axes, id=f"{name}, in time") for name, axes in IN_TIME.items()],
    ],
)
def test_launches_results_and_compilations(name: str, axes: dict[str, int]) -> None:
    program = PROGRAMS[name]
    arrays = program.inputs(np.random.default_rng(0))
    bound = first_axis(arrays, axes)
    variable = Variable("n", 0, bound)
    fixed = program.run(GradletApi, **{k: Tensor(a) for k, a in arrays.items()})
    count = len(fixed[0].schedule(*fixed[1:]).calls)
    tensors = {k: Tensor(a) for k, a in arrays.items()}
    kernels = set()
    for size in (bound, 1, bound // 3 | 1) if name not in LONG else (bound,):
        results = program.run(GradletApi, **cut(tensors, axes, variable.bind(size)))
        calls = results[0].schedule(*results[1:]).calls
        kernels.add(tuple([call.ast for call in calls]))
        # Which operands are copied ahead depends on the caches and on the size being known.
        assert len(calls) <= count + 1
        if name in LONG:
            continue
        Tensor.realize(*results)
        expected = {k: torch.tensor(np.ascontiguousarray(a)) for k, a in cut(arrays, axes, size).items()}
        for tensor in expected.values():
            tensor.requires_grad_("gradient" in name and tensor.dtype is torch.float32)
        for got, want in zip(results, program.run(TorchApi(), **expected), strict=True):
            array, other = got.numpy(), want.detach().numpy()
            if program.random:
                continue
            if array.shape != other.shape:  # the gradient of a whole input: nothing past the size
                assert not array[size:].any()
                array = array[:size]
            np.testing.assert_allclose(array, other, rtol=2e-3, atol=2e-4)
        if name == "two independent vectors":
            break  # the second vector is known by now
    assert len(kernels) == 1


def test_decoding_with_a_cache_takes_one_launch_at_any_position() -> None:
    arrays = PROGRAMS["key/value append and decode attention"].inputs(np.random.default_rng(0))
    t = {key: Tensor(array).realize() for key, array in arrays.items()}
    keys, values = torch.tensor(arrays["k"]), torch.tensor(arrays["v"])
    position = Variable("position", 0, arrays["k"].shape[1] - 1)
    kernels = set()
    for place in (512, 0, 7, 1023):
        p = position.bind(place)
        t["k"][:, p : p + 1], t["v"][:, p : p + 1] = t["new_k"], t["new_v"]
        scores = t["q"] @ t["k"][:, : p + 1].transpose(-2, -1) * 0.125
        result = scores.softmax(-1) @ t["v"][:, : p + 1]
        calls = result.schedule(t["k"], t["v"]).calls
        kernels.add(tuple([call.ast for call in calls]))
        assert len(calls) == 1
        Tensor.realize(result, t["k"], t["v"])
        keys[:, place], values[:, place] = torch.tensor(arrays["new_k"])[:, 0], torch.tensor(arrays["new_v"])[:, 0]
        seen = slice(0, place + 1)
        wanted = (torch.tensor(arrays["q"]) @ keys[:, seen].mT * 0.125).softmax(-1) @ values[:, seen]
        np.testing.assert_allclose(result.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)
    assert len(kernels) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_operation(name: str) -> None:
    axes, operation = REFUSED[name]
    arrays = PROGRAMS[name].inputs(np.random.default_rng(0))
    n = Variable("n", 0, first_axis(arrays, axes)).bind(3)
    with pytest.raises(ShapeError, match=operation):
        PROGRAMS[name].run(GradletApi, **cut({k: Tensor(a) for k, a in arrays.items()}, axes, n))
