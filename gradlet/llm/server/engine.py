"""The thread that runs the model for all requests: texts join and leave its batch between tokens.

Each round reads a part of one new text and then goes on with one token of all others, so long prompts do not stop the
answers that are under way. A slot keeps what its last text was: a text that begins the same is not read again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gradlet.base.errors import ArgumentError, GradletError
from gradlet.llm.batch import PART, Batch
from gradlet.llm.language import LanguageModel
from gradlet.llm.sample import Penalties, Sampler, Sampling, likeliest
from gradlet.llm.server.text import TextStream

WHOLE: Final = 256  # tokens of a new text that are read at a time while nobody waits for the next token


class BusyError(Exception):
    """There are as many requests as may wait; `seconds` is about how long until one is done."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class ClosedError(Exception):
    """The engine takes no more requests."""


@dataclass(frozen=True)
class Piece:
    """A part of an answer.

    Attributes:
        text: what follows.
        notes: for each token whose text begins here: its number, log-probability, and the likeliest ones with theirs.
        made: tokens made so far.
        finish: why the answer ends here, or "".
        vector: of an embedding.
        error: what went wrong, which ends it too.
    """

    text: str = ""
    notes: tuple[Any, ...] = ()
    made: int = 0
    finish: Literal["", "stop", "length"] = ""
    vector: Any = None
    error: str = ""

    @property
    def is_last(self) -> bool:
        return bool(self.finish or self.error) or self.vector is not None


@dataclass(eq=False)
class Job:
    """A text to go on with, or to embed.

    Attributes:
        tokens: of the prompt.
        give: called with each piece, in the engine's thread.
        limit: tokens to make at most.
        stops: texts that end the answer.
        likely: how many likely tokens are noted for each; None for no notes.
        embeds: the text is embedded, nothing is made.
    """

    tokens: Sequence[int]
    give: Callable[[Piece], None]
    sampling: Sampling = field(default_factory=Sampling)
    penalties: Penalties = field(default_factory=Penalties)
    limit: int | None = None
    stops: Sequence[str] = ()
    likely: int | None = None
    embeds: bool = False
    # How far it is.
    slot: int = -1
    read: int = 0
    made: list[int] = field(default_factory=list)
    total: Any = None
    is_cancelled: bool = False
    text: TextStream | None = None
    sampler: Sampler | None = None
    begun: float = 0.0


