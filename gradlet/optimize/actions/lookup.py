"""LOOKUP: a small table is kept in registers, and lanes that read it by number become a shuffle of it.

A gather from memory is a load a lane. A table of at most 16 elements fits one or two vector registers, and every vector
unit can pick lanes of a register by numbers in another one. `LOOKUP(range 0, slot=1)` does that for the loads from slot
1 that run over range 0; without lanes it is one element of the register.
"""

from __future__ import annotations

from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op
from gradlet.ops.opt import LookupDetail, Opt
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import Access, KernelFacts
from gradlet.target.target import Target

MAX_TABLE: Final = 16
TABLE_DTYPES: Final = (dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.uint32, dtypes.float32)


def lookup(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel with a table in registers."""
    detail = opt.detail
    if not isinstance(detail, LookupDetail):
        raise refusal(opt, "it does not say which table: slot=...")
    if target.kind != "cpu":
        raise refusal(opt, "lanes of this target are threads, which have no register in common")
    accesses = [a for a in facts.accesses if a.slot == detail.slot]
    if any(a.is_store for a in accesses):
        raise refusal(opt, "the kernel stores to it, and a table in registers would not see that")
    loads = [a for a in accesses if loop in a.ranges and a.node.dtype.count == 1]
    if not loads:
        raise refusal(opt, f"no load from slot {detail.slot} runs over it")
    if (reason := obstacle(loads[0])) is not None:
        raise refusal(opt, reason)
    return facts.sink.substitute({a.node: _in_register(a) for a in loads})


def obstacle(access: Access) -> str | None:
    """Why memory is no table that registers hold; None where it is one."""
    size, dtype = access.param.arg.size, access.param.dtype
    if not 2 <= size <= MAX_TABLE:
        return f"a table in registers has 2 to {MAX_TABLE} elements, this has {size}"
    if dtype not in TABLE_DTYPES:
        return f"registers of {dtype.name} are not shuffled; it takes integers of 8 and 32 bits, and float32"
    return None


def _in_register(access: Access) -> UOp:
    param, index = access.param, access.address
    start = mk(Op.INDEX, param.dtype, (param, UOp.const(dtypes.index, 0)))
    table = mk(Op.LOAD, param.dtype.vec(param.arg.size), (start,))
    value = mk(Op.LOOKUP, param.dtype, (table, index.src[1].cast(dtypes.int32)))
    if len(index.src) < 3:
        return value
    load = access.node
    otherwise = load.src[1] if len(load.src) > 1 else UOp.const(load.dtype, 0)
    return index.src[2].where(value, otherwise)
