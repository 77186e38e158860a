"""Running schedules: `realize` turns lazy roots into memory, and remembers what every root became."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from gradlet.base import events, settings
from gradlet.base.errors import DeviceError, JitError
from gradlet.base.userline import user_line
from gradlet.engine import report, usage
from gradlet.engine.compile import get_kernel, prepare_kernels
from gradlet.engine.ready import copy as copy  # beside `run_kernel`, for whoever replays calls
from gradlet.engine.ready import depending_on, ready_of
from gradlet.graph.extents import HAS_LIMIT, extents, limit
from gradlet.graph.node import UOp, mk, no_gc, toposort
from gradlet.ops.op import MOVEMENT, Op
from gradlet.runtime import diskcache
from gradlet.runtime.buffer import Buffer, bind_parts, buffer_of
from gradlet.runtime.device import Device
from gradlet.schedule.cache import CachedCall
from gradlet.schedule.calls import CopyCall, KernelCall, Schedule
from gradlet.schedule.create import ask_for_schedule, create_schedule
from gradlet.schedule.moves import chain_to, replay, shortest
from gradlet.target.target import Target

# What a realised node became: a BUFFER behind movement ops. Weak, so an entry lives only as long as a lazy graph still
# holds the node; the value never holds its key.
_realized: WeakKeyDictionary[UOp, UOp] = WeakKeyDictionary()
_BUFFER: Final = Op.BUFFER
_HAS_BUFFER = 1 << Op.BUFFER
_NOTHING: Final[Mapping[UOp, UOp]] = {}
# Only these ops change memory that held a value before.
_WRITING = 1 << Op.WRITE | 1 << Op.SCATTER


class Recorder:
    """Receives every call that runs while a jitted function is captured.

    Attributes:
        arenas: memory of temporary buffers by device: one schedule after another uses it, as they also replay.
        touched: tensors that this thread gave another value, in order.
        computed: tensors whose value was computed.
        realized: nodes that were computed.
        saved: contents of memory before it was overwritten, while `saves`: a function that raises is undone.
    """

    def __init__(self) -> None:
        self.arenas: dict[str, Buffer] = {}
        self.touched: list[ref[Any]] = []
        self.computed: list[ref[Any]] = []
        self.realized: list[UOp] = []
        self.saved: dict[UOp, Buffer] = {}
        self.saves = True

    def will_run(self, call: KernelCall | CopyCall) -> None:
        """A call is about to run."""
        if self.saves:
            written = [call.destination] if isinstance(call, CopyCall) else [call.buffers[s] for s in call.written]
            for node in written:
                if node not in self.saved and self.is_known(node):
                    self.saved[node] = _copy_of(buffer_of(node))

    def is_known(self, node: UOp) -> bool:
        """Whether a buffer held a value before the capture."""
        raise NotImplementedError

    def ran(self, call: KernelCall | CopyCall, values: Sequence[int], schedule: Schedule) -> None:
        """A call of `schedule` ran with these variable values."""
        raise NotImplementedError

    def stays(self, node: UOp) -> bool:
        """Whether a BUFFER node is expected to hold the same values at the next call: a weight."""
        return False


class _Thread(threading.local):
    """What a thread captures: others run as ever meanwhile."""

    recorder: Recorder | None = None
    refusals: int = 0


_thread = _Thread()


def set_recorder(recorder: Recorder | None) -> Recorder | None:
    """Install a recorder (None stops recording) and return the one before."""
    before = _thread.recorder
    _thread.recorder = recorder
    return before


def recording() -> bool:
    """Whether a jitted function is being captured right now."""
    return _thread.recorder is not None


def refuse_in_capture(what: str, remedy: str, once: bool = False) -> None:
    """Raise when a jitted function does something that replay could not repeat.

    Args:
        what: it does.
        remedy: what to do instead.
        once: whether it may well not do so again, since it keeps what came of it.

    Raises:
        JitError: a capture is running.
    """
    _thread.refusals += not once
    if _thread.recorder is not None:
        line = user_line()
        where = f" ({line})" if line else ""
        raise JitError(f"{what} inside a jitted function would be frozen at the first call's value; {remedy}{where}")


def refusals() -> int:
    """How often this thread did something that a capture refuses every time."""
    return _thread.refusals


def touched(tensor: Any) -> None:
    """Say that a tensor got another value, for a capture that is running in this thread."""
    if _thread.recorder is not None:
        _thread.recorder.touched.append(ref(tensor))


def computed(tensor: Any) -> None:
    """Say that a tensor's value was computed, for a capture that is running in this thread."""
    if _thread.recorder is not None:
        _thread.recorder.computed.append(ref(tensor))


def undo(recorder: Recorder) -> None:
    """Put back what was in memory before a capture that failed, and forget what it computed."""
    for node, content in recorder.saved.items():
        buffer_of(node).copy_from(content)
    for node in recorder.realized:
        _realized.pop(node, None)


