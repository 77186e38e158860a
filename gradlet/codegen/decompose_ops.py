"""Ops the target lacks, in terms of ops it has: exponential, logarithm and sine of float32 as polynomials.

Coefficients were fitted by reweighted least squares at Chebyshev nodes and rounded to float32. Everything is plain
arithmetic on nodes, so it vectorises like any other expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.base.settings import STRICT_FLOAT
from gradlet.codegen import rounded
from gradlet.graph.loose import Positive, loose_values
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import DOTS, ELEMENTWISE, Op
from gradlet.optimize.analysis import kernel_order, use_counts
from gradlet.target.target import Target

# Members of an enum are slow to reach through their class.
_ADD: Final = Op.ADD
_CONST: Final = Op.CONST
_COS: Final = Op.COS
_DOT: Final = Op.DOT
_DOT16: Final = Op.DOT16
_EXP: Final = Op.EXP
_EXP2: Final = Op.EXP2
_LOG: Final = Op.LOG
_LOG2: Final = Op.LOG2
_MUL: Final = Op.MUL
_MULADD: Final = Op.MULADD
_POW: Final = Op.POW
_REDUCE: Final = Op.REDUCE
_SIN: Final = Op.SIN

# e**r = 1 + r + r**2 q(r) for |r| <= log(2) / 2
EXP: Final = (0.4999999403953552, 0.16666515171527863, 0.04166845604777336, 0.008369418792426586, 0.0013813142431899905)
# log(1 + f) = f - f**2 / 2 + f**3 p(f) for sqrt(1/2) <= 1 + f <= sqrt(2)
LOG: Final = (
    0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053, 0.14219550788402557,
    -0.12405591458082199, 0.11888174712657928, -0.11675640940666199, 0.06746601313352585,
)  # fmt: skip
# sin(r) = r + r**3 s(r**2), cos(r) = 1 - r**2 / 2 + r**4 c(r**2) for |r| <= pi / 4
SIN: Final = (-0.1666666716337204, 0.008333329111337662, -0.00019839295418933034, 2.7179398784937803e-06)
COS: Final = (0.0416666679084301, -0.0013888883404433727, 2.4799417587928474e-05, -2.720220777518989e-07)

# 1 / (2 pi) in pieces of 29 bits: times a float32 each piece is exact in float64. The first five give whole turns.
TURNS: Final = tuple(
    math.ldexp(bits, -29 * (i + 1) - 2)
    for i, bits in enumerate((341782637, 423170132, 352195499, 488592205, 461485765, 90590992, 478285810))
)
WHOLE_TURNS: Final = 5
ROUND: Final = 12582912.0  # 1.5 * 2**23: adding it to a small float32 leaves the nearest integer in the last bits
ROUND_BITS: Final = 0x4B400000
LOG2_E: Final = 1.4426950408889634
LN2_HIGH: Final = 0.693145751953125  # few bits, so that a small integer times it is exact
LN2_LOW: Final = 1.428606765330187e-06
SQRT_HALF_BITS: Final = 0x3F3504F3


_LOOSE: Final = 1 << Op.EXP | 1 << Op.EXP2 | 1 << Op.FDIV


def decompose(sink: UOp, target: Target) -> UOp:
    """Replace every transcendental op that the target does not support.

    Where results have 16 bits or less, a target that approximates may use its instructions: see `graph/loose`.
    """
    approximates = target.approximates and sink.mask & _LOOSE and not STRICT_FLOAT.value
    if not sink.mask & _EXPANDED and not approximates:
        return sink
    new: dict[UOp, UOp] = {}
    order = kernel_order(sink)
    loose = loose_values(order) | rounded.loose_powers(order) if approximates else frozenset()
    positive = Positive()
    for node in order:
        if not node.src:
            continue
        src = tuple([new.get(s, s) for s in node.src])
        if node in loose:
            if node.op is Op.EXP or node.op is Op.EXP2:
                new[node] = rounded.power_of_e(src[0], LOG2_E) if node.op is Op.EXP else mk(node.op, node.dtype, src)
                continue
            if node.op is Op.FDIV and rounded.is_near_reciprocal(node, positive):
                new[node] = rounded.near_quotient(*src)
                continue
            if node.op is Op.FDIV and len(node.src[1].ranges) < len(node.ranges):
                new[node] = rounded.quotient(*src)
                continue
        expand = _EXPANSIONS.get(node.op) if node.op in ELEMENTWISE else None
        if expand is not None and node.dtype.scalar is dtypes.float32 and not target.supports(node.op, node.dtype):
            new[node] = expand(*src)
        elif src != node.src:
            new[node] = mk(node.op, node.dtype, src, node.arg)
    return new.get(sink, sink)


def constant(like: UOp, value: float) -> UOp:
    """A constant of the type of another node."""
    return UOp.const(like.dtype, value)


def fused(x: UOp, y: UOp | float, z: UOp | float) -> UOp:
    """x * y + z."""
    return x.alu(_MULADD, x.coerce(y), x.coerce(z))


def polynomial(x: UOp, coefficients: Sequence[float]) -> UOp:
    """`coefficients[0] + coefficients[1] * x + ...` by Horner's rule."""
    result = constant(x, coefficients[-1])
    for value in reversed(coefficients[:-1]):
        result = fused(result, x, value)
    return result


