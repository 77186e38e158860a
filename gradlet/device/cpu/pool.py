"""A persistent pool of native threads that run the parts of a kernel, written in LLVM IR over pthreads and futexes.

The caller works too. Parts are handed out by one atomic word, so a worker that is late or asleep costs nothing:
whoever is awake takes the next part, and the caller waits only for parts that somebody has taken. Idle workers spin for
a while, then sleep. Systems without futexes (anything but Linux) have no pool; kernels run on the calling thread there.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from functools import cache
from typing import Final

from gradlet.device.common.llvm import LOCK, emit_object, version
from gradlet.device.cpu import target as cpu_target
from gradlet.device.cpu.jit import Loaded, load
from gradlet.runtime import diskcache

# Pauses before a waiting thread sleeps: 0.1 to 0.4 ms, for a pause takes 40 to 140 cycles. Longer than the gap between
# two kernels of a captured program, or what a caller does between two calls (waking a thread takes as long as a tenth
# of a small product), shorter than anything a person notices on a processor meter.
SPINS: Final = 8000
MAX_WORKERS: Final = 255
# The words of one stage of a launch: its function, its blocks (iterations of a kernel's PARALLEL range), the parts to
# cut them into, the address of where each part begins and ends (0: parts of equal size), the address of the table that
# the function gets. A launch of several stages is their number, then the words of each.
HEADER_WORDS: Final = 5

_MACHINES: Final = {
    # futex and gettid system calls, and the instruction that tells the core it is waiting
    "x86_64": (202, 186, "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "aarch64": (98, 178, "call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"),
}

# Every word that several threads write has a cache line of its own.
#   ticket      number of the launch (upper half) and parts not yet taken (lower half)
#   unfinished  parts not yet finished; the caller sleeps on it
#   epoch       number of the launch; idle workers sleep on it
# A part is taken by compare-and-swap of the whole ticket. Success means that the launch is still the one whose words
# are read next, because a launch cannot end, nor another begin, before its taken parts are finished.
_SOURCE: Final = """
target triple = "{triple}"

@ticket = internal global {{ i64, [56 x i8] }} zeroinitializer, align 64
@unfinished = internal global {{ i32, [60 x i8] }} zeroinitializer, align 64
@caller_sleeps = internal global {{ i32, [60 x i8] }} zeroinitializer, align 64
@epoch = internal global {{ i32, [60 x i8] }} zeroinitializer, align 64
@sleepers = internal global {{ i32, [60 x i8] }} zeroinitializer, align 64
@busy = internal global {{ i32, [60 x i8] }} zeroinitializer, align 64
@words = internal global {{ ptr, [56 x i8] }} zeroinitializer, align 64
@worker_count = internal global i32 0
; thread number and last core of every worker, a cache line each
@workers = internal global [{max_workers} x {{ i32, i32, [56 x i8] }}] zeroinitializer, align 64
; for every core, the set of all other cores this process may use, and how many bytes a set has
@others = internal global ptr null
@set_bytes = internal global i64 0

{declare_pause}
declare i64 @syscall(i64, ...)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal void @futex_wait(ptr %word, i32 %value) {{
  %wide = zext i32 %value to i64
  %ignored = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 128, i64 %wide, ptr null, ptr null, i64 0)
  ret void
}}

define internal void @futex_wake(ptr %word, i32 %count) {{
  %wide = zext i32 %count to i64
  %ignored = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 129, i64 %wide, ptr null, ptr null, i64 0)
  ret void
}}

