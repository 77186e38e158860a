"""Facts about a launch of several kernels: what its bodies ask for, and the rules that its SINK has to keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import AxisKind, BodyUse, LaunchArg, LaunchSegment, Op

# Members of an enum are slow to reach through their class.
_PARAM: Final = Op.PARAM
_RANGE: Final = Op.RANGE
_STORE: Final = Op.STORE
_VARIABLE: Final = Op.VARIABLE


class BodyFacts(NamedTuple):
    """What one body of a launch needs from outside.

    Attributes:
        params: its PARAM nodes by slot.
        variables: its VARIABLE nodes in the order v0, v1, ...
        written: slots that it stores to.
        blocks: its PARALLEL ranges.
    """

    params: tuple[UOp, ...]
    variables: tuple[UOp, ...]
    written: frozenset[int]
    blocks: tuple[UOp, ...]


def is_launch(arg: object) -> TypeGuard[LaunchArg]:
    """Whether the arg of a SINK says that its sources are the bodies of one launch."""
    return type(arg) is LaunchArg


# Of bodies that are alive: launches are checked, lowered and run.
_facts: Final[WeakKeyDictionary[UOp, BodyFacts]] = WeakKeyDictionary()


def body_facts(body: UOp) -> BodyFacts:
    """The facts of a body, or of any kernel."""
    found = _facts.get(body)
    if found is None:
        found = _facts[body] = _find_facts(body)
    return found


def _find_facts(body: UOp) -> BodyFacts:
    order = toposort((body,))
    params = sorted([n for n in order if n.op is _PARAM], key=lambda n: int(n.arg.slot))
    blocks = [n for n in order if n.op is _RANGE and n.arg.kind is AxisKind.PARALLEL]
    written = frozenset([s.src[0].src[0].arg.slot for s in body.src if s.op is _STORE])
    return BodyFacts(tuple(params), variables_in_order(order), written, tuple(blocks))


def variables_in_order(order: Iterable[UOp]) -> tuple[UOp, ...]:
    """The VARIABLE nodes among some nodes as a launch gives their values: v2 comes before v10."""
    return tuple(sorted([n for n in order if n.op is _VARIABLE], key=lambda n: (len(n.arg.name), n.arg.name)))


def uses(arg: LaunchArg) -> list[BodyUse]:
    """All uses of bodies, in order."""
    return [use for stage in arg.stages for segment in stage for use in segment]


def broken_launch_rule(sink: UOp) -> str | None:
    """The rule that a launch breaks; None when it is well formed."""
    arg: LaunchArg = sink.arg
    for body in sink.src:
        if body.op is not Op.SINK or is_launch(body.arg) or any(s.op is Op.SINK for s in body.src):
            return "the sources of a launch are kernels"
    if not arg.stages or not all(arg.stages):
        return "a launch has stages, and each stage has segments"
    if any(size <= 0 for size in arg.scratch):
        return "a scratch array has bytes"
    facts = [body_facts(body) for body in sink.src]
    for stage in arg.stages:
        for segment in stage:
            broken = _broken_segment_rule(segment, facts, arg)
            if broken is not None:
                return broken
    everything = uses(arg)
    if {u.body for u in everything} != set(range(len(sink.src))):
        return "every body is used"
    slots = {slot for u in everything for slot in u.slots if slot >= 0}
    if slots != set(range(len(slots))):
        return f"the slots of a launch are numbered without gaps, here {sorted(slots)}"
    return None


def _broken_segment_rule(segment: LaunchSegment, facts: list[BodyFacts], arg: LaunchArg) -> str | None:
    if not segment:
        return "a segment uses a body"
    for use in segment:
        broken = _broken_use_rule(use, facts, arg)
        if broken is not None:
            return broken
    if len(segment) == 1:
        return "only a region has scratch arrays" if any(s < 0 for s in segment[0].slots) else None
    sizes: set[int] = set()
    for use in segment:
        blocks = facts[use.body].blocks
        if not blocks:  # the same for every block, so it may only write what each core has for itself
            if any(use.slots[written] >= 0 for written in facts[use.body].written):
                return f"body {use.body} of a region has no PARALLEL range, so it only writes to scratch arrays"
            continue
        if len(blocks) != 1 or blocks[0].src[0].op is not Op.CONST or blocks[0].src[0].arg < 1:
            return f"body {use.body} of a region has one PARALLEL range, its blocks, whose size is a positive constant"
        sizes.add(blocks[0].src[0].arg)
    return None if len(sizes) == 1 else f"the bodies of a region have one number of blocks, not {sorted(sizes)}"


def region_blocks(segment: LaunchSegment, facts: Sequence[BodyFacts]) -> int:
    """The number of blocks of a region."""
    return next(int(facts[use.body].blocks[0].src[0].arg) for use in segment if facts[use.body].blocks)


def _broken_use_rule(use: BodyUse, facts: list[BodyFacts], arg: LaunchArg) -> str | None:
    if not 0 <= use.body < len(facts):
        return f"there is no body {use.body}"
    body = facts[use.body]
    where = f"a use of body {use.body}"
    if [p.arg.slot for p in body.params] != list(range(len(use.slots))):
        return f"{where} has {len(use.slots)} slots, its PARAMs are {[p.arg.slot for p in body.params]}"
    if len(use.variables) != len(body.variables) or any(number < 0 for number in use.variables):
        return f"{where} gives variables {use.variables}, it has {len(body.variables)}"
    for param, slot in zip(body.params, use.slots, strict=True):
        if -slot > len(arg.scratch):
            return f"{where} asks for scratch array {-1 - slot} of {len(arg.scratch)}"
        if slot < 0 and param.arg.size * param.dtype.itemsize > arg.scratch[-1 - slot]:
            return f"{where} needs more than the {arg.scratch[-1 - slot]} bytes of scratch array {-1 - slot}"
        if param.arg.slot in body.written and use.slots.count(slot) > 1:
            return f"{where} gives slot {slot} to a PARAM that is written and to another one"
    return None
