"""Measure this machine in about a second: what launches cost, bandwidths, the multiply-add rate (`doctor --probe`).

Small kernels written in LLVM IR run as all others do, on the pool's threads. Of several runs the fastest counts: what
slows a run down is other programs.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from gradlet.device.common.hostmemory import physical_memory
from gradlet.device.common.llvm import emit_object
from gradlet.device.cpu import facts, pool
from gradlet.device.cpu.facts import Facts
from gradlet.device.cpu.jit import Loaded, load
from gradlet.device.cpu.target import host_target
from gradlet.target.target import Target

# Independent sums of the multiply-add kernel: enough to hide the latency of two units a core.
SUMS: Final = 12
# Vectors that one iteration of the copying kernel moves.
UNROLL: Final = 8
# Bytes of a block, and bytes copied to measure memory: beyond the last cache, within reason.
BLOCK_BYTES: Final = 256 * 1024
LEAST_BYTES: Final = 64 * 1024 * 1024
MOST_BYTES: Final = 256 * 1024 * 1024
LAUNCHES: Final = 20
STAGES: Final = 8
# How often threads meet to be timed, the work of each before, and the least that meeting can cost:
# a few cache lines have to travel from core to core.
MEETINGS: Final = 500
BLOCK_SECONDS: Final = 10e-6
LEAST_BARRIER: Final = 200e-9
MULTIPLY_ADDS: Final = 20_000
RUNS: Final = 5
PICO: Final = 1_000_000_000_000

_EMPTY: Final = "define void @probe_empty(ptr %table, i64 %begin, i64 %end) {\n  ret void\n}\n"

# table: source, destination, bytes of a block, how many times each block is copied
_COPY: Final = """
define void @probe_copy(ptr %table, i64 %begin, i64 %end) {{
entry:
  %from = load ptr, ptr %table
  %to_at = getelementptr i64, ptr %table, i64 1
  %to = load ptr, ptr %to_at
  %bytes_at = getelementptr i64, ptr %table, i64 2
  %bytes = load i64, ptr %bytes_at
  %times_at = getelementptr i64, ptr %table, i64 3
  %times = load i64, ptr %times_at
  br label %block
block:
  %i = phi i64 [ %begin, %entry ], [ %i_next, %block_end ]
  %first = mul i64 %i, %bytes
  %last = add i64 %first, %bytes
  br label %again
again:
  %t = phi i64 [ 0, %block ], [ %t_next, %again_end ]
  br label %move
move:
  %at = phi i64 [ %first, %again ], [ %at_next, %move ]
{moves}
  %at_next = add i64 %at, {step}
  %more = icmp slt i64 %at_next, %last
  br i1 %more, label %move, label %again_end
again_end:
  %t_next = add i64 %t, 1
  %once_more = icmp slt i64 %t_next, %times
  br i1 %once_more, label %again, label %block_end
block_end:
  %i_next = add i64 %i, 1
  %blocks = icmp slt i64 %i_next, %end
  br i1 %blocks, label %block, label %out
out:
  ret void
}}
"""

# table: where each block puts its sums, iterations
_SUM: Final = """
define void @probe_sum(ptr %table, i64 %begin, i64 %end) {{
entry:
  %to = load ptr, ptr %table
  %count_at = getelementptr i64, ptr %table, i64 1
  %count = load i64, ptr %count_at
  %start = load {vector}, ptr %to, align 4
  br label %block
block:
  %i = phi i64 [ %begin, %entry ], [ %i_next, %block_end ]
  br label %loop
loop:
  %n = phi i64 [ 0, %block ], [ %n_next, %loop ]
{sums}
  %n_next = add i64 %n, 1
  %more = icmp slt i64 %n_next, %count
  br i1 %more, label %loop, label %block_end
block_end:
{stores}
  %i_next = add i64 %i, 1
  %blocks = icmp slt i64 %i_next, %end
  br i1 %blocks, label %block, label %out
out:
  ret void
}}
"""


def probe() -> Facts:
    """Measure, and keep the facts on disk for this and later processes.

    Raises:
        DeviceError: this machine has no target.
    """
    from gradlet.device.cpu.target import forget_facts

    target = host_target()
    measured = Machine(target).measure()
    facts.remember(measured, target.name, target.cores)
    forget_facts()
    return measured


def source_text(target: Target) -> str:
    """LLVM IR of the probe's kernels."""
    lanes = target.vector_bits // 32
    vector = f"<{lanes} x float>"
    width = target.vector_bits // 8
    moves = []
    for k in range(UNROLL):
        moves += [
            f"  %at{k} = add i64 %at, {k * width}",
            f"  %from{k} = getelementptr i8, ptr %from, i64 %at{k}",
            f"  %value{k} = load {vector}, ptr %from{k}, align {width}",
            f"  %to{k} = getelementptr i8, ptr %to, i64 %at{k}",
            f"  store {vector} %value{k}, ptr %to{k}, align {width}",
        ]
    sums = [f"  %s{k} = phi {vector} [ %start, %block ], [ %s{k}_next, %loop ]" for k in range(SUMS)]
    for k in range(SUMS):
        if target.fma:
            sums.append(f"  %s{k}_next = call {vector} @fma({vector} %s{k}, {vector} %start, {vector} %start)")
        else:
            sums.append(f"  %p{k} = fmul {vector} %s{k}, %start")
            sums.append(f"  %s{k}_next = fadd {vector} %p{k}, %start")
    stores = []
    for k in range(SUMS):
        stores += [
            f"  %out{k} = getelementptr i8, ptr %to, i64 {k * width}",
            f"  store {vector} %s{k}_next, ptr %out{k}, align 4",
        ]
    name = f"@llvm.fma.v{lanes}f32"
    return "\n".join(
        [
            f'target triple = "{target.triple}"',
            f"declare {vector} {name}({vector}, {vector}, {vector})" if target.fma else "",
            _EMPTY,
            _COPY.format(moves="\n".join(moves), step=UNROLL * width),
            _SUM.format(vector=vector, sums="\n".join(sums).replace("@fma", name), stores="\n".join(stores)),
        ]
    )


