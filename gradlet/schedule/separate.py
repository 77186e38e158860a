"""Sums that depend on other reductions of the same axes, taken apart: what a block can add up before those are known.

An element `g(x, s)` of such a sum uses a row's value s, a function of another reduction (a maximum, a mean). A block
has a value t of its own for it. The element becomes a sum of *terms* `factor(s, t) * element(x, t)`: exp(x - s) is
exp(t - s) * exp(x - t), and (x - s)**2 is (x - t)**2 + 2 (t - s) (x - t) + (t - s)**2. The elements are added up inside
the block, and the few factors meet those sums when s is known. Found on the expression, whatever spelled it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gradlet.base.dtype import DType, accumulator, dtypes
from gradlet.graph.node import UOp, by_uid, mk
from gradlet.ops.op import ELEMENTWISE, SCALAR_LEAVES, Op
from gradlet.schedule.blockcut import BlockCut
from gradlet.schedule.moves import expand_to

# More sums a block cost more than another pass over memory.
MAX_TERMS: Final = 6
# A row's value computed by these alone from a block's maximum or mean is of the size of the block's elements.
_CENTRAL: Final = frozenset(
    {Op.CAST, Op.ADD, Op.MUL, Op.FDIV, Op.MAX, Op.MIN, Op.WHERE, Op.CMPLT, Op.CMPEQ, Op.CMPNE, Op.AND, Op.OR}
)


class Term(NamedTuple):
    """A part of an element: `factor * element`, or of a bool both of them.

    Attributes:
        factor: a value a row and block; None for 1.
        element: known inside the block; None for 1.
        counted: the element only says whether this element has the factor, which means nothing where none has.
    """

    factor: UOp | None
    element: UOp | None
    counted: bool = False


class Form(NamedTuple):
    """The terms of an element; `rough` when one of them is as large as what it is subtracted from may be."""

    terms: tuple[Term, ...]
    rough: bool = False

    @property
    def is_row(self) -> bool:
        """Whether it is a row's value and nothing else."""
        return all(t.factor is not None and t.element is None for t in self.terms)


@dataclass(frozen=True)
class Known:
    """A reduction that a block has a value of its own for.

    Attributes:
        raw: the block's value, as it enters the combination.
        central: the block's value as a reference for its elements, always finite where they are; None where there is
            none.
        again: the same for the combination. It is another node, so that the combination computes it for itself: no
            small kernel has to run between those of a block.
    """

    raw: UOp | None = None
    central: UOp | None = None
    again: UOp | None = None


