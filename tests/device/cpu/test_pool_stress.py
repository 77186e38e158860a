"""Whole programs around the thread pool: signals, stopped processes, forks, threads that capture, odd settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradlet.device.cpu import pool

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not pool.is_supported(), reason="the thread pool needs futexes (Linux)")
HEAD = """
import os, signal, sys, threading, time
import numpy as np
from gradlet import Tensor, jit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest may ignore it, and hand that on
ones = np.ones((500, 500), np.float32)
x = Tensor(ones)
product = jit(lambda t: (t @ t).realize())
for _ in range(3): product(x)
print("ready", flush=True)
"""


def start(body: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + body], cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], *signals: signal.Signals) -> str:
    """What the process prints after `ready`; signals are sent to it once it is ready."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in signals:
        time.sleep(0.2)
        process.send_signal(number)
    with process:  # not communicate(): it leaves out what readline has read ahead
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 0, err
    return out


def test_an_interrupt_comes_after_the_kernel_and_the_next_one_runs() -> None:
    body = "try:\n  while True: product(x)\nexcept KeyboardInterrupt: print(float(product(x).numpy()[0, 0]))\n"
    assert finish(start(body), signal.SIGINT) == "500.0\n"


@pytest.mark.slow
def test_a_stopped_process_goes_on() -> None:
    body = "end = time.time() + 1.5\nwhile time.time() < end: y = product(x)\nprint(float(y.numpy().sum()))\n"
    assert finish(start(body), signal.SIGSTOP, signal.SIGCONT) == "125000000.0\n"


@pytest.mark.slow
def test_handlers_of_alarms_run_between_kernels() -> None:
    body = (
        "count = []\nsignal.signal(signal.SIGALRM, lambda *_: count.append(1))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\nfor _ in range(60): y = product(x)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\nprint(bool(count), float(y.numpy()[3, 4]))\n"
    )
    assert finish(start(body)) == "True 500.0\n"


def test_threads_compute_and_make_tensors_while_others_capture() -> None:
    body = (
        "found, lock = [], threading.Lock()\n"
        "def work():\n  mine = jit(lambda t: (t @ t + 1).realize())\n  y = Tensor(ones)\n"
        "  for _ in range(8): a = mine(y); b = (Tensor(ones) @ y).numpy()\n"
        "  with lock: found.append((float(a.numpy()[0, 0]), float(b[0, 0])))\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\nprint(len(found), set(found))\n"
    )
    assert finish(start(body)) == "4 {(501.0, 500.0)}\n"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\nimport numpy as np\nfrom gradlet import Tensor\n"
        "ones = np.ones((300, 300), np.float32)\n"
        "def work(queue): queue.put(float((Tensor(ones) @ Tensor(ones)).numpy()[0, 0]))\n"
        "if __name__ == '__main__':\n  (Tensor(ones) @ Tensor(ones)).realize()\n"
        f"  context = multiprocessing.get_context('{method}')\n  queue = context.Queue()\n"
        "  processes = [context.Process(target=work, args=(queue,)) for _ in range(3)]\n"
        "  for p in processes: p.start()\n  print([queue.get() for _ in processes])\n  for p in processes: p.join()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[300.0, 300.0, 300.0]\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "threads"), [("1", 1), ("0", len(os.sched_getaffinity(0))), ("900", None)])
def test_the_number_of_threads(asked: str, threads: int | None) -> None:
    """The interpreter's own threads are counted beside those of the pool, which never has more than there are cores."""
    body = "print(len(os.listdir('/proc/self/task')))\n"
    alone = int(finish(start(body, NUM_THREADS="1")))
    extra = int(finish(start(body, NUM_THREADS=asked))) - alone
    assert extra == (threads or len(os.sched_getaffinity(0))) - 1
