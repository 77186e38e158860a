"""A schedule explained: what every launch does, moves and costs, which results it makes, and what was not merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

from gradlet.base.report import human_bytes, human_count, human_seconds
from gradlet.graph.launch import body_facts, is_launch, region_blocks
from gradlet.graph.node import UOp
from gradlet.ops.op import ELEMENTWISE, Op
from gradlet.schedule.calls import CopyCall, KernelCall, MemoryPlan, Schedule
from gradlet.schedule.context import Context
from gradlet.schedule.emit import computed
from gradlet.schedule.memory import size_of
from gradlet.schedule.moves import root_of
from gradlet.schedule.partition import Group
from gradlet.schedule.price import PICO
from gradlet.schedule.refusals import Decisions, Refusal, Refused
from gradlet.schedule.traffic import Traffic, traffic_of

# Results of one launch that are named; more are counted.
NAMED_RESULTS: Final = 4
# Lines of refusals that are printed for one schedule; more are counted.
SHOWN_REFUSALS: Final = 24

_REDUCES: Final = {Op.ADD: "sum", Op.MUL: "product", Op.MAX: "max"}


class Body(NamedTuple):
    """One kernel of a launch.

    Attributes:
        number: its place in the launch.
        name: of its code; equal kernels have equal names.
        does: its operations, in words.
        price: picoseconds it would take as a launch of its own; None where nothing was priced.
    """

    number: int
    name: str
    does: str
    price: int | None


class Segment(NamedTuple):
    """One kernel, or kernels that run one after another for every block (`blocks` is 0 for one kernel)."""

    bodies: tuple[Body, ...]
    blocks: int


@dataclass(frozen=True)
class LaunchExplanation:
    """One call of a schedule.

    Attributes:
        number: its place in the schedule, from 1.
        name: of its code, or what is copied.
        device: where it runs.
        stages: what runs one after another; the segments of a stage are independent.
        price: picoseconds; None where nothing was priced, or the price is part of another call's.
        traffic: unique bytes read and written, and operations.
        scratch: bytes of each array that every core has for itself.
        results: what the caller asked for and this call writes.
        in_place: how many buffers with older values it writes to.
        note: what went otherwise than planned.
    """

    number: int
    name: str
    device: str
    stages: tuple[tuple[Segment, ...], ...]
    price: int | None
    traffic: Traffic
    scratch: tuple[int, ...]
    results: tuple[str, ...]
    in_place: int
    note: str

    @property
    def bodies(self) -> list[Body]:
        """All kernels in order."""
        return [body for stage in self.stages for segment in stage for body in segment.bodies]

    @property
    def intensity(self) -> float:
        """Operations for every byte that is moved."""
        return self.traffic.operations / self.traffic.bytes if self.traffic.bytes else 0.0


class Unmerged(NamedTuple):
    """Two neighbours that run apart.

    Attributes:
        first: `2` for a launch, `2.1` for body 1 of launch 2.
        second: the other one.
        related: `data` where the second needs the first, `operand` where both read the same.
        refusals: every way that was tried, with its reason.
    """

    first: str
    second: str
    related: str
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class Explanation:
    """One schedule.

    Attributes:
        launches: every call in order.
        kernels: kernels that are not one kernel, though one reads what the other makes or both read the same.
        unmerged: launches that are not one launch.
        memory: where temporary values lie.
        priced: how many kernels and regions were priced.
        merges: how many merges of kernels were made.
    """

    launches: tuple[LaunchExplanation, ...]
    kernels: tuple[Unmerged, ...]
    unmerged: tuple[Unmerged, ...]
    memory: MemoryPlan
    priced: int
    merges: int

    @property
    def price(self) -> int:
        """Picoseconds of all launches."""
        return sum(launch.price or 0 for launch in self.launches)

    @property
    def traffic(self) -> Traffic:
        """Bytes and operations of all launches."""
        rows = [launch.traffic for launch in self.launches]
        return Traffic(sum(t.read for t in rows), sum(t.written for t in rows), sum(t.operations for t in rows))

    def data(self) -> dict[str, Any]:
        """Everything in plain dictionaries, lists, numbers and strings, for JSON."""
        memory = self.memory
        return {
            "price_ps": self.price,
            "bytes_read": self.traffic.read,
            "bytes_written": self.traffic.written,
            "operations": self.traffic.operations,
            "launches": [launch_data(launch) for launch in self.launches],
            "kernels_apart": [unmerged_data(pair) for pair in self.kernels],
            "launches_apart": [unmerged_data(pair) for pair in self.unmerged],
            "memory": {
                "peak": memory.peak,
                "bound": memory.bound,
                "unshared": memory.unshared,
                "results": memory.results,
            },
            "priced": self.priced,
            "merges": self.merges,
        }

    def text(self, limit: int | None = None, sort: str = "") -> str:
        """The explanation to read.

        Args:
            limit: the most launches to show; None for all.
            sort: `bytes` or `price` puts the largest first; as they run otherwise.
        """
        return "\n".join(explanation_lines(self, limit, sort))


# from a finished schedule
def explain(context: Context, schedule: Schedule, roots: Sequence[UOp], decisions: Decisions) -> Explanation:
    """Explain a schedule that was just made.

    Args:
        context: what its passes shared.
        schedule: the result.
        roots: what was asked for.
        decisions: what was decided.
    """
    shown = results_by_buffer(schedule, roots)
    launches: list[LaunchExplanation] = []
    labels: dict[UOp, tuple[int, int]] = {}  # stored step -> number of its launch, number of its body
    for launch, span in zip(context.launches, context.spans, strict=True):
        groups = [group for group in launch.bodies if computed(group)]
        for call_number in span:
            call = schedule.calls[call_number]
            number = len(launches) + 1
            one = context.call_bodies.get(call_number)
            mine = groups if one is None else [one]
            labels.update({o: (number, b) for b, group in enumerate(mine) for o in group.outputs})
            price = decisions.prices.get(groups[0].outputs[0]) if call_number == span.start else None
            note = ""
            if len(span) > 1:
                reason = context.apart.get(span.start, "it would read what it has overwritten")
                note = f"part {call_number - span.start + 1} of {len(span)} of what was to be one launch: {reason}"
            stages = call_stages(call, mine, decisions)
            launches.append(explain_call(call, number, stages, price, shown, context.made, note))
    return Explanation(
        tuple(launches),
        labelled(decisions.kernels, {o: f"{n}.{b}" for o, (n, b) in labels.items()}),
        labelled(decisions.launches, {o: f"{n}" for o, (n, _) in labels.items()}),
        schedule.memory,
        decisions.priced,
        decisions.merges,
    )


def labelled(pairs: Sequence[Refused], labels: dict[UOp, str]) -> tuple[Unmerged, ...]:
    """Pairs of steps as pairs of numbers, in order; what has no elements is left out."""
    found: dict[Unmerged, None] = {}
    for pair in pairs:
        first, second = labels.get(pair.first), labels.get(pair.second)
        if first is not None and second is not None and first != second:
            found[Unmerged(first, second, pair.related, pair.refusals)] = None
    return tuple(sorted(found, key=lambda pair: (numbers(pair.first), numbers(pair.second))))


def numbers(label: str) -> list[int]:
    """`2.10` as something that sorts after `2.9`."""
    return [int(part) for part in label.split(".")]


def results_by_buffer(schedule: Schedule, roots: Sequence[UOp]) -> dict[UOp, list[tuple[int, str]]]:
    """What the caller asked for, with its number, by the memory it is in."""
    found: dict[UOp, list[tuple[int, str]]] = {}
    for number, root in enumerate(roots):
        result = schedule.results.get(root)
        if result is not None:
            shape = "x".join([str(size) for size in root.shape]) or "scalar"
            words = f"result {number}: {root.dtype.name} {shape}"
            found.setdefault(root_of(result), []).append((number, words))
    return found


def explain_call(
    call: KernelCall | CopyCall, number: int, stages: tuple[tuple[Segment, ...], ...], price: int | None,
    shown: dict[UOp, list[tuple[int, str]]], made: set[UOp], note: str,
) -> LaunchExplanation:  # fmt: skip
    """The facts of one call."""
    if isinstance(call, CopyCall):
        source, destination = call.source.arg.device, call.destination.arg.device
        moved = size_of(call.source)
        results = tuple([words for _, words in shown.get(call.destination, ())])
        name = f"copy {source} -> {destination}"
        return LaunchExplanation(number, name, destination, (), price, Traffic(moved, moved, 0), (), results, 0, note)
    written = [call.buffers[slot] for slot in call.written]
    return LaunchExplanation(
        number,
        call.ast.arg.name,
        call.device,
        stages,
        price,
        traffic_of(call),
        call.ast.arg.scratch if is_launch(call.ast.arg) else (),
        tuple([words for _, words in sorted([r for buffer in written for r in shown.get(buffer, ())])]),
        len([buffer for buffer in written if buffer not in made]),
        note,
    )


def call_stages(
    call: KernelCall | CopyCall, groups: Sequence[Group], decisions: Decisions
) -> tuple[tuple[Segment, ...], ...]:
    """The stages of a call, each body with what it was decided to be."""
    if isinstance(call, CopyCall):
        return ()
    if not is_launch(call.ast.arg):
        return ((Segment((body_of(0, call.ast, groups[0], decisions),), 0),),)
    facts = [body_facts(body) for body in call.ast.src]
    waiting = iter(groups)
    number = 0
    stages: list[tuple[Segment, ...]] = []
    for stage in call.ast.arg.stages:
        segments: list[Segment] = []
        for segment in stage:
            bodies: list[Body] = []
            for use in segment:
                bodies.append(body_of(number, call.ast.src[use.body], next(waiting), decisions))
                number += 1
            blocks = region_blocks(segment, facts) if len(segment) > 1 else 0
            segments.append(Segment(tuple(bodies), blocks))
        stages.append(tuple(segments))
    return tuple(stages)


def body_of(number: int, ast: UOp, group: Group, decisions: Decisions) -> Body:
    """One kernel."""
    return Body(number, ast.arg.name, summary(group.members, decisions), decisions.alone.get(group.outputs[0]))


def summary(members: Sequence[UOp], decisions: Decisions) -> str:
    """What a kernel does: its reductions with their lengths, its special operations, how many element-wise ones."""
    found: dict[str, int] = {}
    elementwise = 0
    for node in members:
        if node.op in ELEMENTWISE:
            elementwise += 1
            continue
        if node.op is Op.REDUCE_AXES:
            length = prod(node.src[0].shape) // max(1, prod(node.shape))
            kind = (
                "contraction" if node in decisions.contractions else _REDUCES.get(node.arg.op, node.arg.op.name.lower())
            )
            words = f"{kind} over {length}"
        elif node.op is Op.CONTIGUOUS:
            continue  # only says that what is below is kept; alone it is a copy
        else:
            words = node.op.name.lower()
        found[words] = found.get(words, 0) + 1
    parts = [words if count == 1 else f"{count} {words}" for words, count in found.items()]
    if elementwise:
        parts.append(f"{elementwise} element-wise")
    return ", ".join(parts)


# JSON
def launch_data(launch: LaunchExplanation) -> dict[str, Any]:
    """One launch in plain data."""
    return {
        "number": launch.number,
        "name": launch.name,
        "device": launch.device,
        "price_ps": launch.price,
        "bytes_read": launch.traffic.read,
        "bytes_written": launch.traffic.written,
        "operations": launch.traffic.operations,
        "operations_per_byte": round(launch.intensity, 3),
        "scratch": list(launch.scratch),
        "results": list(launch.results),
        "in_place": launch.in_place,
        "note": launch.note,
        "stages": [
            [{"blocks": segment.blocks, "bodies": [b._asdict() for b in segment.bodies]} for segment in stage]
            for stage in launch.stages
        ],
    }


def unmerged_data(pair: Unmerged) -> dict[str, Any]:
    """One pair in plain data."""
    return {
        "first": pair.first,
        "second": pair.second,
        "related": pair.related,
        "refusals": [
            {"way": r.way, "reason": r.reason.name, "words": r.words, "cost_ps": r.cost} for r in pair.refusals
        ],
    }


# text
def microseconds(price: int | None) -> str:
    """A price to read."""
    return "not priced" if price is None else human_seconds(price / PICO)


def counted(count: int, word: str) -> str:
    """`1 launch`, `2 launches`."""
    plural = "es" if word.endswith("ch") else "s"
    return f"{count} {word}" if count == 1 else f"{count} {word}{plural}"


def explanation_lines(explanation: Explanation, limit: int | None, sort: str) -> Iterator[str]:
    """The lines of an explanation."""
    launches = list(explanation.launches)
    bodies = sum(max(1, len(launch.bodies)) for launch in launches)
    total = explanation.traffic
    yield (
        f"schedule: {counted(len(launches), 'launch')} of {counted(bodies, 'kernel')}, "
        f"{microseconds(explanation.price if any(x.price is not None for x in launches) else None)} estimated, "
        f"{human_bytes(total.bytes)} moved, {human_count(total.operations)} operations"
    )
    if sort == "bytes":
        launches.sort(key=lambda launch: -launch.traffic.bytes)
    elif sort == "price":
        launches.sort(key=lambda launch: -(launch.price or 0))
    shown = launches if limit is None else launches[:limit]
    for launch in shown:
        yield from launch_lines(launch)
    if len(shown) < len(launches):
        yield f"   ... and {counted(len(launches) - len(shown), 'more launch')}"
    yield from refusal_lines("kernels that are not one kernel", explanation.kernels)
    yield from refusal_lines("launches that are not one launch", explanation.unmerged)
    memory = explanation.memory
    yield (
        f"   memory: {human_bytes(memory.peak)} for temporary values (at least {human_bytes(memory.bound)} in this "
        f"order, {human_bytes(memory.unshared)} without sharing), {human_bytes(memory.results)} of results"
    )
    yield f"   decided with {counted(explanation.priced, 'price')}, {counted(explanation.merges, 'merge')} of kernels"


def launch_lines(launch: LaunchExplanation) -> Iterator[str]:
    """One launch."""
    traffic = launch.traffic
    yield (
        f"{launch.number:3d} {launch.name} on {launch.device}: {microseconds(launch.price)}, reads "
        f"{human_bytes(traffic.read)}, writes {human_bytes(traffic.written)}, "
        f"{human_count(traffic.operations)} operations, {launch.intensity:.3g} a byte"
    )
    for number, stage in enumerate(launch.stages):
        prefix = f"stage {number + 1}: " if len(launch.stages) > 1 else ""
        for line in stage_lines(stage):
            yield f"      {prefix}{line}"
            prefix = " " * len(prefix)
    if launch.scratch:
        yield f"      scratch of every core: {' + '.join([human_bytes(size) for size in launch.scratch])}"
    named = list(launch.results[:NAMED_RESULTS])
    if len(launch.results) > NAMED_RESULTS:
        named.append(f"{len(launch.results) - NAMED_RESULTS} more")
    if launch.in_place:
        named.append(f"{counted(launch.in_place, 'buffer')} in place")
    if named:
        yield f"      writes {', '.join(named)}"
    if launch.note:
        yield f"      {launch.note}"


def stage_lines(stage: Sequence[Segment]) -> Iterator[str]:
    """The segments of a stage, equal ones counted."""
    first: dict[tuple[object, ...], Segment] = {}
    count: dict[tuple[object, ...], int] = {}
    for segment in stage:
        key = (segment.blocks, *[(b.name, b.does) for b in segment.bodies])
        first.setdefault(key, segment)
        count[key] = count.get(key, 0) + 1
    for key, segment in first.items():
        times = f"{count[key]} times " if count[key] > 1 else ""
        if len(segment.bodies) > 1:
            yield f"{times}{segment.blocks} blocks, each:"
        for body in segment.bodies:
            alone = "" if body.price is None else f"; alone {microseconds(body.price)}"
            indent = "  " if len(segment.bodies) > 1 else times
            yield f"{indent}.{body.number} {body.name}: {body.does or 'copy'}{alone}"


def refusal_lines(title: str, pairs: Sequence[Unmerged]) -> Iterator[str]:
    """Pairs with the same reasons in one line."""
    groups: dict[str, list[str]] = {}
    for pair in pairs:
        sign = ">" if pair.related == "data" else "|"
        groups.setdefault(refusal_words(pair.refusals), []).append(f"{pair.first} {sign} {pair.second}")
    if groups:
        yield f"   {title}:"
    for words, names in list(groups.items())[:SHOWN_REFUSALS]:
        some = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield f"      {some}: {words}"
    if len(groups) > SHOWN_REFUSALS:
        yield f"      ... and {len(groups) - SHOWN_REFUSALS} more reasons"


def refusal_words(refusals: Sequence[Refusal]) -> str:
    """Why two do not run together: the ways that would be legal, and why the region is not one of them."""
    told = [r for r in refusals if r.way in ("kernel", "launch", "region") or r.cost is not None]
    if len(refusals) == 1:
        return refusals[0].words
    names = {"region": "block by block", "tail": "as a tail", "staging": "as a stage before"}
    return "; ".join([f"{names[r.way]} {r.words}" for r in told])
