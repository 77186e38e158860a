"""The gradient of attention of 16-bit floats on a GPU: two kernels, no memory for pairs of queries and keys."""

from __future__ import annotations

from math import prod

import pytest

from gradlet import Tensor, dtypes
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import lower
from gradlet.ops.op import Op
from gradlet.ops.opt import OptKind
from gradlet.schedule.calls import KernelCall, Schedule
from gradlet.target.target import SM_90

KINDS = (OptKind.ROTATE, OptKind.FEED)


def memory(*shape: int, dtype: str = "bfloat16", device: str = "NULL:sm_90") -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device=device)


def kinds(plan: Schedule) -> list[OptKind]:
    """ROTATE and FEED of all kernels of a plan, in order."""
    return [
        o.kind for c in plan.calls if isinstance(c, KernelCall) for o in lower(c.ast, SM_90).opts if o.kind in KINDS
    ]


def largest(plan: Schedule) -> int:
    """Elements of the largest memory that a plan uses."""
    return max(b.arg.size for call in plan.calls for b in call.buffers if b.op is Op.BUFFER)


def planned(out: Tensor, *inputs: Tensor, also: tuple[Tensor, ...] = ()) -> Schedule:
    slopes = out.gradient(*inputs, gradient=memory(*out.shape, dtype=str(out.dtype).removeprefix("dtypes.")))
    with scope(SCHEDULE_CACHE=0):
        return out.schedule(*slopes, *also)


@pytest.mark.parametrize("shape", [(1, 2, 1024, 64), (2, 1, 300, 128), (1, 1, 64, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_two_kernels_beside_the_result_and_the_means(shape: tuple[int, ...], causal: bool) -> None:
    q, k, v = (memory(*shape) for _ in range(3))
    plan = planned(q.scaled_dot_product_attention(k, v, is_causal=causal), q, k, v)
    assert kinds(plan) == [OptKind.ROTATE, OptKind.FEED, OptKind.FEED] and len(plan.calls) == 4
    assert largest(plan) <= max(prod(shape), 4096)  # the numbers that masks count with
    assert plan.memory is not None
    rows = 4 * prod(shape[:-1])  # bytes of a value a row
    assert plan.memory.peak <= 4 * (rows + 256)


def test_heads_that_share_keys_add_their_gradients_up() -> None:
    q, k, v = memory(1, 8, 512, 64), memory(1, 2, 512, 64), memory(1, 2, 512, 64)
    plan = planned(q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True), q, k, v)
    assert kinds(plan).count(OptKind.FEED) == 2 and len(plan.calls) == 6
    assert largest(plan) <= 8 * 512 * 64


@pytest.mark.parametrize("wanted, count", [("q", 1), ("kv", 1), ("k", 1)])
def test_some_of_the_gradients(wanted: str, count: int) -> None:
    q, k, v = (memory(1, 2, 512, 64) for _ in range(3))
    out = q.scaled_dot_product_attention(k, v, is_causal=True)
    plan = planned(out, *[{"q": q, "k": k, "v": v}[name] for name in wanted])
    assert kinds(plan).count(OptKind.FEED) == count and largest(plan) <= 2 * 512 * 64


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Halves of each head turned by rotary places, in float32."""
    low, high = (x[..., part].cast(dtypes.float32) for part in (slice(32), slice(32, 64)))
    return (low * cosine - high * sine).cat(low * sine + high * cosine, dim=-1).cast(x.dtype)


@pytest.mark.parametrize("heads, of_keys, places", [(4, 4, False), (4, 2, True), (4, 4, True)])
def test_layers_of_a_model(heads: int, of_keys: int, places: bool) -> None:
    """Weights in float32, queries, keys and values of one projection of what the layer before gives."""
    width, length, rows = 64 * heads, 512, 64 * (heads + 2 * of_keys)
    x, weights = memory(2, length, width), [memory(n, width, dtype="float32") for n in (rows, width) * 2]
    turns = [memory(length, 32, dtype="float32") for _ in range(2)]
    h = x
    for layer in range(2):
        inside, last = (w.cast(dtypes.bfloat16) for w in weights[2 * layer : 2 * layer + 2])
        parts = (h @ inside.T).reshape(2, length, heads + 2 * of_keys, 64).transpose(1, 2)
        q, k, v = parts[:, :heads], parts[:, heads : heads + of_keys], parts[:, heads + of_keys :]
        if places:
            q, k = (turned(t, *turns) for t in (q, k))
        mixed = q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=heads != of_keys)
        h = h + mixed.transpose(1, 2).reshape(2, length, width) @ last
    plan = planned(h, *weights)
    assert kinds(plan).count(OptKind.FEED) == 4 and kinds(plan).count(OptKind.ROTATE) == 2
    assert largest(plan) < 2 * heads * length * length


@pytest.mark.parametrize("dtype, width, device", [
    ("bfloat16", 80, "NULL:sm_90"), ("float32", 64, "NULL:sm_90"), ("bfloat16", 64, "NULL:sm_80"),
])  # fmt: skip
def test_others_store_pairs(dtype: str, width: int, device: str) -> None:
    q, k, v, slope = (memory(1, 2, 512, width, dtype=dtype, device=device) for _ in range(4))
    out = q.scaled_dot_product_attention(k, v, is_causal=True)
    with scope(SCHEDULE_CACHE=0):
        plan = out.schedule(*out.gradient(q, k, v, gradient=slope))
    assert OptKind.FEED not in kinds(plan) and largest(plan) == 2 * 512 * 512


def test_weights_that_somebody_needs_are_stored_and_products_stay_products() -> None:
    q, k, v = (memory(1, 2, 512, 64) for _ in range(3))
    weights = (q.matmul(k.transpose(-1, -2), dtype="float32") * 0.125).softmax(-1)
    plan = planned(weights.cast(dtypes.bfloat16) @ v, q, k, v, also=(weights,))
    assert kinds(plan) == []
    opts = [o.kind for call in plan.calls for o in lower(call.ast, SM_90).opts]
    assert (
        opts.count(OptKind.TENSORIZE) == 2
    )  # the result and the gradient of the values, as where nothing is exchanged


def test_exact_sums_are_not_exchanged() -> None:
    q, k, v = (memory(1, 2, 512, 64) for _ in range(3))
    with scope(STRICT_FLOAT=1):
        assert kinds(planned(q.scaled_dot_product_attention(k, v), q, k, v)) == []