def clamp(x: UOp, low: float, high: float) -> UOp:
    """x within [low, high]; NaN stays NaN because its comparisons are false."""
    x = (x < low).where(constant(x, low), x)
    return constant(x, high).lt(x).where(constant(x, high), x)


def nearest_integer(x: UOp, factor: float) -> tuple[UOp, UOp]:
    """The integer nearest to x * factor, as float32 and as int32, for |x * factor| < 2**22."""
    shifted = fused(x, factor, ROUND)
    return shifted - ROUND, shifted.bitcast(dtypes.int32) - ROUND_BITS


def scale_by_power_of_two(x: UOp, exponent: UOp) -> UOp:
    """x * 2**exponent in two steps, so that overflow and subnormal results round once and rightly."""
    half = exponent >> 1
    for part in (half, exponent - half):
        x = x * ((part + 127) << 23).bitcast(dtypes.float32)
    return x


def exp(x: UOp) -> UOp:
    """e**x within 1 ulp."""
    x = clamp(x, -104.0, 89.0)
    whole, exponent = nearest_integer(x, LOG2_E)
    r = fused(whole, -LN2_LOW, fused(whole, -LN2_HIGH, x))
    return scale_by_power_of_two(_exp_reduced(r), exponent)


def exp2(x: UOp) -> UOp:
    """2**x within 1 ulp."""
    x = clamp(x, -151.0, 129.0)
    whole, exponent = nearest_integer(x, 1.0)
    return scale_by_power_of_two(_exp_reduced((x - whole) * 0.6931471805599453), exponent)


def _exp_reduced(r: UOp) -> UOp:
    return fused(r * r, polynomial(r, EXP), r) + 1.0


