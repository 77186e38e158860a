"""What both ways of ROTATE share: which blocks of keys are seen, and what is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.ops.opt import Opt
from gradlet.optimize.actions.near import NearArrays
from gradlet.optimize.actions.online import LOWEST
from gradlet.optimize.analysis import KernelFacts, affine, range_size
from gradlet.optimize.mixtures import Bound, Mixture, bounds_of, seen_blocks

INDEX = dtypes.index


class OnePass(NearArrays):
    """A kernel that goes over blocks of keys once.

    Args:
        facts: the kernel.
        mixture: its parts.
        keys: the range of the keys.
        inner: the ranges of the rows that share a block.
        opt: the ROTATE.
    """

    def __init__(self, facts: KernelFacts, mixture: Mixture, keys: UOp, inner: tuple[UOp, ...], opt: Opt) -> None:
        assert mixture.score is not None
        super().__init__(facts, mixture.total.dtype)
        self.mixture, self.opt = mixture, opt
        self.keys, self.inner = keys, inner
        self.score = mixture.score
        self.depth = self.score.src[1]
        self.amount = opt.amount
        self.size = range_size(keys) or 0
        self.lowest = LOWEST[self.dtype]

    def _stored(self, top: UOp, total: UOp, mixed: UOp) -> UOp:
        """The kernel that stores what has been added up: weighted values and weights, relative to the maximum."""
        mixture = self.mixture
        scale = (self._finite(top) + mixture.shift.substitute({mixture.top: top})).exp()
        total, result = total * scale, mixed * scale
        for function in mixture.outer:
            result = function(result)
        result = result.substitute({mixture.total: total, mixture.top: top})
        return self.facts.sink.substitute({mixture.product: result, mixture.total: total, mixture.top: top})

    def _blocks(self) -> tuple[UOp, UOp]:
        """The first block of keys that the rows see anything of, and how many blocks follow."""

        def ranges_of(atom: UOp) -> Collection[UOp]:
            return self.facts.ranges.get(atom, self.inner)

        return seen_blocks(bounds_of(self.mixture.x, self.keys), self.size, self.amount, self.inner, ranges_of)

    def _edge(self, begin: UOp, bounds: Iterable[Bound]) -> UOp | None:
        """Whether a block of keys hides any from any of its rows, by what bounds say; None: no block does."""
        found: UOp | None = None
        inner = self.inner
        for bound in bounds:
            last = bound.end is not None
            edge = bound.end if bound.end is not None else bound.start
            assert edge is not None
            form = affine(edge)
            atoms = [atom for atom in form.terms if atom not in inner]
            if any(not self.facts.ranges.get(atom, frozenset(inner)).isdisjoint(inner) for atom in atoms):
                return UOp.const(dtypes.bool, True)
            near = {r: UOp.const(INDEX, 0 if (form.terms.get(r, 0) > 0) is last else (range_size(r) or 1) - 1)
                    for r in inner}  # fmt: skip
            edge = edge.substitute(near)
            hides = edge < begin + self.amount if last else begin < edge
            found = hides if found is None else mk(Op.OR, dtypes.bool, (found, hides))
        return found

    def _finite(self, value: UOp) -> UOp:
        """The nearest finite number; NaN stays."""
        return value.maximum(UOp.const(self.dtype, self.lowest)).minimum(UOp.const(self.dtype, -self.lowest))
