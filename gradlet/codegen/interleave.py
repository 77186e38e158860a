"""Sums of byte products that share factors are written side by side, not one after another.

Every word of codes meets several words of vectors, in sums of their own. One sum after another would have all words of
a block in registers, or load them again for each sum; side by side the sums wait in registers, and a word is only
needed while it meets the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import DOTS, Op

_ENDS: Final = frozenset({Op.RANGE, Op.END, Op.STORE})  # of straight code, within which loads may change places
_READING: Final = frozenset({Op.INDEX, Op.LOAD, Op.PREFETCH, Op.VECTORIZE})


def side_by_side(uops: list[UOp]) -> list[UOp]:
    """The program with DOTs that go on from one another in turn with those of other sums in the same straight code."""
    if DOTS.isdisjoint([node.op for node in uops]):
        return uops
    uses = Counter(s for node in uops for s in node.src)
    result: list[UOp] = []
    run: list[UOp] = []
    for node in uops:
        if node.op in _ENDS:
            result += _ordered(run, uses)
            result.append(node)
            run = []
        else:
            run.append(node)
    return result + _ordered(run, uses)


def _ordered(run: list[UOp], uses: Counter[UOp]) -> list[UOp]:
    chains = _chains(run, uses)
    if len(chains) < 2:
        return run
    members = {node: i for i, node in enumerate(run)}
    placed: dict[UOp, None] = {}
    for turn in range(max(map(len, chains))):
        now = [chain[turn] for chain in chains if turn < len(chain)]
        needed = _needed(now, members, placed)
        if needed is None:
            return run
        needed.sort(key=members.__getitem__)
        placed.update(dict.fromkeys(n for n in needed if _reads(n, members)))
        for dot in now:
            own = _needed([dot], members, placed)
            assert own is not None
            placed.update(dict.fromkeys(sorted(own, key=members.__getitem__)))
    return [*placed, *(node for node in run if node not in placed)]


def _chains(run: Sequence[UOp], uses: Counter[UOp]) -> list[list[UOp]]:
    """Sums of at least two DOTs that begin with nothing, each first DOT first."""
    dots = [node for node in run if node.op in DOTS]
    follower = {dot.src[2]: dot for dot in dots if dot.src[2].op in DOTS and uses[dot.src[2]] == 1}
    found: list[list[UOp]] = []
    for dot in dots:
        if dot.src[2].op in DOTS or not _is_nothing(dot.src[2]):
            continue
        chain = [dot]
        while chain[-1] in follower:
            chain.append(follower[chain[-1]])
        if len(chain) > 1:
            found.append(chain)
    return found


def _is_nothing(node: UOp) -> bool:
    while node.op is Op.VECTORIZE:
        if any(s is not node.src[0] for s in node.src):
            return False
        node = node.src[0]
    return node.op is Op.CONST and node.arg == 0


def _needed(dots: Sequence[UOp], members: dict[UOp, int], placed: dict[UOp, None]) -> list[UOp] | None:
    """What the DOTs need of the straight code and has no place yet; None if that depends on a running sum."""
    pending, found = list(dots), dict.fromkeys(dots)
    while pending:
        for source in pending.pop().src:
            if source.op in (Op.ACC, Op.UPDATE):
                return None
            if source in members and source not in placed and source not in found:
                found[source] = None
                pending.append(source)
    return list(found)


def _reads(node: UOp, members: dict[UOp, int]) -> bool:
    """Whether a node, and what it needs of the straight code, is no more than a load and its address."""
    pending, seen = [node], {node}
    while pending:
        node = pending.pop()
        if node.op in DOTS or (node.dtype.count > 1 and node.op not in _READING):
            return False
        fresh = [s for s in node.src if s in members and s not in seen]
        seen.update(fresh)
        pending.extend(fresh)
    return True
