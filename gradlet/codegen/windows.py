"""Windows side by side become the rows of the image again: what a pooling shares among neighbours is read repeatedly.

The gradient of a pooling runs over windows and over places in a window, `x` and `b`. The image lies at `2 * x + b`,
what was pooled at `x`: lanes along either range would take every second element of one of them. With one range for
both the image is walked as it lies, and neighbouring lanes want the same few elements of the other (`x = r // 2`),
which are one short load and a shuffle: the same one for every vector where what a vector holds are whole rows, or whole
vectors a row, and in a range that is short enough to be written out. So images of a few pixels fill vectors too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op, adds_in_order
from gradlet.optimize.analysis import MOST_APART, SHORT_ROW, Access, KernelFacts, make_range, range_size
from gradlet.rules.sets import INDEX_MATH
from gradlet.target.target import Target

LONGEST = 4096  # elements of a joined range


def join_windows(sink: UOp, target: Target) -> UOp:
    """The kernel with one range instead of those over windows and over the places in a window."""
    if target.kind != "cpu":
        return sink
    lanes = target.lanes(dtypes.float32)
    while True:
        chain = _find(KernelFacts(sink), lanes)
        if chain is None:
            return sink
        joined = rewrite(_join(sink, chain), INDEX_MATH)
        assert isinstance(joined, UOp)
        sink = joined


def _find(facts: KernelFacts, lanes: int) -> list[UOp] | None:
    """Ranges that memory is contiguous along, innermost first, of which other memory has not all."""
    loops = [r for r in facts.loops if r.arg.kind in (AxisKind.LOOP, AxisKind.REDUCE) and range_size(r) is not None]
    if len(loops) < 2:
        return None
    users = {r: _users(facts, r) for r in loops}
    # A sum of products has tiles of its own, with rows and columns apart.
    meets = {r for n in facts.reduces for r in facts.ranges[n] if r.arg.kind is AxisKind.LOOP}
    for access in facts.accesses:
        by_step = {step: r for r, step in access.form.terms.items() if r in users}
        inner = by_step.get(1)
        if inner is None or not 2 <= int(inner.src[0].arg) <= min(MOST_APART, lanes // 2) or inner in meets:
            continue
        if any(adds_in_order(r.arg.op, r.dtype) for r in users[inner][0]):
            continue
        chain, size = [inner], int(inner.src[0].arg)
        found: list[UOp] | None = None
        regular = True
        while (outer := by_step.get(size)) is not None:
            if outer in chain or outer in meets or outer.arg.kind is not inner.arg.kind or users[outer] != users[inner]:
                break
            regular = regular and (lanes % size == 0 or size % lanes == 0)
            chain.append(outer)
            size *= int(outer.src[0].arg)
            if size > (LONGEST if regular else SHORT_ROW * lanes):
                break
            if _is_near(facts, chain, lanes):
                found = list(chain)
        if found is not None and _shared(facts, found):
            return found
    return None


def _users(facts: KernelFacts, loop: UOp) -> tuple[frozenset[UOp], frozenset[UOp]]:
    """Which REDUCEs close a range and which stores run over it."""
    closing = frozenset(n for n in facts.reduces if loop in n.src[1:])
    return closing, frozenset(s for s in facts.stores if loop in facts.ranges[s])


def _steps(access: Access, chain: Sequence[UOp]) -> list[int]:
    return [access.form.terms.get(r, 0) for r in chain]


def _shared(facts: KernelFacts, chain: Sequence[UOp]) -> bool:
    """Whether some memory is read for windows, not for the places in them: else there is nothing to gain."""
    found = [_steps(a, chain) for a in facts.accesses if not facts.ranges[a.address].isdisjoint(chain)]
    return any(steps[0] == 0 for steps in found if any(steps))


def _is_near(facts: KernelFacts, chain: Sequence[UOp], lanes: int) -> bool:
    """Whether all that the lanes of a vector along the joined range want lies within a vector."""
    for access in facts.accesses:
        if facts.ranges[access.address].isdisjoint(chain):
            continue
        if any(not facts.ranges[atom].isdisjoint(chain) for atom in access.form.terms if atom.op is not Op.RANGE):
            return False
        if len(access.address.src) > 2 and not facts.ranges[access.address.src[2]].isdisjoint(chain):
            return False
        if not _within_vectors(_steps(access, chain), [int(r.src[0].arg) for r in chain], lanes):
            return False
    return True


def _within_vectors(steps: Sequence[int], sizes: Sequence[int], lanes: int) -> bool:
    """Whether the elements that each vector of a joined range reads lie within a vector of memory."""
    elements = [0]
    for step, size in zip(steps, sizes, strict=True):
        elements = [step * i + element for i in range(size) for element in elements]
    vectors = [elements[first : first + lanes] for first in range(0, len(elements), lanes)]
    return all(max(v) - min(v) < lanes for v in vectors)


def _join(sink: UOp, chain: Sequence[UOp]) -> UOp:
    sizes = [int(r.src[0].arg) for r in chain]
    number = min(r.arg.number for r in chain)
    rest = joined = make_range(UOp.const(dtypes.index, prod(sizes)), number, chain[0].arg.kind)
    new: dict[UOp, UOp] = {}
    for loop, size in zip(chain, sizes, strict=True):
        new[loop] = rest if loop is chain[-1] else rest % size
        rest = rest // size
    for node in toposort((sink,)):
        if node in new or not node.src:
            continue
        if node.op is Op.REDUCE:
            closed = dict.fromkeys(joined if r in chain else new.get(r, r) for r in node.src[1:])
            src = (new.get(node.src[0], node.src[0]), *closed)
        else:
            src = tuple([new.get(s, s) for s in node.src])
        if src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new[sink]
