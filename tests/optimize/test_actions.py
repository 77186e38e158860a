"""Every schedule action alone leaves the kernel's result as it is, or is refused with a reason."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.base.settings import scope
from gradlet.codegen import pipeline
from gradlet.graph.node import UOp, mk
from gradlet.graph.passes import Pass
from gradlet.ops.op import AxisKind, KernelArg, Op
from gradlet.ops.opt import (
    AccumulateDetail,
    FeedDetail,
    LookupDetail,
    Opt,
    OptKind,
    PrefetchDetail,
    RotateDetail,
    StageDetail,
    Tail,
)
from gradlet.optimize.actions.language import apply
from gradlet.optimize.analysis import Accesses, affine, kernel_ranges, make_range, never_meet
from gradlet.optimize.opttext import parse_opts
from gradlet.target.target import AVX512, NVPTX
from tests.codegen import kernels
from tests.codegen.check import check_kernel, check_linear

EACH = pytest.mark.parametrize("number", range(len(kernels.ALL)), ids=kernels.names())


def with_opts(sink: UOp, *opts: Opt) -> UOp:
    return sink.replace(arg=KernelArg(sink.arg.name, opts))


TAILS = (Tail.MASK, Tail.SHIFT, Tail.BALANCE, Tail.PEEL, Tail.PAD)


def single_opts(sink: UOp) -> Iterator[Opt]:
    for loop in kernel_ranges(sink):
        axis = loop.arg.number
        for kind in (OptKind.UNROLL, OptKind.VECTORIZE, OptKind.SPLIT, OptKind.GROUP):
            size = loop.src[0].arg if loop.src[0].op is Op.CONST else 0
            for amount in dict.fromkeys((4, 3 if size % 3 else 5)):
                for tail in (Tail.EXACT,) if size % amount == 0 else TAILS:
                    yield Opt(kind, axis, amount, tail)
        for amount in (1, 2, 3, 5):
            yield Opt(OptKind.ACCUMULATE, axis, amount)
        outputs = [r.arg.number for r in kernel_ranges(sink) if r.arg.kind is AxisKind.LOOP]
        for order in {tuple(outputs), tuple(reversed(outputs)), tuple(outputs[-1:])}:
            if order:
                yield Opt(OptKind.ACCUMULATE, axis, 2, detail=AccumulateDetail(order))
        yield Opt(OptKind.SCAN, axis, 4 if size % 8 else 8)
        yield Opt(OptKind.DEAL, axis, 4)
        yield Opt(OptKind.ONLINE, axis, 11 if size == 33 else 5)
        yield Opt(OptKind.ROTATE, axis, 5, detail=RotateDetail(1))
        yield Opt(OptKind.ROTATE, axis, 4, Tail.SHIFT, RotateDetail(1, pad=3))
        yield Opt(OptKind.FEED, axis, 5, detail=FeedDetail(1))
        yield Opt(OptKind.FEED, axis, 4, Tail.SHIFT, FeedDetail(1, pad=3))
        yield Opt(OptKind.FEED, axis, 64, Tail.MASK, FeedDetail(1, buffers=2))
        yield Opt(OptKind.FAR, axis, 3 if size % 3 == 0 else 4)
        for slot in sorted({n.arg.slot for n in sink.toposort() if n.op is Op.PARAM}):
            yield Opt(OptKind.PREFETCH, axis, 2, detail=PrefetchDetail(slot))
            yield Opt(OptKind.STREAM, axis, slot)
        yield Opt(OptKind.PARALLEL, axis, 0)
        yield Opt(OptKind.REORDER, axis, (axis + 1) % len(kernel_ranges(sink)))
        loads = [n.src[0].src[0] for n in sink.toposort() if n.op is Op.LOAD]
        for slot in sorted({p.arg.slot for p in loads if p.op is Op.PARAM}):
            yield Opt(OptKind.STAGE, axis, 0, detail=StageDetail(slot, pad=axis % 2))
            yield Opt(OptKind.LOOKUP, axis, 0, detail=LookupDetail(slot))


@EACH
def test_each_opt_alone_keeps_the_result(number: int) -> None:
    kernel = kernels.ALL[number]()
    applied = 0
    for opt in single_opts(kernel.sink):
        try:
            changed = apply(kernel.sink, [opt], AVX512)
        except ArgumentError as error:
            assert "is not possible here: " in str(error)
            continue
        applied += 1
        assert changed.arg.opts == (opt,)
        check_kernel(kernel, changed)
    assert applied > 0


SMALL = {
    "elementwise": lambda: kernels.elementwise(21), "in place": lambda: kernels.in_place(21),
    "strided": lambda: kernels.strided(5, 7), "padded": lambda: kernels.padded(9, 2, 3),
    "rows": lambda: kernels.row_reduce(3, 11), "maximum": lambda: kernels.row_reduce(2, 11, Op.MAX),
    "columns": lambda: kernels.column_sum(6, 9), "softmax": lambda: kernels.softmax(2, 11),
    "attention": lambda: kernels.attention(2, 6, 10, 3, 4, True),
    "fed": lambda: kernels.fed(2, 6, 10, 3, (4, 2), True),
    "shared range": lambda: kernels.softmax(2, 11, True), "layer norm": lambda: kernels.layer_norm(2, 8),
    "matmul": lambda: kernels.matmul(5, 9, 6), "matmul of transposed": lambda: kernels.matmul(5, 9, 6, True, True),
    "batched": lambda: kernels.batched_matmul(2, 3, 5, 4), "convolution": lambda: kernels.conv2d(1, 2, 2, 5),
    "gather": lambda: kernels.gather(5, 8, 4), "scatter": lambda: kernels.scatter_add(6, 6, 5),
    "argmax": lambda: kernels.argmax(2, 9), "prefix sums": lambda: kernels.prefix_sums(9),
    "table": lambda: kernels.table_of_few(9, 5),
    "symbolic": lambda: kernels.symbolic(9, 12), "ordered": lambda: kernels.ordered_total(5),
}  # fmt: skip


# The rest in the slow run: a compilation for every opt.
QUICK = ("elementwise", "in place", "matmul", "table")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SMALL])
def test_each_opt_alone_compiles(name: str) -> None:
    kernel = SMALL[name]()
    for opt in single_opts(kernel.sink):
        try:
            apply(kernel.sink, [opt], AVX512)
        except ArgumentError:
            continue
        try:
            check_linear(kernel, AVX512, with_opts(kernel.sink, opt))
        except ArgumentError as error:  # ranges were merged before the schedule is applied
            assert "has no range" in str(error) or "is not possible here" in str(error)


def test_in_strict_mode_no_opt_changes_the_order_of_a_sum() -> None:
    product, columns = kernels.matmul(5, 9, 8), kernels.conv2d(1, 2, 2, 5)
    words = (Opt(OptKind.VECTORIZE, 2, 4), Opt(OptKind.GROUP, 2, 4), Opt(OptKind.FAR, 2, 4))
    words += (
        Opt(OptKind.ACCUMULATE, 2, 4),
        Opt(OptKind.UNROLL, 2, 3, Tail.BALANCE),
        Opt(OptKind.SPLIT, 2, 3, Tail.PEEL),
    )
    for opt in words:
        apply(product.sink, [opt], AVX512)
        with scope(STRICT_FLOAT=1):
            refused(product.sink, opt, "order of the elements")
    reduced = max(r.arg.number for r in kernel_ranges(columns.sink))
    with scope(STRICT_FLOAT=1):
        refused(columns.sink, Opt(OptKind.REORDER, reduced, 0), "order of the elements")
        apply(product.sink, [Opt(OptKind.UNROLL, 2, 4), Opt(OptKind.VECTORIZE, 1, 9)], AVX512)


def refused(sink: UOp, opt: Opt, reason: str, target: object = AVX512) -> None:
    with pytest.raises(ArgumentError, match=reason):
        apply(sink, [opt], target)  # type: ignore[arg-type]


def test_refusals_name_the_reason() -> None:
    matmul = kernels.matmul(12, 20, 8).sink
    refused(matmul, Opt(OptKind.UNROLL, 9, 2), "no range 9")
    refused(matmul, Opt(OptKind.UNROLL, 0, 5), "the size, 12, is not a multiple")
    refused(matmul, Opt(OptKind.UNROLL, 0, 1), "at least 2")
    refused(matmul, Opt(OptKind.UNROLL, 1, 1000, Tail.MASK), "at most 256 copies")
    refused(matmul, Opt(OptKind.VECTORIZE, 1, 1000, Tail.MASK), "at most 128 lanes")
    refused(matmul, Opt(OptKind.PARALLEL, 2, 0), "only independent output loops")
    refused(matmul, Opt(OptKind.UNROLL, 2, 5, Tail.SHIFT), "count the overlap twice")
    refused(matmul, Opt(OptKind.UNROLL, 0, 16, Tail.SHIFT), "at least the amount")
    refused(matmul, Opt(OptKind.GROUP, 0, 2), "need a reduce range")
    refused(matmul, Opt(OptKind.REORDER, 0, 7), "positions go from 0 to 2")
    refused(matmul, Opt(OptKind.THREAD, 0, 2), "only a GPU")
    refused(matmul, Opt(OptKind.VECTORIZE, 1, 4), "lanes of this target are threads", NVPTX)
    refused(matmul, Opt(OptKind.THREAD, 2, 2), "every store must depend", NVPTX)
    refused(kernels.elementwise(4096).sink, Opt(OptKind.THREAD, 0, 2048), "at most 1024 lanes", NVPTX)
    refused(kernels.in_place(10).sink, Opt(OptKind.UNROLL, 0, 4, Tail.SHIFT), "reads what it writes")
    refused(kernels.scatter_add().sink, Opt(OptKind.UNROLL, 0, 3), "one after another")
    refused(kernels.scatter_add().sink, Opt(OptKind.PARALLEL, 0, 0), "only independent output loops")
    refused(kernels.scatter_add().sink, Opt(OptKind.UNROLL, 1, 3, Tail.SHIFT), "reads what it writes")
    refused(kernels.symbolic().sink, Opt(OptKind.UNROLL, 0, 4), "unknown before launch")
    refused(kernels.symbolic().sink, Opt(OptKind.PARALLEL, 0, 0), "only known at launch", NVPTX)
    refused(kernels.full_sum().sink, Opt(OptKind.PARALLEL, 0, 0), "only independent output loops")
    refused(kernels.layer_norm().sink, Opt(OptKind.PARALLEL, 1, 0), "some store does not depend on it")


def test_refusals_of_pieces_and_accumulation() -> None:
    matmul = kernels.matmul(12, 20, 8).sink
    refused(matmul, Opt(OptKind.ACCUMULATE, 0, 4), "a range that one reduce closes")
    refused(matmul, Opt(OptKind.ACCUMULATE, 2, 3), "not a multiple")
    refused(matmul, Opt(OptKind.ACCUMULATE, 2, 8), "not a multiple")
    once = apply(matmul, [Opt(OptKind.ACCUMULATE, 2, 4)], AVX512)
    refused(once, Opt(OptKind.ACCUMULATE, 3, 2), "in order already")
    refused(once, Opt(OptKind.UNROLL, 0, 5, Tail.SHIFT), "reads what it writes")
    shifted = apply(matmul, [Opt(OptKind.UNROLL, 0, 5, Tail.SHIFT)], AVX512)
    refused(shifted, Opt(OptKind.ACCUMULATE, 2, 4), "element of its own")
    refused(matmul, Opt(OptKind.VECTORIZE, 1, 8, Tail.BALANCE), "two lengths")
    refused(matmul, Opt(OptKind.VECTORIZE, 2, 3, Tail.PEEL), "combined in one place")
    refused(matmul, Opt(OptKind.GROUP, 2, 3, Tail.PEEL), "copies of loops")
    refused(kernels.symbolic().sink, Opt(OptKind.UNROLL, 0, 4, Tail.PEEL), "only known at launch")
    refused(kernels.running_sum(7).sink, Opt(OptKind.UNROLL, 0, 4, Tail.PEEL), "carried")
    reversing = in_reverse(10)
    refused(reversing, Opt(OptKind.UNROLL, 0, 4, Tail.PEEL), "may be used in other iterations")


def test_refusals_of_look_ups() -> None:
    table = Opt(OptKind.LOOKUP, 0, 0, detail=LookupDetail(1))
    apply(kernels.table_of_few().sink, [table], AVX512)
    refused(kernels.table_of_few(entries=17).sink, table, "2 to 16 elements, this has 17")
    refused(kernels.table_of_few(entries=1).sink, table, "2 to 16 elements, this has 1")
    refused(kernels.table_of_few(dtype="float64").sink, table, "registers of float64 are not shuffled")
    refused(kernels.table_of_few().sink, table._replace(detail=None), "slot=")
    refused(kernels.table_of_few().sink, table._replace(detail=LookupDetail(0)), "stores to it")
    refused(kernels.table_of_few().sink, table._replace(detail=LookupDetail(7)), "no load from slot 7")
    refused(kernels.table_of_few().sink, table, "no register in common", NVPTX)
    once = apply(kernels.table_of_few().sink, [table], AVX512)
    refused(once, table, "no load from slot 1")


@pytest.mark.parametrize("kind", [OptKind.SPLIT, OptKind.VECTORIZE, OptKind.UNROLL])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_padded_operands_need_no_mask(kind: OptKind, axis: int) -> None:
    """5 x 9 x 6 in blocks of 4: what the loop loads comes from a copy, without a guard; stores have one."""
    kernel, opt = kernels.matmul(5, 9, 6), Opt(kind, axis, 4, Tail.PAD)
    padded = apply(kernel.sink, [opt], AVX512)
    check_kernel(kernel, padded)
    copies = [n for n in padded.toposort() if n.op is Op.AFTER]
    assert len(copies) == (2 if axis == 2 else 1)
    inside = {n for copy in copies for n in copy.toposort()}
    loads = [n for n in padded.toposort() if n.op is Op.LOAD and n not in inside]
    assert loads and all(len(n.src) == 1 for n in loads)
    assert all((len(s.src[0].src) > 2) is (axis != 2) for s in padded.src)
    check_linear(kernel, AVX512, with_opts(kernel.sink, opt))


def test_refusals_of_padding() -> None:
    refused(kernels.in_place(21).sink, Opt(OptKind.SPLIT, 0, 4, Tail.PAD), "stores to what it loads")
    refused(kernels.prefix_sums(9).sink, Opt(OptKind.SPLIT, 0, 4, Tail.PAD), "nothing is loaded over it")
    refused(kernels.elementwise(1 << 22).sink, Opt(OptKind.SPLIT, 0, 7, Tail.PAD), "a core has room for")
    refused(kernels.symbolic().sink, Opt(OptKind.SPLIT, 0, 4, Tail.PAD), "only known at launch")
    refused(kernels.elementwise(21).sink, Opt(OptKind.SPLIT, 0, 4, Tail.PAD), "use MASK", NVPTX)


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("more", ["", "cores", "lanes"])
def test_softmax_in_one_pass(same: bool, more: str) -> None:
    """A maximum and a sum become blocks of both, in an array of the core, and their combination."""
    kernel = kernels.softmax(3, 40, same)
    number = 2 if same else 3
    opts = [Opt(OptKind.ONLINE, number, 8)]
    opts += [Opt(OptKind.PARALLEL, 0, 0)] if more == "cores" else []
    opts += [Opt(OptKind.VECTORIZE, number + n, 4) for n in (2, 3)] if more == "lanes" else []
    changed = apply(kernel.sink, opts, AVX512)
    check_kernel(kernel, changed)
    reduces = Counter(n.arg.op for n in changed.toposort() if n.op is Op.REDUCE)
    count = 3 if more == "lanes" else 2
    assert reduces == {Op.MAX: count, Op.ADD: count}
    over_rows = [n for n in changed.toposort() if n.op is Op.LOAD and n.src[0].src[0].op is Op.PARAM]
    assert len(over_rows) == 3 and sum(n.op is Op.AFTER for n in changed.toposort()) == 1
    if not same:
        check_linear(kernel, AVX512, with_opts(kernel.sink, *opts))


def test_one_pass_over_infinities() -> None:
    """Blocks of nothing but minus infinity, rows of it, infinity and NaN: as in two passes."""
    x = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    x[0, :16], x[1, 20], x[2], x[3, 5], x[4, ::2], x[5, 40] = -np.inf, np.inf, -np.inf, np.nan, -np.inf, 3e38
    plain = Tensor(x).logsumexp(1).numpy()
    with scope(OPTS="r_6_64_64: ONLINE(range 1, 16)"):
        got = Tensor(x).logsumexp(1).numpy()
    with scope(OPTS="r_6_64_64: ONLINE(range 1, 7)"), pytest.raises(ArgumentError, match="not a multiple"):
        Tensor(x).logsumexp(1).numpy()  # so it is this kernel
    np.testing.assert_allclose(got, plain, rtol=1e-5)
    assert np.isinf(got[1]) and got[2] == -np.inf and np.isnan(got[3])


def test_refusals_of_online() -> None:
    softmax = kernels.softmax(3, 40).sink
    refused(softmax, Opt(OptKind.ONLINE, 3, 7), "not a multiple")
    refused(softmax, Opt(OptKind.ONLINE, 3, 40), "not a multiple")
    refused(softmax, Opt(OptKind.ONLINE, 2, 8), "the maximum of x")
    refused(softmax, Opt(OptKind.ONLINE, 1, 8), "the maximum of x")
    refused(kernels.matmul(5, 9, 6).sink, Opt(OptKind.ONLINE, 2, 3), "the maximum of x")
    refused(kernels.layer_norm().sink, Opt(OptKind.ONLINE, 3, 8), "the maximum of x")
    refused(softmax, Opt(OptKind.ONLINE, 3, 8), "arrays of their own", NVPTX)
    refused(kernels.softmax(1, 1 << 18).sink, Opt(OptKind.ONLINE, 3, 2), "a core has room for")
    with scope(STRICT_FLOAT=1):
        refused(softmax, Opt(OptKind.ONLINE, 3, 8), "order of the elements")


SCANS = {
    "alone": "SCAN(range 1, 8)", "two at once": "UNROLL(range 0, 2), SCAN(range 1, 4)",
    "shared": "SCAN(range 1, 2), PARALLEL(range 0)", "half a row": "SCAN(range 1, 16), UNROLL(range 0, 3)",
}  # fmt: skip


@pytest.mark.parametrize("text", SCANS.values(), ids=SCANS.keys())
def test_running_sums_by_vectors(text: str) -> None:
    """One addition of a vector waits for the vector before; what is stored is vectors."""
    kernel, opts = kernels.running_sum(6, 32), parse_opts(text)
    changed = apply(kernel.sink, opts, AVX512)
    check_kernel(kernel, changed)
    program = check_linear(kernel, AVX512, with_opts(kernel.sink, *opts))
    lanes = next(o.amount for o in opts if o.kind is OptKind.SCAN)
    stores = [n for n in program.uops if n.op is Op.STORE]
    assert all(s.src[1].dtype.count == lanes for s in stores)
    assert sum(n.op is Op.PREFIX for n in changed.toposort()) == 2


@pytest.mark.parametrize("op", [Op.ADD, Op.MUL, Op.MAX, Op.MIN])
@pytest.mark.parametrize("exclusive", [False, True])
def test_every_combination_is_scanned(op: Op, exclusive: bool) -> None:
    kernel = kernels.running(op, 3, 16, exclusive)
    for amount in (2, 8):
        opt = Opt(OptKind.SCAN, 1, amount)
        check_kernel(kernel, apply(kernel.sink, [opt], AVX512))
        check_linear(kernel, AVX512, with_opts(kernel.sink, opt))


def test_refusals_of_scans() -> None:
    sums = kernels.running_sum(6, 40).sink
    refused(sums, Opt(OptKind.SCAN, 1, 16), "the size, 40, is not a multiple")
    refused(sums, Opt(OptKind.SCAN, 1, 5), "a power of two")
    refused(kernels.running_sum(6, 32).sink, Opt(OptKind.SCAN, 1, 32), "nothing would be left")
    refused(sums, Opt(OptKind.SCAN, 0, 2), "through which a value is carried")
    refused(sums, Opt(OptKind.SCAN, 1, 8), "threads", NVPTX)
    refused(kernels.matmul(12, 20, 8).sink, Opt(OptKind.SCAN, 2, 4), "through which a value is carried")
    refused(kernels.scatter_add().sink, Opt(OptKind.SCAN, 0, 5), "through which a value is carried")
    refused(kernels.recurrence().sink, Opt(OptKind.SCAN, 1, 7), "carried")
    refused(apply(sums, [Opt(OptKind.VECTORIZE, 0, 2)], AVX512), Opt(OptKind.SCAN, 1, 8), "two ranges of lanes")
    with scope(STRICT_FLOAT=1):
        refused(sums, Opt(OptKind.SCAN, 1, 8), "order of the elements")
        apply(kernels.running(Op.MAX, 3, 16, False).sink, [Opt(OptKind.SCAN, 1, 8)], AVX512)


@pytest.mark.parametrize("parts", [2, 3, 4, 7])
def test_dealt_parts_write_rows_of_their_own(parts: int) -> None:
    kernel = kernels.scatter_add()
    dealt = apply(kernel.sink, [Opt(OptKind.DEAL, 0, parts), Opt(OptKind.PARALLEL, 2, 0)], AVX512)
    check_kernel(kernel, dealt)
    # Of each row's terms all parts but one guard theirs away; only the numbers of rows are read by all.
    assert {r.arg.kind for r in dealt.toposort() if r.op is Op.RANGE} >= {AxisKind.PARALLEL, AxisKind.ORDERED}
    assert all(len(n.src[0].src) == 3 for n in dealt.toposort() if n.op is Op.LOAD and n.dtype is dtypes.float32)


def test_refusals_of_dealing() -> None:
    scatter = kernels.scatter_add().sink
    refused(scatter, Opt(OptKind.DEAL, 0, 1), "at least two parts")
    refused(scatter, Opt(OptKind.DEAL, 1, 4), "an ordered loop around one store")
    refused(kernels.ordered_total().sink, Opt(OptKind.DEAL, 0, 4), "rows whose numbers depend on the loop")
    refused(kernels.running_sum(6, 32).sink, Opt(OptKind.DEAL, 1, 4), "around one store")
    refused(kernels.recurrence().sink, Opt(OptKind.DEAL, 1, 4), "around one store|carried")
    for step, other, reason in ((4, 0, "an element in common"), (8, 8, "other elements of what it stores to")):
        b = kernels.Builder()
        table, index = b.param(0, 80), b.param(1, 15, dtypes.int32)
        i, j = b.range(15, AxisKind.ORDERED), b.range(5)
        at = b.load(index, i).cast(dtypes.index) * step + j
        b.store(table, at, b.load(table, at + other) + 1)
        refused(b.sink("rows"), Opt(OptKind.DEAL, 0, 4), reason)


def in_reverse(size: int) -> UOp:
    """Writes an element from its mirror image in the same buffer."""
    b = kernels.Builder()
    i = b.range(size)
    out = b.param(0, size)
    b.store(out, i, b.load(out, i * -1 + (size - 1)))
    return b.sink("reverse")


@pytest.mark.parametrize(
    "tail, sizes", [(Tail.BALANCE, (4, 3)), (Tail.PEEL, (4, 3))], ids=["balanced", "peeled"]
)  # fmt: skip
def test_pieces_of_rows(tail: Tail, sizes: tuple[int, int]) -> None:
    """7 or 11 rows by 4: as many blocks as masking has, in two bodies at most."""
    kernel = kernels.matmul(7 if tail is Tail.BALANCE else 11, 20, 8)
    cut = apply(kernel.sink, [Opt(OptKind.UNROLL, 0, 4, tail)], AVX512)
    assert len(cut.src) == 2
    copies = [
        {r.src[0].arg for r in s.toposort() if r.op is Op.RANGE and r.arg.kind is AxisKind.UNROLL} for s in cut.src
    ]
    assert copies == [{size} for size in sizes]
    check_kernel(kernel, cut)


def test_balanced_blocks_that_divide_are_one_body() -> None:
    """10 rows by 4 are 3 blocks of at most 4, 9 by 4 are 3 of 3."""
    assert len(apply(kernels.matmul(10, 20, 8).sink, [Opt(OptKind.SPLIT, 0, 4, Tail.BALANCE)], AVX512).src) == 2
    assert len(apply(kernels.matmul(9, 20, 8).sink, [Opt(OptKind.SPLIT, 0, 4, Tail.BALANCE)], AVX512).src) == 1


def test_every_pair_of_pieces_compiles() -> None:
    """Pieces of rows and of columns, of sums that wait in memory: loops of one piece do not wait for the other's."""
    for m, n in ((5, 9), (13, 17), (17, 87)):
        kernel = kernels.matmul(m, n, 12)
        opts = [
            Opt(OptKind.ACCUMULATE, 2, 4), Opt(OptKind.REORDER, 2, 0), Opt(OptKind.VECTORIZE, 2, 8, Tail.PEEL),
            Opt(OptKind.UNROLL, 1, 4, Tail.BALANCE),
        ]  # fmt: skip
        check_kernel(kernel, apply(kernel.sink, opts, AVX512))
        check_linear(kernel, AVX512, with_opts(kernel.sink, *opts))