; Take parts and run them until none is left.
define internal void @work() {{
entry:
  br label %look
look:
  %seen = load atomic i64, ptr @ticket acquire, align 8
  %left = and i64 %seen, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %out, label %take
take:
  %fewer = sub i64 %seen, 1
  %swap = cmpxchg ptr @ticket, i64 %seen, i64 %fewer acq_rel acquire, align 8
  %taken = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %taken, label %run, label %look
run:
  %launch = load ptr, ptr @words, align 8
  %function = load ptr, ptr %launch, align 8
  %total_at = getelementptr i64, ptr %launch, i64 1
  %total = load i64, ptr %total_at, align 8
  %parts_at = getelementptr i64, ptr %launch, i64 2
  %parts = load i64, ptr %parts_at, align 8
  %bounds_at = getelementptr i64, ptr %launch, i64 3
  %bounds = load ptr, ptr %bounds_at, align 8
  %table_at = getelementptr i64, ptr %launch, i64 4
  %table = load ptr, ptr %table_at, align 8
  %part = sub i64 %parts, %left
  %next = add i64 %part, 1
  %equal = icmp eq ptr %bounds, null
  br i1 %equal, label %divide, label %look_up
divide:
  %begin_scaled = mul i64 %part, %total
  %begin_divided = udiv i64 %begin_scaled, %parts
  %end_scaled = mul i64 %next, %total
  %end_divided = udiv i64 %end_scaled, %parts
  br label %call
look_up:
  %begin_at = getelementptr {{ i64, i64 }}, ptr %bounds, i64 %part
  %begin_found = load i64, ptr %begin_at, align 8
  %end_at = getelementptr i64, ptr %begin_at, i64 1
  %end_found = load i64, ptr %end_at, align 8
  br label %call
call:
  %begin = phi i64 [ %begin_divided, %divide ], [ %begin_found, %look_up ]
  %end = phi i64 [ %end_divided, %divide ], [ %end_found, %look_up ]
  call void %function(ptr %table, i64 %begin, i64 %end)
  %before = atomicrmw sub ptr @unfinished, i32 1 seq_cst
  %last = icmp eq i32 %before, 1
  br i1 %last, label %finished, label %look
finished:
  %sleeps = load atomic i32, ptr @caller_sleeps seq_cst, align 4
  %wake = icmp ne i32 %sleeps, 0
  br i1 %wake, label %signal, label %look
signal:
  call void @futex_wake(ptr @unfinished, i32 1)
  br label %look
out:
  ret void
}}

define internal ptr @worker(ptr %me) {{
entry:
  %thread = call i64 (i64, ...) @syscall(i64 {gettid})
  %thread32 = trunc i64 %thread to i32
  store atomic i32 %thread32, ptr %me monotonic, align 4
  %core_at = getelementptr i32, ptr %me, i64 1
  br label %idle
idle:
  ; a worker that was woken on the caller's core finds nothing left to do there: it has to say so, too
  %core = call i32 @sched_getcpu()
  store atomic i32 %core, ptr %core_at monotonic, align 4
  br label %spin
spin:
  %spun = phi i32 [ 0, %idle ], [ %spun_next, %pause ]
  %seen = load atomic i64, ptr @ticket acquire, align 8
  %left = and i64 %seen, 4294967295
  %some = icmp ne i64 %left, 0
  br i1 %some, label %go, label %pause
pause:
  {pause}
  %spun_next = add i32 %spun, 1
  %more = icmp slt i32 %spun_next, {spins}
  br i1 %more, label %spin, label %sleep
sleep:
  %sleepers_before = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %number = load atomic i32, ptr @epoch seq_cst, align 4
  %again = load atomic i64, ptr @ticket seq_cst, align 8
  %again_left = and i64 %again, 4294967295
  %came = icmp ne i64 %again_left, 0
  br i1 %came, label %awake, label %wait
wait:
  call void @futex_wait(ptr @epoch, i32 %number)
  br label %awake
awake:
  %sleepers_after = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  br label %idle
go:
  call void @work()
  br label %idle
}}

; Start up to `count` workers; returns how many there are.
define i32 @pool_start(i32 %count, ptr %others, i64 %set_bytes) {{
entry:
  store ptr %others, ptr @others, align 8
  store i64 %set_bytes, ptr @set_bytes, align 8
  %thread = alloca i64, align 8
  %any = icmp sgt i32 %count, 0
  br i1 %any, label %start, label %out
start:
  %i = phi i32 [ 0, %entry ], [ %i_next, %started ]
  %wide = zext i32 %i to i64
  %me = getelementptr {{ i32, i32, [56 x i8] }}, ptr @workers, i64 %wide
  %core_at = getelementptr i32, ptr %me, i64 1
  store i32 -1, ptr %core_at, align 4
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr %me)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %started, label %out
started:
  %handle = load i64, ptr %thread, align 8
  %ignored = call i32 @pthread_detach(i64 %handle)
  %i_next = add i32 %i, 1
  %more = icmp slt i32 %i_next, %count
  br i1 %more, label %start, label %out
out:
  %running = phi i32 [ 0, %entry ], [ %i, %start ], [ %i_next, %started ]
  store i32 %running, ptr @worker_count, align 4
  ret i32 %running
}}

