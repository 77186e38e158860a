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
from gradlet.schedule.moves import materialised_shape, reshape, root_of
from gradlet.schedule.order import execution_order
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
    values: dict[UOp, int] = {}
    cleaned, asked = clean([*roots, *live], values)
    new_roots = [cleaned[r] for r in roots]
    effects = place_writes(new_roots, [cleaned[n] for n in live])
    wanted: dict[UOp, UOp] = {}
    for old, new in [*zip(new_roots, effects.roots, strict=True), *effects.extra.items()]:
        wanted[old] = stored_form(new, asked)
    steps = Steps(effects, list(wanted.values()), asked, default_device())
    groups = execution_order(partition(steps, target_of), steps)
    emitter = Emitter(steps, groups)
    for group in groups:
        emitter.emit(group)
    became: dict[UOp, UOp] = {}
    for old, new in wanted.items():
        became[old] = emitter.resolve(new) if 0 not in new.shape else empty_result(new, steps)
    results = {root: became[cleaned[root]] for root in roots}
    held = {cleaned[n]: n for n in cleaned if n.op is Op.WRITE}
    results.update({held[new]: became[new] for new in effects.extra if new in held})
    used = {v for call in emitter.calls if isinstance(call, KernelCall) for v in call.variables}
    return Schedule(tuple(emitter.calls), results, {v: values[v] for v in values if v in used})


def stored_form(root: UOp, asked: dict[UOp, str]) -> UOp:
    """A root as something that lives in memory: a view of nothing but constants is stored by a kernel of its own."""
    bottom = root_of(root)
    if bottom.op not in SCALAR_LEAVES:
        return root
    stored = mk(Op.CONTIGUOUS, root.dtype, (materialised_shape(root, root.shape),), None)
    if root in asked:
        asked[stored] = asked[root]
    return stored


def empty_result(root: UOp, steps: Steps) -> UOp:
    """A result without elements needs no kernel."""
    device = steps.devices.get(root_of(root), default_device())
    return reshape(new_buffer_node(device, root.dtype, 0), root.shape)


def default_device() -> str:
    """Where constants are stored when nothing says otherwise."""
    return settings.DEV.value or "CPU"
