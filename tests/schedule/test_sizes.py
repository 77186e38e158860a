"""How far steps are needed: from reductions and results down to sources, and in full where that is not certain."""

from __future__ import annotations

from gradlet import Tensor, Variable
from gradlet.base.dtype import dtypes
from gradlet.graph.extents import Extents, extents, fill, size_text, write_out
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import LimitArg, Op, PadArg, WindowArg
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


def windows(x: UOp, taps: int, stride: int) -> UOp:
    """Windows along the first of two axes: [places, columns, taps]."""
    wide = h.expand(h.reshape(x, *x.shape, 1), *x.shape, taps)
    count = (x.shape[0] - taps) // stride + 1
    return mk(Op.WINDOW, x.dtype, (wide,), WindowArg(0, 2, stride, 1, count))


def test_windows_need_what_they_see() -> None:
    source, size = h.contiguous(h.tensor(14, 4)), UOp.variable("n", 2, 6) * 2
    sums = h.total(windows(limited(source, size=size), 3, 2), 2)
    (need,) = [e for e in needed(sums)[source] if e is not None]  # n - 1 windows see 2 * n - 1 elements
    assert size_text(need) == "2 * n + -1"


def test_zeros_around_are_not_needed_before() -> None:
    source, n = h.contiguous(h.tensor(6, 4)), UOp.variable("n", 1, 6)
    padded = mk(Op.PAD, source.dtype, (limited(source, size=n),), PadArg(((1, 1), (0, 0))))
    grown = limited(fill(padded, ()), size=n + 2)
    found = needed(h.total(windows(h.contiguous(grown), 3, 1), 2))
    assert found[source] == (n, None)
    assert [size_text(e) for n, sizes in found.items() if n.op is Op.CONTIGUOUS and n is not source
            for e in sizes if e is not None] == ["n + 2"]  # fmt: skip


def test_axes_that_a_joined_one_cannot_say_are_needed_in_full() -> None:
    source, other = h.contiguous(h.tensor(6, 4)), UOp.variable("m", 1, 4)
    both = limited(limited(source), 1, other)
    flat = h.reshape(fill(both, (N, None)), 24)
    assert needed(h.total(flat, 0))[source] == (N, other)
    split = h.contiguous(h.reshape(h.contiguous(h.tensor(24)), 6, 4))
    assert needed(h.total(limited(limited(split), 1, other), 0, 1))[split] == (N, other)
    (size,) = [
        e for e in needed(h.total(limited(limited(split), 1, other), 0, 1))[split.src[0].src[0]] if e is not None
    ]
    assert size_text(size) == "4 * n"


def test_kernels_of_rows_that_end_at_launch_all_end_there() -> None:
    """No region cuts such rows in blocks, which would be those of the most rows."""
    count = Variable("texts", 1, 16).bind(3)
    x = Tensor.empty(16, 128, 384)[:count]
    for _ in range(2):
        wide = (x @ Tensor.empty(384, 1536)).gelu()
        x = (x + wide @ Tensor.empty(1536, 384)).layernorm()
    kernels = [call.ast for call in x.schedule().calls]
    bodies = [body for ast in kernels for body in (ast.src if is_launch(ast.arg) else (ast,))]
    products = [body for body in bodies if any(n.op is Op.REDUCE for n in body.toposort())]
    assert len(products) >= 3
    for body in products:
        assert any(n.op is Op.RANGE and n.src[0].op is Op.VARIABLE for n in body.toposort())
