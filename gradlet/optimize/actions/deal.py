"""DEAL: the iterations of an ordered loop are dealt out by the row that they write.

`DEAL(range 0, 128)`: 128 parts, a new range, run through all iterations of the loop; a part does those whose row is its
own, `row % 128`. Iterations that write the same element have the same row, so one part does them all, in their order,
and parts can run in parallel. It is for a kernel with one store into rows whose numbers are loaded: adding up what
belongs to the same entry of a table.
"""

from __future__ import annotations

from typing import NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import Opt
from gradlet.optimize.actions.refusal import refusal
from gradlet.optimize.analysis import KernelFacts, affine, make_range, size_bound
from gradlet.target.target import Target


class Rows(NamedTuple):
    """Where a kernel stores: the number of the row, and how many there are."""

    number: UOp
    many: int


def deal(facts: KernelFacts, loop: UOp, opt: Opt, target: Target) -> UOp:
    """The kernel with a range of parts, each of which writes the rows that are its own."""
    rows = find_rows(facts, loop)
    if isinstance(rows, str):
        raise refusal(opt, rows)
    if opt.amount < 2:
        raise refusal(opt, "there are at least two parts")
    part = make_range(UOp.const(dtypes.index, opt.amount), facts.next_number(), AxisKind.LOOP)
    # The last bits are the remainder, below zero as well, and cost no division.
    bits = opt.amount & (opt.amount - 1) == 0
    own = (rows.number & opt.amount - 1 if bits else rows.number % opt.amount).eq(part)
    (store,) = facts.stores
    address = store.src[0]
    known = set(toposort((rows.number, *address.src[2:])))
    guarded: dict[UOp, UOp] = {}
    for node in toposort((store,)):
        src = tuple([guarded.get(s, s) for s in node.src])
        if node in known:
            continue
        if node.op is Op.INDEX:
            src = (*src[:2], src[2] & own if len(src) > 2 else own)
        elif node.op is Op.LOAD and len(src) == 1:
            src = (*src, UOp.const(node.dtype, 0))
        if src != node.src:
            guarded[node] = mk(node.op, node.dtype, src, node.arg)
    return facts.sink.replace(src=(guarded[store],))


def find_rows(facts: KernelFacts, loop: UOp) -> Rows | str:
    """The rows that a kernel stores to in the iterations of a loop, or why they cannot be dealt out."""
    if loop.arg.kind is not AxisKind.ORDERED or len(facts.stores) != 1:
        return "it is for an ordered loop around one store"
    if any(n.op in (Op.REDUCE, Op.CARRY, Op.AFTER) for n in facts.order):
        return "something is summed, carried or kept near on the way to the store"
    address = facts.stores[0].src[0]
    form = affine(address.src[1])
    numbers = [atom for atom in form.terms if atom.op is not Op.RANGE]
    if len(numbers) != 1 or loop not in facts.ranges[numbers[0]] or form.terms[numbers[0]] < 1:
        return "it does not store into rows whose numbers depend on the loop"
    row, length = numbers[0], form.terms[numbers[0]]
    steps = [(step, size_bound(atom)) for atom, step in form.terms.items() if atom is not row]
    furthest = form.constant + sum(step * (size - 1) for step, size in steps)
    if form.constant < 0 or any(step < 0 for step, _ in steps) or furthest >= length:
        return "different rows may have an element in common"
    if any(a.param is address.src[0] and a.address is not address for a in facts.accesses):
        return "it reads other elements of what it stores to"
    return Rows(row, max(1, address.src[0].arg.size // length))
