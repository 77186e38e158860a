"""Attention is one kernel that stores nothing but its result, and gives what float64 gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gradlet import Context, Tensor, dtypes
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import schedulable
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.ops.opt import OptKind
from gradlet.optimize.heuristic import choose
from gradlet.schedule.calls import KernelCall, Schedule
from gradlet.target.target import AVX2

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]


@contextmanager
def fresh() -> Iterator[None]:
    """No schedule from before."""
    with scope(SCHEDULE_CACHE=0):
        yield


def empty(*shape: int, dtype: Any = dtypes.float32) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device="NULL")


def rotated(plan: Schedule) -> int:
    """How many kernels of a plan go over keys by blocks."""
    bodies: list[UOp] = []
    for call in plan.calls:
        if isinstance(call, KernelCall):
            bodies += call.ast.src if is_launch(call.ast.arg) else (call.ast,)
    kinds = [[o.kind for o in choose(schedulable(body, AVX2), AVX2)] for body in bodies]
    return sum(OptKind.ROTATE in found for found in kinds)


def largest(plan: Schedule) -> int:
    """Elements of the largest memory that a plan uses."""
    return max(b.arg.size for call in plan.calls for b in call.buffers if b.op is Op.BUFFER)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * 0.125
    power = (scores - scores.max(-1, keepdim=True)).exp()
    return (power / power.sum(-1, keepdim=True)) @ v


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_one_kernel_without_memory_for_scores(causal: bool) -> None:
    q, k, v = (empty(2, 4, 512, 64) for _ in range(3))
    with fresh():
        plan = q.scaled_dot_product_attention(k, v, is_causal=causal).schedule()
    assert len(plan.calls) == 1 and rotated(plan) == 1
    assert largest(plan) == 2 * 4 * 512 * 64 < 512 * 512 * 8


def test_what_it_is_called_does_not_matter() -> None:
    with fresh():
        plan = written_out(*(empty(8, 256, 32) for _ in range(3))).schedule()
    assert len(plan.calls) == 1 and rotated(plan) == 1


def test_every_layer_of_a_model_has_one() -> None:
    x = empty(2, 128, 64)
    for _ in range(3):
        q, k, v = ((x @ empty(64, 64)).reshape(2, 128, 4, 16).transpose(1, 2) for _ in range(3))
        x = x + q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(2, 128, 64) @ empty(64, 64)
    with fresh():
        assert rotated(x.schedule()) == 3


def test_scores_or_weights_that_others_need_are_stored_as_before() -> None:
    q, k, v = (empty(4, 128, 32) for _ in range(3))
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    with fresh():
        assert rotated((weights @ v).schedule(weights)) == 0
        assert rotated((empty(4, 1, 32) @ k.transpose(-1, -2)).softmax(-1).matmul(v).schedule()) == 0  # one query
        assert rotated(((q @ k.transpose(-1, -2)).relu() @ v).schedule()) == 0
        assert rotated(((q @ k.transpose(-1, -2)).softmax(-2) @ v).schedule()) == 0  # along the queries
    with Context(STRICT_FLOAT=1, SCHEDULE_CACHE=0):
        assert rotated(written_out(q, k, v).schedule()) == 0


def reference(q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False) -> Array:
    tensors = [torch.from_numpy(np.ascontiguousarray(a)).double() for a in (q, k, v)]
    hidden = None if mask is None else torch.from_numpy(mask)
    hidden = hidden.double() if hidden is not None and mask is not None and mask.dtype != np.bool_ else hidden
    groups = q.shape[-3] != k.shape[-3]
    found = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=hidden, is_causal=causal, enable_gqa=groups
    )
    return np.asarray(found.numpy())


CASES = [
    # batch, heads, heads of keys, queries, keys, width, width of values, kind of mask
    (1, 2, 2, 64, 64, 16, 16, "causal"), (2, 3, 3, 33, 50, 24, 16, None), (1, 4, 2, 48, 35, 8, 24, "add"),
]  # fmt: skip
MORE = [
    (1, 2, 2, 65, 65, 64, 64, "causal"), (1, 2, 2, 100, 300, 64, 128, None), (1, 2, 1, 257, 97, 128, 128, "causal"),
    (1, 1, 1, 17, 16, 256, 256, None), (2, 2, 2, 64, 64, 16, 16, "bool"), (1, 8, 2, 40, 64, 32, 32, "rows"),
    (1, 2, 2, 128, 1, 16, 16, None), (1, 2, 2, 1, 128, 16, 16, None), (1, 2, 2, 15, 15, 16, 20, "causal"),
    (1, 2, 2, 64, 0, 16, 16, None), (1, 0, 0, 64, 64, 16, 16, None), (1, 2, 2, 300, 200, 40, 48, "window"),
]  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, *[pytest.param(c, marks=pytest.mark.slow) for c in MORE]], ids=str)
def test_values_are_those_of_float64(case: tuple[Any, ...]) -> None:
    batch, heads, groups, queries, keys, width, columns, kind = case
    rng = np.random.default_rng(queries + keys)
    # Rows of all heads beside one another, as a projection makes them: nothing is contiguous by heads.
    q, k, v = (
        rng.standard_normal((batch, n, h, w)).astype(np.float32).transpose(0, 2, 1, 3)
        for n, h, w in ((queries, heads, width), (keys, groups, width), (keys, groups, columns))
    )
    mask: Array | None = None
    if kind == "add":
        mask = rng.standard_normal((heads, queries, keys)).astype(np.float32)
        mask[..., 3] = -np.inf
    elif kind in ("bool", "rows"):
        mask = rng.random((queries, keys)) < 0.6
        mask[:, 0] = True
        mask[queries // 2] = kind == "bool"  # a query that sees no key
    elif kind == "window":
        near = np.arange(queries)[:, None] - np.arange(keys)
        mask = (near < 40) & (near > -9)
    given = [Tensor(np.ascontiguousarray(a.transpose(0, 2, 1, 3))).transpose(1, 2) for a in (q, k, v)]
    made = given[0].scaled_dot_product_attention(
        given[1], given[2], None if mask is None else Tensor(mask), is_causal=kind == "causal",
        enable_gqa=heads != groups,
    )  # fmt: skip
    expected = reference(q, k, v, mask, kind == "causal")
    if mask is not None and mask.dtype == np.bool_:
        expected = np.where(np.isnan(expected), 0, expected)  # a query that sees no key gets zeros
    np.testing.assert_allclose(made.numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name, tolerance", [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_narrow_floats_are_summed_in_float32(name: str, tolerance: float) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((1, 2, 96, 32)).astype(np.float32) for _ in range(3)]
    rounded = [torch.from_numpy(a).to(getattr(torch, name)) for a in arrays]
    given = [Tensor(a).cast(name).realize() for a in arrays]
    with fresh():
        result = given[0].scaled_dot_product_attention(given[1], given[2], is_causal=True)
        assert rotated(result.schedule()) == 1
    expected = reference(*[t.float().numpy() for t in rounded], causal=True)
    np.testing.assert_allclose(result.cast("float32").numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_extremes_are_what_a_stored_softmax_makes_of_them(value: float) -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, 32, 16)).astype(np.float32) for _ in range(3))
    scores = rng.standard_normal((32, 32)).astype(np.float32)
    scores[3, 5] = value
    scores[7] = value
    tensors = [Tensor(a) for a in (q, k, v, scores)]

    def attention(q: Tensor, k: Tensor, v: Tensor, more: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) + more).softmax(-1) @ v

    one = attention(*tensors).numpy()
    with Context(STRICT_FLOAT=1, SCHEDULE_CACHE=0):
        three = attention(*tensors).numpy()
    np.testing.assert_allclose(one, three, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keys", [40, pytest.param(131, marks=pytest.mark.slow)])
def test_keys_and_values_may_lie_across_memory(keys: int) -> None:
    rng = np.random.default_rng(keys)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 33, 16), (2, 16, keys), (2, 32, keys)))
    with fresh():
        result = (Tensor(q) @ Tensor(k)).softmax(-1) @ Tensor(v).transpose(1, 2)
        assert rotated(result.schedule()) == 1
    expected = reference(q * 4, k.transpose(0, 2, 1), v.transpose(0, 2, 1))
    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_without_optimisations_scores_are_not_computed_again_for_every_column() -> None:
    q, k, v = (np.random.default_rng(n).standard_normal((2, 64, 16)).astype(np.float32) for n in range(3))
    with Context(NOOPT=1, SCHEDULE_CACHE=0):
        result = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v)).numpy()
    np.testing.assert_allclose(result, reference(q, k, v), rtol=2e-5, atol=2e-6)