; The system may leave a worker on the caller's core for seconds, and both would share it. Move it off.
define internal void @spread() {{
entry:
  %core = call i32 @sched_getcpu()
  %known = icmp sge i32 %core, 0
  %sets = load ptr, ptr @others, align 8
  %have = icmp ne ptr %sets, null
  %can = and i1 %known, %have
  %count = load i32, ptr @worker_count, align 4
  %any = icmp sgt i32 %count, 0
  %go = and i1 %can, %any
  br i1 %go, label %look, label %out
look:
  %i = phi i32 [ 0, %entry ], [ %i_next, %next ]
  %wide = zext i32 %i to i64
  %me = getelementptr {{ i32, i32, [56 x i8] }}, ptr @workers, i64 %wide
  %core_at = getelementptr i32, ptr %me, i64 1
  %theirs = load atomic i32, ptr %core_at monotonic, align 4
  %same = icmp eq i32 %theirs, %core
  br i1 %same, label %move, label %next
move:
  %thread = load atomic i32, ptr %me monotonic, align 4
  %bytes = load i64, ptr @set_bytes, align 8
  %core_wide = zext i32 %core to i64
  %offset = mul i64 %core_wide, %bytes
  %set = getelementptr i8, ptr %sets, i64 %offset
  %ignored = call i32 @sched_setaffinity(i32 %thread, i64 %bytes, ptr %set)
  store atomic i32 -1, ptr %core_at monotonic, align 4
  br label %next
next:
  %i_next = add i32 %i, 1
  %more = icmp slt i32 %i_next, %count
  br i1 %more, label %look, label %out
out:
  ret void
}}

; Run one stage on all threads; the calling thread runs it alone while another thread's launch has the pool.
define void @pool_run(ptr %launch) {{
entry:
  %total_at = getelementptr i64, ptr %launch, i64 1
  %parts_at = getelementptr i64, ptr %launch, i64 2
  %lock = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic, align 4
  %mine = extractvalue {{ i32, i1 }} %lock, 1
  br i1 %mine, label %publish, label %alone
alone:
  %function = load ptr, ptr %launch, align 8
  %total = load i64, ptr %total_at, align 8
  %table_at = getelementptr i64, ptr %launch, i64 4
  %table = load ptr, ptr %table_at, align 8
  call void %function(ptr %table, i64 0, i64 %total)
  ret void
publish:
  %parts = load i64, ptr %parts_at, align 8
  %parts32 = trunc i64 %parts to i32
  store ptr %launch, ptr @words, align 8
  store atomic i32 %parts32, ptr @unfinished monotonic, align 4
  store atomic i32 0, ptr @caller_sleeps monotonic, align 4
  %old = load atomic i32, ptr @epoch monotonic, align 4
  %number = add i32 %old, 1
  %number_wide = zext i32 %number to i64
  %upper = shl i64 %number_wide, 32
  %new = or i64 %upper, %parts
  store atomic i64 %new, ptr @ticket seq_cst, align 8
  store atomic i32 %number, ptr @epoch seq_cst, align 4
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %wake = icmp sgt i32 %asleep, 0
  br i1 %wake, label %rouse, label %join
rouse:
  %others = sub i32 %parts32, 1
  call void @futex_wake(ptr @epoch, i32 %others)
  br label %join
join:
  call void @spread()
  call void @work()
  br label %spin
spin:
  %spun = phi i32 [ 0, %join ], [ %spun_next, %pause ]
  %left = load atomic i32, ptr @unfinished acquire, align 4
  %done = icmp eq i32 %left, 0
  br i1 %done, label %out, label %pause
pause:
  {pause}
  %spun_next = add i32 %spun, 1
  %more = icmp slt i32 %spun_next, {spins}
  br i1 %more, label %spin, label %sleep
sleep:
  store atomic i32 1, ptr @caller_sleeps seq_cst, align 4
  br label %check
check:
  %still = load atomic i32, ptr @unfinished seq_cst, align 4
  %over = icmp eq i32 %still, 0
  br i1 %over, label %out, label %wait
wait:
  call void @futex_wait(ptr @unfinished, i32 %still)
  br label %check
out:
  store atomic i32 0, ptr @busy release, align 4
  ret void
}}

