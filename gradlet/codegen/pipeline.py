"""The list of passes from one kernel to its linear program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gradlet.base.settings import NOOPT, OPTS
from gradlet.codegen import (
    decompose_dtypes,
    decompose_ops,
    divisions,
    expand,
    feedroles,
    interleave,
    linearize,
    loops,
    memory,
    mixtureroles,
    mixtureunits,
    positions,
    reduce,
    roles,
    simt,
    tensorcores,
    transpose,
    vote,
    windows,
)
from gradlet.graph.launch import variables_in_order
from gradlet.graph.node import UOp, no_gc, toposort
from gradlet.graph.passes import Observer, Pass, Pipeline
from gradlet.graph.program import LinearProgram
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import AxisKind, KernelArg, Op, Stage
from gradlet.ops.opt import OptKind
from gradlet.optimize import cost, heuristic, mixturetiles
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import KernelFacts, range_size, remembered_order, size_bound
from gradlet.optimize.opttext import opts_for
from gradlet.rules.sets import INDEX_MATH
from gradlet.target.rotation import has_register_factors
from gradlet.target.target import Target

# Members of an enum are slow to reach through their class.
_PARAM: Final = Op.PARAM
_RANGE: Final = Op.RANGE


@dataclass(frozen=True)
class Lowering:
    """What every pass may ask: the machine that the kernel is for.

    Attributes:
        parallel: whether the heuristic may spread it over cores.
        nests: the loop tree of the scheduled kernel once it is known; later passes do not move loops.
    """

    target: Target
    parallel: bool = True
    nests: list[loops.Nest] = field(default_factory=list)


def _apply_opts(sink: UOp, context: Lowering) -> UOp:
    """Apply the kernel's own schedule, else the one that OPTS has for it, else what the heuristic chooses."""
    opts = sink.arg.opts
    if opts is None and OPTS:
        opts = opts_for(OPTS.value, sink.arg.name)
    if opts is None:
        opts = (
            heuristic.least(KernelFacts(sink), context.target)
            if NOOPT.value
            else heuristic.choose(sink, context.target, context.parallel)
        )
    applied = actions.apply(sink, opts, context.target)
    if has_register_factors(context.target) and mixturetiles.by_units(opts):
        return mixtureunits.use_mixture_units(applied)
    return tensorcores.use_matrix_units(applied, context.target)


def _simplify(sink: UOp, context: Lowering) -> UOp:
    """Index math where there is certainly something to do, so that looking first would be in vain."""
    return rewrite(sink, INDEX_MATH)


def _separate(sink: UOp, context: Lowering) -> UOp:
    nest = loops.separated(sink)
    context.nests[:] = [nest]
    return nest.sink


def _order_sums(sink: UOp, context: Lowering) -> UOp:
    nest = context.nests[0] if context.nests and context.nests[0].sink is sink else None
    return memory.order_sums(sink, nest)


def plain(step: Callable[[UOp], UOp]) -> Callable[[UOp, Lowering], UOp]:
    """A pass that looks at the graph only."""
    return lambda node, context: step(node)


def for_target(step: Callable[[UOp, Target], UOp]) -> Callable[[UOp, Lowering], UOp]:
    """A pass that also looks at the target."""
    return lambda node, context: step(node, context.target)


K: Final = Stage.KERNEL

