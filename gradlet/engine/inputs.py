"""Memory for measuring one kernel: deterministic values that keep every access inside its buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from gradlet.graph import numeric
from gradlet.graph.bounds import bounds
from gradlet.graph.launch import body_facts, is_launch, uses
from gradlet.graph.node import UOp, toposort
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import Op
from gradlet.rules.sets import INDEX_MATH
from gradlet.runtime.buffer import Buffer

BLOCK: Final = 65_537  # random values, repeated to fill a buffer; a prime, so that no stride sees them in step
SEED: Final = 20
CLEARED: Final = 0x55
SAMPLE: Final = 1 << 20
FEW: Final = 64
TOLERANCE: Final = 0.02


class Needs(NamedTuple):
    """The memory of a kernel or a launch by slot, and the largest value of each variable.

    Attributes:
        params: a PARAM of the largest size that is asked for.
        written: slots that are stored to.
        loaded: slots that are read.
        limits: for slots that indices are read from, values have to be from 0 to below this.
        values: of the variables.
    """

    params: dict[int, UOp]
    written: set[int]
    loaded: set[int]
    limits: dict[int, int]
    values: list[int]


def memory_needs(ast: UOp) -> Needs:
    """What a kernel or a launch needs to run."""
    needs = Needs({}, set(), set(), {}, [])
    if not is_launch(ast.arg):
        facts = body_facts(ast)
        _add_needs(needs, ast, range(len(facts.params)), range(len(facts.variables)))
    else:
        for use in uses(ast.arg):
            _add_needs(needs, ast.src[use.body], use.slots, use.variables)
    return needs


def _add_needs(needs: Needs, body: UOp, slots: Sequence[int], variables: Sequence[int]) -> None:
    """The needs of one use of a body; negative slots are scratch arrays."""
    facts = body_facts(body)
    limits = index_limits(body)
    loaded = {int(n.src[0].src[0].arg.slot) for n in toposort((body,)) if n.op is Op.LOAD}
    for param, slot in zip(facts.params, slots, strict=True):
        if slot < 0:
            continue
        number = int(param.arg.slot)
        known = needs.params.get(slot)
        if known is None or _nbytes(param) > _nbytes(known):
            needs.params[slot] = param
        if number in facts.written:
            needs.written.add(slot)
        if number in loaded:
            needs.loaded.add(slot)
        if number in limits:
            needs.limits[slot] = min(limits[number], needs.limits.get(slot, limits[number]))
    for variable, place in zip(facts.variables, variables, strict=True):
        needs.values.extend([0] * (place + 1 - len(needs.values)))
        needs.values[place] = max(needs.values[place], int(variable.arg.high))


def _nbytes(param: UOp) -> int:
    return int(param.arg.size) * param.dtype.itemsize


class Inputs:
    """The buffers of a kernel or a launch by slot, and the values of its variables.

    Attributes:
        buffers: memory by slot.
        values: the largest value of each variable.
        nbytes: bytes of all buffers.
    """

    def __init__(self, ast: UOp, device: str) -> None:
        needs = memory_needs(ast)
        self.values = needs.values
        self.buffers: list[Buffer] = []
        # What is read and written would drift away from run to run.
        self._first: dict[int, Any] = {}
        for slot, param in sorted(needs.params.items()):
            content = random_values(param, slot, needs.limits.get(slot))
            buffer = Buffer(device, param.dtype, param.arg.size)
            buffer.copyin(content.view(np.uint8))
            self.buffers.append(buffer)
            if slot in needs.written and slot in needs.loaded:
                self._first[slot] = content.view(np.uint8)
        self.written = sorted(needs.written)
        most = max((self.buffers[s].nbytes for s in self.written), default=0)
        self._cleared = np.full(most, CLEARED, np.uint8)
        self.nbytes = sum(b.nbytes for b in self.buffers)

    @property
    def drifts(self) -> bool:
        """Whether a run changes what the next one reads."""
        return bool(self._first)

    def restore(self) -> None:
        """Give what is read and written its first values again."""
        for slot, content in self._first.items():
            self.buffers[slot].copyin(content)

    def clear(self) -> None:
        """Forget what runs wrote, so that the next one has to write it."""
        for slot in self.written:
            if slot not in self._first:
                self.buffers[slot].copyin(self._cleared[: self.buffers[slot].nbytes])
        self.restore()

    def results(self) -> list[Any]:
        """Some of what the kernel wrote: at most SAMPLE values of each buffer."""
        found = []
        for slot in self.written:
            buffer = self.buffers[slot]
            stored = np.frombuffer(buffer.memory(), np.uint8)[: buffer.nbytes].view(numeric.storage_type(buffer.dtype))
            step = 1 + len(stored) // SAMPLE // 2 * 2  # odd: no multiple of the lanes
            values = numeric.load(np.concatenate((stored[::step], stored[-64:])), buffer.dtype)
            found.append(values)
        return found

    def differ(self, expected: list[Any], found: list[Any]) -> str:
        """In words how results differ by more than another order of the same arithmetic explains; empty if not."""
        for slot, first, second in zip(self.written, expected, found, strict=True):
            if first.dtype.kind == "f":
                first, second = first.astype(np.float64), second.astype(np.float64)
                finite = np.isfinite(first)
                scale = float(np.max(np.abs(first[finite]), initial=0.0))
                if len(first) <= FEW:  # sums of values around 0: what is left of them is mostly rounding
                    scale += 1e-2 * math.sqrt(self.nbytes)
                with np.errstate(all="ignore"):
                    wrong = ~(np.abs(first - second) <= TOLERANCE * scale + 1e-30)
                wrong &= ~((first == second) | (~finite & ~np.isfinite(second)))
            else:
                wrong = first != second
            if int(wrong.sum()) > len(first) // 1000:
                place = int(np.argmax(wrong))
                return f"buffer {slot} holds {second[place]} where it should hold {first[place]}"
        return ""


def random_values(param: UOp, slot: int, limit: int | None) -> Any:
    """Values for a buffer: between -1 and 1, or from 0 to below `limit`.

    Args:
        param: its PARAM.
        slot: which one: no two have the same values.
        limit: for integers that an index is computed from.
    """
    dtype, size = param.dtype, int(param.arg.size)
    rng = np.random.default_rng(SEED + slot)
    count = max(1, min(size, BLOCK))
    storage = numeric.storage_type(dtype)
    block: Any
    if dtype.is_float:
        values = rng.uniform(-1.0, 1.0, count).astype(numeric.carried_type(dtype))
        block = numeric.store(numeric.round_to(values, dtype), dtype) if dtype.name in numeric.PATTERNS else values
    elif dtype.is_bool:
        block = rng.integers(0, 2, count).astype(storage)
    else:
        high = limit if limit is not None else 128
        block = rng.integers(0, max(1, min(high, int(dtype.max))), count).astype(storage)
    repeats = -(-size // count) if size else 0
    return np.ascontiguousarray(np.tile(block, repeats)[:size])


def index_limits(kernel: UOp) -> dict[int, int]:
    """For each slot that indices are read from: values from 0 to below this keep the accesses inside their buffers."""
    order = toposort((kernel,))
    inside: dict[UOp, set[UOp]] = {}
    accesses = [n for n in order if n.op is Op.INDEX]
    for access in accesses:
        loads = {n for n in toposort(access.src[1:2]) if n.op is Op.LOAD}
        if loads:
            inside[access] = loads
    limits: dict[int, int] = {}
    for access, loads in inside.items():
        slots = {int(load.src[0].src[0].arg.slot) for load in loads}
        limit = _limit(access, loads)
        for slot in slots:
            limits[slot] = min(limits.get(slot, limit), limit)
    return limits


def _limit(access: UOp, loads: set[UOp]) -> int:
    """Below which number all of these loads have to stay."""
    size = int(access.src[0].arg.size)
    low, high = 1, max(1, size)
    if not _fits(access, loads, 1, size):
        return max(1, size)  # a guard has to keep it inside: rows that do not exist are legal values then
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(access, loads, middle, size):
            low = middle
        else:
            high = middle - 1
    return low


def _fits(access: UOp, loads: set[UOp], limit: int, size: int) -> bool:
    """Whether an index stays inside its buffer when the values that it is computed from are below `limit`."""
    chosen: dict[UOp, UOp] = {}
    for number, load in enumerate(sorted(loads, key=lambda n: n.uid)):
        chosen[load] = UOp.variable(f"index{number}", 0, limit - 1).cast(load.dtype)
    index = access.src[1].substitute(chosen)
    low, high = bounds(rewrite(index, INDEX_MATH))
    return bool(low >= 0 and high < size)
