"""Lowering of single kernels."""

from __future__ import annotations

from typing import Any

import pytest

from gradlet import Tensor
from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, toposort
from gradlet.graph.spec import check as check_spec
from gradlet.ops.op import AxisKind, Op, Stage
from gradlet.schedule.ranges import Lowering
from tests.schedule.helpers import (
    buffer,
    check,
    contiguous,
    create_schedule,
    expand,
    flip,
    gather,
    matmul,
    pad,
    permute,
    reduce,
    reshape,
    row,
    scatter,
    shrink,
    target_of,
    tensor,
    total,
    unwindow,
    window,
)  # fmt: skip


def only_kernel(root: UOp) -> UOp:
    (call,) = check([root]).calls
    check_spec(call.ast, Stage.KERNEL)
    return call.ast


def count(ast: UOp, op: Op) -> int:
    return sum(n.op is op for n in toposort((ast,)))


def test_movement_leaves_only_index_arithmetic() -> None:
    x = tensor(4, 6)
    ast = only_kernel(permute(flip(shrink(x, (1, 3), (0, 6)), 1), 1, 0) + 1)
    assert count(ast, Op.WHERE) == count(ast, Op.IDIV) == count(ast, Op.MOD) == 0
    assert ast.arg.name == "e_6_2"


def test_padding_is_a_guard_on_the_load() -> None:
    ast = only_kernel(pad(tensor(4, 6), (1, 1), (0, 0)) + 1)
    (load,) = [n for n in toposort((ast,)) if n.op is Op.LOAD]
    assert len(load.src[0].src) == 3 and load.src[1].arg == 0
    assert count(ast, Op.WHERE) == 0


def test_padding_of_a_computed_value_is_a_select() -> None:
    ast = only_kernel(pad(tensor(4, 6).exp(), (1, 1), (0, 0)) + 1)
    assert count(ast, Op.WHERE) == 1


def test_guards_that_hold_are_dropped() -> None:
    padded = pad(tensor(4, 6), (1, 1), (0, 0))
    ast = only_kernel(shrink(padded, (1, 5), (0, 6)) + 1)
    assert count(ast, Op.CMPLT) == 0 and count(ast, Op.AND) == 0


def test_reshape_that_divides_needs_no_division() -> None:
    ast = only_kernel(reshape(permute(reshape(tensor(4, 6) * 2.0, 4, 2, 3), 1, 0, 2), 8, 3) + 1)
    assert count(ast, Op.IDIV) == count(ast, Op.MOD) == 0


def test_equal_reduces_at_one_place_are_one() -> None:
    x = tensor(4, 6)
    m = row(reduce(x, Op.MAX, 1, keep=True), 6)
    ast = only_kernel((x - m) * m)
    assert count(ast, Op.REDUCE) == 1


def test_independent_reduces_of_one_row_share_their_range() -> None:
    x = tensor(4, 6)
    ast = only_kernel(total(x, 1) * reduce(x, Op.MAX, 1))
    kinds = [n.arg.kind for n in toposort((ast,)) if n.op is Op.RANGE]
    assert sorted(kinds) == [AxisKind.LOOP, AxisKind.REDUCE]
    assert count(ast, Op.LOAD) == 1


def test_reduces_that_depend_on_each_other_have_ranges_of_their_own() -> None:
    x = tensor(4, 6)
    ast = only_kernel(total((x - row(reduce(x, Op.MAX, 1, keep=True), 6)).exp(), 1))
    assert sum(n.op is Op.RANGE for n in toposort((ast,))) == 3


def test_ranges_are_numbered_outermost_first() -> None:
    ast = only_kernel(matmul(tensor(4, 5), tensor(5, 6)))
    ranges = sorted((n for n in toposort((ast,)) if n.op is Op.RANGE), key=lambda n: n.arg.number)
    assert [r.arg.number for r in ranges] == [0, 1, 2] and ast.arg.name == "r_4_6_5"
    assert [r.arg.kind for r in ranges] == [AxisKind.LOOP, AxisKind.LOOP, AxisKind.REDUCE]


def test_gather_is_one_guarded_load_a_row() -> None:
    ast = only_kernel(gather(tensor(100, 16), tensor(5, dtype=dtypes.int32)))
    assert ast.arg.name == "e_5_16"  # as many iterations as elements come out, whatever the table's size


def test_unwindow_of_stride_two_asks_for_divisibility() -> None:
    wide = expand(reshape(tensor(4), 4, 1), 4, 3)
    only_kernel(total(unwindow(wide, 0, 1, 2, 1, 9), 1))
    only_kernel(reduce(window(expand(reshape(tensor(9), 9, 1), 9, 3), 0, 1, 2, 1, 4), Op.MAX, 1))


def test_scatter_runs_its_positions_in_order() -> None:
    target, index, rows = tensor(6, 3), buffer(20, dtypes.int32), tensor(20, 3)
    last = create_schedule([scatter(target, index, rows, Op.ADD)], target_of).calls[-1].ast
    kinds = [{n.arg.kind: n.src[0].arg for n in toposort((body,)) if n.op is Op.RANGE} for body in last.src]
    assert {AxisKind.ORDERED: 20, AxisKind.LOOP: 3} in kinds  # beside the copy of the target


def test_reduce_over_nothing_is_the_identity() -> None:
    check([total(tensor(0, 4), 0) + 1])
    check([reduce(tensor(4, 0), Op.MUL, 1)])


def test_x_plus_its_transpose_has_two_ranges() -> None:
    x = tensor(5, 5)
    assert only_kernel(x + permute(x, 1, 0)).arg.name == "e_5_5"


@pytest.mark.parametrize("op", [None, Op.ADD, Op.MUL, Op.MAX])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32], ids=str)
def test_a_scatter_runs_for_every_position_also_for_those_that_are_the_same(op: Op | None, dtype: DType) -> None:
    target, other = contiguous(tensor(5, dtype=dtype) * 2), contiguous(tensor(5, 2, dtype=dtype) * 2)
    index, value = tensor(1, dtype=dtypes.int32), tensor(1, dtype=dtype)
    check([scatter(target, expand(index, 3), expand(value, 3), op)])
    check([scatter(target, expand(index, 1), expand(value, 1), op)])
    check([scatter(target, expand(index, 7), UOp.const(dtype, 2), op)])
    # Only along one of the axes of the positions.
    some = expand(tensor(2, 1, dtype=dtypes.int32), 2, 3)
    check([scatter(target, some, expand(tensor(2, 1, dtype=dtype), 2, 3), op)])
    check([scatter(other, some, expand(tensor(2, 1, 2, dtype=dtype), 2, 3, 2), op)])
    check([scatter(target, some, tensor(2, 3, dtype=dtype), op)])


def test_views_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step asks for what it reads, and again when that is known."""
    asked: list[tuple[object, ...]] = []
    follow = Lowering._follow

    def counted(self: Lowering, *request: Any) -> Any:
        asked.append((self, *request))
        return follow(self, *request)

    monkeypatch.setattr(Lowering, "_follow", counted)
    x, y = Tensor.empty(6, 4), Tensor.empty(4, 6)
    total = (x.reshape(24) * y.transpose(0, 1).reshape(24)).exp().reshape(4, 6)
    (total + total.reshape(6, 4).transpose(0, 1)).schedule()
    assert len(asked) == len(set(asked)) >= 5
