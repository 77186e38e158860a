"""Index arithmetic as sums of scaled terms, so that a reshape becomes a division only where it must."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.bounds import bounds as graph_bounds
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.rules.order import depth

INDEX: Final = dtypes.index
_ADD: Final = Op.ADD
_MUL: Final = Op.MUL
_RANGE: Final = Op.RANGE
UNBOUNDED: Final = 1 << 62
ZERO: Final = UOp.const(INDEX, 0)

Shape = tuple[int, ...]
Index = tuple[UOp, ...]
Gate = tuple[UOp, ...]  # conjuncts in order of discovery; empty means always


class Form(NamedTuple):
    """`sum(factor * term) + constant`; a term is neither a sum nor a product with a constant."""

    terms: dict[UOp, int]
    constant: int


class IndexMath:
    """Builds index expressions in one normal form. Holds what it found out about nodes while one kernel is lowered."""

    def __init__(self) -> None:
        self._forms: dict[UOp, Form] = {}
        self._bounds: dict[UOp, tuple[int, int]] = {}  # under the gate that is assumed
        self._reshaped: dict[object, Index] = {}  # likewise
        self._known_under: dict[Gate, tuple[dict[UOp, tuple[int, int]], dict[object, Index]]] = {
            (): (self._bounds, self._reshaped)
        }
        self._order: dict[UOp, int] = {}
        self._scaled: dict[tuple[UOp, int], UOp] = {}
        self._pairs: dict[UOp, tuple[UOp, UOp, int]] = {}  # x % d: x, x // d, d

    # sums
    def form(self, node: UOp) -> Form:
        """The node as a sum of scaled terms."""
        found = self._forms.get(node)
        if found is not None:
            return found
        terms: dict[UOp, int] = {}
        constant = 0
        stack = [(node, 1)]
        while stack:
            part, factor = stack.pop()
            if part.op is Op.CONST:
                constant += factor * int(part.arg)
            elif part.op is Op.ADD:
                stack.append((part.src[1], factor))
                stack.append((part.src[0], factor))
            elif part.op is Op.MUL and part.src[1].op is Op.CONST:
                stack.append((part.src[0], factor * int(part.src[1].arg)))
            else:
                terms[part] = terms.get(part, 0) + factor
        found = self._forms[node] = Form(terms, constant)
        return found

    def combine(self, parts: Iterable[tuple[UOp, int]], constant: int = 0) -> UOp:
        """`sum(part * factor) + constant`."""
        terms: dict[UOp, int] = {}
        for part, factor in parts:
            if part.op is _RANGE:
                terms[part] = terms.get(part, 0) + factor
                continue
            form = self.form(part)
            constant += form.constant * factor
            for term, inner in form.terms.items():
                terms[term] = terms.get(term, 0) + inner * factor
        return self.build(terms, constant)

    def build(self, terms: dict[UOp, int], constant: int) -> UOp:
        """The node of a sum: what the outer loops decide first, so that equal sums are equal nodes.

        Mostly that is the order of the normal form, in which it stays then.
        """
        terms = self._rejoin({t: f for t, f in terms.items() if f})
        for term in terms:
            self._order.setdefault(term, len(self._order))
        result: UOp | None = None
        for term, factor in sorted(
            terms.items(), key=lambda pair: (depth(pair[0]), -abs(pair[1]), self._order[pair[0]])
        ):
            scaled = term if factor == 1 else self._scaled.get((term, factor))
            if scaled is None:
                scaled = mk(_MUL, INDEX, (term, UOp.const(INDEX, factor)), None)
                self._scaled[term, factor] = scaled
            result = scaled if result is None else mk(_ADD, INDEX, (result, scaled), None)
        if result is None:
            return UOp.const(INDEX, constant)
        if constant:
            result = mk(_ADD, INDEX, (result, UOp.const(INDEX, constant)), None)
        self._forms.setdefault(result, Form(terms, constant))
        return result

    def _rejoin(self, terms: dict[UOp, int]) -> dict[UOp, int]:
        """`(x // d) * d + x % d` is `x`; one such sum may complete the next."""
        changed = bool(self._pairs)
        while changed:
            changed = False
            for term in [t for t in terms if t in self._pairs]:
                factor = terms.get(term)
                value, quotient, divisor = self._pairs[term]
                inner = self.form(value)
                if factor and terms.get(quotient) == factor * divisor and inner.constant == 0:
                    del terms[term], terms[quotient]
                    for t, f in inner.terms.items():
                        terms[t] = terms.get(t, 0) + f * factor
                    changed = True
        return {t: f for t, f in terms.items() if f}

    # bounds
    def assume(self, gate: Gate) -> None:
        """Until the next call, indices are those of places where the gate holds: values elsewhere are never used.

        So a division that only the padding around an image made necessary goes away.
        """
        found = self._known_under.get(gate)
        if found is None:
            self._bounds = self._known_under[()][0]
            found = self._known_under[gate] = self._narrowed(gate), {}
        self._bounds, self._reshaped = found

    def _narrowed(self, gate: Gate) -> dict[UOp, tuple[int, int]]:
        """Bounds of the terms that a gate compares with constants."""
        found: dict[UOp, tuple[int, int]] = {}
        for condition in gate:
            if condition.op is not Op.CMPLT or condition.src[0].dtype is not INDEX:
                continue
            left, right = condition.src
            form = self.form(right if left.op is Op.CONST else left)
            if (left if left.op is Op.CONST else right).op is not Op.CONST or len(form.terms) != 1:
                continue
            [(term, factor)] = form.terms.items()
            low, high = found[term] if term in found else self.bounds(term)
            if left.op is Op.CONST:  # limit < factor * term + constant
                least = int(left.arg) - form.constant + 1
                low, high = (max(low, -(-least // factor)), high) if factor > 0 else (low, min(high, least // factor))
            else:  # factor * term + constant < limit
                most = int(right.arg) - form.constant - 1
                low, high = (low, min(high, most // factor)) if factor > 0 else (max(low, -(-most // factor)), high)
            if low <= high:
                found[term] = low, high
        return found

    def bounds(self, node: UOp) -> tuple[int, int]:
        """Smallest and largest value the node can have."""
        found = self._bounds.get(node)
        if found is None:
            form = self.form(node)
            if len(form.terms) == 1 and form.constant == 0 and node in form.terms:
                found = self._term_bounds(node)
            else:
                found = self.form_bounds(form)
            self._bounds[node] = found
        return found

    def form_bounds(self, form: Form) -> tuple[int, int]:
        """Bounds of a sum."""
        low = high = form.constant
        for term, factor in form.terms.items():
            first, last = self.bounds(term)
            if factor < 0:
                first, last = last, first
            low += first * factor
            high += last * factor
        return low, high

    def _term_bounds(self, node: UOp) -> tuple[int, int]:
        if node.op is Op.RANGE:
            size = node.src[0]
            return 0, max(0, int(size.arg if size.op is Op.CONST else graph_bounds(size)[1]) - 1)
        if node.op is Op.IDIV:
            low, high = self.bounds(node.src[0])
            divisor = int(node.src[1].arg)
            return low // divisor, high // divisor
        if node.op is Op.MOD:
            low, high = self.bounds(node.src[0])
            divisor = int(node.src[1].arg)
            return (low, high) if 0 <= low and high < divisor else (0, divisor - 1)
        if node.op is Op.CAST and node.src[0].dtype.is_unsigned:
            return 0, UNBOUNDED
        return -UNBOUNDED, UNBOUNDED

    # division
    def divide(self, node: UOp, divisor: int) -> UOp:
        """`node // divisor`."""
        return self.divmod(node, divisor)[0]

    def divmod(self, node: UOp, divisor: int) -> tuple[UOp, UOp]:
        """`(node // divisor, node % divisor)` for a positive divisor."""
        if divisor == 1:
            return node, ZERO
        form = self.form(node)
        whole = {t: f // divisor for t, f in form.terms.items() if f % divisor == 0}
        rest = {t: f for t, f in form.terms.items() if f % divisor}
        low, high = self.form_bounds(Form(rest, form.constant))
        shift = low // divisor
        if high < (shift + 1) * divisor:
            return self.build(whole, shift), self.build(rest, form.constant - shift * divisor)
        if (split := self._split_small(rest, form.constant, divisor)) is not None:
            large, small, unit = split
            quotient, remainder = self.divmod(large, divisor // unit)
            return self.combine([(quotient, 1), *whole.items()]), self.combine([(remainder, unit), (small, 1)])
        # Multiples of the divisor in the constant always come out.
        shift = form.constant // divisor
        constant = form.constant - shift * divisor
        common = divisor
        for factor in rest.values():
            common = gcd(common, factor)
        inner = self.build({t: f // common for t, f in rest.items()}, constant // common)
        quotient, remainder = self._opaque_divmod(inner, divisor // common)
        return (
            self.combine([(quotient, 1), *whole.items()], shift),
            self.combine([(remainder, common)], constant % common),
        )

    def _split_small(self, terms: dict[UOp, int], constant: int, divisor: int) -> tuple[UOp, UOp, int] | None:
        """`sum(terms) + constant` as `large * unit + small`: `0 <= small < unit`, and the unit divides `divisor`."""
        for unit in sorted({abs(f) for f in terms.values()}, reverse=True):
            if unit == 1 or divisor % unit:
                continue
            small = {t: f for t, f in terms.items() if f % unit}
            low, high = self.form_bounds(Form(small, constant))
            if 0 <= low and high < unit:
                large = {t: f // unit for t, f in terms.items() if f % unit == 0}
                return self.build(large, 0), self.build(small, constant), unit
        return None

    def _opaque_divmod(self, node: UOp, divisor: int) -> tuple[UOp, UOp]:
        if divisor == 1:
            return node, ZERO
        low, high = self.bounds(node)
        if 0 <= low and high < divisor:
            return ZERO, node
        quotient, remainder = node, node
        if node.op is Op.IDIV:  # x // a // b is x // (a * b)
            quotient, inner = node.src[0], int(node.src[1].arg)
            above = mk(Op.IDIV, INDEX, (quotient, UOp.const(INDEX, inner * divisor)), None)
        else:
            above = mk(Op.IDIV, INDEX, (quotient, UOp.const(INDEX, divisor)), None)
        if node.op is Op.MOD and int(node.src[1].arg) % divisor == 0:  # x % (a * b) % b is x % b
            remainder = node.src[0]
        below = mk(Op.MOD, INDEX, (remainder, UOp.const(INDEX, divisor)), None)
        self._pairs.setdefault(below, (node, above, divisor))
        return above, below

    # shapes
    def flatten(self, idx: Sequence[UOp], shape: Sequence[int]) -> UOp:
        """Row-major position of an index in a shape."""
        parts: list[tuple[UOp, int]] = []
        stride = 1
        for one, size in zip(reversed(idx), reversed(shape)):
            if size != 1:
                parts.append((one, stride))
                stride *= size
        if len(parts) == 1 and parts[0][1] == 1:
            return parts[0][0]
        return self.combine(reversed(parts))

    def reshape(self, idx: Index, new: Shape, old: Shape) -> Index:
        """The index into shape `old` of the element that shape `new` has at `idx`."""
        asked = (idx, new, old)
        found = self._reshaped.get(asked)
        if found is None:
            found = self._reshaped[asked] = self._reshape(idx, new, old)
        return found

    def _reshape(self, idx: Index, new: Shape, old: Shape) -> Index:
        result: list[UOp] = []
        position = 0
        axis = 0
        while axis < len(old):
            if old[axis] == 1:
                result.append(ZERO)
                axis += 1
                continue
            # The smallest group of axes on either side with the same number of elements.
            first_old, first_new = axis, position
            size_old, size_new = old[axis], 1
            axis += 1
            while size_old != size_new:
                if size_new < size_old:
                    size_new *= new[position]
                    position += 1
                else:
                    size_old *= old[axis]
                    axis += 1
            result.extend(self._regroup(idx[first_new:position], new[first_new:position], old[first_old:axis]))
        return tuple(result)

    def _regroup(self, idx: Index, new: Sequence[int], old: Sequence[int]) -> list[UOp]:
        flat = self.flatten(idx, new)
        if len(old) == 1:
            return [flat]
        result: list[UOp] = []
        for size in reversed(old[1:]):
            if size == 1:
                result.append(ZERO)
                continue
            flat, remainder = self.divmod(flat, size)
            result.append(remainder)
        result.append(flat)
        result.reverse()
        return result

    # guards
    def within(self, node: UOp, size: int) -> Gate:
        """The conditions under which `0 <= node < size`."""
        form = self.form(node)
        low, high = self.form_bounds(form)
        conditions: list[UOp] = []
        if low < 0 or high >= size:
            bare = self.build(form.terms, 0)
            if low < 0:
                limit = UOp.const(INDEX, -form.constant - 1)
                conditions.append(FALSE if high < 0 else mk(Op.CMPLT, dtypes.bool, (limit, bare), None))
            if high >= size:
                limit = UOp.const(INDEX, size - form.constant)
                conditions.append(FALSE if low >= size else mk(Op.CMPLT, dtypes.bool, (bare, limit), None))
        return tuple(conditions)


FALSE: Final = UOp.const(dtypes.bool, False)


def join(gate: Gate, more: Gate) -> Gate:
    """Both conditions."""
    if not more:
        return gate
    if not gate:
        return more
    return tuple(dict.fromkeys((*gate, *more)))


def condition(gate: Gate) -> UOp:
    """The gate as one bool node."""
    result = gate[0]
    for more in gate[1:]:
        result = mk(Op.AND, dtypes.bool, (result, more), None)
    return result