def test_never_meet_is_never_wrong() -> None:
    """Two indices that are said to have nothing in common have nothing in common, lanes included; most are found."""
    chance, found = random.Random(5), 0
    for _ in range(400):
        sets, forms, lanes = [], [], chance.choice((1, 1, 4))
        strides = chance.choice(([12, 3, 1], [20, 1], [7, 2]))
        for number in range(2):
            index, values = UOp.const(dtypes.index, 0), {0}
            start = chance.randrange(40)
            for place, stride in enumerate(strides):
                size = chance.randint(1, 6)
                loop = make_range(UOp.const(dtypes.index, size), 10 * number + place, AxisKind.LOOP)
                index = index + loop * stride
                values = {v + stride * i for v in values for i in range(size)}
            forms.append(affine(index + start))
            sets.append({v + start + lane for v in values for lane in range(lanes)})
        if never_meet(forms[0], forms[1], lanes):
            found += 1
            assert sets[0].isdisjoint(sets[1])
    assert found > 20


def test_groups_that_never_meet_have_no_pair_that_does() -> None:
    """Accesses as they are copied: a group has the same loops and other constants; most groups apart are found."""
    chance, found, apart = random.Random(9), 0, 0
    for _ in range(400):
        strides = chance.choice(([24, 4, 1], [20, 1], [28, 4]))
        groups: list[list[UOp]] = []
        touched: list[set[int]] = []
        lanes = chance.choice((1, 4))
        for number in range(2):
            index, values = UOp.const(dtypes.index, 0), {0}
            for place, stride in enumerate(strides):
                size = chance.randint(1, 4)
                loop = make_range(UOp.const(dtypes.index, size), 10 * number + place, AxisKind.LOOP)
                index = index + loop * stride
                values = {v + stride * i for v in values for i in range(size)}
            base, step = chance.choice((0, 5, 96, 100)), chance.choice((1, 4, 24))
            constants = [base + step * i for i in range(chance.randint(1, 4))]
            param = kernels.Builder.param(0, 1000)
            value = UOp.const(dtypes.float32.vec(lanes) if lanes > 1 else dtypes.float32, 1.0)
            groups.append(
                [
                    mk(Op.STORE, dtypes.void, (mk(Op.INDEX, dtypes.float32, (param, index + c)), value))
                    for c in constants
                ]
            )
            touched.append({v + c + lane for v in values for c in constants for lane in range(lanes)})
        apart += touched[0].isdisjoint(touched[1])
        accesses = Accesses()
        if not accesses.may_any_meet(*groups):
            found += 1
            assert touched[0].isdisjoint(touched[1])
            assert not any(accesses.may_meet(one, other) for one in groups[0] for other in groups[1])
    assert apart >= found > apart / 2 > 20


