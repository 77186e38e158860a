"""A jitted function that waits for another thread: the error comes instead of waiting for ever."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest

from gradlet import Tensor, jit
from gradlet.base.errors import JitError
from gradlet.tensor import turns


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SECONDS", 0.4)


@pytest.mark.parametrize("how", ["join", "get", "acquire"])
def test_waiting_for_a_thread_that_captures(how: str) -> None:
    errors: list[BaseException] = []
    results: queue.Queue[Any] = queue.Queue()
    done = threading.Semaphore(0)

    @jit
    def inner(x: Tensor) -> Tensor:
        return x * 2

    def work() -> None:
        try:
            inner(Tensor([1.0]))
        except JitError as error:
            errors.append(error)
        results.put(None)
        done.release()

    @jit
    def outer(x: Tensor) -> Tensor:
        thread = threading.Thread(target=work)
        thread.start()
        if how == "join":
            thread.join(60)
        elif how == "get":
            results.get(timeout=60)
        else:
            done.acquire(timeout=60)
        return x + 1

    assert outer(Tensor([1.0])).item() == 2
    (error,) = errors
    text = str(error)
    assert "'inner' waits for jitted function 'outer'" in text and "test_turns.py:" in text and "wait outside" in text
    assert inner(Tensor([1.0])).item() == 2 and outer(Tensor([3.0])).item() == 4


def test_a_long_capture_is_waited_for() -> None:
    """A function that computes, and one that sleeps for moments, are no reason for an error."""
    begun = threading.Event()

    @jit
    def slow(x: Tensor) -> Tensor:
        begun.set()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            x = x + 1
            time.sleep(0.02)
        return x

    thread = threading.Thread(target=lambda: slow(Tensor([1.0])))
    thread.start()
    begun.wait(60)
    assert jit(lambda x: x * 3)(Tensor([2.0])).item() == 6
    thread.join()
