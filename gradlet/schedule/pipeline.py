"""THE list of steps from the tensor graph to kernel calls in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradlet.base import settings
from gradlet.graph.allocation import new_buffer_node
from gradlet.graph.node import UOp, mk, no_gc
from gradlet.ops.op import SCALAR_LEAVES, Op
from gradlet.schedule.calls import CopyCall, KernelCall, Schedule
from gradlet.schedule.clean import clean
from gradlet.schedule.emit import Emitter
from gradlet.schedule.fuse import partition
from gradlet.schedule.hazards import place_writes
from gradlet.schedule.moves import chain_to, replay, reshape, root_of
from gradlet.schedule.order import execution_order
from gradlet.schedule.split import split_reductions
from gradlet.schedule.steps import Steps
from gradlet.target.target import Target

__all__ = ["CopyCall", "KernelCall", "Schedule", "create_schedule"]


def create_schedule(roots: Sequence[UOp], target_of: Callable[[str], Target], live: Sequence[UOp] = ()) -> Schedule:
    """The kernel calls that compute the roots.

    Args:
        roots: TENSOR-stage nodes to have in memory.
        target_of: facts about a device, by its name.
        live: other graphs still in use; they keep seeing the values they were built on.
    """
    with no_gc():
        return _create(roots, target_of, live)


def _create(roots: Sequence[UOp], target_of: Callable[[str], Target], live: Sequence[UOp]) -> Schedule:
    cleaned = clean(roots, live)
    new = cleaned.new
    kept = list(new)
    new = dict(zip(kept, split_reductions([new[n] for n in kept], target_of, default_device()), strict=True))
    effects = place_writes([new[r] for r in roots], [new[n] for n in live], cleaned.guards)
    asked: dict[UOp, str] = {}
    wanted = [stored_form(n, cleaned.devices.get(r), asked) for r, n in zip(roots, effects.roots, strict=True)]
    extra = {old: stored_form(n, None, asked) for old, n in effects.extra.items()}
    steps = Steps(effects, [*wanted, *extra.values()], asked, default_device())
    groups = execution_order(partition(steps, target_of), steps)
    emitter = Emitter(steps, groups)
    for group in groups:
        emitter.emit(group)
    results = {root: result_of(n, emitter) for root, n in zip(roots, wanted, strict=True)}
    # Writes that ran although nobody asked for them: whoever else holds one reads its result. A root may have become
    # the very write it reads (`write * 1`).
    ran = {**dict(zip([new[r] for r in roots], effects.roots, strict=True)), **effects.extra}
    for old, node in new.items():
        bottom = root_of(node)
        if old.op is Op.WRITE and old not in results and bottom in ran:
            results[old] = result_of(replay(chain_to(node, bottom), ran[bottom]), emitter)
    used = {v for call in emitter.calls if isinstance(call, KernelCall) for v in call.variables}
    values = {v: value for v, value in cleaned.values.items() if v in used}
    return Schedule(tuple(emitter.calls), results, values)


def stored_form(root: UOp, device: str | None, asked: dict[UOp, str]) -> UOp:
    """A root as something that lives in memory: a view of nothing but constants is stored by a kernel of its own."""
    if root_of(root).op not in SCALAR_LEAVES:
        return root
    stored = mk(Op.CONTIGUOUS, root.dtype, (root,), None)
    if device is not None:
        while asked.get(stored, device) != device:
            stored = mk(Op.CONTIGUOUS, root.dtype, (stored,), None)
        asked[stored] = device
    return stored


def result_of(node: UOp, emitter: Emitter) -> UOp:
    """What a root became; a result without elements needs no kernel."""
    if 0 not in node.shape:
        return emitter.resolve(node)
    device = emitter.steps.devices.get(root_of(node), default_device())
    return reshape(new_buffer_node(device, node.dtype, 0), node.shape)


def default_device() -> str:
    """Where constants are stored when nothing says otherwise."""
    return settings.DEV.value or "CPU"
