"""Graph nodes and tensors spell operations with the same methods."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import ShapeError
from gradlet.graph.node import UOp
from gradlet.ops.elementwise import ElementwiseMixin
from gradlet.ops.movement import MovementMixin
from gradlet.ops.op import Op


def test_node_and_tensor_build_the_same_graph() -> None:
    t = Tensor([[1.0, 2.0], [3.0, 4.0]])

    def program(x: Tensor | UOp) -> Tensor | UOp:
        y = (x * 2 + 1).exp()
        return y.reshape(4).flip(0).reshape(2, 2).permute(1, 0).shrink(((0, 1), None)).expand(1, 2)

    ours, node = program(t), program(t.uop)
    assert isinstance(ours, Tensor)
    assert isinstance(node, UOp)
    assert ours.uop is node


def test_every_public_method_of_the_core_mixins_is_shared() -> None:
    for mixin in (ElementwiseMixin, MovementMixin):
        for name in vars(mixin):
            if not name.startswith("_"):
                assert hasattr(UOp, name), name
                assert hasattr(Tensor, name), name


def test_movement_that_changes_nothing_adds_no_node() -> None:
    t = Tensor([[1.0, 2.0]])
    for same in (t.reshape(1, 2), t.permute(0, 1), t.expand(1, 2), t.shrink((None, (0, 2))), t.flip(0), t.pad((0, 0))):
        assert same.uop is t.uop


def test_windows() -> None:
    source = Tensor([1, 2, 3, 4, 5]).reshape(5, 1).expand(5, 2)
    assert source.window(0, 1, 2, 1).tolist() == [[1, 2], [3, 4]]
    assert source.window(0, 1, 1, 3).tolist() == [[1, 4], [2, 5]]
    spread = Tensor([[1, 2], [3, 4]]).unwindow(0, 1, 2, 1, 5)
    assert spread.tolist() == [[1, 0], [0, 2], [3, 0], [0, 4], [0, 0]]
    assert spread.uop.op is Op.UNWINDOW
    with pytest.raises(ShapeError, match="pad it first"):
        source.window(0, 1, 1, 5)
