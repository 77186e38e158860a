"""TENSORIZE: products of two staged tiles are summed by a matrix unit.

`TENSORIZE(range 2, 64, warps=.., halves=.., groups=.., pair=..)`: the REDUCE over range 2 sums products of elements of
types that `target/matrixcore` describes; both factors are copies with `swizzle`. The other ranges say how the lanes
share the tile; they are those of the unit. The range becomes one of kind TENSOR: a loop for the evaluator, and on
machines without such a unit.
"""

from __future__ import annotations

from typing import NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, TensorizeDetail
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, make_range, nesting_order, range_size
from gradlet.rules.sets import INDEX_MATH
from gradlet.target.matrixcore import FACTORS
from gradlet.target.target import Target

ROW = 128  # bytes of a step of the sum


class Tiles(NamedTuple):
    """The two factors of a product in shared memory: the arrays, the length of the sum, which way it runs."""

    first: UOp
    second: UOp
    depth: int
    first_across: bool
    second_across: bool


def tiles_of(reduce: UOp) -> Tiles:
    """What the factors of a tensorized product are."""
    loop = next(r for r in reduce.src[1:] if r.arg.kind is AxisKind.TENSOR)
    loads = [side if side.op is Op.LOAD else side.src[0] for side in reduce.src[0].src]
    across = [not _runs_along(load.src[0].src[1], loop) for load in loads]
    first, second = (load.src[0].src[0] for load in loads)
    return Tiles(first, second, int(loop.src[0].arg), *across)


def _runs_along(element: UOp, loop: UOp) -> bool:
    """Whether a step of the range is one element of a row."""
    ranges = [n for n in element.toposort() if n.op is Op.RANGE]
    step = element.substitute({r: UOp.const(dtypes.index, int(r is loop)) for r in ranges})
    found = rewrite(step, INDEX_MATH)
    return found.op is Op.CONST and bool(found.arg == 1)


def _load(opt: Opt, side: UOp, target: Target) -> UOp:
    """The load of a staged factor."""
    load = side.src[0] if side.op is Op.CAST else side
    factor = FACTORS.get(load.dtype) if load.op is Op.LOAD else None
    known = target.matrix_units is None or target.matrix_units.factor(load.dtype) is not None
    if factor is None or not known or factor.converted != (side.op is Op.CAST):
        names = ", ".join(dtype.name for dtype, f in FACTORS.items() if _multiplies(target, f.name))
        raise refusal(opt, f"the factors are not loaded as one of {names} (float32 takes ALLOW_TF32=1)")
    if load.src[0].src[0].op is not Op.AFTER:
        raise refusal(opt, "a factor is not staged")
    return load


def _multiplies(target: Target, name: str) -> bool:
    return target.matrix_units is None or name in target.matrix_units.factors


def tensorize(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    detail = opt.detail
    if not isinstance(detail, TensorizeDetail):
        raise refusal(opt, "it does not say what the ranges of the tile are")
    closing = [n for n in facts.reduces if loop in n.src[1:]]
    if len(closing) != 1 or loop.arg.kind is not AxisKind.REDUCE:
        raise refusal(opt, "it takes a range that one reduce closes")
    reduce = closing[0]
    value = reduce.src[0]
    if reduce.arg.op is not Op.ADD or value.op is not Op.MUL:
        raise refusal(opt, "it is no sum of products")
    loads = [_load(opt, side, target) for side in value.src]
    factors = [FACTORS[load.dtype] for load in loads]
    if loads[0].dtype is not loads[1].dtype and not all(load.dtype.itemsize == 1 for load in loads):
        raise refusal(opt, "the factors have different types")
    if any(factor.total is not reduce.dtype for factor in factors):
        raise refusal(opt, f"products of {loads[0].dtype.name} are added up in {factors[0].total.name}")
    step = ROW // loads[0].dtype.itemsize
    if range_size(loop) != step:
        raise refusal(opt, f"a step of the sum has {step} elements")
    for load, factor in zip(loads, factors, strict=True):
        if not factor.turns and not _runs_along(load.src[0].src[1], loop):
            raise refusal(opt, f"factors of {load.dtype.name} lie along the sum; copy the one that lies across it")
    kinds = {AxisKind.THREAD: detail.warps, AxisKind.VECTOR: detail.pair}
    for kind, number in kinds.items():
        found = facts.by_number(number)
        if found is None or found.arg.kind is not kind:
            raise refusal(opt, f"range {number} is not of kind {kind.name}")
    warps = facts.by_number(detail.warps)
    if warps not in facts.ranges[value.src[0]]:  # the factor with the rows comes first
        if warps not in facts.ranges[value.src[1]]:
            raise refusal(opt, f"no factor runs over the warps of range {detail.warps}")
        value = mk(Op.MUL, value.dtype, (value.src[1], value.src[0]))
    lanes = sorted(
        (r for r in facts.loops if r.arg.kind is AxisKind.THREAD and r in facts.ranges[reduce]), key=nesting_order
    )
    rows = [r in facts.ranges[value.src[0]] for r in lanes]
    if [range_size(r) for r in lanes[1:]] != [8, 4] or lanes[0] is not warps or rows != [True, True, False]:
        raise refusal(opt, "lanes are not numbered by warps, then by eight rows, then by four pairs of columns")
    inner = make_range(loop.src[0], loop.arg.number, AxisKind.TENSOR)
    body = value.substitute({loop: inner})
    made = mk(Op.REDUCE, reduce.dtype, (body, *[inner if r is loop else r for r in reduce.src[1:]]), reduce.arg)
    return facts.sink.substitute({reduce: made})
