"""On a GPU: a hundred runs of one kernel give one result, bit for bit, and kernels that users write are right there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradlet import Tensor, dtypes, jit
from gradlet.base.errors import GradletError
from tests.tensor.test_custom_kernel import neighbours, neighbours_of, product, softmax


def _has_gpu() -> bool:
    try:
        Tensor([1.0], device="CUDA").realize()
    except GradletError:
        return False
    return True


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not _has_gpu(), reason="no NVIDIA GPU with its packages")]

REPEATS = 100
RNG = np.random.default_rng(11)


def numbers(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32), device="CUDA")


def half(*shape: int) -> Tensor:
    return numbers(*shape).cast(dtypes.bfloat16).realize()


RUNS: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {}
if _has_gpu():
    RUNS = {
        "product": (lambda a, b: a @ b, [half(1024, 1024), half(1024, 1024)]),
        "rows at odd places": (lambda a, b: a @ b.T, [half(777, 515), half(901, 515)]),
        "few rows": (lambda a, b: a @ b, [half(16, 4096), half(4096, 4096)]),
        "float32": (lambda a, b: a @ b, [numbers(300, 500).realize(), numbers(500, 200).realize()]),
        "convolution": (lambda x, w: x.conv2d(w, padding=1), [half(8, 64, 28, 28), half(128, 64, 3, 3)]),
        "softmax": (lambda x: x.softmax(-1), [half(512, 8192)]),
        "layer norm": (lambda x: x.layernorm(), [half(512, 4096)]),
        "sum": (lambda x: x.sum(), [numbers(1 << 22).realize()]),
        "sums of columns": (lambda x: x.sum(0), [numbers(4096, 1000).realize()]),
        "gradient": (lambda a, b: (a @ b).float().square().mean().gradient(a)[0], [half(512, 512), half(512, 512)]),
        "attention": (
            lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
            [half(1, 4, 256, 64), half(1, 4, 256, 64), half(1, 4, 256, 64)],
        ),
    }


@pytest.mark.parametrize("name", RUNS)
def test_every_run_gives_the_same_bits(name: str) -> None:
    function, arguments = RUNS[name]
    step = jit(lambda *tensors: function(*tensors).contiguous())
    results = {step(*arguments).realize().cast(dtypes.float32).numpy().tobytes() for _ in range(REPEATS)}
    assert len(results) == 1


def test_kernels_of_users() -> None:
    a, b = (RNG.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    empty = Tensor.empty(256, 256, device="CUDA")
    found = Tensor.custom_kernel(empty, Tensor(a, device="CUDA"), Tensor(b, device="CUDA"), fn=product)
    np.testing.assert_allclose(found.numpy(), a @ b, rtol=1e-4, atol=1e-3)
    narrow = [Tensor(x, device="CUDA").cast(dtypes.bfloat16) for x in (a, b)]
    found = Tensor.custom_kernel(Tensor.empty(256, 256, device="CUDA", dtype=dtypes.bfloat16), *narrow, fn=product)
    assert np.abs(found.float().numpy() - a @ b).max() < 1.0
    out, total = Tensor.custom_kernel(empty, Tensor.empty(256, device="CUDA"), Tensor(a, device="CUDA"), fn=softmax)
    np.testing.assert_allclose(out.numpy(), np.exp(a) / np.exp(a).sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(total.numpy(), np.log(np.exp(a).sum(1)), rtol=1e-4)
    x = a.reshape(-1)[:4096]
    for opts in (None, "PARALLEL(range 0), THREAD(range 1, 18), THREAD(range 2, 16)"):
        near = Tensor.custom_kernel(
            Tensor.empty(4096, device="CUDA"), Tensor(x, device="CUDA"), fn=neighbours, opts=opts
        )
        np.testing.assert_allclose(near.numpy(), neighbours_of(x), rtol=1e-5, atol=1e-5)