class Machine:
    """The kernels loaded, and how to run them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.threads = target.cores if pool.is_supported() else 1
        names = ("probe_empty", "probe_copy", "probe_sum")
        self.code: Loaded = load(emit_object(source_text(target), target), names)
        self._pool = pool.pool_of(self.threads) if self.threads > 1 else None

    def measure(self) -> Facts:
        """All facts."""
        launch, inline, barrier = self.launches()
        alone, together = self.memory()
        return Facts(
            flops_per_second=max(1, int(self.multiply_adds())),
            bytes_per_second=max(1, int(together)),
            core_bytes_per_second=max(1, int(alone)),
            l2_bytes_per_second=max(1, int(self.second_cache())),
            launch_ps=max(1, int(launch * PICO)),
            inline_ps=max(1, int(inline * PICO)),
            barrier_ps=max(1, int(barrier * PICO)),
        )

    def launches(self) -> tuple[float, float, float]:
        """Seconds of a launch on all threads, of one on the calling thread, and of one more stage of a launch.

        Threads only meet when there is work for each: what is left of it is not counted.
        """
        inline = fastest(self.launcher("probe_empty", (0,), 1, times=LAUNCHES), LAUNCHES) / LAUNCHES
        if self._pool is None:
            return inline, inline, inline
        lanes = self.target.vector_bits // 32
        sums = (ctypes.c_float * (SUMS * lanes))()
        start = ctypes.addressof(sums)
        whole = fastest(self.once("probe_sum", (start, MULTIPLY_ADDS), 1, 1))
        table = (start, max(1, int(MULTIPLY_ADDS * BLOCK_SECONDS / whole)))
        block = fastest(self.launcher("probe_sum", table, 1), MEETINGS) - inline
        launch = fastest(self.launcher("probe_sum", table, self.threads), MEETINGS)
        staged = fastest(self.launcher("probe_sum", table, self.threads, STAGES), MEETINGS)
        barrier = (staged - launch) / (STAGES - 1) - block
        return max(launch - block, inline + LEAST_BARRIER), inline, max(barrier, LEAST_BARRIER)

    def memory(self) -> tuple[float, float]:
        """Bytes a second read and written, by one thread and by all."""
        size = min(max(2 * self.target.llc_bytes, LEAST_BYTES), MOST_BYTES, physical_memory() // 8)
        blocks = max(1, size // 2 // BLOCK_BYTES)
        block = mmap.mmap(-1, 2 * blocks * BLOCK_BYTES)
        start = ctypes.addressof(ctypes.c_char.from_buffer(block))
        table = (start, start + blocks * BLOCK_BYTES, BLOCK_BYTES, 1)
        together = fastest(self.once("probe_copy", table, blocks, 4 * self.threads))
        alone = fastest(self.once("probe_copy", table, blocks, 1), 3) if self.threads > 1 else together
        moved = 2 * blocks * BLOCK_BYTES
        return moved / alone, moved / min(alone, together)

    def second_cache(self) -> float:
        """Bytes a second read and written in the second caches of all threads."""
        step = UNROLL * self.target.vector_bits // 8
        each = max(step, self.target.l2_bytes // 4 // step * step)
        block = mmap.mmap(-1, 2 * each * self.threads)
        start = ctypes.addressof(ctypes.c_char.from_buffer(block))
        times = max(1, 32 * 1024 * 1024 // each)
        table = (start, start + each * self.threads, each, times)
        return 2 * each * self.threads * times / fastest(self.once("probe_copy", table, self.threads, self.threads))

    def multiply_adds(self) -> float:
        """Operations a second in float32, a multiply-add counted as two."""
        lanes = self.target.vector_bits // 32
        sums = (ctypes.c_float * (SUMS * lanes))()
        work = self.once("probe_sum", (ctypes.addressof(sums), MULTIPLY_ADDS), self.threads, self.threads)
        return 2 * lanes * SUMS * MULTIPLY_ADDS * self.threads / fastest(work)

    def once(self, name: str, table: Sequence[int], blocks: int, parts: int) -> Callable[[], None]:
        """One launch of a kernel cut into parts; one part runs on the calling thread."""
        words = _Words(self.code.addresses[name], table, blocks, parts, 1)
        if parts == 1 or self._pool is None:
            function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(words.function)
            return lambda: function(words.table, 0, blocks)
        run = self._pool.run_stages
        return lambda: run(words.address)

    def launcher(
        self, name: str, table: Sequence[int], parts: int, stages: int = 1, times: int = 1
    ) -> Callable[[], None]:  # fmt: skip
        """Launches in a row of a block for each part, each with its table filled in as for any kernel."""
        words = _Words(self.code.addresses[name], table, parts, parts, stages)
        fill = struct.Struct(f"<{len(table)}q").pack_into
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(words.function)
        run = self._pool.run_stages if self._pool is not None and parts > 1 else None

        def work() -> None:
            for _ in range(times):
                fill(words.memory, words.header_bytes, *table)
                if run is None:
                    function(words.table, 0, parts)
                else:
                    run(words.address)

        return work


class _Words:
    """A launch of equal stages: the pool's words, then the table (see `pool.HEADER_WORDS`)."""

    def __init__(self, function: int, table: Sequence[int], blocks: int, parts: int, stages: int) -> None:
        self.function = function
        self.header_bytes = 8 * (1 + pool.HEADER_WORDS * stages)
        self.memory = ctypes.create_string_buffer(self.header_bytes + 8 * len(table))
        self.address = ctypes.addressof(self.memory)
        self.table = self.address + self.header_bytes
        words = [stages, *[function, blocks, min(parts, blocks), 0, self.table] * stages, *table]
        struct.pack_into(f"<{len(words)}q", self.memory, 0, *words)


def fastest(work: Callable[[], None], runs: int = RUNS) -> float:
    """Seconds of the fastest of several runs, after one that wakes threads and touches memory."""
    work()
    least = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
    return least