class Engine:
    """Runs jobs in slots of one model.

    Args:
        model: one that was loaded with a slot more than `slots`.
        waiting: how many jobs may wait for a slot.
        batch: what computes; a `Batch` of the model's.
    """

    def __init__(self, model: LanguageModel, waiting: int = 64, batch: Any = None) -> None:
        self.model, self.waiting = model, waiting
        self.batch: Batch = Batch(model.transformer) if batch is None else batch
        self.room = model.transformer.positions
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._free = list(range(self.batch.slots))
        self._held: list[list[int]] = [[] for _ in self._free]  # tokens whose keys and values a slot has
        self._changed = threading.Condition()
        self._closing: float | None = None  # when what still runs is cut off
        self._seconds = 1.0  # that a job took, on average
        self.tokens_made = self.tokens_read = 0
        self._warming: Iterator[None] | None = self.batch.warm()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take jobs, all or none.

        Raises:
            BusyError: too many wait.
            ClosedError: the engine is ending.
        """
        with self._changed:
            if self._closing is not None:
                raise ClosedError
            if len(jobs) > len(self._free) - len(self._queue) + self.waiting:
                raise BusyError(max(1, min(60, round(self._seconds * (1 + len(self._queue) / self.batch.slots)))))
            self._queue.extend(jobs)
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody waits for some jobs any more: their slots are free before the next token."""
        with self._changed:
            for job in jobs:
                job.is_cancelled = True
                if job in self._queue:
                    self._queue.remove(job)

    def close(self, grace: float = 0.0) -> None:
        """Take no more jobs; those that run have so many seconds to end."""
        with self._changed:
            if self._closing is None:
                self._closing = time.monotonic() + grace
            self._changed.notify()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def state(self) -> dict[str, int]:
        """How many slots there are, are in use, and how many jobs wait."""
        with self._changed:
            return {"slots": self.batch.slots, "running": len(self._running), "waiting": len(self._queue)}

    # the engine's thread
    def _loop(self) -> None:
        while self._admit():
            try:
                self._round()
            except GradletError as error:
                self._fail(f"the model cannot go on: {error}")
            except Exception as error:  # nobody else would tell those who wait
                self._fail(f"the server has an error: {type(error).__name__}: {error}")

    def _admit(self) -> bool:
        """Give slots to who waits; whether there may be more to do."""
        with self._changed:
            for job in [job for job in self._running if job.is_cancelled]:
                self._leave(job)
            while not (self._queue or self._running):
                if self._closing is not None:
                    return False
                if self._warming is not None:
                    return True  # with nothing else to do
                self._changed.wait()
            cut = self._closing is not None and time.monotonic() >= self._closing
            if cut:
                ended = [*self._running, *self._queue]
                self._queue.clear()
                for job in [*self._running]:
                    self._leave(job)
            else:
                ended = []
                while self._queue and self._free:
                    self._enter(self._queue.popleft())
        for job in ended:
            job.give(Piece(error="the server is shutting down"))
        return True

    def _enter(self, job: Job) -> None:
        """Put a job into the free slot whose text begins most alike."""
        same = {slot: 0 if job.embeds else _same(self._held[slot], job.tokens[:-1]) for slot in self._free}
        job.slot = max(self._free, key=lambda slot: (same[slot], -len(self._held[slot]), -slot))
        self._free.remove(job.slot)
        job.read = same[job.slot]
        self._held[job.slot] = list(job.tokens[: job.read])
        job.sampler = Sampler(job.sampling)
        job.text = TextStream(self.model.tokenizer, job.stops)
        job.begun = time.monotonic()
        self._running.append(job)

    def _leave(self, job: Job) -> None:
        self._running.remove(job)
        self._free.append(job.slot)
        if not job.is_cancelled:
            self._seconds = 0.8 * self._seconds + 0.2 * (time.monotonic() - job.begun)

    def _fail(self, message: str) -> None:
        with self._changed:
            failed = [*self._running]
            for job in failed:
                self._held[job.slot] = []
                self._leave(job)
        for job in failed:
            job.give(Piece(error=message))

    def _round(self) -> None:
        if not self._running:
            if self._warming is not None and next(self._warming, self) is self:
                self._warming = None
            return
        running = [job for job in self._running if not job.is_cancelled]
        going = [job for job in running if job.read == len(job.tokens)]
        new = next((job for job in running if job.read < len(job.tokens)), None)
        if new is not None:
            self._read(new, PART if going or len(new.tokens) - new.read <= WHOLE // 2 else WHOLE)
        if going:
            tokens = [job.made[-1] for job in going]
            places = [len(job.tokens) + len(job.made) - 1 for job in going]
            for job, token, logits in zip(
                going, tokens, self.batch.step([job.slot for job in going], tokens, places), strict=True
            ):
                self._held[job.slot].append(token)
                self._next(job, logits)

    def _read(self, job: Job, most: int) -> None:
        part = job.tokens[job.read : job.read + most]
        if job.embeds:
            vector = self.batch.embed(job.slot, part, job.read)
            job.total = vector if job.total is None else job.total + vector
        else:
            logits = self.batch.read(job.slot, part, job.read)
        job.read += len(part)
        self.tokens_read += len(part)
        self._held[job.slot].extend(part)
        if job.read < len(job.tokens):
            return
        if job.embeds:
            self._end(job, Piece(vector=job.total / len(job.tokens)))
        else:
            self._next(job, logits)

    def _next(self, job: Job, logits: Any) -> None:
        """Choose a token and hand on what can be shown."""
        assert job.sampler is not None and job.text is not None
        before = [*job.tokens, *job.made] if job.sampling.repetition_penalty != 1.0 else ()
        token = job.sampler.choose(job.penalties.apply(logits, job.made), before)
        job.made.append(token)
        self.tokens_made += 1
        count = len(job.made)
        if token in self.model.tokenizer.ends:
            text, notes = job.text.end()
            self._end(job, Piece(text, tuple(notes), count, "stop"))
            return
        note = None if job.likely is None else (token, *likeliest(logits, token, job.likely))
        text, notes = job.text.add(token, note)
        if job.text.stopped:
            self._end(job, Piece(text, tuple(notes), count, "stop"))
        elif count == job.limit or len(job.tokens) + count > self.room:
            more, others = job.text.end()
            finish: Literal["stop", "length"] = "stop" if job.text.stopped else "length"
            self._end(job, Piece(text + more, (*notes, *others), count, finish))
        elif text or notes:
            job.give(Piece(text, tuple(notes), count))

    def _end(self, job: Job, piece: Piece) -> None:
        with self._changed:
            self._leave(job)
        job.give(piece)


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are the same from the first on."""
    for number, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return number
    return min(len(one), len(other))


def check_tokens(tokens: Sequence[int], room: int, vocabulary: int) -> None:
    """Refuse texts that a model cannot take.

    Raises:
        ArgumentError: none, too many, or numbers outside the vocabulary.
    """
    if not tokens:
        raise ArgumentError("the text has no tokens")
    if len(tokens) > room:
        raise ArgumentError(f"the text has {len(tokens)} tokens, and there is room for {room}")
    if not all(0 <= token < vocabulary for token in tokens):
        raise ArgumentError(f"tokens are numbers from 0 to {vocabulary - 1}")
