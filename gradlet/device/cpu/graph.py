"""A graph of launches that runs as one native call: the words of every program in one block, which `walker` reads."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import Final

from gradlet.base import settings
from gradlet.device.cpu.launching import CpuProgram, thread_count
from gradlet.device.cpu.pool import HEADER_WORDS, pool_of
from gradlet.device.cpu.walker import GRAPH_WORDS, RUNS_WORD, walk
from gradlet.runtime.device import GraphLaunch

_WORD: Final = 8  # bytes
_process: int = os.getpid()


def _forked() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_forked)  # the child has pools of its own


class CpuGraph:
    """Launches of CPU programs in order. One thread at a time may write its words and run it.

    Attributes:
        words: addresses by slot, then values; a run uses what they are when it begins.
    """

    def __init__(self, launches: Sequence[GraphLaunch], words: int) -> None:
        self._programs: list[CpuProgram] = [launch.program for launch in launches]  # their code lives as long as this
        moves = [word for launch in launches for word in launch.words]
        stages = sum(len(program.stages) for program in self._programs)
        head = GRAPH_WORDS + HEADER_WORDS * stages
        self._memory = ctypes.create_string_buffer(_WORD * (head + words + len(moves)))
        self._address = ctypes.addressof(self._memory)
        slots = self._address + _WORD * head
        self._moves = (ctypes.c_int32 * (2 * len(moves)))(*[x for to, slot in enumerate(moves) for x in (slot, to)])
        tables = slots + _WORD * words
        struct.pack_into("<4q", self._memory, 0, len(moves), ctypes.addressof(self._moves), slots, tables)
        self._tables: list[int] = []  # of each program
        for launch in launches:
            self._tables.append(tables)
            tables += _WORD * len(launch.words)
        memory = memoryview(self._memory).cast("B").cast("q")
        self.words, self._head = memory[head : head + words], memory[:head]
        self._threads = self._process = self._changes = 0
        self._walk = walk()

    @property
    def runs(self) -> int:
        """How often it has run to its end."""
        return self._head[RUNS_WORD]

    def run(self) -> None:
        """Run all launches to their end."""
        if self._changes != settings.Setting.changes or self._process != _process:
            self._cut_for(thread_count())
        self._walk(self._address)

    def _cut_for(self, threads: int) -> None:
        self._changes = settings.Setting.changes
        if threads == self._threads and self._process == _process:
            return
        stages: list[tuple[int, ...]] = [
            words
            for program, table in zip(self._programs, self._tables, strict=True)
            for words in program.stage_words(table, threads)
        ]
        # Without anything to share there is no need for a pool; a forked process has one of its own.
        run = pool_of(threads).run_address if any(parts > 1 for _, _, parts, _, _ in stages) else 0
        flat = [run, len(stages), *[word for words in stages for word in words]]
        struct.pack_into(f"<{len(flat)}q", self._memory, _WORD * (GRAPH_WORDS - 2), *flat)
        self._threads, self._process = threads, _process