PIPELINE: Final = Pipeline(
    "kernel to program",
    (
        Pass("simplify index math", INDEX_MATH, K, K, doc="division, modulo, compares and guards that bounds decide"),
        Pass("merge nested reduces", plain(reduce.merge_nested), K, K, doc="one REDUCE over all its ranges"),
        Pass("widen accumulators", plain(reduce.widen_accumulators), K, K,
             doc="floats of 8 and 16 bits are summed in float32"),
        Pass("cut loops at divisions", plain(divisions.cut_at_divisions), K, K,
             doc="what is kept in strips is read with a loop over strips and a loop inside"),
        Pass("count in indices", plain(positions.count_in_indices), K, K,
             doc="positions as values are one number, as they are as indices"),
        Pass("merge adjacent ranges", plain(loops.merge_adjacent), K, K, doc="fewer and longer loops"),
        Pass("join windows", for_target(windows.join_windows), K, K,
             doc="the image under a pooling is walked as it lies"),
        Pass("give each loop its own range", plain(loops.separate), K, K,
             doc="a row that is read twice is two loops"),
        Pass("apply schedule", _apply_opts, K, K, doc="split, vectorise, unroll and parallelise ranges"),
        Pass("simplify splits", _simplify, K, K, doc="sums in normal form before there are copies of them"),
        Pass("expand unrolled ranges", plain(expand.unroll), K, K, doc="copies share what they can"),
        Pass("simplify copies", _simplify, K, K, doc="each copy has constants where ranges were"),
        Pass("vectorise", for_target(expand.vectorize), K, K, doc="VECTOR ranges become lanes"),
        Pass("settle guards", plain(memory.settle_guards), K, K, doc="every guarded load has its other value"),
        Pass("transpose in registers", plain(transpose.transpose_in_registers), K, K,
             doc="lanes gathered from rows side by side become columns of loaded rows"),
        Pass("compute narrow floats in float32", for_target(decompose_dtypes.compute_in_float32), K, K,
             doc="one rounding an op"),
        Pass("decompose ops", for_target(decompose_ops.decompose), K, K,
             doc="exponential, logarithm and sine as polynomials"),
        Pass("simplify lanes", _simplify, K, K, doc="what lanes and decompositions left over"),
        Pass("separate scheduled loops", _separate, K, K, doc="splits, reorders and copies move loops"),
        Pass("order sums", _order_sums, K, K, doc="address arithmetic moves out of loops"),
        Pass("narrow vector indices", plain(memory.narrow_vectors), K, K, doc="int32 where it fits"),
        Pass("join byte dots", plain(decompose_ops.join_dots), K, K,
             doc="a sum of products of bytes is one chain"),
        Pass("form multiply-adds", plain(decompose_ops.form_multiply_adds), K, K,
             doc="a product used once by a sum joins it"),
    ),
)  # fmt: skip


SCHEDULABLE: Final = Pipeline(
    "kernel to loops", PIPELINE.passes[: [row.name for row in PIPELINE.passes].index("apply schedule")]
)  # fmt: skip


def schedulable(ast: UOp, target: Target) -> UOp:
    """The kernel as its schedule finds it: opts name the ranges that it has then."""
    return SCHEDULABLE.run(ast, Lowering(target))


def lower(ast: UOp, target: Target, observers: Sequence[Observer] = (), parallel: bool = True) -> LinearProgram:
    """The linear program of a kernel; the heuristic chooses its schedule where the kernel has none.

    Args:
        ast: a SINK of STOREs.
        target: the machine.
        observers: called after every pass.
        parallel: whether the chosen schedule may spread the kernel over cores.

    Raises:
        ArgumentError: the kernel's opts are not possible.
        CompilerError: a pass failed.
    """
    with no_gc(), remembered_order():
        context = Lowering(target, parallel)
        sink = PIPELINE.run(ast, context, observers)
        ordered = linearize.linearize(sink, context.nests[0] if context.nests else None)
        if target.warp > 1:
            uops, lanes = simt.to_lanes(sink, ordered)
            if mixtureroles.is_mixture(uops):
                feeding = any(o.kind is OptKind.FEED for o in sink.arg.opts)
                separate = feedroles.separate_feeding if feeding else mixtureroles.separate_mixture
                uops, threads, grid = separate(uops, lanes.threads, sink.arg.opts)
                return replace(describe(ast, sink, uops, lanes._replace(threads=threads)), grid=grid)
            if roles.has_roles(uops):
                uops, threads = roles.separate_roles(uops, lanes.threads, sink.arg.opts)
                program = describe(ast, sink, uops, lanes._replace(threads=threads))
                return replace(program, grid=roles.workgroups(uops, program.opts))
            return describe(ast, sink, vote.find_by_vote(uops, lanes.threads), lanes)
        return describe(ast, sink, tuple(interleave.side_by_side(ordered)))


def describe(ast: UOp, sink: UOp, uops: tuple[UOp, ...], lanes: simt.Lanes | None = None) -> LinearProgram:
    """The program with the facts about it that a launch needs; `lanes` is for programs without THREAD ranges."""
    nodes = toposort((ast,))
    params = {n.arg.slot: n for n in nodes if n.op is _PARAM}
    variables = variables_in_order(nodes)
    grid = threads = 1
    for node in uops:
        if node.op is _RANGE and node.arg.kind is AxisKind.PARALLEL:
            grid *= max(1, size_bound(node))
        elif node.op is _RANGE and node.arg.kind is AxisKind.THREAD:
            threads *= range_size(node) or 1
    if lanes is not None:
        threads = lanes.threads
    written = tuple(sorted({n.src[0].src[0].arg.slot for n in ast.src}))
    work = cost.estimate(ast)
    arg: KernelArg = sink.arg
    return LinearProgram(
        name=arg.name, uops=uops, params=tuple(params[slot] for slot in sorted(params)), written=written,
        variables=variables, grid=grid, threads=threads, flops=work.flops, bytes=work.bytes,
        opts=arg.opts or (), lanes=() if lanes is None else lanes.open,
    )  # fmt: skip
