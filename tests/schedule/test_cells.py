"""What belongs together whatever the prices are."""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.schedule.cells import MAX_STEPS, Cell
from tests.schedule.helpers import (
    contiguous,
    expand,
    matmul,
    pad,
    permute,
    reduce,
    reshape,
    row,
    tensor,
    total,
    write,
)  # fmt: skip
from tests.schedule.test_fuse import search_of
from tests.schedule.test_pipeline import conv


def cells_of(*roots: UOp) -> list[Cell]:
    return search_of(list(roots)).cells


def test_a_chain_is_one_cell() -> None:
    (cell,) = cells_of((tensor(4, 6) + tensor(4, 6)).exp() * 2.0)
    assert [m.op for m in cell.members] == [Op.ADD, Op.EXP, Op.MUL] and cell.reduce is None
    assert cell.outer_work > cell.inner_work == 0 and cell.points == cell.out_points == 24


def test_prologue_reduce_and_epilogue_are_one_cell() -> None:
    (cell,) = cells_of(total(tensor(4, 6).exp(), 1).sqrt() + tensor(4))
    assert cell.reduce is not None and (cell.points, cell.out_points) == (24, 4)
    assert sorted(read.inside for read in cell.reads) == [False, True]


def test_broadcast_of_a_reduce_is_left_to_the_prices() -> None:
    x = tensor(4, 6)
    assert len(cells_of(x - row(total(x, 1, keep=True), 6))) == 2


def test_a_reduce_to_one_element_that_is_spread_has_loops_of_its_own() -> None:
    """The mean of one row: doing something to its one element may happen where it is used, the sum may not."""
    x = tensor(1, 64)
    mean = total(x, 1) * (1 / 64)
    first, second = cells_of(x + expand(reshape(mean, 1, 1), 1, 64) * -1.0)
    assert first.reduce is not None and first.kept == frozenset() and (first.points, first.out_points) == (64, 1)
    assert second.reduce is None and second.points == 64
    weight = tensor(64, 256)
    product = total(expand(reshape(tensor(256), 1, 256), 64, 256) * weight, 1)
    centred = product + expand(total(reshape(product, 1, 64), 1) * (1 / 64), 64) * -1.0
    search = search_of([centred])
    search.run()
    assert sum(k.alive for k in search.kernels) > 1  # one kernel would compute the product twice


def test_what_a_reduce_is_finished_with_is_not_done_on_a_border() -> None:
    """A pooling reads its convolution with a border: the convolution does not run there, behind guards."""
    sums = total(tensor(6, 8, 4), 2)
    padded = pad(sums.maximum(0.0), (1, 1), (1, 1)) * tensor(8, 10)
    first, second = cells_of(padded)
    assert first.reduce is not None and first.out_points == 48
    assert second.reduce is None and second.out_points == 80


def test_two_reduces_are_two_cells() -> None:
    assert len(cells_of(total(total(tensor(4, 6), 1), 0))) == 2


def test_padding_and_permuting_do_not_repeat_work() -> None:
    assert len(cells_of(pad(permute(tensor(4, 6).exp(), 1, 0), (1, 1), (0, 0)) + 1)) == 1


def test_repeated_work_is_left_to_the_prices() -> None:
    x = tensor(4, 1).exp()
    assert len(cells_of(tensor(4, 6) * expand(x, 4, 6))) == 2
    single = tensor(1, 1).exp()
    assert len(cells_of(tensor(4, 6) * expand(single, 4, 6))) == 1


def test_what_has_to_be_stored_stays_its_own_root() -> None:
    kept = contiguous(tensor(4, 6) + 1)
    assert [c.root.op for c in cells_of(kept.exp())] == [Op.CONTIGUOUS, Op.EXP]


def test_large_chains_are_cut() -> None:
    x, y = tensor(4), tensor(4)
    for _ in range(MAX_STEPS + 1):
        x = x + y
    assert [len(c.members) for c in cells_of(x)] == [1, MAX_STEPS]


def test_matmul_and_conv_are_contractions() -> None:
    assert cells_of(matmul(tensor(4, 5), tensor(5, 6)))[0].contraction
    x = matmul(tensor(4, 4), tensor(4, 4))
    assert all(c.contraction for c in cells_of(matmul(x, tensor(4, 4))))
    (cell,) = cells_of(conv(tensor(2, 3, 6, 6), tensor(4, 3, 3, 3), tensor(4)))
    assert cell.contraction


def test_plain_reduces_are_not() -> None:
    x = tensor(4, 6)
    weights = expand(reshape(tensor(6), 1, 6), 4, 6)
    assert not any(c.contraction for c in cells_of(total(x * weights, 1), reduce(x, Op.MAX, 0)))


def test_a_reader_of_old_values_may_join_unless_something_waits_for_the_write() -> None:
    t, x = tensor(4, 4), tensor(4, 4)
    update = write(t, t, t * 0.5)
    assert len(cells_of((t.exp() + x), update)) == 2
    between = total(update, 1, keep=True)
    cells = cells_of((t.exp() + x) * row(between, 4))
    exp = next(m for c in cells for m in c.members if m.op is Op.EXP)
    assert not any(exp in c.members and between.src[0] in [r.source for r in c.reads] for c in cells)