def _copy_of(buffer: Buffer) -> Buffer:
    """The content of a buffer as it is: on its device, or in host memory where there is no room."""
    try:
        copy = Buffer(buffer.device, buffer.dtype, buffer.size)
        copy.copy_from(buffer)
    except DeviceError:
        copy = Buffer("CPU", buffer.dtype, buffer.size)
        copy.copy_from(buffer)
    return copy


def target_of(device: str) -> Target:
    """Facts about a device, for the scheduler's prices."""
    return Device[device].target


def resolve(roots: Sequence[UOp], more: Mapping[UOp, UOp] = _NOTHING) -> list[UOp]:
    """The graphs with every node that was realised before replaced by its buffer; `more` are known beside these."""
    if not _realized and not more:
        return list(roots)
    before = dict(_realized)
    before.update(more)
    known = {node: before[node] for node in toposort(roots) if node in before}
    return replace_known(roots, known) if known else list(roots)


def replace_known(roots: Sequence[UOp], known: Mapping[UOp, UOp]) -> list[UOp]:
    """The graphs with keys replaced by values. The view of a write stays a view of its base, whichever is known."""
    new: dict[UOp, UOp] = {}
    for node in toposort(roots):
        if node in known:
            new[node] = known[node]
        elif any(s in new for s in node.src):
            src = [new.get(s, s) for s in node.src]
            if node.op is Op.WRITE:
                src[1] = replay(chain_to(node.src[1], node.src[0]), src[0])
            new[node] = mk(node.op, node.dtype, tuple(src), node.arg)
    return [new.get(r, r) for r in roots]


def base_buffer(node: UOp) -> UOp:
    """The node below a chain of movement ops."""
    while node.op in MOVEMENT:
        node = node.src[0]
    return node


def schedule(roots: Sequence[UOp], live: Sequence[UOp] = ()) -> Schedule:
    """The kernels that would compute these roots."""
    return create_schedule(
        resolve(roots),
        target_of,
        resolve(live),
        default_device=Device.DEFAULT,
        tell=report.explanations(),
        store=diskcache if settings.CACHE else None,
    )


def realize(roots: Sequence[UOp], live: Sequence[UOp] = ()) -> dict[UOp, UOp]:
    """Compute the roots into memory.

    Args:
        roots: TENSOR-stage nodes.
        live: graphs of other tensors still in use; they keep the values they were built on.

    Returns:
        For each root, and for each write that ran inside them, the node it became: a BUFFER behind movement ops.
    """
    if settings.DEBUG.value >= 1:
        with report.realize_totals():
            return _realize(roots, live)
    with no_gc():
        return _realize(roots, live)


def _realize(roots: Sequence[UOp], live: Sequence[UOp]) -> dict[UOp, UOp]:
    start = time.perf_counter()
    observers = report.pass_observers()
    resolved, held = roots, resolve(live)
    if _thread.recorder is None and not observers and settings.SCHEDULE_CACHE.value:
        question = ask_for_schedule(resolved, target_of, held, Device.DEFAULT, list(_realized) if _realized else ())
        if question.structure.met:
            resolved = resolve(roots)
            question = ask_for_schedule(resolved, target_of, held, Device.DEFAULT)
        if question.entry is not None:
            asked, leaves, entry = question.named(question.entry), question.structure.leaves, question.entry
            ready = ready_of(entry, asked, leaves)
            _tell(entry.calls, start, True)
            memory = ready.run(leaves)
            found = ready.nodes(asked, leaves, memory)
            changed = [leaves[slot] for slot in ready.overwritten]
            return _settle(found, roots, resolved, live, changed, [asked[number] for number in ready.stale])
    else:
        resolved = resolve(roots)
    plan = create_schedule(
        resolved,
        target_of,
        held,
        observers,
        default_device=Device.DEFAULT,
        tell=report.explanations(),
        store=diskcache if settings.CACHE else None,
        settled=_settled(resolved),
    )
    usage.note_at_exit()
    _tell(plan.calls, start)
    run(plan)
    overwritten = overwritten_buffers(plan, resolved) if any(root.mask & _WRITING for root in resolved) else ()
    found = {root: shortest(result) for root, result in plan.results.items()}
    return _settle(found, roots, resolved, live, overwritten, None)


def realize_as(plan: Schedule, roots: Sequence[UOp], live: Sequence[UOp] = ()) -> dict[UOp, UOp] | None:
    """Compute roots with a schedule that was made for them; None where it is none of theirs, or writes to memory."""
    resolved = resolve(roots)
    if any(root not in plan.results or root.mask & _WRITING for root in resolved):
        return None
    run(plan)
    found = {root: shortest(result) for root, result in plan.results.items()}
    return _settle(found, roots, resolved, live, (), None)


def realize_alone(root: UOp) -> UOp | None:
    """Compute a root that nobody but one tensor holds, if this process has its schedule: the way of eager programs.

    Nothing needs to be remembered of such a root, and nobody has to be told.

    Args:
        root: a TENSOR-stage node without writes and without sizes known only at launch.

    Returns:
        What it became; None where only `realize` can do it.
    """
    if settings.DEBUG.value or _thread.recorder is not None or events.active() or not settings.SCHEDULE_CACHE.value:
        return None
    question = ask_for_schedule((root,), target_of, (), Device.DEFAULT, list(_realized) if _realized else ())
    entry = question.entry
    if entry is None:
        return None
    leaves = question.structure.leaves
    ready = ready_of(entry, question.asked, leaves)
    return ready.nodes((root,), leaves, ready.run(leaves)).get(root)


