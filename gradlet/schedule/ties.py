"""What a kernel has to do with others, found once: the search over launches asks for it with every pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlet.graph.node import UOp
from gradlet.schedule.cells import NOTHING, Atoms
from gradlet.schedule.steps import Steps

if TYPE_CHECKING:
    from gradlet.schedule.fuse import Kernel


@dataclass(slots=True)
class Ties:
    """What ties a kernel to others.

    Attributes:
        reads: all that its cells read, one another's values included.
        outside: what it reads of others, in order.
        made: the steps that it stores.
        members: all its steps.
        versions: the values that it writes over.
        before: steps that have to run before its writes.
        needs: what it reads or changes that another one makes.
        one_by_one: loops whose iterations do not run in parallel, or that run twice.
        products: how many matrix products and convolutions are among its cells.
    """

    reads: frozenset[UOp]
    outside: list[UOp]
    made: frozenset[UOp]
    members: frozenset[UOp]
    versions: frozenset[UOp]
    before: frozenset[UOp]
    needs: frozenset[UOp]
    one_by_one: Atoms
    products: int


class TieFinder:
    """Finds the ties of kernels, which remember them."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def of(self, kernel: Kernel) -> Ties:
        """The ties of a kernel."""
        found = kernel.ties
        if found is None:
            found = kernel.ties = self._find(kernel)
        return found

    def _find(self, kernel: Kernel) -> Ties:
        cells, versions, first = kernel.cells, self.steps.versions, self.steps.before
        roots = {c.root for c in cells}
        reads = dict.fromkeys([r.source for c in cells for r in c.reads])
        changed = frozenset([versions[root] for root in roots if root in versions])
        return Ties(
            reads=frozenset(reads),
            outside=[source for source in reads if source not in roots],
            made=frozenset([c.root for c in kernel.stored]),
            members=frozenset([m for c in cells for m in c.members]),
            versions=changed,
            before=frozenset([r for root in roots for r in first.get(root, ())]),
            needs=frozenset((reads.keys() | changed) - roots),
            one_by_one=NOTHING.union(*[c.sequential | c.twice for c in cells]),
            products=sum([c.contraction for c in cells]),
        )

    def depends(self, kernels: Iterable[Kernel], makers: Iterable[Kernel]) -> bool:
        """Whether one of the kernels reads what one of the others stores, or has to wait for it otherwise."""
        others = [self.of(maker) for maker in makers]
        for kernel in kernels:
            ties = self.of(kernel)
            for other in others:
                if not (ties.reads.isdisjoint(other.made) and ties.versions.isdisjoint(other.made)):
                    return True
                if ties.before and not ties.before.isdisjoint(other.members):
                    return True
        return False