class Separation:
    """The forms of elements over one cut.

    Args:
        cut: how the axes are cut in blocks.
        is_live: whether a node depends on one of the known reductions.
    """

    def __init__(self, cut: BlockCut, is_live: Callable[[UOp], bool]) -> None:
        self.cut = cut
        self.is_live = is_live
        self.known: dict[UOp, Known] = {}
        self._forms: dict[UOp, Form | None] = {}
        self._central: dict[UOp, tuple[UOp, UOp] | None] = {}
        self._balanced: set[UOp] = set()  # elements whose sum over a block is rounding errors alone

    # reductions
    def head(self, reduce: UOp) -> UOp:
        """Remember a reduction of values that depend on no other; the result is its combination."""
        cut, dtype, op = self.cut, reduce.dtype, reduce.arg.op
        raw = cut.reduced(op, cut.element(reduce.src[0]))
        same = mk(Op.MAX, dtype, (raw, raw), None)
        known = Known(raw)
        if op is not Op.ADD:
            # A block whose elements are all infinite is no reason for inf - inf.
            if not dtype.is_float:
                known = Known(raw, raw, same)
            else:
                limit = UOp.const(dtype, -dtype.format.largest if op is Op.MAX else dtype.format.largest)
                known = Known(raw, mk(op, dtype, (raw, limit), None), mk(op, dtype, (same, limit), None))
        elif dtype.is_float:
            times = cut.rows_per_block(dtype)
            known = Known(raw, _times(raw, times), _times(same, times))
        self.known[reduce] = known
        return cut.combined(op, raw)

    def follower(self, reduce: UOp) -> UOp | None:
        """The combination of a reduction whose elements depend on known ones; None where no form is known."""
        source, op = reduce.src[0], reduce.arg.op
        if op is Op.ADD:
            made = self._sum(reduce)
        else:
            made = (self._selected(source, op) or self._not_worse(source, op)) if op in (Op.MAX, Op.MIN) else None
        if made is not None:
            self.known[reduce] = Known()
        return made

    def _sum(self, reduce: UOp) -> UOp | None:
        form = self.form(reduce.src[0])
        if form is None:
            return None
        cut, dtype = self.cut, reduce.dtype
        total: UOp | None = None
        for term in form.terms:
            if term.element is None:
                part = cut.count(dtype)
            else:
                part = cut.reduced(Op.ADD, term.element.cast(dtype))
            if term.factor is not None:
                product = _times(cut.lifted(term.factor.cast(dtype)), part)
                if term.element in self._balanced:
                    # A mean that overflows makes the sum infinite, not NaN.
                    product = _is_finite(product).where(product, UOp.const(dtype, 0))
                if term.counted:
                    zero = UOp.const(dtype, 0)
                    product = mk(Op.CMPEQ, dtypes.bool, (part, zero), None).where(zero, product)
                part = product
            total = part if total is None else total.add(part)
        return None if total is None else cut.combined(Op.ADD, cut.lifted(total))

    def _selected(self, source: UOp, op: Op) -> UOp | None:
        """The best of the elements that equal a known maximum or minimum; the others give one constant."""
        if source.op is not Op.WHERE or source.src[2].op is not Op.CONST or self.is_live(source.src[1]):
            return None
        chosen = self.form(source.src[0])
        if chosen is None or len(chosen.terms) != 1:
            return None
        factor, element, _ = chosen.terms[0]
        if factor is None or element is None:
            return None
        cut, other = self.cut, source.src[2]
        inside = element.where(cut.element(source.src[1]), other)
        return cut.combined(op, factor.where(cut.reduced(op, inside), other))

    def _not_worse(self, source: UOp, op: Op) -> UOp | None:
        """The best of the elements that are not beyond a known maximum or minimum; those that are give one constant.

        No comparison with NaN is true, inside the block as in the whole row.
        """
        if source.op is not Op.WHERE or source.src[1].op is not Op.CONST or self.is_live(source.src[2]):
            return None
        condition, other, value = source.src
        if condition.op is not Op.CMPLT:
            return None
        cut = self.cut
        less, more = condition.src
        for best_op, element, row in ((Op.MAX, less, more), (Op.MIN, more, less)):
            best = self._best_of(element, row)
            raw = self.known[best].raw if best is not None else None
            if best is None or raw is None or best.arg.op is not best_op:
                continue

            def is_worse(one: UOp, than: UOp, is_max: bool = best_op is Op.MAX) -> UOp:
                return mk(Op.CMPLT, dtypes.bool, (one, than) if is_max else (than, one), None)

            inside = is_worse(cut.element(element), expand_to(raw, cut.full)).where(other, cut.element(value))
            return cut.combined(op, is_worse(raw, cut.row(best)).where(other, cut.reduced(op, inside)))
        return None

    # forms
    def form(self, node: UOp) -> Form | None:
        """The terms of an element, None where it cannot be taken apart."""
        if not self.is_live(node):
            return Form((Term(None, self.cut.element(node)),))
        pending, seen = [node], {node}
        while pending:
            top = pending.pop()
            if top.op not in ELEMENTWISE:
                continue
            for source in top.src:
                if source not in seen and source not in self._forms and self.is_live(source):
                    seen.add(source)
                    pending.append(source)
        for part in sorted(seen, key=by_uid):
            if part not in self._forms:
                self._forms[part] = self._made(part)
        return self._forms[node]

    def _made(self, node: UOp) -> Form | None:
        op = node.op
        if op is Op.EXPAND:
            return self._seed(node)
        if op not in ELEMENTWISE or node.shape != self.cut.shape:
            return None
        forms: list[Form] = []
        made: Form | None
        for source in node.src:
            form = self._forms[source] if self.is_live(source) else Form((Term(None, self.cut.element(source)),))
            if op is Op.CMPEQ and form is None:
                return self._equal(node)
            if form is None:
                return None
            forms.append(form)
        if op is Op.ADD:
            rough = forms[0].rough or forms[1].rough or forms[0].is_row != forms[1].is_row
            made = _merged((*forms[0].terms, *forms[1].terms), node.dtype, rough)
            if made.terms[0].element is not None and self._is_balanced(node):
                self._balanced.add(made.terms[0].element)
        elif op is Op.MUL:
            made = self._product(forms, node.dtype)
        elif op is Op.FDIV:
            made = _quotient(forms, node.dtype)
        elif op is Op.CAST:
            made = _cast(forms[0], node)
        elif op is Op.EXP or op is Op.EXP2:
            made = self._power(node, forms[0])
        elif op is Op.WHERE:
            made = self._choice(node, forms)
        elif op is Op.CMPEQ:
            made = self._equal(node)
        elif op is Op.OR or op is Op.AND:
            made = self._both(node, forms)
        else:
            made = None
        return made if made is not None and len(made.terms) <= MAX_TERMS else None

    def _seed(self, node: UOp) -> Form | None:
        """A row's value at every element: the block's own value and the difference, or as it is where it has none."""
        below, cut = node.src[0], self.cut
        if node.shape != cut.shape or not cut.is_row(below):
            return None
        dtype = node.dtype
        wide = accumulator(dtype)
        if not dtype.is_float:
            return Form((Term(cut.row(below), None),))
        elements: list[Term] = []
        addends = self._addends(below)
        rough = False
        for row, scale in addends:
            if not cut.is_row(row):
                return None
            value = _scaled(cut.row(row).cast(wide), scale)
            if not self.is_live(row):
                elements.append(Term(None, expand_to(_scaled(cut.row(row), scale), cut.full)))
                continue
            central = self.central(row)
            if central is None:
                elements.append(Term(value, None))
                rough = len(addends) > 1
            else:
                elements.append(Term(None, expand_to(_scaled(central[0], scale), cut.full)))
                block = _scaled(central[1], scale).cast(wide)
                same = mk(Op.CMPEQ, dtypes.bool, (value, block), None)
                elements.append(Term(same.where(UOp.const(wide, 0), _difference(value, block)), None))
        return _merged(elements, dtype, rough)

    def _addends(self, row: UOp) -> list[tuple[UOp, float]]:
        """A row's value as a scaled sum of parts, those with a block's own value apart from the others."""
        found: list[tuple[UOp, float]] = []
        pending: list[tuple[UOp, float]] = [(row, 1.0)]
        while pending:
            node, scale = pending.pop()
            if not self.is_live(node) or self.central(node) is not None or len(found) > MAX_TERMS:
                found.append((node, scale))
            elif node.op is Op.RESHAPE:
                pending.append((node.src[0], scale))
            elif node.op is Op.ADD and not any(s.op in SCALAR_LEAVES for s in node.src):
                pending += [(node.src[1], scale), (node.src[0], scale)]
            elif node.op is Op.MUL and node.src[1].op is Op.CONST and node.dtype.is_float and node.src[1].arg == -1:
                pending.append((node.src[0], -scale))
            else:
                found.append((node, scale))
        return found

    def central(self, row: UOp) -> tuple[UOp, UOp] | None:
        """The block's own value of a row's value, if it is a scaled and shifted maximum, minimum or mean.

        Twice: for the block, and for the combination.
        """
        pending, seen = [row], {row}
        while pending:
            top = pending.pop()
            for source in () if top in self.known else top.src:
                if source not in seen and source not in self._central and self.is_live(source):
                    seen.add(source)
                    pending.append(source)
        for part in sorted(seen, key=by_uid):
            if part not in self._central:
                self._central[part] = self._block_value(part)
        return self._central[row]

    def _block_value(self, row: UOp) -> tuple[UOp, UOp] | None:
        known = self.known.get(row)
        if known is not None:
            return None if known.central is None or known.again is None else (known.central, known.again)
        if not self.cut.is_row(row):
            return None
        if row.op is Op.RESHAPE:
            return self._central.get(row.src[0])
        if row.op not in _CENTRAL or (row.op is Op.FDIV and self.is_live(row.src[1])):
            return None
        if row.op is Op.MUL and self.is_live(row.src[0]) and self.is_live(row.src[1]):
            return None
        sources: list[tuple[UOp, UOp]] = []
        for source in row.src:
            if self.is_live(source):
                mine = self._central.get(source)
                if mine is None:
                    return None
            elif self.cut.is_row(source):
                lifted = source if source.op in SCALAR_LEAVES else self.cut.row(source)
                mine = (lifted, lifted)
            else:
                return None
            sources.append(mine)
        inside = mk(row.op, row.dtype, tuple([one for one, _ in sources]), None)
        return inside, mk(row.op, row.dtype, tuple([again for _, again in sources]), None)

    # ops
    def _product(self, forms: Sequence[Form], dtype: DType) -> Form | None:
        first, second = forms
        if (first.rough and second.rough) or len(first.terms) * len(second.terms) > 2 * MAX_TERMS:
            return None
        terms = [
            Term(_both_factors(a.factor, b.factor), _both_factors(a.element, b.element), a.counted or b.counted)
            for a in first.terms
            for b in second.terms
        ]
        return _merged(terms, dtype, first.rough or second.rough)

    def _power(self, node: UOp, form: Form) -> Form | None:
        """exp(a + b) = exp(a) * exp(b). The block's part never overflows where the whole does not."""
        dtype, wide = node.dtype, accumulator(node.dtype)
        outside: UOp | None = None
        inside: UOp | None = None
        for term in form.terms:
            if term.factor is None:
                inside = term.element
            elif term.element is None:
                outside = term.factor if outside is None else outside.add(term.factor)
            else:
                return None
        if inside is not None and not self._is_bounded(node.src[0]):
            if not dtype.is_float:
                return None
            top = self.cut.reduced(Op.MAX, inside)
            inside = _difference(inside, expand_to(_clamped(top), self.cut.full))
            again = _clamped(mk(Op.MAX, dtype, (top, top), None)).cast(wide)
            outside = again if outside is None else outside.add(again)
        factor = None if outside is None else mk(node.op, wide, (outside,), None)
        return Form((Term(factor, None if inside is None else mk(node.op, dtype, (inside,), None)),))

    def _is_bounded(self, exponent: UOp) -> bool:
        """Whether the exponent is k (f - max f) plus what a row adds: zero at most, in every block too."""
        scales = self._scales(exponent)
        for best, scale in scales.items():
            if best in self.known and best.arg.op is not Op.ADD:
                others = [n for n in scales if n is not best and n is not best.src[0] and not self.is_live(n)]
                return (
                    scales.get(best.src[0]) == -scale
                    and not others
                    and math.isfinite(scale)
                    and (scale < 0) == (best.arg.op is Op.MAX)
                )
        return False

    def _is_balanced(self, node: UOp) -> bool:
        """Whether a node is k (f - mean f)."""
        scales = self._scales(node)
        if len(scales) != 2:
            return False
        for total, scale in scales.items():
            if total in self.known and total.arg.op is Op.ADD and total.src[0] in scales:
                return math.isclose(scales[total.src[0]], -scale * self.cut.reduced_size, rel_tol=1e-5)
        return False

    def _scales(self, node: UOp) -> dict[UOp, float]:
        """A node as a sum of others with constant factors; a guard against infinity counts as what it guards."""
        found: dict[UOp, float] = {}
        pending: list[tuple[UOp, float]] = [(node, 1.0)]
        while pending:
            top, scale = pending.pop()
            if top in self.known or not self.is_live(top) or len(found) > MAX_TERMS:
                found[top] = found.get(top, 0.0) + scale
            elif top.op is Op.ADD:
                pending += [(s, scale) for s in top.src]
            elif top.op in (Op.EXPAND, Op.RESHAPE, Op.CAST):
                pending.append((top.src[0], scale))
            elif top.op is Op.MUL and top.src[1].op is Op.CONST:
                pending.append((top.src[0], scale * top.src[1].arg))
            elif top.op is Op.FDIV and top.src[1].op is Op.CONST and top.src[1].arg:
                pending.append((top.src[0], scale / top.src[1].arg))
            elif top.op is Op.WHERE and _is_finite_guard(top):
                pending.append((top.src[1], scale))
            else:
                found[top] = found.get(top, 0.0) + scale
        return found

    def _choice(self, node: UOp, forms: Sequence[Form]) -> Form | None:
        condition, first, second = node.src
        dtype = node.dtype
        zero, one = UOp.const(dtype, 0), UOp.const(dtype, 1)
        if self.is_live(condition):
            # What equals the maximum has a value, the others have none.
            if second is not zero or self.is_live(first) or len(forms[0].terms) != 1:
                return None
            factor, element, _ = forms[0].terms[0]
            if factor is None or element is None:
                return None
            return Form((Term(factor.cast(accumulator(dtype)), element.where(self.cut.element(first), zero)),))
        where = self.cut.element(condition)
        plain: list[UOp] = []
        terms: list[Term] = []
        for position, form in enumerate(forms[1:]):
            own = next((t.element for t in form.terms if t.factor is None), zero)
            plain.append(one if own is None else own)
            for term in form.terms:
                if term.factor is None:
                    continue
                value = one if term.element is None else term.element
                chosen = where.where(value, zero) if position == 0 else where.where(zero, value)
                terms.append(Term(term.factor, chosen, term.counted or term.element is None))
        if any(p is not zero for p in plain):
            terms.insert(0, Term(None, where.where(plain[0], plain[1])))
        return _merged(terms, dtype, forms[1].rough or forms[2].rough)

    def _equal(self, node: UOp) -> Form | None:
        """`f == max f`: the block's maximum is the row's, and the element is the block's."""
        for value, row in (node.src, node.src[::-1]):
            best = self._best_of(value, row)
            raw = self.known[best].raw if best is not None else None
            if best is None or raw is None:
                continue
            inside = mk(Op.CMPEQ, dtypes.bool, (self.cut.element(value), expand_to(raw, self.cut.full)), None)
            return Form((Term(mk(Op.CMPEQ, dtypes.bool, (raw, self.cut.row(best)), None), inside),))
        return None

    def _best_of(self, value: UOp, row: UOp) -> UOp | None:
        """The known maximum or minimum of `value` that `row` shows at every element, if that is what it shows."""
        best = row.src[0] if row.op is Op.EXPAND else row
        while best.op is Op.RESHAPE:
            best = best.src[0]
        known = self.known.get(best)
        if row.op is not Op.EXPAND or known is None or known.raw is None or best.src[0] is not value:
            return None
        return best if best.arg.op is not Op.ADD and self.cut.is_row(row.src[0]) else None

    def _both(self, node: UOp, forms: Sequence[Form]) -> Form | None:
        """`f == max f` and another condition, or `f == max f or f is NaN`."""
        place = 0 if self.is_live(node.src[0]) else 1
        other = node.src[1 - place]
        if self.is_live(other) or len(forms[place].terms) != 1:
            return None
        factor, element, _ = forms[place].terms[0]
        if factor is None or element is None:
            return None
        mine = self.cut.element(other)
        inside = mk(node.op, dtypes.bool, (element, mine), None)
        if node.op is Op.AND:
            return Form((Term(factor, inside),))
        # Only a NaN of the same value: where there is one, it is the block's maximum.
        if other.op is not Op.CMPNE or other.src[0] is not other.src[1] or factor.op is not Op.CMPEQ:
            return None
        raws = [v.raw for k, v in self.known.items() if k.src[0] is other.src[0] and v.raw is not None]
        raw = next((r for r in raws if any(r is s for s in factor.src)), None)
        if raw is None:
            return None
        nan = mk(Op.CMPNE, dtypes.bool, (raw, raw), None)
        return Form((Term(mk(Op.OR, dtypes.bool, (factor, nan), None), inside),))