def test_two_ranges_of_lanes_are_refused() -> None:
    matmul = kernels.matmul(12, 20, 8).sink
    once = apply(matmul, [Opt(OptKind.VECTORIZE, 1, 4)], AVX512)
    refused(once, Opt(OptKind.VECTORIZE, 2, 4), "two ranges of lanes")


def test_one_parallel_range() -> None:
    once = apply(kernels.matmul(12, 20, 8).sink, [Opt(OptKind.PARALLEL, 0, 0)], AVX512)
    refused(once, Opt(OptKind.PARALLEL, 1, 0), "already has a parallel range")


def test_split_numbers_the_inner_range_last() -> None:
    split = apply(kernels.matmul(12, 20, 8).sink, [Opt(OptKind.SPLIT, 0, 4)], AVX512)
    sizes = {r.arg.number: (r.src[0].arg, r.arg.kind) for r in kernel_ranges(split)}
    assert sizes == {
        0: (3, AxisKind.LOOP), 1: (20, AxisKind.LOOP), 2: (8, AxisKind.REDUCE), 3: (4, AxisKind.LOOP),
    }  # fmt: skip


def test_whole_range_keeps_its_number() -> None:
    whole = apply(kernels.matmul(12, 20, 8).sink, [Opt(OptKind.UNROLL, 2, 8)], AVX512)
    assert [(r.arg.number, r.arg.kind) for r in kernel_ranges(whole)] == [
        (0, AxisKind.LOOP), (1, AxisKind.LOOP), (2, AxisKind.UNROLL),
    ]  # fmt: skip


