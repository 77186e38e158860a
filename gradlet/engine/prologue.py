"""What a captured program need not compute at every call: launches that only read weights run once for their values.

A launch is settled where all it reads is memory that no launch of the program writes and no call replaces, or what
settled launches made. What these make stays in memory of its own. It is made again when the content of what it was
made from is another one: each content of a buffer has a number of its own (`Buffer.stamp`), and memory that somebody
else can write to is never taken for settled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gradlet.graph.node import UOp
from gradlet.runtime.buffer import Buffer, buffer_of, new_buffer_node
from gradlet.schedule.calls import MOST_KEPT, is_worth_keeping

if TYPE_CHECKING:
    from gradlet.engine.capture import CapturedProgram


class Call(Protocol):
    """One launch, as far as it matters here."""

    @property
    def slots(self) -> tuple[int, ...]:
        """Its memory by slot numbers of the program."""

    @property
    def written(self) -> tuple[int, ...]:
        """The places among `slots` that it writes to."""

    @property
    def is_fixed(self) -> bool:
        """Whether it does the same at every call: a kernel without variables."""


class Program(Protocol):
    """Launches over numbered slots of memory."""

    @property
    def nodes(self) -> Sequence[UOp]:
        """The BUFFER node of each slot, where nothing else is said."""

    def run(self, replaced: dict[int, UOp], values: dict[UOp, int]) -> None:
        """Run them, with some slots holding other buffers."""


@dataclass
class Prologue:
    """The settled launches of a program and what they made.

    Attributes:
        once: the settled launches.
        rest: all others.
        reads: slots that the settled launches read and do not make.
        makes: slots that they make.
    """

    once: Program
    rest: CapturedProgram
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    _made: tuple[tuple[int, ...], dict[int, UOp]] = field(default_factory=lambda: ((), {}))

    def sources(self, replaced: dict[int, UOp]) -> list[Buffer]:
        """The weights."""
        nodes = self.once.nodes
        return [buffer_of(replaced.get(slot) or nodes[slot]) for slot in self.reads]

    def current(self, replaced: dict[int, UOp]) -> dict[int, UOp] | None:
        """Buffers of the slots that settled launches make, for the weights as they are now.

        None where the weights cannot be watched: then all launches have to run. Whoever reads what was made of other
        weights goes on to do so: what is made anew gets memory of its own.
        """
        nodes = self.once.nodes
        sources = self.sources(replaced)
        stamps = tuple([source.stamp for source in sources])
        known, made = self._made
        if stamps == known and all(source.is_watched for source in sources):
            return made
        if not all(source.is_watched for source in sources):
            self._made = (), {}
            return None
        made = {slot: _like(nodes[slot]) for slot in self.makes}
        self.once.run({**replaced, **made}, {})
        self._made = stamps, made
        return made


def _like(node: UOp) -> UOp:
    """A new BUFFER node for as much memory."""
    return new_buffer_node(node.arg.device, node.dtype, node.arg.size)


def find_settled(
    calls: Sequence[Call], fresh: Collection[int], moving: Collection[int], sizes: Sequence[int]
) -> list[int]:
    """The numbers of the settled launches among some.

    Args:
        calls: in order.
        fresh: slots that the program makes.
        moving: slots that are other memory at every call: inputs and results.
        sizes: bytes of every slot.
    """
    writers: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        for place in call.written:
            writers.setdefault(call.slots[place], []).append(number)
    settled: list[int] = []
    kept = 0
    made: set[int] = set()
    for number, call in enumerate(calls):
        writes = {call.slots[place] for place in call.written}
        inputs = [slot for place, slot in enumerate(call.slots) if place not in call.written]
        own = [slot for slot in inputs if slot not in made]
        if not call.is_fixed or not inputs or not writes or not writes.isdisjoint(moving):
            continue
        if any(slot in fresh or slot in moving or slot in writers for slot in own):
            continue
        if any(slot not in fresh or writers[slot] != [number] for slot in writes):
            continue
        size = sum(sizes[s] for s in writes)
        if not is_worth_keeping(size, sum(sizes[s] for s in set(inputs))) or kept + size > MOST_KEPT:
            continue
        kept += size
        settled.append(number)
        made |= writes
    return settled
