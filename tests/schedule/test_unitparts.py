"""Products with long sums and few results on a GPU go in parts; launches of a training step fill the GPU."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from gradlet import Tensor, dtypes, nn
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import SCHEDULABLE, Lowering, lower
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize import heuristic
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import ranges_in, size_bound
from gradlet.schedule.calls import KernelCall
from gradlet.target.target import SM_90

GPU = "NULL:sm_90"


def empty(*shape: int, dtype: Any = dtypes.bfloat16) -> Tensor:
    return Tensor.empty(*shape, device=GPU, dtype=dtype)


def programs(*values: Tensor) -> list[tuple[UOp, LinearProgram]]:
    calls = [c for c in values[0].schedule(*values[1:]).calls if isinstance(c, KernelCall)]
    return [(c.ast, lower(c.ast, SM_90)) for c in calls]


def units(found: list[tuple[UOp, LinearProgram]]) -> list[LinearProgram]:
    return [p for _, p in found if any(n.op is Op.WGMMA for n in p.uops)]


def test_the_gradient_of_a_weight_is_made_in_parts() -> None:
    x, g = empty(16, 1024, 768), empty(16, 1024, 768)
    found = programs((x.reshape(-1, 768).T @ g.reshape(-1, 768)).cast(dtypes.float32))
    (product,) = units(found)
    assert product.grid == 128 and len(found) == 2  # eight parts, and their sum
    with scope(STRICT_FLOAT=1):
        assert not units(programs((x.reshape(-1, 768).T @ g.reshape(-1, 768)).cast(dtypes.float32)))


@pytest.mark.parametrize(
    "value",
    [
        lambda: empty(4096, 4096) @ empty(4096, 4096),
        lambda: empty(2048, 768) @ empty(768, 3072),
        lambda: empty(64, 256, 128) @ empty(64, 128, 256),
    ],
)
def test_other_products_are_whole(value: Any) -> None:
    assert len(programs(value())) == 1


def workgroups(ast: UOp) -> int:
    """How many blocks of a kernel there are, whoever walks them."""
    sink = SCHEDULABLE.run(ast, Lowering(SM_90))
    made = actions.apply(sink, heuristic.choose(sink, SM_90), SM_90)
    return prod(size_bound(n) for n in made.toposort() if n.op is Op.RANGE and n.arg.kind is AxisKind.PARALLEL)


def training_step(width: int, tokens: tuple[int, int], vocabulary: int) -> list[UOp]:
    """A block of GPT-2 without attention, between an embedding and the same again as last layer, with AdamW."""
    shapes = {"tokens": (vocabulary, width), "places": (tokens[1], width), "norm": (width,), "shift": (width,),
              "up": (4 * width, width), "up bias": (4 * width,), "down": (width, 4 * width)}  # fmt: skip
    weights = {name: empty(*shape, dtype=dtypes.float32) for name, shape in shapes.items()}
    optimizer = nn.optim.AdamW([*weights.values()], lr=1e-4)
    numbers, targets = (empty(*tokens, dtype=dtypes.int32) for _ in range(2))
    with Tensor.train():
        optimizer.zero_grad()
        w = {name: weight.cast(dtypes.bfloat16) for name, weight in weights.items()}
        x = w["tokens"][numbers] + w["places"]
        h = x.layernorm() * w["norm"] + w["shift"]
        x = x + (h @ w["up"].T + w["up bias"]).gelu() @ w["down"].T
        logits = (x.layernorm() @ w["tokens"].T).cast(dtypes.float32).reshape(-1, vocabulary)
        loss = logits.sparse_categorical_crossentropy(targets.reshape(-1))
        loss.backward()
        plan = loss.schedule(*optimizer.schedule_step())
    return [c.ast for c in plan.calls if isinstance(c, KernelCall)]


def accesses(ast: UOp) -> int:
    """How often the access that runs most does."""
    ranges = ranges_in(ast)
    return max(prod(map(size_bound, ranges[n])) for n in ast.toposort() if n.op in (Op.LOAD, Op.STORE))


def test_every_large_launch_of_a_training_step_fills_the_gpu() -> None:
    found = training_step(768, (16, 1024), 50304)
    large = [(ast.arg.name, workgroups(ast)) for ast in found if accesses(ast) >= 1 << 20]
    assert len(large) > 15
    assert [each for each in large if each[1] < SM_90.cores * 3 // 4] == []
