"""Small tables that lanes read by number are kept in registers."""

from __future__ import annotations

from gradlet.ops.op import Op
from gradlet.ops.opt import LookupDetail, Opt, OptKind
from gradlet.optimize.actions.lookup import obstacle
from gradlet.optimize.analysis import Access, KernelFacts
from gradlet.target.target import Target


def lookups(facts: KernelFacts, target: Target) -> tuple[Opt, ...]:
    """An opt for every table that is read by numbers which were loaded themselves."""
    if target.kind != "cpu":
        return ()
    tables: dict[int, Access] = {}
    for access in facts.accesses:
        slot = access.slot
        if slot is None or access.is_store or obstacle(access) is not None or not _is_gathered(access):
            continue
        if not any(a.is_store for a in facts.accesses if a.slot == slot):
            tables.setdefault(slot, access)
    opts: list[Opt] = []
    for slot, access in tables.items():
        number = max(r.arg.number for r in access.ranges)
        opts.append(Opt(OptKind.LOOKUP, number, 0, detail=LookupDetail(slot)))
    return tuple(opts)


def _is_gathered(access: Access) -> bool:
    return bool(access.ranges) and any(n.op is Op.LOAD for n in access.address.src[1].toposort())
