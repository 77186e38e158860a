"""SPECIALIZE, PERSISTENT, TILE_ORDER, EPILOGUE: how a GPU's workgroups run a product of staged tiles.

None of them changes what the kernel computes, or its ranges: they are kept with the kernel, and `codegen/roles` makes
a program of them. `SPECIALIZE(range 2)` gives a warp of its own the copies that iterations of range 2 need: it begins
them as soon as a buffer is free, the others multiply what has arrived. `PERSISTENT(range 0, 132)` starts 132
workgroups, each of which walks some of the blocks: while one block is stored, the copies of the next are under way.
`TILE_ORDER(range 0, 8, along=1)` says in which order: eight steps of range 0, then the next of range 1, so that blocks
that run together read the same rows and columns. `EPILOGUE(range 0, 0)` has the result for slot 0 gathered in shared
memory by every warp, and stored in boxes by the copy engine.
"""

from __future__ import annotations

from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt, StageDetail, TileOrderDetail
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, closed_by, range_size
from gradlet.target.target import Target


def specialize(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel: a warp of its own makes the copies of a loop."""
    if not target.copy_engine:
        raise refusal(opt, f"{target.name} has no copy engine for a warp to feed")
    closing = [n for n in facts.reduces if loop in n.src[1:]]
    if loop.arg.kind is not AxisKind.REDUCE or len(closing) != 1:
        raise refusal(opt, "it takes a range that one reduce closes")
    if not any(r.arg.kind is AxisKind.TENSOR for r in closing[0].src[1:]):
        raise refusal(opt, "no matrix unit sums in it; choose TENSORIZE before")
    for node in facts.order:
        if node.op is Op.AFTER and any(r.arg.kind is AxisKind.THREAD for r in closed_by(node)):
            raise refusal(opt, "lanes fill what it needs; choose STAGE with engine=1")
    return facts.sink


def persistent(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel: a fixed number of workgroups walks its blocks."""
    if not target.copy_engine:
        raise refusal(opt, f"workgroups of {target.name} walk no blocks")
    if loop.arg.kind is not AxisKind.PARALLEL or opt.amount < 1:
        raise refusal(opt, "it takes a range of workgroups, and how many of them there are to be")
    if any(r.arg.kind is AxisKind.PARALLEL and range_size(r) is None for r in facts.loops):
        raise refusal(opt, "how many blocks there are is only known at launch")
    return facts.sink


def tile_order(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel: its blocks in another order."""
    if not target.copy_engine:
        raise refusal(opt, f"the order of workgroups of {target.name} is that of their numbers")
    if not isinstance(opt.detail, TileOrderDetail):
        raise refusal(opt, "it does not say along which other range; along=...")
    other = facts.by_number(opt.detail.along)
    for r in (loop, other):
        if r is None or r.arg.kind is not AxisKind.PARALLEL or range_size(r) is None:
            raise refusal(opt, "it takes two ranges of workgroups")
    if other is loop or opt.amount < 1:
        raise refusal(opt, "it takes two different ranges, and at least one step")
    return facts.sink


def epilogue(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel: results are stored as boxes."""
    if not target.copy_engine:
        raise refusal(opt, f"{target.name} has no copy engine to store them")
    stores = [a for a in facts.accesses if a.is_store and a.slot == opt.amount]
    if len(stores) != 1 or loop not in facts.ranges[stores[0].node]:
        raise refusal(opt, f"slot {opt.amount} is not stored once, over range {opt.axis}")
    if any(a.slot == opt.amount and not a.is_store for a in facts.accesses):
        raise refusal(opt, "the slot is loaded from as well, and a box is stored later than its elements")
    return facts.sink


def staged_by_engine(opts: tuple[Opt, ...]) -> bool:
    """Whether a schedule has the copy engine bring something."""
    return any(isinstance(o.detail, StageDetail) and o.detail.engine for o in opts)
