"""Iterations of an ordered loop that do nothing are found by many lanes at once, not one after another.

A part of a table's gradient (`DEAL`) goes over all positions and adds the few rows that are its own, in order. The
guard of its store says which: it is the same for all lanes, so each lane of a warp may look at another position. Such a
loop becomes one over pieces: every lane evaluates the guard for positions of its own, and the loop inside is a RANGE
that has these guards as further sources. It runs for the positions at which they hold, lowest first; it may run for the
others too, as they do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op, SpecialArg
from gradlet.optimize.analysis import make_range, range_size
from gradlet.rules.sets import INDEX_MATH

WARP: Final = 32
WORDS: Final = 8  # guards of a lane whose loads are under way together
_EFFECTS: Final = frozenset({Op.STORE, Op.UPDATE, Op.ACC, Op.RANGE, Op.END, Op.BARRIER, Op.WAIT, Op.ACROSS, Op.WGMMA})


def find_by_vote(uops: Sequence[UOp], threads: int) -> tuple[UOp, ...]:
    """The program of lanes with such loops cut."""
    if threads % WARP or not any(n.op is Op.RANGE and n.arg.kind is AxisKind.ORDERED for n in uops):
        return tuple(uops)
    result: list[UOp] = []
    position = 0
    while position < len(uops):
        node = uops[position]
        end = _end_of(uops, position) if node.op is Op.RANGE and node.arg.kind is AxisKind.ORDERED else None
        guard = None if end is None else _guard(node, uops[position + 1 : end], uops)
        if end is None or guard is None:
            result.append(node)
            position += 1
            continue
        number = 1 + max(n.arg.number for n in (*uops, *result) if n.op is Op.RANGE)
        result += _cut(node, guard, uops[position + 1 : end], _in_scope(result), threads, number)
        position = end + 1
    return tuple(result)


def _end_of(uops: Sequence[UOp], start: int) -> int | None:
    """Where a loop ends that has no other inside."""
    for position in range(start + 1, len(uops)):
        if uops[position].op is Op.RANGE:
            return None
        if uops[position].op is Op.END:
            return position
    return None


def _in_scope(program: Sequence[UOp]) -> set[UOp]:
    """The nodes that a program has at its end, those of loops aside that have ended."""
    scopes: list[set[UOp]] = [set()]
    for node in program:
        if node.op is Op.END:
            scopes.pop()
            continue
        if node.op is Op.RANGE:
            scopes.append(set())
        scopes[-1].add(node)
    return set().union(*scopes)


def _guard(loop: UOp, body: Sequence[UOp], uops: Sequence[UOp]) -> UOp | None:
    """What has to hold for an iteration to do something, if all lanes agree on it and the kernel does not change it."""
    stores = [n for n in body if n.op in _EFFECTS]
    size = range_size(loop)
    if len(stores) != 1 or stores[0].op is not Op.STORE or size is None or size < WARP * WORDS:
        return None
    index = stores[0].src[0]
    if len(index.src) < 3 or index.src[2].dtype.count > 1 or index.src[0].op is not Op.PARAM:
        return None
    inside = toposort((index.src[2],))
    written = {n.src[0].src[0] for n in uops if n.op is Op.STORE}
    if loop not in inside or any(n.op is Op.SPECIAL and n.arg.name == "thread" for n in inside):
        return None
    loads = [n for n in inside if n.op is Op.LOAD]
    if not loads or any(n.src[0].src[0].op is not Op.PARAM or n.src[0].src[0] in written for n in loads):
        return None
    return index.src[2]


def _cut(
    loop: UOp, guard: UOp, body: Sequence[UOp], known: set[UOp], threads: int, number: int
) -> list[UOp]:  # fmt: skip
    """The loop over pieces."""
    size, piece = range_size(loop) or 1, WARP * WORDS
    result: list[UOp] = []

    def emit(node: UOp) -> UOp:
        for part in node.toposort():
            if part not in known:
                known.add(part)
                result.append(part)
        return node

    emit(UOp.const(dtypes.index, -(-size // piece)))
    outer = make_range(UOp.const(dtypes.index, -(-size // piece)), number, AxisKind.ORDERED)
    emit(outer)
    lane = mk(Op.SPECIAL, dtypes.index, (), SpecialArg("thread", threads)) % WARP
    guards = []
    for word in range(WORDS):
        at = outer * piece + (lane + word * WARP)
        own = guard.substitute({loop: at if size % piece == 0 else at.minimum(size - 1)})
        guards.append(emit(rewrite(own if size % piece == 0 else own & at.lt(size), INDEX_MATH)))
    inner = mk(
        Op.RANGE, loop.dtype, (emit(UOp.const(dtypes.index, piece)), *guards), loop.arg._replace(number=number + 1)
    )
    emit(inner)
    at = outer * piece + inner
    new: dict[UOp, UOp] = {loop: at if size % piece == 0 else at.minimum(size - 1)}
    for node in body:
        made = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
        if node.op is Op.STORE and size % piece:
            index = made.src[0]
            index = mk(Op.INDEX, index.dtype, (*index.src[:2], index.src[2] & at.lt(size)))
            made = mk(Op.STORE, made.dtype, (index, made.src[1]), made.arg)
        new[node] = emit(rewrite(made, INDEX_MATH)) if node.op is Op.STORE else made
    result.append(mk(Op.END, dtypes.void, (inner,)))
    result.append(mk(Op.END, dtypes.void, (outer,)))
    return result
