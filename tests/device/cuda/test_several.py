"""On several GPUs: copies from one to another, kernels and graphs on each, a training step whose batch is shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes, jit
from gradlet.base.errors import DeviceError, GradletError
from gradlet.runtime.device import Device


def _gpus() -> int:
    """How many there are."""
    try:
        backend: Any = Device["CUDA"]
        return int(backend.gpu.call("cuDeviceGetCount"))
    except GradletError:
        return 0


GPUS = _gpus()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(GPUS < 2, reason="fewer than two NVIDIA GPUs")]
NAMES = ("CUDA", "CUDA:1")
RNG = np.random.default_rng(23)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def test_each_computes_on_its_own() -> None:
    a, b = numbers(300, 200), numbers(200, 100)
    for name in NAMES:
        x, w = (Tensor(v, device=name) for v in (a, b))
        found = (x @ w).relu().sum(1)
        assert found.device == name
        np.testing.assert_allclose(found.numpy(), np.maximum(a @ b, 0).sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("size", [1, 1000, 3_000_001])
def test_copies_there_and_back_keep_every_bit(size: int, dtype: str) -> None:
    value = (numbers(size) * 50).astype(np.int32)
    here = Tensor(value, device="CUDA").cast(dtype).realize()
    there = here.to("CUDA:1").realize()
    back = there.to("CUDA").realize()
    assert (there.device, back.device) == ("CUDA:1", "CUDA")
    wanted = here.cast("int32").numpy()
    np.testing.assert_array_equal(there.cast("int32").numpy(), wanted)
    np.testing.assert_array_equal(back.cast("int32").numpy(), wanted)


def test_a_copy_waits_for_what_it_copies_and_for_who_reads_the_place() -> None:
    """Long kernels before and after: a copy that began too early, or memory used again too early, would show."""
    a = numbers(2048, 2048) / 50
    x = Tensor(a, device="CUDA").realize()
    wanted = a
    for _ in range(6):
        y = x @ x
        x = y.to("CUDA:1").realize()  # the one before is freed while it may still be read
        wanted = wanted @ wanted
        x = (x / x.abs().max()).to("CUDA").realize()
        wanted = wanted / np.abs(wanted).max()
    np.testing.assert_allclose(x.numpy(), wanted, rtol=0.05, atol=0.02)


def test_factors_on_different_gpus_are_an_error() -> None:
    x, y = (Tensor(numbers(4), device=name) for name in NAMES)
    with pytest.raises(DeviceError):
        (x + y).numpy()


def test_more_gpus_than_there_are() -> None:
    with pytest.raises(DeviceError, match=f"there is no GPU number {GPUS}; this machine has: CUDA, CUDA:1"):
        Tensor([1.0], device=f"CUDA:{GPUS}").realize()


def test_each_replays_graphs_of_its_own() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(3):
            x = (x * 2 + 1).contiguous()
        return x

    steps = {name: jit(function) for name in NAMES}
    for step in range(5):
        x = numbers(1000) + step
        found = {name: steps[name](Tensor(x, device=name)) for name in NAMES}  # both are on their way
        for name in NAMES:
            assert found[name].device == name
            np.testing.assert_allclose(found[name].numpy(), x * 8 + 7, rtol=1e-5, atol=1e-5)


def test_a_captured_function_that_copies_between_them() -> None:
    @jit
    def function(x: Tensor) -> Tensor:
        return ((x * 3).to("CUDA:1") + 1).to("CUDA") * 2

    for step in range(5):
        x = numbers(100, 100) + step
        np.testing.assert_allclose(function(Tensor(x, device="CUDA")).numpy(), (x * 3 + 1) * 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_a_product_by_columns_on_each(dtype: Any) -> None:
    """Each GPU has half the columns of the second factor; the halves are put together on the first."""
    a, b = numbers(256, 512), numbers(512, 384)
    halves = [
        Tensor(a, device="CUDA").cast(dtype).to(name) @ Tensor(part, device=name).cast(dtype)
        for name, part in zip(NAMES, np.split(b, 2, 1), strict=True)
    ]
    found = halves[0].cat(halves[1].to("CUDA"), dim=1).cast(dtypes.float32).numpy()
    tolerance = 1e-4 if dtype is dtypes.float32 else 3e-2
    np.testing.assert_allclose(found, a @ b, rtol=tolerance, atol=tolerance * 60)


def _gradients(weights: Sequence[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    hidden = (x @ weights[0]).tanh() @ weights[1]
    return tuple((hidden - y).square().sum().gradient(*weights))


def test_a_training_step_whose_batch_is_shared() -> None:
    """Each GPU has half of the batch and all weights; gradients are added up on the first and weights sent to all."""
    x, y = numbers(64, 32), numbers(64, 8)
    start = [numbers(32, 48) / 6, numbers(48, 8) / 7]
    rate = 1e-3
    alone = [Tensor(w, device="CPU") for w in start]
    copies = {name: [Tensor(w, device=name).realize() for w in start] for name in NAMES}
    steps = {name: jit(_gradients) for name in NAMES}
    parts = dict(zip(NAMES, zip(np.split(x, 2), np.split(y, 2), strict=True), strict=True))
    for _ in range(5):
        whole = _gradients(alone, Tensor(x, device="CPU"), Tensor(y, device="CPU"))
        alone = [(w - rate * g).realize() for w, g in zip(alone, whole, strict=True)]
        found = {
            name: steps[name](copies[name], *[Tensor(v, device=name) for v in parts[name]]) for name in NAMES
        }  # fmt: skip
        total = [a + b.to("CUDA") for a, b in zip(found["CUDA"], found["CUDA:1"], strict=True)]
        new = [(w - rate * g).realize() for w, g in zip(copies["CUDA"], total, strict=True)]
        copies = {"CUDA": new, "CUDA:1": [w.to("CUDA:1").realize() for w in new]}
    for name in NAMES:
        for w, wanted in zip(copies[name], alone, strict=True):
            np.testing.assert_allclose(w.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)