def _mantissa(x: UOp) -> tuple[UOp, UOp]:
    """(f, e) with x = (1 + f) * 2**e for positive finite x, also subnormal."""
    tiny = x < 1.1754943508222875e-38
    bits = tiny.where(x * 8388608.0, x).bitcast(dtypes.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    mantissa = (bits - (exponent << 23)).bitcast(dtypes.float32)
    return mantissa - 1.0, (exponent + tiny.where(constant(bits, -23), constant(bits, 0))).cast(dtypes.float32)


def _log_special(x: UOp, result: UOp) -> UOp:
    """Infinity and NaN stay, zero gives minus infinity, negative numbers NaN."""
    result = (x < math.inf).where(result, x)
    result = x.eq(0.0).where(constant(x, -math.inf), result)
    return (x < 0.0).where(constant(x, math.nan), result)


def _log_tail(f: UOp) -> UOp:
    """log(1 + f) - f."""
    square = f * f
    return fused(square * f, polynomial(f, LOG), square * -0.5)


def log(x: UOp) -> UOp:
    """Natural logarithm within 1 ulp."""
    f, exponent = _mantissa(x)
    rest = fused(exponent, LN2_LOW, _log_tail(f))
    return _log_special(x, fused(exponent, LN2_HIGH, f + rest))


def log2(x: UOp) -> UOp:
    """Base 2 logarithm within 2 ulp."""
    f, exponent = _mantissa(x)
    rest = _log_tail(f)
    # f * log2(e) in two parts: the part that is exact is added last.
    small = LOG2_E - 1.0
    total = fused(rest, small, f * small) + rest + f
    return _log_special(x, total + exponent)


def _quadrant(x: UOp) -> tuple[UOp, UOp]:
    """(r, q) with x = r + q * pi / 2 up to whole turns, |r| <= pi / 4 in float64, for every float32.

    The argument in turns is summed from exact products with pieces of 1 / (2 pi): whole turns are dropped from each
    product before anything is rounded, so the size of x does not matter.
    """
    wide = x.cast(dtypes.float64)
    parts: list[UOp] = []
    for piece in TURNS:
        product = wide * piece
        parts.append(fused(product.trunc(), -1.0, product) if len(parts) < WHOLE_TURNS else product)
    # Large terms first lose their whole part, then the small ones are added: nothing cancels after rounding.
    head = (parts[0] + parts[1]) * 4.0
    quarter = _round_float64(head)
    tail = parts[-1]
    for part in reversed(parts[2:-1]):
        tail = part + tail
    rest = fused(tail, 4.0, head - quarter)
    more = _round_float64(rest)
    return (rest - more) * (math.pi / 2), (quarter + more).cast(dtypes.int32)


def _sine_and_cosine(wide: UOp) -> tuple[UOp, UOp]:
    """Sine and cosine as float32 for |wide| <= pi / 4; only their polynomials are not in float64."""
    r = wide.cast(dtypes.float32)
    narrow, square = r * r, wide * wide
    sine = fused(square * wide, polynomial(narrow, SIN).cast(dtypes.float64), wide)
    less = polynomial(narrow, COS).cast(dtypes.float64)
    cosine = fused(square * square, less, fused(square, -0.5, 1.0))
    return sine.cast(dtypes.float32), cosine.cast(dtypes.float32)


def _by_quadrant(x: UOp, quadrant: UOp, even: UOp, odd: UOp) -> UOp:
    """The value of this quadrant; what is not finite has none."""
    value = (quadrant & 1).ne(0).where(odd, even)
    signed = (quadrant & 2).ne(0).where(value * -1.0, value)
    return (x * 0.0).eq(0.0).where(signed, constant(x, math.nan))


def sin(x: UOp) -> UOp:
    """Sine within 0.6 ulp for every float32."""
    r, quadrant = _quadrant(x)
    sine, cosine = _sine_and_cosine(r)
    return x.eq(0.0).where(x, _by_quadrant(x, quadrant, sine, cosine))  # a zero keeps its sign


def cos(x: UOp) -> UOp:
    """Cosine within 0.6 ulp for every float32; what it shares with the sine of x is computed once."""
    r, quadrant = _quadrant(x)
    sine, cosine = _sine_and_cosine(r)
    return _by_quadrant(x, quadrant, cosine, sine * -1.0)


def _round_float64(x: UOp) -> UOp:
    """Nearest integer of a small float64."""
    shift = 6755399441055744.0  # 1.5 * 2**52
    return (x + shift) - shift


def power(x: UOp, y: UOp) -> UOp:
    """x ** y through float64, whose library function is exact enough to round once."""
    return x.cast(dtypes.float64).alu(_POW, y.cast(dtypes.float64)).cast(dtypes.float32)


_EXPANSIONS: Final[dict[Op, Callable[..., UOp]]] = {
    _EXP: exp,
    _EXP2: exp2,
    _LOG: log,
    _LOG2: log2,
    _SIN: sin,
    _COS: cos,
    _POW: power,
}


_EXPANDED: Final = sum(1 << op for op in _EXPANSIONS)


def form_multiply_adds(sink: UOp) -> UOp:
    """`x * y + z` of floats becomes one op where nothing else needs the product.

    Sums that a REDUCE accumulates stay sums: their products join the accumulator one by one.
    """
    if STRICT_FLOAT.value:
        return sink
    order = kernel_order(sink)
    if not any(n.op is _ADD and n.dtype.is_float and (n.src[0].op is _MUL or n.src[1].op is _MUL) for n in order):
        return sink
    uses = use_counts(order)
    accumulated: set[UOp] = set()
    for node in reversed(order):
        if node.op is _REDUCE and node.arg.op is _ADD and uses[node.src[0]] == 1:
            accumulated.add(node.src[0])
        elif node in accumulated and node.op is _ADD:
            accumulated.update(s for s in node.src if uses[s] == 1)
    new: dict[UOp, UOp] = {}
    changed = new.keys()
    for node in order:
        product = None
        if node.op is _ADD and node.dtype.is_float and node not in accumulated:
            product = next((i for i in (0, 1) if node.src[i].op is _MUL and uses[node.src[i]] == 1), None)
        if product is not None:
            src = [new.get(s, s) for s in node.src]
            factors = src[product].src
            new[node] = mk(_MULADD, node.dtype, (factors[0], factors[1], src[1 - product]))
        elif not changed.isdisjoint(node.src):
            new[node] = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
    return new.get(sink, sink)


_DOTS: Final = 1 << Op.DOT | 1 << Op.DOT16


def join_dots(sink: UOp) -> UOp:
    """Two sums of DOTs that begin with 0, added up, become one: the second goes on from the first.

    What else is added stays outside of sums of byte products, which may then wait for it until they are done; products
    of halves begin with it.
    """
    if not sink.mask & _DOTS:
        return sink
    order = kernel_order(sink)
    uses = use_counts(order)
    new: dict[UOp, UOp] = {}
    alone: set[UOp] = {n for n in order if uses[n] == 1}
    for node in order:
        src = tuple([new.get(s, s) for s in node.src])
        made = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
        if node.op is _ADD:
            for i in (1, 0):
                joined = _joined(src[i], src[1 - i], alone) if node.src[i] in alone else None
                if joined is not None:
                    made = joined
                    if node in alone:
                        alone.update((made, *made.src))
                    break
        if made is not node:
            new[node] = made
    return new.get(sink, sink)


def _joined(dot: UOp, rest: UOp, alone: set[UOp]) -> UOp | None:
    """The sum of a chain of DOTs that begins with 0 and another value."""
    chain: list[UOp] = []
    while dot.op in DOTS:
        chain.append(dot)
        dot = dot.src[2]
    if not chain or dot.op is not _CONST or dot.arg:
        return None
    if chain[0].op is _DOT16 or rest.op is _DOT:
        return _begun_with(chain, rest)
    if rest.op is _ADD and rest in alone:
        for i in (0, 1):
            if rest.src[i].op is _DOT and rest.src[i] in alone:
                return mk(_ADD, rest.dtype, (rest.src[1 - i], _begun_with(chain, rest.src[i])))
    return None


def _begun_with(chain: list[UOp], start: UOp) -> UOp:
    for link in reversed(chain):
        start = mk(link.op, link.dtype, (link.src[0], link.src[1], start))
    return start
