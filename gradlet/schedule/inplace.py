"""Outputs that take the memory of an input that dies with the kernel: when that is safe, and the kernel it makes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import KernelArg, Op
from gradlet.schedule.calls import KernelCall


def reuse_inputs(call: KernelCall, dying: Collection[UOp], born: Collection[UOp]) -> tuple[UOp, UOp] | None:
    """The first output in `born` that may take the memory of an input in `dying`: (output, input), or None."""
    if not isinstance(call.ast.arg, KernelArg):
        return None  # other bodies of the launch may run before or beside the one that stores
    for output in call.written:
        if call.buffers[output] not in born:
            continue
        for slot, buffer in enumerate(call.buffers):
            if buffer in dying and slot not in call.written and is_in_place(call.ast, output, slot):
                return call.buffers[output], buffer
    return None


def is_in_place(ast: UOp, output: int, source: int) -> bool:
    """Whether the kernel still computes the same when these two slots are one memory.

    That is so when every element of the input is read by the very iteration that stores this element, and before it
    does: one store, one load, the same element, the stored value made from what was loaded, and no loop of the load
    that closes in between, as its iterations would read what others have stored.
    """
    order = toposort((ast,))
    stores = [s for s in ast.src if _slot(s.src[0]) == output]
    loads = [n for n in order if n.op is Op.LOAD and _slot(n.src[0]) == source]
    if len(stores) != 1 or len(loads) != 1 or any(n.op is Op.LOAD and _slot(n.src[0]) == output for n in order):
        return False
    store, load = stores[0], loads[0]
    target, origin = store.src[0], load.src[0]
    old, new = origin.src[0], target.src[0]
    if old.dtype is not new.dtype or old.arg.size != new.arg.size or origin.src[1:] != target.src[1:]:
        return False
    if any(n.op is Op.LOAD for n in toposort(target.src)) or store.ranges != target.ranges:
        return False
    depends = {load}
    for node in order:
        if any(s in depends for s in node.src):
            depends.add(node)
            if node.op is Op.REDUCE and any(r in load.ranges for r in node.src[1:]):
                return False
    return [s for s in ast.src if s in depends] == [store] and store.src[1] in depends


def merged(call: KernelCall, output: UOp, source: UOp) -> KernelCall:
    """The call with one slot for both buffers, so that code generation knows that it overwrites what it reads."""
    kept, dropped = sorted((call.buffers.index(output), call.buffers.index(source)))
    new = {slot: kept if slot == dropped else slot - (slot > dropped) for slot in range(len(call.buffers))}
    params = {n: replace_slot(n, new[n.arg.slot]) for n in toposort((call.ast,)) if n.op is Op.PARAM}
    buffers = [b for slot, b in enumerate(call.buffers) if slot != dropped]
    buffers[kept] = source
    written = tuple(sorted({new[slot] for slot in call.written}))
    return replace(call, ast=call.ast.substitute(params), buffers=tuple(buffers), written=written)


def replace_slot(param: UOp, slot: int) -> UOp:
    """The PARAM with another slot."""
    return param.replace(arg=param.arg._replace(slot=slot))


def _slot(address: UOp) -> int:
    return int(address.src[0].arg.slot)
