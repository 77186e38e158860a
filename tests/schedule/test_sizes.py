"""How far steps are needed: from reductions and results down to sources, and in full where that is not certain."""

from __future__ import annotations

from gradlet.base.dtype import dtypes
from gradlet.graph.extents import Extents, extents, fill, write_out
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import LimitArg, Op
from gradlet.schedule.sizes import needed_sizes, values_only
from tests.schedule import helpers as h

N = UOp.variable("n", 0, 6)


def limited(x: UOp, axis: int = 0, size: UOp = N) -> UOp:
    return mk(Op.LIMIT, x.dtype, (x, size), LimitArg(axis))


def needed(*roots: UOp) -> dict[UOp, Extents]:
    plain, found = write_out(list(roots))
    return needed_sizes(toposort(plain), list(zip(plain, found, strict=True)), ())


def test_a_result_is_needed_as_far_as_it_goes() -> None:
    source = h.contiguous(h.tensor(6, 4))
    root = h.permute(limited(source).exp() * 2.0, 1, 0)
    found = needed(root)
    assert found[source] == (N, None)


def test_a_reduction_needs_its_size_only() -> None:
    source = h.contiguous(h.tensor(6, 4))
    assert needed(h.total(limited(source).exp(), 0))[source] == (N, None)
    assert needed(h.total(limited(source), 1))[source] == (N, None)


def test_what_is_also_needed_in_full_is_needed_in_full() -> None:
    source = h.contiguous(h.tensor(6, 4))
    assert source not in needed(limited(source).exp(), source * 2.0)
    other = UOp.variable("m", 0, 6)
    assert source not in needed(h.total(limited(source), 0), h.total(limited(source, size=other), 0))


def test_joined_axes_need_whole_rows() -> None:
    source = h.contiguous(h.tensor(6, 4))
    (size,) = [e for e in needed(h.reshape(limited(source), 24) * 2.0)[source] if e is not None]
    assert size is N


def test_masks_hide() -> None:
    source = h.contiguous(h.tensor(6, 4))
    assert needed(fill(limited(source).exp(), ()))[source] == (N, None)


def test_a_table_is_needed_in_full() -> None:
    table, index = h.contiguous(h.tensor(6, 4)), h.tensor(3, dtype=dtypes.int32)
    assert table not in needed(h.gather(limited(table), index))


def test_numbers_that_only_sizes_are_made_of_are_no_values() -> None:
    plain, _ = write_out([h.total(limited(h.tensor(8, 4), size=N + 2), 0)])
    order = toposort(plain)
    assert any(n.op is Op.ADD for n in order)
    assert not any(n.op in (Op.ADD, Op.VARIABLE) for n in values_only(order, plain))
    assert extents(plain[0]) == ()
