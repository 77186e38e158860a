"""The schedule actions of one kernel: `apply` rewrites its ranges as `Opt`s say, or refuses with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.node import UOp
from gradlet.ops.op import KernelArg, adds_in_order
from gradlet.ops.opt import Opt, OptKind, Tail
from gradlet.optimize.actions.accumulate import accumulate
from gradlet.optimize.actions.deal import deal
from gradlet.optimize.actions.feed import feed
from gradlet.optimize.actions.lookup import lookup
from gradlet.optimize.actions.online import online
from gradlet.optimize.actions.parallel import parallel
from gradlet.optimize.actions.prefetch import prefetch
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.actions.reorder import reorder
from gradlet.optimize.actions.roles import epilogue, persistent, specialize, tile_order
from gradlet.optimize.actions.rotate import rotate
from gradlet.optimize.actions.scan import reorders, scan
from gradlet.optimize.actions.split import split
from gradlet.optimize.actions.stage import stage
from gradlet.optimize.actions.stream import stream
from gradlet.optimize.actions.tensorize import tensorize
from gradlet.optimize.analysis import KernelFacts
from gradlet.target.target import Target

ROOT: Final = -1  # as a level of STAGE: outside of all loops
Action = Callable[[KernelFacts, UOp, Opt, Target], UOp]

# One row a word of the language. Each gets the kernel, the range that the opt names, and either returns the kernel
# after the action or refuses with the reason.
ACTIONS: Final[dict[OptKind, Action]] = {
    OptKind.SPLIT: split,
    OptKind.UNROLL: split,
    OptKind.VECTORIZE: split,
    OptKind.THREAD: split,
    OptKind.GROUP: split,
    OptKind.FAR: split,
    OptKind.PREFETCH: prefetch,
    OptKind.STREAM: stream,
    OptKind.LOOKUP: lookup,
    OptKind.ONLINE: online,
    OptKind.ROTATE: rotate,
    OptKind.FEED: feed,
    OptKind.SCAN: scan,
    OptKind.DEAL: deal,
    OptKind.REORDER: reorder,
    OptKind.PARALLEL: parallel,
    OptKind.ACCUMULATE: accumulate,
    OptKind.STAGE: stage,
    OptKind.TENSORIZE: tensorize,
    OptKind.SPECIALIZE: specialize,
    OptKind.PERSISTENT: persistent,
    OptKind.TILE_ORDER: tile_order,
    OptKind.EPILOGUE: epilogue,
}

# Words that leave the loops as they are, or say more than these do: code generation asks the kernel's opts for them.
KEPT: Final = frozenset({
    OptKind.TENSORIZE, OptKind.SPECIALIZE, OptKind.PERSISTENT, OptKind.TILE_ORDER, OptKind.EPILOGUE, OptKind.ROTATE,
    OptKind.FEED,
})  # fmt: skip

_IN_PARTS: Final = (
    OptKind.VECTORIZE,
    OptKind.THREAD,
    OptKind.GROUP,
    OptKind.FAR,
    OptKind.ACCUMULATE,
    OptKind.ONLINE,
    OptKind.ROTATE,
    OptKind.FEED,
    OptKind.TENSORIZE,
)  # of a reduce range


def apply(sink: UOp, opts: Iterable[Opt], target: Target) -> UOp:
    """The kernel with its ranges rewritten by every opt in order; the opts are kept in the SINK.

    A split keeps the range's number for the outer part and gives the inner part the next free number.

    Raises:
        ArgumentError: an opt that this kernel does not allow, with the reason.
    """
    opts = tuple(opts)
    for opt in opts:
        sink = apply_one(sink, opt, target)
    return sink.replace(arg=KernelArg(sink.arg.name, opts))


def apply_one(sink: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel after one opt.

    Raises:
        ArgumentError: the kernel does not allow it.
    """
    facts = KernelFacts(sink)
    loop = facts.by_number(opt.axis)
    if opt.kind is OptKind.STAGE and opt.axis == ROOT:
        raise refusal(opt, "copies that all cores share are a launch stage of the scheduler")
    if loop is None:
        raise refusal(opt, f"the kernel has no range {opt.axis}")
    if STRICT_FLOAT.value and _changes_order(facts, loop, opt):
        raise refusal(opt, "STRICT_FLOAT=1 adds and multiplies floats in the order of the elements")
    return ACTIONS[opt.kind](facts, loop, opt, target)


def _changes_order(facts: KernelFacts, loop: UOp, opt: Opt) -> bool:
    """Whether an opt lets a reduction take its elements in another order, or in parts."""
    closing = [n for n in facts.reduces if loop in n.src[1:] and adds_in_order(n.arg.op, n.dtype)]
    if opt.kind is OptKind.SCAN:
        return reorders(facts, loop)
    if opt.kind is OptKind.REORDER:
        return any(len(n.src) > 2 for n in closing)
    in_parts = opt.kind in _IN_PARTS or opt.tail in (Tail.BALANCE, Tail.PEEL)
    return in_parts and bool(closing)
