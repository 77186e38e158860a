"""The native thread pool: every part runs once, whatever the number of threads and whoever calls."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.device.common.llvm import emit_object
from gradlet.device.cpu import pool
from gradlet.device.cpu.jit import Loaded, load
from gradlet.device.cpu.target import host_target
from gradlet.ops.op import AxisKind
from gradlet.render.llvmir import render
from tests.render.build import Build

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not pool.is_supported(), reason="the thread pool needs futexes (Linux)")


class Counting:
    """A kernel that adds 1 to `counts[i]` for each iteration it runs, and its launch words."""

    def __init__(self, grid: int, parts: int) -> None:
        build = Build("count")
        out = build.param(dtypes.int32, grid)
        i = build.loop(grid, AxisKind.PARALLEL)
        build.store(out, i, build.load(out, i) + 1)
        build.end(i)
        target = host_target()
        self.code: Loaded = load(emit_object(render(build.program(), target), target), ("count",))
        self.counts = np.zeros(grid, np.int32)
        self.table = ctypes.c_int64(self.counts.ctypes.data)
        self.header = (self.code.addresses["count"], grid, parts, 0, ctypes.addressof(self.table))
        self.words = ctypes.create_string_buffer(struct.pack(f"<{pool.HEADER_WORDS}q", *self.header))
        self.address = ctypes.addressof(self.words)


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
@pytest.mark.parametrize(("grid", "parts"), [(1, 1), (7, 7), (100, 3), (1000, 16), (4096, 64)])
def test_every_iteration_runs_once_a_launch(threads: int, grid: int, parts: int) -> None:
    run = pool.pool_of(threads).run
    kernel = Counting(grid, parts)
    for _ in range(200):
        run(kernel.address)
    assert (kernel.counts == 200).all()


def test_workers_that_sleep_are_woken() -> None:
    run = pool.pool_of(3).run
    kernel = Counting(64, 8)
    for _ in range(20):
        run(kernel.address)
        time.sleep(0.003)  # longer than the workers spin
    assert (kernel.counts == 20).all()


def test_an_empty_range_runs_nothing() -> None:
    kernel = Counting(5, 1)
    struct.pack_into("<q", kernel.words, 8, 0)
    pool.pool_of(2).run(kernel.address)
    assert (kernel.counts == 0).all()


def test_several_python_threads_launch_at_once() -> None:
    run = pool.pool_of(3).run
    kernels = [Counting(300, 10) for _ in range(4)]

    def launch(kernel: Counting) -> None:
        for _ in range(300):
            run(kernel.address)

    threads = [threading.Thread(target=launch, args=(k,)) for k in kernels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for kernel in kernels:
        assert (kernel.counts == 300).all()


def test_the_pool_is_kept_for_each_number_of_threads() -> None:
    assert pool.pool_of(2) is pool.pool_of(2)
    assert pool.pool_of(2) is not pool.pool_of(3)
    assert pool.pool_of(3).workers == 2
    assert pool.pool_of(1).workers == 0


def test_signals_reach_the_main_thread() -> None:
    pool.pool_of(4)
    received: list[threading.Thread] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: received.append(threading.current_thread()))
    try:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)
        assert received
        assert set(received) == {threading.main_thread()}
    finally:
        signal.signal(signal.SIGUSR1, before)


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    script = (
        "import os, sys, threading, time\nfrom gradlet.device.cpu import pool\n"
        "from tests.device.cpu.test_pool import Counting\n" + body
    )
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_forked_child_starts_its_own_threads() -> None:
    done = run_script(
        "k = Counting(100, 10)\n"
        "for _ in range(50): pool.pool_of(3).run(k.address)\n"
        "child = os.fork()\n"
        "for _ in range(50): pool.pool_of(3).run(k.address)\n"
        "tasks = len(os.listdir('/proc/self/task'))\n"
        "ok = bool((k.counts == 100).all()) and tasks == 3\n"
        "if child == 0: os._exit(0 if ok else 1)\n"
        "_, status = os.waitpid(child, 0)\n"
        "print('parent', ok, 'child', status)\n"
    )
    assert done.stdout == "parent True child 0\n", done.stderr


def test_a_fork_while_other_threads_launch() -> None:
    done = run_script(
        "kernels = [Counting(100, 10) for _ in range(2)]\n"
        "stop = threading.Event()\n"
        "def busy(k):\n"
        "    while not stop.is_set(): pool.pool_of(3).run(k.address)\n"
        "threads = [threading.Thread(target=busy, args=(k,)) for k in kernels]\n"
        "for t in threads: t.start()\n"
        "statuses = []\n"
        "for _ in range(5):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        mine = Counting(100, 10)\n"
        "        for _ in range(20): pool.pool_of(3).run(mine.address)\n"
        "        os._exit(0 if (mine.counts == 20).all() else 1)\n"
        "    statuses.append(os.waitpid(child, 0)[1])\n"
        "stop.set()\n"
        "for t in threads: t.join()\n"
        "print(statuses)\n"
    )
    assert done.stdout == "[0, 0, 0, 0, 0]\n", done.stderr


@pytest.mark.parametrize("idle", [0, 0.01])
def test_idle_workers_do_not_keep_the_process_alive(idle: float) -> None:
    done = run_script(
        "k = Counting(100, 10)\nfor _ in range(10): pool.pool_of(4).run(k.address)\n"
        f"time.sleep({idle})\nprint('done')\n"
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_daemon_thread_may_be_launching_at_exit() -> None:
    done = run_script(
        "k = Counting(1000, 16)\n"
        "def busy():\n"
        "    while True: pool.pool_of(3).run(k.address)\n"
        "threading.Thread(target=busy, daemon=True).start()\n"
        "time.sleep(0.05)\nprint('done')\n"
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
