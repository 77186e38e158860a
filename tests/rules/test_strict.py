"""STRICT_FLOAT: every rule that may change bits of a float is off, and results are those of IEEE 754 step by step."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import Rule, RuleSet, observe_rules, rewrite
from gradlet.ops.op import AxisKind, BufferArg, Op, RangeArg, ReduceArg
from gradlet.rules.sets import INDEX_MATH, SIMPLIFY

X = mk(Op.BUFFER, dtypes.float32, (), BufferArg(-1, 4, "TEST"))
UNUSED = mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, 3),), RangeArg(0, AxisKind.REDUCE))
# Nodes that inexact rules change; a new such rule needs one.
CHANGED = (
    X + 0.0,
    X.alu(Op.POW, X.coerce(2.0)),
    mk(Op.REDUCE, dtypes.float32, (UOp.const(dtypes.float32, 0.1), UNUSED), ReduceArg(Op.ADD)),
)
INEXACT = [rule for rule in dict.fromkeys((*SIMPLIFY.rules, *INDEX_MATH.rules)) if not rule.exact]


@pytest.mark.parametrize("rule", INEXACT, ids=lambda rule: repr(rule.pattern))
def test_an_inexact_rule_is_off(rule: Rule) -> None:
    alone = RuleSet("alone", "bounded", [rule])
    nodes = [node for node in CHANGED if rewrite(node, alone) is not node]
    assert nodes, "no example for this rule"
    with scope(STRICT_FLOAT=1):
        assert all(rewrite(node, RuleSet("alone", "bounded", [rule])) is node for node in nodes)


def test_examples_stay_as_they_are() -> None:
    for node in CHANGED:
        assert rewrite(node, INDEX_MATH) is not node
        with scope(STRICT_FLOAT=1):
            assert rewrite(node, INDEX_MATH) is node


def test_inexact_rules_are_off_where_somebody_watches() -> None:
    rules = RuleSet("watched", "bounded", INEXACT)
    seen: list[Rule] = []
    with observe_rules(lambda rule, before, after: seen.append(rule)):
        assert rewrite(X + 0.0, rules) is X
        with scope(STRICT_FLOAT=1):
            assert rewrite(X + 0.0, rules) is X + 0.0
    assert len(seen) == 1


def test_results_are_rounded_step_by_step() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(1000).astype(np.float32) for _ in range(3))

    def results() -> list[np.ndarray]:
        x, y, z = Tensor(a), Tensor(b), Tensor(c)
        negative_zero = Tensor(np.array([-0.0], np.float32))
        return [(x * y + z).numpy(), (x * y - z * 3).numpy(), (negative_zero + 0.0).numpy()]

    relaxed = results()  # before: what is cached of it must not be taken
    with scope(STRICT_FLOAT=1):
        strict = results()
    np.testing.assert_array_equal(strict[0], a * b + c)
    np.testing.assert_array_equal(strict[1], a * b - c * np.float32(3))
    assert not np.signbit(strict[2][0])
    assert np.signbit(relaxed[2][0])
    np.testing.assert_allclose(relaxed[0], strict[0], rtol=1e-4, atol=1e-6)


STRICT = {
    "sum": lambda x: x.sum(),
    "row sums": lambda x: x.sum(1),
    "column sums": lambda x: x.sum(0),
    "product": lambda x: (x * 1e-2 + 1).prod(1),
    "matmul": lambda x: x @ x[:31].T,
    "transposed matmul": lambda x: x.T @ x,
    "convolution": lambda x: x[:36, :100].reshape(4, 9, 10, 10).conv2d(x[:9, :36].reshape(4, 9, 3, 3)[:, :, :, :2]),
    "running sum": lambda x: x.cumsum(1),
    "variance": lambda x: x.var(1),
    "layer norm": lambda x: x.layernorm(),
    "arithmetic": lambda x: ((x * 3 - x * x + 0.1) / (x + 2)).abs().sqrt() * x + x,
    "float64": lambda x: (x.double() @ x.double().T).sum(),
}


@pytest.mark.parametrize("name", STRICT)
def test_bits_are_those_of_the_evaluator(name: str) -> None:
    """One operation after another, in the order of the elements, nothing contracted."""
    values = np.random.default_rng(1).standard_normal((66, 301)).astype(np.float32)
    with scope(STRICT_FLOAT=1):
        compiled, interpreted = (STRICT[name](Tensor(values, device=d)).numpy() for d in ("CPU", "PYTHON"))
    assert compiled.tobytes() == interpreted.tobytes()


def test_sums_go_from_the_first_element_to_the_last() -> None:
    values = np.random.default_rng(2).standard_normal(200_000).astype(np.float32)
    for device in ("CPU", "PYTHON"):
        with scope(STRICT_FLOAT=1):
            assert Tensor(values, device=device).sum().numpy() == np.add.accumulate(values)[-1]
    a, b = values[:900].reshape(30, 30), values[900:1800].reshape(30, 30)
    total = np.zeros((30, 30), np.float32)
    for k in range(30):
        total = total + a[:, k : k + 1] * b[k]
    with scope(STRICT_FLOAT=1):
        np.testing.assert_array_equal((Tensor(a) @ Tensor(b)).numpy(), total)


def test_the_gradient_of_a_weight_is_summed_in_the_order_of_pixels() -> None:
    """Although the sum is so long that it is made in parts otherwise."""
    rng = np.random.default_rng(3)
    image, g = rng.standard_normal((8, 4, 66, 66), np.float32), rng.standard_normal((8, 16, 64, 64), np.float32)
    x, w = Tensor(image), Tensor(rng.standard_normal((16, 4, 3, 3), np.float32))
    with scope(STRICT_FLOAT=1):
        (found,) = x.conv2d(w).gradient(w, gradient=Tensor(g))
        result = found.numpy()
    total = np.zeros((16, 4, 3, 3), np.float32)
    for batch, row, column in np.ndindex(8, 64, 64):
        window = image[batch, :, row : row + 3, column : column + 3]
        total = total + g[batch, :, row, column][:, None, None, None] * window
    np.testing.assert_array_equal(result, total)


def test_the_gradient_of_an_image_sums_channels_before_taps() -> None:
    """Although one sum of both is a convolution."""
    rng = np.random.default_rng(4)
    g, weight = rng.standard_normal((1, 32, 62), np.float32), rng.standard_normal((32, 16, 3), np.float32)
    x = Tensor(rng.standard_normal((1, 16, 64), np.float32))
    with scope(STRICT_FLOAT=1):
        (found,) = x.conv2d(Tensor(weight)).gradient(x, gradient=Tensor(g))
        result = found.numpy()
    products = np.zeros((16, 3, 62), np.float32)
    for channel in range(32):
        products = products + weight[channel, :, :, None] * g[0, channel]
    total = np.zeros((1, 16, 64), np.float32)
    for tap in range(3):
        total[0, :, tap : tap + 62] += products[:, tap]
    np.testing.assert_array_equal(result, total)
