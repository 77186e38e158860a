"""Products that feed products: recognised in a kernel, and taken apart.

`out[i, d] = sum over j of w(i, j) * v(j, d)`, where `w` is an element-wise function of products of its own: `s(i, j) =
sum over e of a(i, e) * b(j, e)`. A kernel of that form has several such sums over one loop, each with weights and
values of its own; products that their weights have in common are found to be one. `FEED` goes over `j` by blocks.
"""

from __future__ import annotations

from typing import NamedTuple

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.optimize.analysis import KernelFacts, affine, range_size
from gradlet.optimize.mixtures import Bound, alike, bounds_of, conditions_of, is_zero


class Inner(NamedTuple):
    """A product that weights are made of.

    Attributes:
        node: its REDUCE.
        beside: the factor that goes by with the loop along.
        own: the factor of the rows.
        depth: the range that it closes.
    """

    node: UOp
    beside: UOp
    own: UOp
    depth: UOp


class Fed(NamedTuple):
    """A sum whose weights are made of products.

    Attributes:
        node: its REDUCE in the kernel.
        weight: the weight, in terms of the common loop and the common products.
        values: what is weighted, likewise.
        columns: the ranges of its own that the values have, one where none has been cut.
        reverse: whether the values are the first factor.
    """

    node: UOp
    weight: UOp
    values: UOp
    columns: tuple[UOp, ...]
    reverse: bool

    @property
    def column(self) -> UOp:
        """The range of columns."""
        return self.columns[0]


class Feeds(NamedTuple):
    """The parts of such a kernel.

    Attributes:
        along: the range that all sums go over: the one of the first.
        inner: the products that weights are made of.
        sums: the sums.
        rows: ranges of rows that share what goes by along the loop, the longest first; none of ranges that are cut.
    """

    along: UOp
    inner: tuple[Inner, ...]
    sums: tuple[Fed, ...]
    rows: tuple[UOp, ...]


def find_feeds(facts: KernelFacts, loop: UOp | None = None, cut: bool = False) -> Feeds | None:
    """The products of a kernel that feed its sums, if it is one.

    Args:
        facts: the kernel.
        loop: the range of the first sum.
        cut: whether rows and columns are ranges of lanes already.
    """
    ranges = facts.ranges
    closing: set[UOp] = {r for n in facts.reduces for r in n.src[1:]}
    outer = [n for n in facts.reduces if ranges[n].isdisjoint(closing)]
    if not outer or len(outer) == len(facts.reduces) or any(not _is_product(n) for n in facts.reduces):
        return None
    along = outer[0].src[1]
    if (loop is not None and along is not loop) or range_size(along) is None:
        return None
    inner: list[UOp] = []
    sums: list[Fed] = []
    for node in outer:
        own = node.src[1]
        found = [side for side in node.src[0].src if side.mask & 1 << Op.REDUCE]
        if len(found) != 1 or own.src[0] is not along.src[0]:
            return None
        weight, values = found[0], next(s for s in node.src[0].src if s is not found[0])
        columns = ranges[values] - ranges[weight] - {own}
        if not columns or (len(columns) > 1 and not cut) or own not in ranges[values]:
            return None
        weight, values = weight.substitute({own: along}), values.substitute({own: along})
        reverse = node.src[0].src[0] is not found[0]
        by_number = tuple(sorted(columns, key=lambda r: r.arg.number))
        sums.append(Fed(node, _shared(weight, inner), values, by_number, reverse))
    parts = [_parted(node, along, sums) for node in inner]
    products = [p for p in parts if p is not None]
    if len(products) < len(parts):
        return None
    shared = frozenset[UOp]().union(*[p.beside.ranges for p in products], *[s.values.ranges for s in sums])
    common = frozenset.intersection(*[frozenset(s.weight.ranges) for s in sums])
    rows = [r for r in common if r not in shared and r.arg.kind is AxisKind.LOOP and range_size(r) is not None]
    rows = [r for r in rows if all(r in p.own.ranges for p in products)]
    if cut:
        return Feeds(along, tuple(products), tuple(sums), ())
    if not rows or any(s.column.arg.kind is not AxisKind.LOOP or range_size(s.column) is None for s in sums):
        return None
    rows.sort(key=lambda r: (-(range_size(r) or 0), -r.arg.number))
    return Feeds(along, tuple(products), tuple(sums), tuple(rows))


def _is_product(node: UOp) -> bool:
    return node.arg.op is Op.ADD and node.src[0].op is Op.MUL and len(node.src) == 2


def _shared(weight: UOp, inner: list[UOp]) -> UOp:
    """The weight in terms of the products that are known already; new ones join them."""
    instead: dict[UOp, UOp] = {}
    for node in weight.toposort():
        if node.op is Op.REDUCE:
            known = next((k for k in inner if alike(node, k, {})), None)
            if known is None:
                inner.append(node)
            else:
                instead[node] = known
    return weight.substitute(instead)


def _parted(node: UOp, along: UOp, sums: list[Fed]) -> Inner | None:
    """The factors of an inner product, if one belongs to the rows and one goes by."""
    depth = node.src[1]
    columns = {r for s in sums for r in s.columns}
    if range_size(depth) is None or node.src[0].mask & 1 << Op.REDUCE or not columns.isdisjoint(node.ranges):
        return None
    first, second = node.src[0].src
    for beside, own in ((first, second), (second, first)):
        if along in beside.ranges and along not in own.ranges and depth in beside.ranges and depth in own.ranges:
            return Inner(node, beside, own, depth)
    return None


def is_apart(factor: UOp, loop: UOp) -> bool:
    """Whether a factor's elements do not lie side by side in memory along a range."""
    if factor.op is not Op.LOAD or len(factor.src) > 1 or len(factor.src[0].src) > 2:
        return True
    terms = affine(factor.src[0].src[1]).terms
    return terms.get(loop) != 1 or any(loop in atom.ranges for atom in terms if atom is not loop)


def seen_bounds(feeds: Feeds) -> list[Bound]:
    """Bounds outside of which the weights of all sums are 0."""
    found = [_zero_outside(s.weight, feeds.along) for s in feeds.sums]
    return [b for b in found[0] if all(b in others for others in found[1:])]


def _zero_outside(weight: UOp, along: UOp) -> list[Bound]:
    """Bounds outside of which a weight is 0, if everything that it is multiplied by is finite."""
    found: list[Bound] = []
    stack = [weight]
    while stack:
        node = stack.pop()
        if node.op is Op.MUL:
            stack += node.src
        elif node.op is Op.CAST or node.op is Op.FDIV:
            stack.append(node.src[0])
        elif node.op in (Op.EXP, Op.EXP2):
            found += bounds_of(node.src[0], along)
        elif node.op is Op.WHERE:
            condition, yes, no = node.src
            if is_zero(no):
                found += conditions_of(condition, along, True)
                stack.append(yes)
            elif is_zero(yes):
                found += conditions_of(condition, along, False)
                stack.append(no)
    return found
