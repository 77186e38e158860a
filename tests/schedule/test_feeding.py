"""The gradient of attention keeps nothing that has an element for every pair of a query and a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Context, Tensor
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import schedulable
from gradlet.graph.launch import is_launch
from gradlet.ops.op import Op
from gradlet.ops.opt import OptKind
from gradlet.optimize.heuristic import choose
from gradlet.schedule.calls import KernelCall, Schedule
from gradlet.target.target import AVX2

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]
BATCH, HEADS, LENGTH, WIDTH = 2, 3, 256, 32


def empty(*shape: int) -> Tensor:
    return Tensor.empty(*shape, device="NULL")


def kinds(plan: Schedule) -> list[OptKind]:
    """ROTATE and FEED of all kernels of a plan."""
    found: list[OptKind] = []
    for call in plan.calls:
        assert isinstance(call, KernelCall)
        for body in call.ast.src if is_launch(call.ast.arg) else (call.ast,):
            opts = choose(schedulable(body, AVX2), AVX2)
            found += [o.kind for o in opts if o.kind in (OptKind.ROTATE, OptKind.FEED)]
    return found


def kernels(plan: Schedule) -> int:
    """Bodies of all launches."""
    return sum(len(c.ast.src) if is_launch(c.ast.arg) else 1 for c in plan.calls if isinstance(c, KernelCall))


def largest(plan: Schedule) -> int:
    """Elements of the largest memory that a plan uses."""
    return max(b.arg.size for call in plan.calls for b in call.buffers if b.op is Op.BUFFER)


def temporary(plan: Schedule) -> int:
    """Bytes of what is neither given nor asked for."""
    assert plan.memory is not None
    return plan.memory.peak


def planned(groups: int = HEADS, mask: str = "", wanted: str = "qkv", **more: Any) -> Schedule:
    """The plan of a result and its gradients."""
    q, g = (empty(BATCH, HEADS, LENGTH, WIDTH) for _ in range(2))
    k, v = (empty(BATCH, groups, LENGTH, WIDTH) for _ in range(2))
    hidden = empty(LENGTH, LENGTH) if mask == "add" else None
    out = q.scaled_dot_product_attention(k, v, hidden, is_causal=mask == "causal", enable_gqa=groups != HEADS, **more)
    slopes = (out * g).sum().gradient(*[{"q": q, "k": k, "v": v}[name] for name in wanted])
    with scope(SCHEDULE_CACHE=0):
        return out.schedule(*slopes)


@pytest.mark.parametrize("mask", ["", "causal"])
def test_no_memory_for_pairs_and_few_kernels(mask: str) -> None:
    plan = planned(mask=mask)
    # The result with what it leaves for the gradient, the means, two kernels.
    assert kernels(plan) == 4 and sorted(kinds(plan)) == [OptKind.ROTATE, OptKind.FEED, OptKind.FEED]
    assert largest(plan) == BATCH * HEADS * LENGTH * WIDTH < BATCH * HEADS * LENGTH * LENGTH
    rows = 4 * BATCH * HEADS * LENGTH  # bytes of a value a row: shift, sum, mean
    assert temporary(plan) <= 3 * rows + 1024


def test_groups_and_masks_keep_none_either() -> None:
    for plan in (planned(1), planned(mask="add"), planned(1, "add")):
        assert kinds(plan).count(OptKind.FEED) == 2
        assert largest(plan) <= max(BATCH * HEADS * LENGTH * WIDTH, LENGTH * LENGTH)  # the mask
    # Gradients of the keys and values of each head, before those of a group are added up.
    assert temporary(planned(1)) <= 4 * BATCH * HEADS * LENGTH * (3 + 2 * WIDTH) + 1024


def test_some_of_the_gradients() -> None:
    assert kinds(planned(wanted="q")) == kinds(planned(wanted="kv")) == [OptKind.ROTATE, OptKind.FEED]


def test_every_layer_of_a_model_has_its_own() -> None:
    x = empty(1, LENGTH, 64)
    weights = [empty(64, 64) for _ in range(8)]
    out = x
    for layer in range(2):
        q, k, v, last = weights[4 * layer : 4 * layer + 4]
        heads = [(out @ w).reshape(1, LENGTH, 2, 32).transpose(1, 2) for w in (q, k, v)]
        mixed = heads[0].scaled_dot_product_attention(heads[1], heads[2], is_causal=True)
        out = out + mixed.transpose(1, 2).reshape(1, LENGTH, 64) @ last
    slopes = out.sum().gradient(*weights)
    with scope(SCHEDULE_CACHE=0):
        plan = slopes[0].schedule(*slopes[1:])
    assert kinds(plan).count(OptKind.FEED) == 4 and kinds(plan).count(OptKind.ROTATE) == 2
    assert largest(plan) < 2 * LENGTH * LENGTH


def turned(x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Halves of each head turned by rotary places, heads as the second axis."""
    batch, places, width = x.shape
    x = x.reshape(batch, places, heads, 2, width // heads // 2)
    a, b = x[:, :, :, 0], x[:, :, :, 1]
    return (a * cos - b * sin).cat(a * sin + b * cos, dim=-1).transpose(1, 2)


def layer(x: Tensor, weights: list[Tensor], turns: tuple[Tensor, Tensor], heads: int, groups: int) -> Tensor:
    """Attention of a LLaMA: rotary places, keys and values for some heads each, projections before and after."""
    batch, places, width = x.shape
    q, k, v = (x @ w for w in weights[:3])
    queries = turned(q, heads, *turns).reshape(batch, groups, heads // groups, places, width // heads)
    keys = turned(k, groups, *turns).unsqueeze(2)
    values = v.reshape(batch, places, groups, width // heads).transpose(1, 2).unsqueeze(2)
    scores = queries @ keys.transpose(-1, -2) * (width // heads) ** -0.5
    hidden = Tensor.arange(places, device=x.device).reshape(1, places) > Tensor.arange(places, device=x.device).reshape(
        places, 1
    )
    mixed = hidden.where(-float("inf"), scores).softmax(-1) @ values
    return x + mixed.permute(0, 3, 1, 2, 4).reshape(batch, places, width) @ weights[3]


@pytest.mark.parametrize("groups", [8, 2])
def test_layouts_in_strips_and_rotary_places_are_in_nobodys_way(groups: int) -> None:
    places, width = 512, 256
    x, turns = empty(1, places, width), (empty(places, 1, 16), empty(places, 1, 16))
    weights = [empty(width, n) for n in (width, 32 * groups, 32 * groups, width)]
    loss = layer(layer(x, weights, turns, 8, groups), weights, turns, 8, groups).sum()
    slopes = loss.gradient(*weights)
    with scope(SCHEDULE_CACHE=0):
        plan = loss.schedule(*slopes)
    assert kinds(plan).count(OptKind.FEED) == 4 and kinds(plan).count(OptKind.ROTATE) == 2
    assert largest(plan) < 2 * places * places


@pytest.mark.slow
@pytest.mark.parametrize("groups", [4, 2])
def test_gradients_of_such_a_layer(groups: int) -> None:
    rng = np.random.default_rng(groups)
    places, width = 300, 128
    shapes = [(1, places, width), (places, 1, 16), (places, 1, 16)]
    shapes += [(width, n) for n in (width, 32 * groups, 32 * groups, width)]
    arrays = [rng.standard_normal(s).astype(np.float32) / (12 if len(s) == 2 else 1) for s in shapes]

    def gradients() -> list[Array]:
        x, cos, sin, *weights = (Tensor(a) for a in arrays)
        loss = (layer(x, weights, (cos, sin), 4, groups) ** 2).sum()
        found = loss.gradient(x, *weights)
        found[0].realize(*found[1:])
        return [t.numpy() for t in found]

    made = gradients()
    with Context(STRICT_FLOAT=1, SCHEDULE_CACHE=0):
        plain = gradients()
    for mine, other in zip(made, plain, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def test_weights_that_somebody_needs_are_stored_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, g = (empty(HEADS, LENGTH, WIDTH) for _ in range(4))
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    slopes = (weights @ v * g).sum().gradient(q, k, v)
    with scope(SCHEDULE_CACHE=0):
        assert kinds(slopes[0].schedule(*slopes[1:], weights)) == []
        few = [empty(HEADS, 64, WIDTH) for _ in range(3)]  # so few keys that pairs are no more than twice the queries
        slopes = few[0].scaled_dot_product_attention(few[1], few[2]).sum().gradient(*few)
        assert OptKind.FEED not in kinds(slopes[0].schedule(*slopes[1:]))
    with Context(STRICT_FLOAT=1):
        assert kinds(planned()) == []
    monkeypatch.setattr(Tensor, "training", True)
    assert OptKind.FEED not in kinds(planned(dropout_p=0.5))


def reference(arrays: list[Array], slope: Array, mask: Array | None, causal: bool) -> list[Array]:
    tensors = [torch.from_numpy(a).double().requires_grad_() for a in arrays]
    hidden = None if mask is None else torch.from_numpy(mask)
    hidden = hidden.double() if hidden is not None and mask is not None and mask.dtype != np.bool_ else hidden
    out = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=hidden, is_causal=causal, enable_gqa=arrays[0].shape[1] != arrays[1].shape[1]
    )
    found = torch.autograd.grad(out, tensors, torch.from_numpy(slope).double())
    return [np.asarray(t.detach().numpy()) for t in (out, *found)]


CASES = [
    # heads, heads of keys, queries, keys, width, width of values, kind of mask
    (1, 1, 35, 65, 8, 8, "causal"), (2, 1, 33, 96, 24, 16, "add"),
]  # fmt: skip
MORE = [
    (2, 2, 265, 265, 64, 64, "causal"), (3, 3, 133, 150, 24, 16, ""), (2, 1, 257, 597, 128, 128, "causal"),
    (2, 2, 70, 64, 16, 16, "bool"), (8, 2, 140, 164, 32, 32, "add"), (2, 2, 300, 200, 40, 48, "window"),
    (2, 2, 300, 400, 96, 96, "bool"), (1, 1, 128, 512, 128, 64, "causal"), (2, 2, 64, 1, 16, 16, ""),
    (2, 2, 1, 128, 16, 16, ""), (2, 2, 15, 80, 16, 20, "causal"),
]  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, *[pytest.param(c, marks=pytest.mark.slow) for c in MORE]], ids=str)
def test_values_are_those_of_float64(case: tuple[Any, ...]) -> None:
    heads, groups, queries, keys, width, columns, kind = case
    rng = np.random.default_rng(queries + keys)
    # Rows of all heads beside one another, as a projection makes them: nothing is contiguous by heads.
    shapes = ((queries, heads, width), (keys, groups, width), (keys, groups, columns), (queries, heads, columns))
    arrays = [rng.standard_normal((1, *s)).astype(np.float32) for s in shapes]
    turned = [np.ascontiguousarray(a.transpose(0, 2, 1, 3)) for a in arrays]
    mask: Array | None = None
    if kind == "add":
        mask = rng.standard_normal((queries, keys)).astype(np.float32)
        mask[:, 3] = -np.inf
    elif kind == "bool":
        mask = rng.random((queries, keys)) < 0.6
        mask[:, 0] = True
        mask[queries // 2] = False  # a query that sees no key
    elif kind == "window":
        near = np.arange(queries)[:, None] - np.arange(keys)
        mask = (near < 140) & (near > -9)
    given = [Tensor(a).transpose(1, 2) for a in arrays]
    q, k, v, slope = given
    hidden = None if mask is None else Tensor(mask)
    out = q.scaled_dot_product_attention(k, v, hidden, is_causal=kind == "causal", enable_gqa=heads != groups)
    made = [out, *(out * slope).sum().gradient(q, k, v)]
    made[0].realize(*made[1:])
    expected = reference(turned[:3], turned[3], mask, kind == "causal")
    for mine, other in zip(made, expected, strict=True):
        other = np.where(np.isnan(other), 0, other)  # a query that sees no key gets zeros
        np.testing.assert_allclose(mine.numpy(), other, rtol=5e-5, atol=5e-5 * max(1.0, np.abs(other).max(initial=0)))