def _is_finite_guard(node: UOp) -> bool:
    """Whether it is a value where that is finite, else a constant."""
    condition = node.src[0]
    if condition.op is not Op.CMPLT or condition.src[1].op is not Op.CONST or condition.src[1].arg != math.inf:
        return False
    size = condition.src[0]
    return size.op is Op.MAX and node.src[1] in size.src and node.src[2].op is Op.CONST


def _clamped(value: UOp) -> UOp:
    """The nearest finite value."""
    limit = value.dtype.format.largest
    value = mk(Op.MAX, value.dtype, (value, UOp.const(value.dtype, -limit)), None)
    return mk(Op.MIN, value.dtype, (value, UOp.const(value.dtype, limit)), None)


def _is_finite(value: UOp) -> UOp:
    size = mk(Op.MAX, value.dtype, (value.neg(), value), None)
    return mk(Op.CMPLT, dtypes.bool, (size, UOp.const(value.dtype, math.inf)), None)


def _times(first: UOp, second: UOp) -> UOp:
    if second.op is Op.CONST and second.arg == 1:
        return first
    return mk(Op.MUL, first.dtype, (first, second), None)


def _scaled(value: UOp, scale: float) -> UOp:
    return value if scale == 1 else value.mul(scale)


def _difference(first: UOp, second: UOp) -> UOp:
    return mk(Op.ADD, first.dtype, (first, second.neg()), None)