; Run the stages of a launch one after another; those of one part on the calling thread.
define void @pool_run_stages(ptr %launch) {{
entry:
  %count = load i64, ptr %launch, align 8
  br label %stage
stage:
  %i = phi i64 [ 0, %entry ], [ %i_next, %next ]
  %scaled = mul i64 %i, {header}
  %place = add i64 %scaled, 1
  %words = getelementptr i64, ptr %launch, i64 %place
  %parts_at = getelementptr i64, ptr %words, i64 2
  %parts = load i64, ptr %parts_at, align 8
  %several = icmp sgt i64 %parts, 1
  br i1 %several, label %share, label %alone
share:
  call void @pool_run(ptr %words)
  br label %next
alone:
  %function = load ptr, ptr %words, align 8
  %total_at = getelementptr i64, ptr %words, i64 1
  %total = load i64, ptr %total_at, align 8
  %table_at = getelementptr i64, ptr %words, i64 4
  %table = load ptr, ptr %table_at, align 8
  call void %function(ptr %table, i64 0, i64 %total)
  br label %next
next:
  %i_next = add i64 %i, 1
  %more = icmp slt i64 %i_next, %count
  br i1 %more, label %stage, label %out
out:
  ret void
}}
"""


def is_supported() -> bool:
    """Whether this system has what the pool is built on."""
    return platform.system() == "Linux" and platform.machine() in _MACHINES


@cache
def _object_code() -> bytes:
    futex, gettid, pause, declare_pause = _MACHINES[platform.machine()]
    target = cpu_target.host_target()
    source = _SOURCE.format(
        triple=target.triple, max_workers=MAX_WORKERS, futex=futex, gettid=gettid, pause=pause,
        declare_pause=declare_pause, spins=SPINS, header=HEADER_WORDS,
    )  # fmt: skip
    entry = diskcache.key(source, target.key, version(), "object")
    code = diskcache.get(entry)
    if code is None:
        code = emit_object(source, target)
        diskcache.put(entry, code)
    return code


class Pool:
    """`threads` threads, of which the caller is one. They end with the process."""

    def __init__(self, threads: int) -> None:
        # A copy of the code for every pool: its state is the code's own static memory.
        self._code: Loaded = load(_object_code(), ("pool_start", "pool_run", "pool_run_stages"))
        self._code.keep_forever()
        self._sets, bytes_each = _sets_of_other_cores()
        start = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)(
            self._code.addresses["pool_start"]
        )
        sets = ctypes.addressof(self._sets) if self._sets is not None else None
        # Workers inherit the signal mask: with everything blocked, signals reach Python's threads only.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.workers = int(start(min(threads - 1, MAX_WORKERS), sets, bytes_each))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.threads = self.workers + 1
        # run(address of a stage's words), run_stages(address of a launch's): see HEADER_WORDS
        self.run_address = self._code.addresses["pool_run"]
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.run_address)
        self.run_stages = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._code.addresses["pool_run_stages"])


def _sets_of_other_cores() -> tuple[ctypes.Array[ctypes.c_char] | None, int]:
    """For each core, all others as a bit set, one after another; None when there is only one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None, 0
    bytes_each = (cores[-1] // 64 + 1) * 8
    sets = bytearray()
    for core in range(cores[-1] + 1):
        bits = sum(1 << other for other in cores if other != core)
        sets += bits.to_bytes(bytes_each, "little")
    block = (ctypes.c_char * len(sets)).from_buffer_copy(sets)
    _kept.append(block)  # workers may be moved until the process ends
    return block, bytes_each


_kept: Final[list[object]] = []
_pools: Final[dict[int, Pool]] = {}


def pool_of(threads: int) -> Pool:
    """The pool with so many threads; one is kept for every number asked for."""
    found = _pools.get(threads)
    if found is None:
        with LOCK:
            found = _pools.get(threads) or Pool(threads)
            _pools[threads] = found
    return found


# Threads do not survive a fork: the child starts its own when it needs them.
os.register_at_fork(after_in_child=_pools.clear)
