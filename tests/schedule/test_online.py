"""Online reductions: blocks and their combination give what the chain gives, extremes included, in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.settings import scope
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.schedule import online
from gradlet.schedule.blockcut import BlockCut
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.context import sink
from gradlet.schedule.online import choose_cut, combinations, go_online, near_divisor
from gradlet.schedule.pipeline import make_schedule
from gradlet.schedule.traffic import traffic_of
from gradlet.target.target import AVX2
from tests.schedule.helpers import target_of

torch = pytest.importorskip("torch")

Program = Callable[[Any], Any]


def small_blocks(monkeypatch: pytest.MonkeyPatch, size: int) -> list[int]:
    """Cut everything in blocks of `size`; the list gets how many reductions went online each time."""
    found: list[int] = []

    def cut(shape: tuple[int, ...], axes: tuple[int, ...], itemsize: int, target: object) -> BlockCut | None:
        sizes = [1] * len(axes)
        rest = size
        for position in reversed(range(len(axes))):
            sizes[position] = min(rest, shape[axes[position]])
            rest = max(1, rest // shape[axes[position]])
        blocks = tuple([-(-shape[a] // s) for a, s in zip(axes, sizes, strict=True)])
        return BlockCut(shape, axes, blocks, tuple(sizes)) if math.prod(blocks) > 1 else None

    def counted(*args: Any) -> dict[UOp, UOp]:
        made = combinations(*args)
        found.append(len(made))
        return made

    monkeypatch.setattr(online, "MIN_REDUCED", 2)
    monkeypatch.setattr(online, "choose_cut", cut)
    monkeypatch.setattr(online, "combinations", counted)
    return found


@contextmanager
def fresh() -> Iterator[None]:
    """No schedule from before."""
    with scope(SCHEDULE_CACHE=0):
        yield


def values(kind: str, size: int) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    half = size // 2 + 1
    if kind == "offset":
        x += 1e4
    elif kind == "masked":
        x[:half] = -np.inf
    elif kind == "all masked":
        x[:] = -np.inf
    elif kind == "least":
        x[:half] = np.finfo(np.float32).min
    elif kind == "huge":
        x[:half], x[-1] = -3e38, 3e38
    elif kind == "infinite":
        x[half - 1] = np.inf
    elif kind == "NaN":
        x[half - 1] = np.nan
    elif kind == "zeros":
        x[:] = 0
    return x


KINDS = ["plain", "offset", "masked", "all masked", "least", "huge", "infinite", "NaN", "zeros"]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 65])
@pytest.mark.parametrize("kind", KINDS)
def test_extremes(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(kind, size)
    t = torch.tensor(x)
    count = small_blocks(monkeypatch, 8)
    wanted = [t.logsumexp(0), t.softmax(0), t.log_softmax(0), t.argmax(), t.argmin(), t.var(correction=0)]
    with fresh():
        a = Tensor(x, device="PYTHON")
        got = [a.logsumexp(0), a.softmax(0), a.log_softmax(0), a.argmax(), a.argmin(), a.var(correction=0)]
        got = [r.numpy() for r in got]
    assert sum(count) == (0 if size <= 8 else 14)
    tolerance = 1e-3 if kind == "offset" else 2e-6
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=tolerance, atol=tolerance)


def plain_sum_of_exponentials(x: Any) -> Any:
    """Without any guard: rows of nothing but -inf are NaN."""
    return (x - x.detach().max(0, keepdim=True)).exp().sum(0) if isinstance(x, Tensor) else (x - x.max()).exp().sum(0)


@pytest.mark.parametrize("kind", KINDS)
def test_unguarded_sum(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(kind, 33)
    count = small_blocks(monkeypatch, 4)
    with fresh():
        got = plain_sum_of_exponentials(Tensor(x, device="PYTHON")).numpy()
    assert count == [2]
    np.testing.assert_allclose(got, plain_sum_of_exponentials(torch.tensor(x)).numpy(), rtol=1e-5)


def covariance(x: Any) -> Any:
    y = x * x
    return ((x - x.mean()) * (y - y.mean())).sum()


def entropy(x: Any) -> Any:
    return -(x.softmax(0) * x.log_softmax(0)).sum()


def soft_cap(x: Any) -> Any:
    capped = (x * 0.2).tanh() * 5.0
    return capped.logsumexp(0)


def scaled(x: Any) -> Any:
    return (((x - x.detach().max()) * 0.125).exp() * x).sum()


def unrelated_reference(x: Any) -> Any:
    """Nothing says that the exponents are not positive."""
    return (x * 30.0 - (x.detach() * 29.0).sum().abs() ** 0.5).exp().sum()


def norm_gradient_sums(x: Any) -> Any:
    gap = x - x.mean()
    normed = gap / (gap * gap).mean() ** 0.5
    return (normed * x.cos()).sum()


def ties(x: Any) -> Any:
    best = x.max() if isinstance(x, Tensor) else x.amax()
    return (x == best).sum()


@pytest.mark.parametrize(
    ("program", "online_reductions"),
    [(covariance, 3), (entropy, 3), (soft_cap, 2), (scaled, 2), (unrelated_reference, 2), (norm_gradient_sums, 3),
     (ties, 2)],
    ids=lambda p: getattr(p, "__name__", ""),
)  # fmt: skip
def test_programs(program: Program, online_reductions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (np.round(values("plain", 100) * 8) / 8).astype(np.float32)
    count = small_blocks(monkeypatch, 8)
    with fresh():
        got = program(Tensor(x, device="PYTHON")).numpy()
    assert sum(count) == online_reductions
    np.testing.assert_allclose(got, program(torch.tensor(x)).numpy(), rtol=2e-5)


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (0, 1), None])
def test_axes(axis: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values("plain", 5 * 4 * 6).reshape(5, 4, 6)
    count = small_blocks(monkeypatch, block)
    with fresh():
        a = Tensor(x, device="PYTHON")
        got = [a.logsumexp(axis).numpy(), a.var(axis).numpy()]
    assert block == 16 or sum(count) == 4
    dims = (0, 1, 2) if axis is None else axis
    np.testing.assert_allclose(got[0], torch.tensor(x).logsumexp(dims).numpy(), rtol=1e-5)
    np.testing.assert_allclose(got[1], torch.tensor(x).var(dims).numpy(), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_types_on_the_cpu(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 32)
    t = torch.tensor(values("plain", 200)).to(getattr(torch, dtype)).requires_grad_()
    weight = torch.tensor(values("offset", 200) - 1e4).to(t.dtype)
    (t.softmax(0) * weight).sum().backward()
    with fresh():
        a = Tensor(values("plain", 200)).cast(dtype).contiguous()
        b = Tensor(weight.float().numpy()).cast(dtype)
        got = [a.logsumexp(0), a.var(), (a.softmax(0) * b).sum().gradient(a)[0]]
        got = [g.float().numpy() for g in got]
        best = a.argmax().item()
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2}.get(dtype, 1e-5)
    for mine, theirs in zip(got, [t.logsumexp(0), t.var(), t.grad], strict=True):
        np.testing.assert_allclose(mine, theirs.detach().float().numpy(), rtol=tolerance, atol=tolerance / 10)
    assert best == t.argmax().item()


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    x = values("plain", 90).reshape(2, 45)
    t = torch.tensor(x, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(t, torch.tensor([3, 44])) + t.var() + t.amax()
    loss.backward()
    count = small_blocks(monkeypatch, 8)
    with fresh():
        a = Tensor(x, device="PYTHON")
        mine = a.cross_entropy(Tensor(np.array([3, 44]), device="PYTHON")) + a.var() + a.max()
        (grad,) = mine.gradient(a)
        mine.realize(grad)
    assert sum(count) >= 4
    np.testing.assert_allclose(mine.numpy(), loss.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(grad.numpy(), t.grad.numpy(), rtol=1e-4, atol=1e-6)


# random graphs
def random_program(seed: int) -> Program:
    """A chain of reductions over one axis, each of an element that uses those before."""
    plan = np.random.default_rng(seed)

    def build(x: Tensor) -> Tensor:
        rows: list[Tensor] = [x.max(1, keepdim=True), x.mean(1, keepdim=True)]
        element = x
        for _ in range(3):
            choice, row = plan.integers(8), rows[plan.integers(len(rows))]
            if choice == 0:
                element = (x - row) * 0.5
            elif choice == 1:
                element = (element - row).exp()
            elif choice == 2:
                element = element * (x - row)
            elif choice == 3:
                element = (x > 0).where(element, 0.25)
            elif choice == 4:
                element = element / (row.abs() + 1.0)
            elif choice == 5:
                element = (x == row).where(x * 2.0, 0.0)
            elif choice == 6:
                element = element.maximum(row)
            else:
                element = element + row * x
            rows.append(element.max(1, keepdim=True) if plan.integers(4) == 0 else element.sum(1, keepdim=True))
        return rows[-1] + rows[-2]

    return build


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.clip(np.random.default_rng(seed).standard_normal((2, 23)), -2, 2)
    with fresh():
        wanted = random_program(seed)(Tensor(x, device="PYTHON")).numpy()
        small_blocks(monkeypatch, 5)
        got = random_program(seed)(Tensor(x, device="PYTHON")).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-8)


def test_random_graphs_go_online(monkeypatch: pytest.MonkeyPatch) -> None:
    count = small_blocks(monkeypatch, 5)
    for seed in range(25):
        root = random_program(seed)(Tensor(np.ones((2, 23)), device="PYTHON")).uop
        go_online(sink([root]), target_of, "PYTHON")
    assert sum(n >= 2 for n in count) >= 8, count


# where it is worth it
def memory(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32)).realize()


def launches_and_bytes(*results: Tensor) -> tuple[int, int]:
    calls = make_schedule([r.uop for r in results], target_of).calls
    return len(calls), sum(traffic_of(c).bytes for c in calls if isinstance(c, KernelCall))


@pytest.mark.parametrize(
    ("program", "launches", "megabytes"),
    [
        (lambda x: x.logsumexp(0), 1, 16.9),
        (lambda x: x.reshape(4096, 1024).var(), 1, 16.9),
        (lambda x: x.std(), 1, 16.9),
        (lambda x: x.argmax(), 1, 16.9),
        (lambda x: x.argmin(), 1, 16.9),
        (lambda x: x.softmax(0), 2, 50.5),
        (lambda x: x.reshape(1, -1).log_softmax(1), 2, 50.5),
        (lambda x: x.reshape(1, -1).layernorm(), 2, 50.5),
        (lambda x: covariance(x), 1, 16.9),
    ],
    ids=["logsumexp", "var", "std", "argmax", "argmin", "softmax", "log_softmax", "layernorm", "covariance"],
)
def test_counts(program: Program, launches: int, megabytes: float) -> None:
    count, moved = launches_and_bytes(program(memory(1 << 22)))
    assert count == launches
    assert moved <= megabytes * 1e6


@pytest.mark.parametrize("shape", [(1 << 22,), (16, 1 << 20)])
@pytest.mark.parametrize("name", ["logsumexp", "var", "argmax"])
def test_one_kernel_reads_memory(name: str, shape: tuple[int, ...]) -> None:
    """The links of a chain are loops over a block in one kernel, also where there are rows enough for all cores."""
    x = memory(*shape)
    calls = make_schedule([getattr(x, name)(len(shape) - 1).uop], target_of).calls
    bodies = [b for c in calls if isinstance(c, KernelCall) for b in (c.ast.src if is_launch(c.ast.arg) else (c.ast,))]
    reading = [[n for n in toposort((b,)) if n.op is Op.PARAM and n.arg.size == x.numel()] for b in bodies]
    assert len([r for r in reading if r]) == 1


def test_rows_that_stay_near_a_core_are_left_alone() -> None:
    for result in (memory(1024, 1024).softmax(1), memory(1024, 1024).var(1), memory(64, 1024).argmax(0)):
        root = sink([result.uop])
        assert go_online(root, target_of, "CPU") is root
    assert launches_and_bytes(memory(1024, 1024).softmax(1))[0] == 1


def test_single_reductions_are_left_alone() -> None:
    x = memory(1 << 20)
    root = sink([x.sum().uop, x.max().uop])
    assert go_online(root, target_of, "CPU") is root


def test_what_has_no_form_is_left_alone() -> None:
    x = memory(1 << 20)
    root = sink([(x - x.mean()).abs().sum().uop, (x * x.max()).sin().sum().uop])
    assert go_online(root, target_of, "CPU") is root


def test_a_chain_that_ends_begins_another() -> None:
    """The absolute deviation needs the mean; what follows from it is a chain of its own."""
    x = memory(1 << 20)
    spread = (x - x.mean()).abs()
    root = sink([(spread - spread.max()).exp().sum().uop])
    made = go_online(root, target_of, "CPU")
    cut = [n for n in toposort((made,)) if n.op is Op.REDUCE_AXES and n.src[0].shape == (256, 4096)]
    assert {n.arg.op for n in cut} == {Op.MAX, Op.ADD}
    assert any(n.op is Op.REDUCE_AXES and n.src[0].shape == (1 << 20,) for n in toposort((made,)))


def test_cuts() -> None:
    long = choose_cut((1 << 22,), (0,), 4, AVX2)
    assert long is not None and (long.blocks, long.sizes) == ((1024,), (4096,))
    images = choose_cut((256, 4, 64, 64), (0, 2, 3), 4, AVX2)
    assert images is not None and images.full == (256, 1, 4, 1, 64, 1, 64)
    assert choose_cut((1024, 1024), (1,), 4, AVX2) is None
    prime = choose_cut((4194301,), (0,), 4, AVX2)
    assert prime is not None and not prime.is_even and prime.blocks[0] * prime.sizes[0] >= 4194301
    assert near_divisor(1 << 20, 5000) == 4096
    assert near_divisor(4194301, 4100) == 4096
    assert near_divisor(30, 7) == 6
