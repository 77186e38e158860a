"""The partition: right on random graphs, never dearer than not fusing, the same in every process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from math import prod

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import Context
from gradlet.graph.launch import body_facts, is_launch
from gradlet.graph.node import UOp
from gradlet.graph.text import to_text
from gradlet.ops.op import Op
from gradlet.schedule import pipeline
from gradlet.schedule.context import Context as ScheduleContext
from gradlet.schedule.context import sink
from gradlet.schedule.fuse import Search
from gradlet.schedule.price import IMPOSSIBLE
from gradlet.schedule.steps import Steps
from tests.schedule.helpers import (
    body_names,
    check,
    contiguous,
    create_schedule,
    expand,
    flip,
    gather,
    kernels,
    matmul,
    pad,
    permute,
    reduce,
    reshape,
    row,
    shrink,
    stride,
    target_of,
    tensor,
    total,
    unwindow,
    window,
)  # fmt: skip

KINDS = ("unary", "binary", "binary", "sum", "mean", "move", "move", "matmul", "gather", "keep", "pool")


def random_graph(seed: int) -> list[UOp]:
    """A few roots over shared nodes of all kinds."""
    rng = random.Random(seed)
    nodes = [tensor(4, 6), tensor(6, 4), tensor(4, 6)]
    index = tensor(5, dtype=dtypes.int32)

    def fit(x: UOp, shape: tuple[int, ...]) -> UOp:
        """Some form of x in a shape."""
        if x.shape == shape:
            return x
        if prod(x.shape) == prod(shape):
            return reshape(x, *shape)
        while len(x.shape) > 0:
            x = total(x, 0) if rng.random() < 0.5 else reduce(x, Op.MAX, 0)
        return expand(reshape(x, *(1,) * len(shape)), *shape)

    for _ in range(rng.randint(4, 14)):
        x = rng.choice(nodes[-6:])
        kind = rng.choice(
            ["unary", "binary", "binary", "sum", "mean", "move", "move", "matmul", "gather", "keep", "pool"]
        )
        rank = len(x.shape)
        if kind == "unary":
            x = rng.choice([lambda v: v.maximum(0), lambda v: v * 0.5, lambda v: (v * 0.1).exp(), lambda v: v.sin()])(x)
        elif kind == "binary":
            y = fit(rng.choice(nodes), x.shape)
            x = rng.choice([lambda a, b: a + b, lambda a, b: a * b * 0.5, lambda a, b: (a < b).where(a, b)])(x, y)
        elif kind == "sum" and rank:
            axes = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank))))
            x = reduce(x, rng.choice([Op.ADD, Op.MAX, Op.MIN]), *axes)
        elif kind == "mean" and rank == 2:
            x = x - row(total(x, 1, keep=True) * (1.0 / x.shape[1]), x.shape[1])
        elif kind == "matmul" and rank == 2 and prod(x.shape) <= 400:
            x = matmul(x, fit(rng.choice(nodes), (x.shape[1], 4)))
        elif kind == "gather" and rank:
            x = gather(x, index)
        elif kind == "keep":
            x = contiguous(x)
        elif kind == "pool" and rank == 2 and x.shape[0] >= 3:
            size = x.shape[0] - 1
            wide = expand(reshape(x, *x.shape, 1), *x.shape, 2)
            x = reduce(window(wide, 0, 2, 1, 1, size), Op.MAX, 2)
            if rng.random() < 0.5:
                x = total(unwindow(expand(reshape(x, *x.shape, 1), *x.shape, 2), 0, 2, 1, 1, size + 1), 2)
        elif kind == "move" and rank:
            x = move(rng, x)
        if prod(x.shape) <= 2000:
            nodes.append(x)
    made = nodes[3:] or nodes
    return list(dict.fromkeys([made[-1], *rng.sample(made, min(len(made), rng.randint(0, 2)))]))


def move(rng: random.Random, x: UOp) -> UOp:
    rank = len(x.shape)
    axis = rng.randrange(rank)
    kind = rng.choice(["permute", "flip", "pad", "shrink", "stride", "reshape", "expand"])
    if kind == "permute":
        return permute(x, *rng.sample(range(rank), rank))
    if kind == "flip":
        return flip(x, axis)
    if kind == "pad":
        return pad(x, *[(1, 2) if a == axis else (0, 0) for a in range(rank)])
    if kind == "shrink" and x.shape[axis] > 2:
        return shrink(x, *[(1, s - 1) if a == axis else (0, s) for a, s in enumerate(x.shape)])
    if kind == "stride" and x.shape[axis] > 2:
        return stride(x, *[2 if a == axis else 1 for a in range(rank)])
    if kind == "expand":
        return expand(reshape(x, *x.shape, 1), *x.shape, 3)
    size = prod(x.shape)
    return reshape(x, 2, size // 2) if size % 2 == 0 else reshape(x, size)


def search_of(roots: list[UOp]) -> Search:
    """The search over partitions of a graph, before its first move."""
    context = ScheduleContext(list(roots), len(roots), 0, target_of, "CPU")
    node = sink(roots)
    for p in pipeline.PIPELINE.passes:
        if p.name == "decide kernels":
            break
        node = p.run(node, context) if callable(p.run) else node
    assert context.effects is not None
    return Search(Steps(context.effects, node.src, context.stored_on, "CPU"), target_of)


@pytest.mark.parametrize("part", range(6))
def test_random_graphs(part: int) -> None:
    for seed in range(part * 25, part * 25 + 25):
        check(random_graph(seed), seed=seed)


@pytest.mark.slow
def test_many_random_graphs() -> None:
    for seed in range(10_000, 12_000):
        check(random_graph(seed), seed=seed)
        with Context(FUSE=0):
            check(random_graph(seed), seed=seed)


def test_never_dearer_than_not_fusing() -> None:
    for seed in range(100):
        search = search_of(random_graph(seed))
        before = sum(k.verdict.price for k in search.kernels)
        search.run()
        after = sum(k.verdict.price for k in search.kernels if k.alive)
        assert after <= before < IMPOSSIBLE


def test_every_step_is_computed_and_every_stored_step_once() -> None:
    for seed in range(60):
        search = search_of(random_graph(seed))
        search.run()
        groups = [search.group(k) for k in search.kernels if k.alive]
        outputs = [o for g in groups for o in g.outputs]
        assert len(outputs) == len(set(outputs))
        assert set(search.steps.forced) <= set(outputs)
        assert {m for g in groups for m in g.members} == set(search.steps.order)


def test_large_row_does_not_wait_for_one_core() -> None:
    # x / x.sum() over everything: small data in one kernel, large data in parallel kernels.
    def normalised(*shape: int) -> UOp:
        x = tensor(*shape)
        return x.fdiv(expand(total(x, 0, 1, keep=True), *shape))

    assert kernels(create_schedule([normalised(8, 8)], target_of)) == 1
    assert kernels(create_schedule([normalised(2048, 1024)], target_of)) > 1


def test_matmul_is_never_repeated_for_each_output() -> None:
    a = matmul(tensor(32, 32), tensor(32, 32))
    assert kernels(create_schedule([matmul(a.maximum(0), tensor(32, 32))], target_of)) == 2
    softened = (a - row(reduce(a, Op.MAX, 1, keep=True), 32)).exp()
    schedule = create_schedule([softened], target_of)
    assert len(body_names(schedule)) == 2 and len(schedule.calls) == 1


def test_expensive_row_vector_is_not_repeated_for_each_row() -> None:
    v = tensor(1024)
    for _ in range(6):
        v = v.exp()
    spread = expand(reshape(v, 1, 1024), 1024, 1024)
    assert kernels(create_schedule([tensor(1024, 1024) * spread], target_of)) == 2


def test_cheap_producer_is_computed_by_its_users() -> None:
    scale = tensor(1, 1) * 0.5 + 1.0
    a, b = tensor(1024, 1024), tensor(512, 512)
    schedule = create_schedule([a * expand(scale, 1024, 1024), b * expand(scale, 512, 512)], target_of)
    assert sorted(body_names(schedule)) == ["e_1024_1024", "e_512_512"]


def test_small_kernels_with_a_common_operand_share_a_launch() -> None:
    scale = tensor(1, 1) * 0.5 + 1.0
    assert kernels(check([tensor(8, 8) * expand(scale, 8, 8), tensor(4, 4) * expand(scale, 4, 4)])) == 1


def test_argument_limit_cuts() -> None:
    x = tensor(4)
    for _ in range(300):
        x = x + tensor(4)
    schedule = check([x])
    assert kernels(schedule) >= 3
    bodies = [body for call in schedule.calls for body in (call.ast.src if is_launch(call.ast.arg) else (call.ast,))]
    assert max(len(body_facts(body).params) for body in bodies) <= 130


PROGRAM = """
from tests.schedule.test_fuse import random_graph, create_schedule, target_of, to_text
for seed in range(20):
    for call in create_schedule(random_graph(seed), target_of).calls:
        print(to_text(call.ast), len(call.buffers), call.written)
"""


def test_same_schedule_in_every_process() -> None:
    texts = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1] and len(texts[0]) > 1000


def test_kernel_text_is_printable() -> None:
    (call,) = create_schedule([tensor(4) + 1], target_of).calls
    assert "STORE" in to_text(call.ast)
