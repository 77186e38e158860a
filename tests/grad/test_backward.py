"""The reverse walk: what it visits, how it adds, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import GradientError
from gradlet.grad.backward import balanced_sum, gradients
from gradlet.grad.custom import CustomGradient
from gradlet.grad.shapes import reduce_axes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from tests.grad.helpers import Leaves


def total(node: UOp) -> UOp:
    return reduce_axes(Op.ADD, node, tuple(range(len(node.shape))))


def test_a_target_in_the_middle_gets_its_own_gradient() -> None:
    graph = Leaves()
    x = graph.add(np.array([1.0, 2.0]))
    y = x * x
    by_y, by_x, by_root = gradients(total(y * 3.0), None, [y, x, total(y * 3.0)])
    assert by_y is not None and by_x is not None and by_root is not None
    values = graph.evaluate([by_y, by_x, by_root])
    np.testing.assert_array_equal(values[0], [3, 3])
    np.testing.assert_array_equal(values[1], [6, 12])
    np.testing.assert_array_equal(values[2], 1)


def test_an_unreachable_target_gives_none() -> None:
    graph = Leaves()
    x, y = graph.add(np.ones(2)), graph.add(np.ones(2))
    assert gradients(total(x), None, [y, x])[0] is None


def test_a_target_below_a_detached_node_gives_none() -> None:
    graph = Leaves()
    x = graph.add(np.ones(2))
    assert gradients(total(mk(Op.DETACH, x.dtype, (x,))), None, [x]) == [None]


def test_the_same_target_twice() -> None:
    graph = Leaves()
    x = graph.add(np.ones(2))
    first, second = gradients(total(x * x), None, [x, x])
    assert first is second


def test_nothing_is_derived_beside_the_path() -> None:
    graph = Leaves()
    x, y = graph.add(np.ones(2)), graph.add(np.ones(2))
    (found,) = gradients(total(x * y.sin().exp()), None, [x])
    assert found is not None
    assert all(node.op is not Op.SIN or node.src[0] is y for node in found.toposort())


def test_a_node_of_many_uses_adds_in_a_shallow_tree() -> None:
    graph = Leaves()
    x = graph.add(np.ones(1))
    root = balanced_sum([x * float(i) for i in range(1000)])
    (found,) = gradients(total(root), None, [x])
    assert found is not None
    assert graph.evaluate([found])[0][0] == 499_500
    depth: dict[UOp, int] = {}
    for node in found.toposort():
        depth[node] = 1 + max((depth[s] for s in node.src), default=0)
    assert depth[found] < 30


def test_a_deep_chain_does_not_recurse() -> None:
    graph = Leaves()
    x = graph.add(np.ones(1))
    node = x
    for _ in range(20_000):
        node = node * 1.0 + 0.0
    (found,) = gradients(total(node), None, [x])
    assert found is not None
    assert graph.evaluate([found])[0][0] == 1


def test_a_root_of_several_elements_needs_a_seed() -> None:
    graph = Leaves()
    x = graph.add(np.ones((2, 3)))
    with pytest.raises(GradientError, match=r"\(2, 3\).*sum"):
        gradients(x * x, None, [x])


def test_an_integer_root_or_target_is_refused() -> None:
    graph = Leaves()
    x, i = graph.add(np.ones(1)), graph.add(np.ones(1, np.int32))
    with pytest.raises(GradientError, match="int32"):
        gradients(i, None, [x])
    with pytest.raises(GradientError, match="target 1 is dtypes.int32"):
        gradients(x, None, [x, i])


def test_a_seed_of_another_shape_or_dtype_is_refused() -> None:
    graph = Leaves()
    x = graph.add(np.ones((2, 3)))
    with pytest.raises(GradientError, match=r"\(3, 2\)"):
        gradients(x, graph.add(np.ones((3, 2))), [x])
    with pytest.raises(GradientError, match="float32"):
        gradients(x, graph.add(np.ones((2, 3), np.float32)), [x])


def test_a_bare_constant_is_no_target() -> None:
    graph = Leaves()
    x, two = graph.add(np.ones(1)), UOp.const(dtypes.float64, 2.0)
    with pytest.raises(GradientError, match="bare constant"):
        gradients(x * two, None, [two])


def test_a_custom_gradient_replaces_what_is_behind_it() -> None:
    graph = Leaves()
    x, y = graph.add(np.array([1.5, -2.5])), graph.add(np.array([2.0, 2.0]))
    rounded = (x * y).trunc()
    custom = {rounded: CustomGradient((x, y), lambda grad: (grad * 10.0, None))}  # straight through, times ten
    by_x, by_y = gradients(total(rounded * rounded), None, [x, y], custom)
    assert by_x is not None and by_y is None
    np.testing.assert_array_equal(graph.evaluate([by_x])[0], [60, -100])
