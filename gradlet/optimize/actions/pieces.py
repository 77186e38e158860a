"""BALANCE and PEEL: a range that blocks do not divide becomes two ranges, each with code of its own.

BALANCE makes as many blocks as masking would, of two sizes that differ by one: no block is thin, nothing is computed
twice and nothing is guarded. PEEL takes the rest as one last block.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, make_range, never_meet, range_size

_INNER: Final = {OptKind.UNROLL: AxisKind.UNROLL, OptKind.VECTORIZE: AxisKind.VECTOR}


class Piece(NamedTuple):
    """`blocks` blocks of `size` iterations, the first of which is iteration `start` of the range."""

    start: int
    blocks: int
    size: int


def pieces(size: int, amount: int, tail: Tail) -> tuple[Piece, ...]:
    """Where the two sizes of blocks begin; one piece where `amount` divides the size."""
    count, rest = divmod(size, amount)
    if not rest:
        return (Piece(0, count, amount),)
    if tail is Tail.PEEL:
        return (Piece(0, count, amount), Piece(count * amount, 1, rest)) if count else (Piece(0, 1, rest),)
    blocks = count + 1
    large = -(-size // blocks)
    many = size - blocks * (large - 1)
    first = Piece(0, many, large)
    return (first,) if many == blocks else (first, Piece(many * large, blocks - many, large - 1))


def cut(facts: KernelFacts, loop: UOp, opt: Opt) -> UOp:
    """The kernel with the range cut into pieces. The first one keeps the range's number."""
    size = range_size(loop)
    kind = _INNER.get(opt.kind, loop.arg.kind)
    _check(facts, loop, opt, size)
    assert size is not None
    number, free = loop.arg.number, facts.next_number()
    parts: list[tuple[UOp, tuple[UOp, ...]]] = []
    for piece in pieces(size, opt.amount, opt.tail):
        ranges: list[UOp] = []
        value = UOp.const(dtypes.index, piece.start)
        for count, factor, sort in ((piece.blocks, piece.size, loop.arg.kind), (piece.size, 1, kind)):
            if count > 1:
                ranges.append(make_range(UOp.const(dtypes.index, count), number, sort))
                value = value + ranges[-1] * factor
                number, free = free, free + 1
        parts.append((value, tuple(ranges)))
    if loop in facts.closed():
        return _of_reduce(facts, loop, parts)
    # All of the first piece comes before all of the second, so that stores with further loops in common share these.
    copies = [[s.substitute({loop: value}) for s in facts.stores if loop in facts.ranges[s]] for value, _ in parts]
    if len(copies) == 2:
        _check_apart(facts, opt, *copies)
    following = [iter(copy) for copy in copies]
    stores: list[UOp] = []
    for store in facts.stores:
        stores.extend([next(copy) for copy in following] if loop in facts.ranges[store] else [store])
    return facts.sink.replace(src=tuple(stores))


def _of_reduce(facts: KernelFacts, loop: UOp, parts: list[tuple[UOp, tuple[UOp, ...]]]) -> UOp:
    """Every REDUCE over the range as a combination of one over each piece."""
    new: dict[UOp, UOp] = {}
    for reduce in facts.reduces:
        if loop not in reduce.src[1:]:
            continue
        kept = [r for r in reduce.src[1:] if r is not loop]
        total: UOp | None = None
        for value, ranges in parts:
            body = reduce.src[0].substitute({loop: value})
            closed = (*kept, *ranges)
            part = mk(Op.REDUCE, reduce.dtype, (body, *closed), reduce.arg) if closed else body
            total = part if total is None else total.alu(reduce.arg.op, part)
        assert total is not None
        new[reduce] = total
    return facts.sink.substitute(new)


def _check(facts: KernelFacts, loop: UOp, opt: Opt, size: int | None) -> None:
    name = opt.tail.name
    if size is None:
        raise refusal(opt, "the size is only known at launch")
    if opt.kind not in (OptKind.SPLIT, OptKind.UNROLL, OptKind.VECTORIZE) or loop.arg.kind is AxisKind.PARALLEL:
        raise refusal(opt, f"{name} makes copies of loops; it is for SPLIT, UNROLL and VECTORIZE")
    if opt.tail is Tail.BALANCE and opt.kind is OptKind.VECTORIZE:
        raise refusal(opt, "vectors of two lengths are of no use")
    reduces = [n for n in facts.reduces if loop in n.src[1:]]
    if reduces and any(loop in facts.ranges[s] for s in facts.stores):
        raise refusal(opt, "it is the range of stores and of a reduce")
    if reduces and opt.kind is OptKind.VECTORIZE:
        raise refusal(opt, "lanes of a reduce are combined in one place")
    if any(loop in n.src[1:] for r in reduces for n in r.src[0].toposort() if n.op is Op.REDUCE):
        raise refusal(opt, "reduces over it lie inside one another")


def _check_apart(facts: KernelFacts, opt: Opt, first: list[UOp], second: list[UOp]) -> None:
    """Pieces run one after another: what one of them stores must be nothing that another one uses."""
    if any(n.op in (Op.CARRY, Op.NEXT) for n in facts.order):
        raise refusal(opt, "something is carried from one iteration to the next")
    one, other = [KernelFacts(facts.sink.replace(src=tuple(stores))).accesses for stores in (first, second)]
    for a in one:
        for b in other:
            if (
                a.param.op is Op.PARAM
                and a.param is b.param
                and (a.is_store or b.is_store)
                and not never_meet(a.form, b.form)
            ):
                raise refusal(opt, "what it writes may be used in other iterations")