def test_masked_products_need_no_select() -> None:
    """Past the end both loads give 0, and 0 times 0 is 0."""
    masked = apply(kernels.matmul(12, 20, 9).sink, [Opt(OptKind.VECTORIZE, 2, 4, Tail.MASK)], AVX512)
    assert not any(n.op is Op.WHERE for n in masked.toposort())
    # A maximum needs one: 0 may be larger than every value.
    masked = apply(kernels.row_reduce(op=Op.MAX).sink, [Opt(OptKind.VECTORIZE, 1, 16, Tail.MASK)], AVX512)
    assert any(n.op is Op.WHERE for n in masked.toposort())


def test_masked_infinities_do_not_spoil_a_sum() -> None:
    """exp(0) is not 0, and infinity past the end times 0 would be NaN: such sums select."""
    b = kernels.Builder()
    out, x, y = b.param(0, 1), b.param(1, 7), b.param(2, 1)
    k = b.reduce_range(7)
    b.store(out, 0, b.reduce(Op.ADD, b.load(x, k) * b.load(y, 0), k))
    infinity = np.array([np.inf], np.float32)
    kernel = kernels.Kernel(
        b.sink("infinite"), [kernels.empty(1), np.abs(kernels.random(7)), infinity], {0: infinity}
    )  # fmt: skip
    check_linear(kernel, AVX512, with_opts(kernel.sink, Opt(OptKind.VECTORIZE, 0, 4, Tail.MASK)))


def test_noopt_applies_nothing() -> None:
    with scope(NOOPT=1):
        assert pipeline.lower(kernels.matmul().sink, AVX512).opts == ()


@pytest.mark.parametrize("seed", range(40))
def test_schedules_of_several_opts(seed: int) -> None:
    """Whatever `apply` accepts, in any combination, lowers to a right program."""
    choose = random.Random(seed)
    kernel = SMALL[choose.choice(list(SMALL))]()
    ready: list[UOp] = []

    def observe(row: Pass, before: UOp, after: UOp, seconds: float) -> None:
        if row.name == "apply schedule":
            ready.append(before)

    with scope(NOOPT=1):
        pipeline.lower(kernel.sink, AVX512, [observe])
    sink, opts = ready[0], []
    for _ in range(5):
        opt = choose.choice(list(single_opts(sink)))
        try:
            sink = apply(sink, [opt], AVX512)
        except ArgumentError:
            continue
        opts.append(opt)
        if math.prod(r.src[0].arg for r in kernel_ranges(sink) if r.arg.kind is AxisKind.UNROLL) > 40:
            break
    check_linear(kernel, AVX512, with_opts(kernel.sink, *opts))
