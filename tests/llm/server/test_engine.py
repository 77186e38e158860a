"""Jobs that join and leave a batch, with a model that repeats what it hears."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradlet.llm.sample import Penalties, Sampling
from gradlet.llm.server.engine import BusyError, ClosedError, Engine, Job, Piece
from tests.llm.server import parrot


@pytest.fixture
def engines() -> Iterator[Any]:
    made: list[Engine] = []

    def make(**more: Any) -> Engine:
        made.append(parrot.engine(**more))
        made[-1].start()
        return made[-1]

    yield make
    for engine in made:
        engine.close()
        engine.join()


class Caller:
    """Submits texts and collects what is said."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def job(self, text: str, **more: Any) -> tuple[Job, queue.Queue[Piece]]:
        inbox: queue.Queue[Piece] = queue.Queue()
        return Job(list(f"{text}|".encode()), inbox.put, **more), inbox

    def begin(self, text: str, **more: Any) -> tuple[Job, queue.Queue[Piece]]:
        job, inbox = self.job(text, **more)
        self.engine.submit([job])
        return job, inbox


def collect(inbox: queue.Queue[Piece]) -> tuple[str, Piece]:
    said = ""
    while True:
        piece = inbox.get(timeout=20)
        said += piece.text
        if piece.is_last:
            return said, piece


