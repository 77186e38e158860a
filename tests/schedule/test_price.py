"""Prices: relations that must hold, whatever the constants are."""

from __future__ import annotations

from dataclasses import replace

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.schedule.fuse import Search
from gradlet.schedule.price import IMPOSSIBLE, Pricer, Verdict
from tests.schedule.helpers import (
    expand,
    gather,
    matmul,
    permute,
    reduce,
    reshape,
    row,
    shrink,
    target_of,
    tensor,
    total,
    window,
    write,
)
from tests.schedule.test_fuse import search_of


def whole(search: Search) -> Verdict:
    """Everything in one kernel."""
    return search.joined(search.cells)[2]


def separate(search: Search) -> int:
    return sum(k.verdict.price for k in search.kernels)


def transposed(x: UOp) -> UOp:
    return permute(x, 1, 0)


def softmax(rows: int, columns: int) -> Search:
    x = tensor(rows, columns)
    e = (x - row(reduce(x, Op.MAX, 1, keep=True), columns)).exp()
    return search_of([e.fdiv(row(total(e, 1, keep=True), columns))])


def test_prices_are_whole_numbers_of_picoseconds() -> None:
    search = softmax(64, 64)
    assert isinstance(separate(search), int) and isinstance(whole(search).price, int)


def test_row_statistics_are_cheaper_in_one_kernel() -> None:
    search = softmax(512, 512)
    verdict = whole(search)
    assert verdict.price < separate(search)
    (rows,) = verdict.chain
    assert verdict.outer == rows and len(rows) == 1


def test_one_long_row_has_no_outer_loop() -> None:
    search = softmax(1, 1 << 20)
    assert whole(search).outer == frozenset()
    assert whole(search).price > separate(search) * 6 // 10


def test_column_statistics_beside_row_statistics_are_impossible_in_one_nest() -> None:
    x = tensor(64, 48)
    both = x - row(total(x, 1, keep=True), 48) - expand(reshape(total(x, 0), 1, 48), 64, 48)
    assert whole(search_of([both])).price == IMPOSSIBLE


def test_two_contractions_are_impossible() -> None:
    search = search_of([matmul(matmul(tensor(8, 8), tensor(8, 8)), tensor(8, 8))])
    assert whole(search).price == IMPOSSIBLE


def test_lanes_that_find_their_elements_one_by_one_fill_no_tile() -> None:
    """Spectra of a padded signal, whose elements an index picks: once a window and filter is 400 times too often."""
    signal = gather(tensor(576), tensor(640, dtype=dtypes.int32))
    windows = window(expand(reshape(signal, 640, 1), 640, 256), 0, 1, 128, 1, 4)
    search = search_of([matmul(tensor(258, 256), transposed(windows))])
    for cores in (1, 2, 8):
        pricer = Pricer(search.steps, replace(target_of("CPU"), cores=cores, flops_per_second=cores * 160 * 10**9))
        cells, stored, _ = search.joined(search.cells)
        apart = [pricer.price(k.cells, k.stored).price for k in search.kernels]
        assert len(apart) == 2 and pricer.price(cells, stored).price > sum(apart)


def test_rows_that_an_index_picks_are_as_dear_as_others_in_a_product() -> None:
    """One look-up a row of a tile serves all of its columns."""
    picked = search_of([matmul(gather(tensor(1000, 256), tensor(64, dtype=dtypes.int32)), tensor(256, 258))])
    columns = transposed(gather(tensor(256, 64), tensor(256, dtype=dtypes.int32)))
    summed = search_of([matmul(columns, tensor(256, 258))])
    assert whole(picked).price < whole(summed).price


def test_rows_that_two_indices_pick_are_other_memory() -> None:
    """Two looks at one table have memory in common where the index is the same."""
    table, index, other = tensor(1000, 256), tensor(64, dtype=dtypes.int32), tensor(64, dtype=dtypes.int32)
    same = search_of([gather(table, index).exp(), gather(table, index) * 2.0])
    apart = search_of([gather(table, index).exp(), gather(table, other) * 2.0])
    assert whole(apart).traffic - whole(same).traffic == 64 * 256 * 4 + 64 * 4


def test_a_write_and_who_reads_its_result_are_impossible() -> None:
    t = tensor(8)
    search = search_of([write(t, shrink(t, (0, 2)), UOp.const(t.dtype, 1)) * 2.0])
    assert whole(search).price == IMPOSSIBLE


def test_a_reduce_that_two_loop_nests_repeat_is_counted_twice() -> None:
    x = tensor(64, 32, 16)
    inner = total(x, 2)  # needed at every (i, j), in the loop of the row sum and in the output loop
    result = inner.exp() - row(total(inner.exp(), 1, keep=True), 32)
    once = search_of([total(inner.exp(), 1)])
    twice = search_of([result])
    price = Pricer(twice.steps, replace(target_of("CPU"), bytes_per_second=10**15, launch_ps=0))
    work = price.price(twice.cells, twice.stored_cells(twice.cells)).price
    single = Pricer(once.steps, price.target).price(once.cells, once.stored_cells(once.cells)).price
    assert work > single * 17 // 10


def test_vectors_that_meet_codes_are_nothing_that_cores_share() -> None:
    """Eight vectors beside a long matrix: a kernel whose outer loop is over them keeps one core busy."""
    search = search_of([matmul(tensor(8, 64), tensor(64, 65536)), total(tensor(8, 64), 1)])
    pricer = Pricer(search.steps, replace(target_of("CPU"), cores=2))
    (product,) = [c for c in search.cells if c.contraction]
    (vectors,) = [a for a in product.kept if product.loops[a] == 8]
    matrix = next(r for r in product.reads if vectors not in r.atoms)
    reads = {r.source: (r.bytes, r.atoms) for r in product.reads}
    assert matrix.bytes > pricer.target.l2_bytes
    assert pricer._cut_by_cores([product], frozenset({vectors}), reads) == {vectors}
    product.contraction = False  # as where blocks of codes are summed
    assert pricer._cut_by_cores([product], frozenset({vectors}), reads) == frozenset()
    assert pricer._cut_by_cores([product], product.kept, reads) == product.kept - {vectors}
    reads[matrix.source] = (pricer.target.l2_bytes, matrix.atoms)
    assert pricer._cut_by_cores([product], frozenset({vectors}), reads) == {vectors}


def test_more_cores_help_wide_kernels_only() -> None:
    search = search_of([tensor(1024, 64).exp()])
    few, many = [Pricer(search.steps, replace(target_of("CPU"), cores=n, flops_per_second=10**10 * n)) for n in (1, 8)]
    assert many.price(search.cells, search.cells).price < few.price(search.cells, search.cells).price
    narrow = search_of([total(tensor(1024), 0)])
    few, many = [Pricer(narrow.steps, p.target) for p in (few, many)]
    assert many.price(narrow.cells, narrow.cells).price >= few.price(narrow.cells, narrow.cells).price * 9 // 10
