"""Several texts at once: steps that go on with one token of each of some slots' texts.

A step reads the weights once for all of its rows. Attention is computed row by row, each over the positions of its own
text: none waits for the longest, and none sees the others. Slots are given by variables, so one capture of each number
of rows serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gradlet.base.errors import ArgumentError
from gradlet.llm.model import Attention, OneText, Transformer
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor, Variable

SIZES: Final = (1, 2, 4, 8, 16)  # rows of one step
PART: Final = 32  # tokens of a text that are read at a time while others go on


class ManyTexts:
    """One token of each of several texts, at positions given as a tensor and, with where slots begin, as variables.

    All keys and values are written before any are read, so that texts do not wait for one another.

    Args:
        positions: of the tokens, in their texts.
        places: of the tokens, in the memory of all slots.
        starts: as `positions`.
        firsts: where the texts' slots begin.
    """

    def __init__(self, positions: Tensor, places: Tensor, starts: Sequence[Any], firsts: Sequence[Any]) -> None:
        self.positions, self.places, self.starts, self.firsts = positions, places, starts, firsts

    def rows(self, table: Tensor, count: int) -> Tensor:
        return table[self.positions]

    def attend(self, attention: Attention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        queries, cache = queries.contiguous(), attention.cache
        cache.write(keys, values, self.places)
        parts = [
            attention.look(queries[:, n : n + 1], *cache.until(start + 1, first), start)
            for n, (start, first) in enumerate(zip(self.starts, self.firsts))
        ]
        return Tensor.cat(*parts, dim=2)


class Batch:
    """The slots of a model, the last of which takes the rows that fill up a step."""

    def __init__(self, model: Transformer) -> None:
        if model.slots < 2:
            raise ArgumentError(f"a batch needs a model with 2 slots or more, and there are {model.slots}")
        self.model, self.slots = model, model.slots - 1
        self._steps = {size: jit(self._compute) for size in SIZES}
        self._run = {size: model.kept(step, self) for size, step in self._steps.items()}
        self._embed = model.kept(jit(self._sum), self)

    def read(self, slot: int, tokens: Sequence[int], start: int) -> Any:
        """Take tokens of a slot's text, from position `start` on; the logits after the last one, in NumPy."""
        self._check(slot)
        return self.model.step(tokens, start, slot).numpy()

    def embed(self, slot: int, tokens: Sequence[int], start: int) -> Any:
        """Take tokens likewise; the sum of what the last norm gives for them, in NumPy [width]."""
        model, done, total = self.model, 0, 0.0
        self._check(slot)
        while done < len(tokens):
            size = model.chunk(len(tokens) - done, start + done)
            part = list(tokens[done : done + size])
            at = Variable(f"start_{size}", 0, model.positions - size).bind(start + done)
            count = Variable(f"count_{size}", 1, size).bind(len(part))
            numbers = Tensor(part + [0] * (size - len(part)), dtype="int32")
            total = total + self._embed(numbers, at, model.first(slot), count).numpy()
            done += len(part)
        return total

    def warm(self) -> Iterator[None]:
        """Compile the steps that texts need, one after another, in the slot that belongs to none."""
        for count in (PART, 1):
            self.model.step([0] * min(count, self.model.positions), 0, self.slots).numpy()
            yield
        size = 2
        while size // 2 < min(SIZES[-1], self.slots):
            self._rows([self.slots] * size, [0] * size, [0] * size)
            yield
            size *= 2

    def step(self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> list[Any]:
        """One token of each of some slots' texts, at its position; the logits after each, in NumPy.

        Raises:
            ArgumentError: slots that do not exist or come twice, positions for which there is no room.
        """
        model = self.model
        if len(set(slots)) != len(slots) or not len(slots) == len(tokens) == len(positions) > 0:
            raise ArgumentError("step: every slot takes one token, at one position")
        for slot, token, position in zip(slots, tokens, positions):
            self._check(slot)
            if not 0 <= token < model.config.vocabulary or not 0 <= position < model.positions:
                raise ArgumentError(f"step: there is no token {token}, or no position {position}")
        found: list[Any] = []
        for begin in range(0, len(slots), SIZES[-1]):
            end = begin + SIZES[-1]
            found += self._rows(slots[begin:end], tokens[begin:end], positions[begin:end])
        return found

    def _rows(self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> list[Any]:
        model = self.model
        if len(slots) == 1:
            return [model.step(tokens, positions[0], slots[0]).numpy()]
        size = next(size for size in SIZES if size >= len(slots))
        spare = size - len(slots)
        places = [*positions, *[0] * spare]
        starts = [Variable(f"row_{n}", 0, model.positions - 1).bind(place) for n, place in enumerate(places)]
        all_slots = [*slots, *[self.slots] * spare]
        firsts = [model.first(slot, f"first_{n}") for n, slot in enumerate(all_slots)]
        numbers = Tensor([*tokens, *[0] * spare], dtype="int32")
        at = [slot * model.positions + place for slot, place in zip(all_slots, places)]
        logits = self._run[size](numbers, Tensor(places, dtype="int32"), Tensor(at, dtype="int32"), *starts, *firsts)
        return list(logits.numpy()[: len(slots)])

    def _compute(self, tokens: Tensor, positions: Tensor, places: Tensor, *variables: Any) -> Tensor:
        starts, firsts = variables[: len(variables) // 2], variables[len(variables) // 2 :]
        return self.model.logits(self.model.hidden(tokens, ManyTexts(positions, places, starts, firsts)))

    def _sum(self, tokens: Tensor, start: Any, first: Any, count: Any) -> Tensor:
        x = self.model.norm(self.model.hidden(tokens, OneText(start, first))).realize()
        return x[:count].sum(0)

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise ArgumentError(f"there is no slot {slot}: they have numbers from 0 to {self.slots - 1}")
