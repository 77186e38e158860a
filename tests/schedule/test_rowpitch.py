"""Factors of products on matrix units whose rows begin at odd places: copied where it pays, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.codegen.pipeline import lower
from gradlet.graph import numeric
from gradlet.graph.evaluate_tensor import evaluate
from gradlet.graph.node import toposort
from gradlet.ops.op import Op
from gradlet.ops.opt import OptKind
from gradlet.schedule import rowpitch, widen
from gradlet.schedule.calls import KernelCall
from gradlet.target.target import SM_90

GPU = "NULL:sm_90"


def empty(*shape, dtype=dtypes.bfloat16):
    return Tensor.empty(*shape, device=GPU, dtype=dtype)


def copies_and_units(result):
    """How many kernels come before the product, and whether that uses matrix units."""
    calls = [c for c in result.schedule().calls if isinstance(c, KernelCall)]
    kinds = {opt.kind for opt in lower(calls[-1].ast, SM_90).opts}
    return len(calls) - 1, OptKind.TENSORIZE in kinds


@pytest.mark.parametrize(
    ("build", "copies"),
    [
        (lambda: empty(5000, 5000) @ empty(5000, 5000), 2),
        (lambda: empty(5000, 5000) @ empty(5000, 5000).T, 2),
        (lambda: empty(1001, 1001) @ empty(1001, 1001), 2),
        (lambda: empty(1001, 1001).T @ empty(1001, 1001), 2),
        (lambda: (empty(1001, 1001, dtype=dtypes.float16) @ empty(1001, 1001, dtype=dtypes.float16)).relu(), 2),
        (lambda: empty(4, 1001, 333) @ empty(4, 333, 1001), 2),
        (lambda: empty(1100, 1100)[7:1050, 3:1003] @ empty(1000, 1000), 1),
        (lambda: empty(4096, 4096) @ empty(4096, 4096), 0),
        (lambda: empty(1000, 1000) @ empty(1000, 1000), 0),  # multiples of 16 bytes: too few uses to pay
        (lambda: empty(4096, 5000) @ empty(5000, 4096), 1),  # rows of 4096 lie well, those of 5000 do not
    ],
)
def test_what_is_copied(build, copies):
    assert copies_and_units(build()) == (copies, True)


@pytest.mark.parametrize("device", ["CPU", "NULL:nvptx"])
def test_machines_without_a_copy_engine_copy_nothing(device):
    a = Tensor.empty(1001, 1001, device=device, dtype=dtypes.bfloat16)
    plan = (a.float() @ a.float()).schedule()
    assert not any("1001_1024" in c.ast.arg.name for c in plan.calls if isinstance(c, KernelCall))


VIEWS = {
    "plain": ((70, 67), lambda x: x),
    "turned": ((67, 70), lambda x: x.T),
    "part": ((80, 99), lambda x: x[3:73, 5:72]),
    "batch": ((2, 70, 67), lambda x: x[1]),
    "flat": ((70 * 67,), lambda x: x.reshape(70, 67)),
    "every other": ((140, 67), lambda x: x[::2]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_results_are_the_same(name, monkeypatch):
    monkeypatch.setattr(rowpitch, "USES_OF_LINES", 1)
    monkeypatch.setattr(rowpitch, "USES_OF_PIECES", 1)
    shape, view = VIEWS[name]
    left, right = empty(*shape), empty(67, 65)
    root = (view(left) @ right).uop
    after = widen.convert_once(widen.convert_before_repeating(root), lambda device: SM_90, GPU)
    assert sum(n.op is Op.PAD for n in toposort((after,))) == 2
    rng = np.random.default_rng(1)
    data = {
        n: numeric.store(rng.standard_normal(n.arg.size).astype(np.float32), n.dtype)
        for n in toposort((root,))
        if n.op is Op.BUFFER
    }
    results = evaluate([root, after], data)
    np.testing.assert_array_equal(results[0], results[1])


def test_small_and_strided_factors_stay(monkeypatch):
    monkeypatch.setattr(rowpitch, "USES_OF_LINES", 1)
    monkeypatch.setattr(rowpitch, "USES_OF_PIECES", 1)
    for left in (empty(70, 134)[:, ::2], empty(70, 67).flip(1)):  # nothing lies along memory
        root = widen.convert_before_repeating((left @ empty(67, 64)).uop)
        after = widen.convert_once(root, lambda device: SM_90, GPU)
        assert sum(n.op is Op.PAD for n in toposort((after,))) <= sum(n.op is Op.PAD for n in toposort((root,)))