def _both_factors(first: UOp | None, second: UOp | None) -> UOp | None:
    if first is None or second is None:
        return first if second is None else second
    return mk(Op.MUL, first.dtype, (first, second), None)


def _merged(terms: Sequence[Term], dtype: DType, rough: bool) -> Form:
    """Terms with one element or without factor as one."""
    plain: UOp | None = None
    ones = 0
    factors: dict[tuple[UOp | None, bool], UOp] = {}
    for factor, element, counted in terms:
        if factor is not None and element is not None and element.op is Op.CONST:
            factor, element = factor.mul(element.arg), None
        if factor is None and element is None:
            ones += 1
        elif factor is None:
            assert element is not None
            plain = element if plain is None else plain.add(element)
        else:
            before = factors.get((element, counted))
            factors[element, counted] = factor if before is None else before.add(factor)
    if ones:
        constant = UOp.const(dtype, ones)
        plain = constant if plain is None else plain.add(constant)
    result = [] if plain is None else [Term(None, plain)]
    return Form((*result, *[Term(f, element, counted) for (element, counted), f in factors.items()]), rough)


def _quotient(forms: Sequence[Form], dtype: DType) -> Form | None:
    above, below = forms
    if len(below.terms) != 1:
        return None
    factor, element, _ = below.terms[0]
    terms: list[Term] = []
    for term in above.terms:
        mine, value = term.factor, term.element
        if factor is not None:
            mine = mk(Op.FDIV, factor.dtype, (UOp.const(factor.dtype, 1) if mine is None else mine, factor), None)
        if element is not None and mine is not None and value is None and element.op is Op.CONST:
            mine = mk(Op.FDIV, mine.dtype, (mine, UOp.const(mine.dtype, element.arg)), None)
        elif element is not None:
            value = mk(Op.FDIV, dtype, (UOp.const(dtype, 1) if value is None else value, element), None)
        terms.append(Term(mine, value, term.counted and element is None))
    return Form(tuple(terms), above.rough or below.rough)


def _cast(form: Form, node: UOp) -> Form | None:
    before, dtype = node.src[0].dtype, node.dtype
    if not (before.is_bool or (before.is_float and dtype.is_float)):
        return None
    wide = accumulator(dtype)
    terms = [
        Term(f if f is None else f.cast(wide), e if e is None else e.cast(dtype), c) for f, e, c in form.terms
    ]  # fmt: skip
    return Form(tuple(terms), form.rough)