def until(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_many_texts_through_few_slots(engines: Any) -> None:
    engine = engines(slots=3, waiting=40)
    texts = [f"text {n} " + "xyz" * (n % 7) for n in range(30)]
    inboxes = [Caller(engine).begin(text)[1] for text in texts]
    for text, inbox in zip(texts, inboxes, strict=True):
        said, last = collect(inbox)
        assert said == text and last.finish == "stop" and last.made == len(text) + 1
    assert max(engine.batch.rows) == 3 and engine.state() == {"slots": 3, "running": 0, "waiting": 0}
    assert sum(engine.batch.rows) + len(texts) == engine.tokens_made


def test_where_answers_end(engines: Any) -> None:
    caller = Caller(engines())
    assert collect(caller.begin("abcdef", limit=3)[1])[0] == "abc"
    assert collect(caller.begin("abcdef", limit=3)[1])[1].finish == "length"
    said, last = collect(caller.begin("abcdef", stops=("cd", "zz"))[1])
    assert (said, last.finish) == ("ab", "stop")
    long = "y" * (parrot.ROOM - 5)
    said, last = collect(caller.begin(long)[1])
    assert (said, last.finish, last.made) == ("yyyyy", "length", 5)
    said, last = collect(caller.begin("y" * (parrot.ROOM - 1))[1])
    assert (said, last.finish, last.made) == ("y", "length", 1)


def test_a_text_that_begins_alike_is_not_read_again(engines: Any) -> None:
    engine = engines(slots=2)
    caller = Caller(engine)
    head = "a rather long beginning that stays as it is, "
    for text in (f"{head}one", f"other {head}", f"{head}two"):
        assert collect(caller.begin(text)[1])[0] == text
        until(lambda: engine.state()["running"] == 0)
    assert engine.batch.parts[-1] == len("two|")


def test_long_texts_do_not_stop_others(engines: Any) -> None:
    engine = engines(slots=2)
    caller = Caller(engine)
    inbox = caller.begin("b" * 90)[1]
    inbox.get(timeout=20)
    long = "c" * 150
    said, _ = collect(caller.begin(long, limit=1)[1])
    assert said == "c" and max(engine.batch.parts[1:]) <= 32
    assert len(collect(inbox)[0]) == 89


def test_cancelled_jobs_leave_at_once(engines: Any) -> None:
    engine = engines(slots=1, waiting=2, pace=0.01)
    caller = Caller(engine)
    first, inbox = caller.begin("d" * 150)
    waits, unheard = caller.begin("e")
    other = caller.begin("f")[1]
    inbox.get(timeout=20)
    engine.cancel([first, waits])
    assert collect(other)[0] == "f"
    assert len(first.made) < 100 and unheard.empty() and not engine.state()["running"]


def test_a_full_queue(engines: Any) -> None:
    engine = engines(slots=1, waiting=1, pace=0.005)
    caller = Caller(engine)
    one = caller.begin("g" * 60)
    until(lambda: engine.state()["running"] == 1)
    with pytest.raises(BusyError):
        engine.submit([caller.job("h")[0], caller.job("i")[0]])  # all or none
    two = caller.begin("j")
    with pytest.raises(BusyError) as busy:
        caller.begin("k")
    assert 1 <= busy.value.seconds <= 60
    assert collect(one[1])[0] == "g" * 60 and collect(two[1])[0] == "j"


def test_a_model_that_fails_is_asked_again(engines: Any) -> None:
    engine = engines()
    caller = Caller(engine)
    engine.batch.broken = True
    assert "the parrot is ill" in collect(caller.begin("lll")[1])[1].error
    engine.batch.broken = False
    assert collect(caller.begin("mmm")[1])[0] == "mmm"


def test_the_end_waits_for_what_runs(engines: Any) -> None:
    engine = engines(slots=1, pace=0.005)
    caller = Caller(engine)
    inbox = caller.begin("n" * 20)[1]
    inbox.get(timeout=20)
    engine.close(grace=30)
    with pytest.raises(ClosedError):
        caller.begin("o")
    assert len(collect(inbox)[0]) == 19
    engine.join()


def test_the_end_cuts_what_takes_too_long(engines: Any) -> None:
    engine = engines(slots=1, waiting=1, pace=0.01)
    caller = Caller(engine)
    inboxes = [caller.begin("p" * 150)[1], caller.begin("q")[1]]
    inboxes[0].get(timeout=20)
    engine.close(grace=0.05)
    assert ["shutting down" in collect(inbox)[1].error for inbox in inboxes] == [True, True]
    engine.join()
    assert threading.active_count() < 50


def test_draws_bias_and_notes(engines: Any) -> None:
    caller = Caller(engines())
    same = [collect(caller.begin("rstu", sampling=Sampling(50.0, seed=7), limit=8)[1])[0] for _ in range(2)]
    assert same[0] == same[1] != collect(caller.begin("rstu", sampling=Sampling(50.0, seed=8), limit=8)[1])[0]
    assert collect(caller.begin("rs", penalties=Penalties(bias=((ord("z"), 100.0),)), limit=4)[1])[0] == "zzzz"
    job, inbox = caller.begin("aaaa", penalties=Penalties(15.0, 6.0, ((parrot.END, -100.0),)), limit=3)
    assert collect(inbox)[0][0] == "a" and len(set(job.made)) == 3
    job, inbox = caller.begin("vw", likely=2)
    notes = []
    while not (piece := inbox.get(timeout=20)).is_last:
        notes += piece.notes
    notes += piece.notes
    assert [token for token, _, _ in notes] == [ord("v"), ord("w")] == job.made[:2]
    logits = np.arange(parrot.VOCABULARY) / parrot.VOCABULARY
    logits[ord("v")] = 20
    shares = np.log(np.exp(logits) / np.exp(logits).sum())
    np.testing.assert_allclose(notes[0][1], shares[ord("v")], rtol=1e-5)
    assert [token for token, _ in notes[0][2]] == [ord("v"), 256]
    np.testing.assert_allclose(notes[0][2][1][1], shares[256], rtol=1e-5)


def test_embeddings(engines: Any) -> None:
    caller = Caller(engines())
    job, inbox = caller.begin("x" * 100, embeds=True)
    vector = inbox.get(timeout=20).vector
    # Read in four parts, for each of which the parrot says 1.
    np.testing.assert_allclose(vector, np.full(8, 4 / 101), rtol=1e-6)
    assert not job.made