def _tell(calls: Sequence[Any], start: float, cached: bool = False) -> None:
    """Tell listeners, and with DEBUG=2 the screen, that a schedule is there."""
    if settings.DEBUG.value >= 2:
        report.show_schedule(cached, time.perf_counter() - start)
    if events.active():
        copies = sum(call.ast is None if isinstance(call, CachedCall) else isinstance(call, CopyCall) for call in calls)
        events.emit(events.ScheduleMade(len(calls) - copies, copies, time.perf_counter() - start, cached))


def _settle(
    found: Mapping[UOp, UOp],
    roots: Sequence[UOp],
    resolved: Sequence[UOp],
    live: Sequence[UOp],
    overwritten: Collection[UOp],
    stale: Collection[UOp] | None,
) -> dict[UOp, UOp]:
    """Remember what a schedule computed, and forget what its writes made untrue.

    After a buffer was overwritten, an expression of it means something else than before. Live graphs that hold such an
    expression are replaced at once (they join the results), and no memory of it is kept: the same nodes built again are
    a new computation.

    Args:
        found: what the roots, and the writes inside them, became. Whoever else holds a write must not run it again.
        roots: what `realize` was asked for.
        resolved: the same after `resolve`.
        live: other graphs.
        overwritten: the buffers that held values before and that were written in place.
        stale: those of `found` that read such a buffer, if that is known.

    Returns:
        What `realize` returns.
    """
    results = dict(found)
    if _realized:
        # The other graphs know these writes by their names from before `resolve`.
        writes = [n for n in toposort(live) if n.op is Op.WRITE]
        for root, node in zip((*roots, *writes), (*resolved, *resolve(writes)), strict=True):
            if node in found:
                results[root] = found[node]
    known: dict[UOp, UOp] = {}
    for root, result in results.items():
        if root.mask & HAS_LIMIT:
            results[root] = result = limit(result, extents(root))  # memory has the largest size
        # A graph without buffers belongs to no device, and a constant in it stands for any shape: it is not replaced.
        if root is not result and root.mask & _HAS_BUFFER and root.op is not _BUFFER:
            known[root] = result
    if overwritten:
        for old, new in zip(live, resolve(live, known), strict=True):
            if new is not old:
                results.setdefault(old, new)
        unsure = [*_realized, *[root for root in known if stale is None or root not in found]]
        depending = depending_on(unsure, overwritten)
        fresh = set(results.values())
        for key, result in list(_realized.items()):
            if key in depending or (base_buffer(result) in overwritten and result not in fresh):
                del _realized[key]
        if stale is not None:
            depending.update(stale)
        known = {root: result for root, result in known.items() if root not in depending}
    _realized.update(known)
    if _thread.recorder is not None:
        _thread.recorder.realized += known
    return results


def _settled(roots: Sequence[UOp]) -> frozenset[UOp]:
    """The weights of a function that is being captured: what depends on them alone is not computed at every call."""
    recorder = _thread.recorder
    return frozenset() if recorder is None else frozenset([n for n in live_buffers(roots) if recorder.stays(n)])


def overwritten_buffers(plan: Schedule, roots: Sequence[UOp]) -> set[UOp]:
    """The buffers that held values before this schedule and that it writes in place."""
    written = {c.buffers[slot] for c in plan.calls if isinstance(c, KernelCall) for slot in c.written}
    return written & set(live_buffers(roots))


def run(plan: Schedule) -> None:
    """Run every call of a schedule in order."""
    wait = settings.DEBUG >= 2
    recorder = _thread.recorder
    bind_parts(plan.memory.arenas, plan.memory.places, {} if recorder is None else recorder.arenas)
    if len(plan.calls) > 1:
        prepare_kernels([(call.ast, call.device) for call in plan.calls if isinstance(call, KernelCall)])
    for call in plan.calls:
        if recorder is not None:
            recorder.will_run(call)
        if isinstance(call, KernelCall):
            values = [plan.values[v] for v in call.variables]
            run_kernel(call, [buffer_of(b) for b in call.buffers], values, wait)
        else:
            values = []
            copy(buffer_of(call.destination), buffer_of(call.source))
        if recorder is not None:
            recorder.ran(call, values, plan)


def run_kernel(call: KernelCall, buffers: Sequence[Buffer], values: Sequence[int], wait: bool) -> None:
    """Run one kernel on these buffers and count it."""
    kernel = get_kernel(call.ast, call.device)
    report.ran_kernel(call.device, kernel, buffers, kernel.run(buffers, values, wait))
    for slot in call.written:
        buffers[slot].changed()


def live_buffers(nodes: Iterable[UOp]) -> list[Any]:
    """The BUFFER nodes that these graphs read."""
    return [n for n in toposort(nodes) if n.op is Op.BUFFER]
