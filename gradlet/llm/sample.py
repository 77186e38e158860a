"""Which token comes next: greedy, or drawn from what temperature, top-k, top-p and min-p leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradlet.base.errors import ArgumentError


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: of the softmax; 0 takes the best one.
        top_k: of so many best ones; 0 for all.
        top_p: of the fewest best ones that have this share together.
        min_p: of those that have this share of the best one's.
        repetition_penalty: logits of tokens that were there are divided (or, below 0, multiplied) by it.
        seed: of the draws; None for others each time.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0), ("top_k", 0, 2**31), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.01, 100.0),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ArgumentError(f"sampling: {name} must be a number from {low} to {high}, got {value!r}")
        if self.seed is not None and (type(self.seed) is not int or self.seed < 0):
            raise ArgumentError(f"sampling: seed must be None or a whole number from 0 on, got {self.seed!r}")


class Sampler:
    """Draws tokens one after another."""

    def __init__(self, sampling: Sampling) -> None:
        import numpy as np

        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: Any, before: Sequence[int] = ()) -> int:
        """A token, from a NumPy vector of logits and the tokens that were there."""
        how = self.sampling
        if how.repetition_penalty != 1.0 and before:
            logits = _penalised(logits, before, how.repetition_penalty)
        if how.temperature == 0.0:
            return int(logits.argmax())
        numbers, shares = candidates(logits, how)
        return int(numbers[self._random.choice(len(shares), p=shares)])


def candidates(logits: Any, how: Sampling) -> tuple[Any, Any]:
    """The tokens that may be drawn, best first, and their shares, which add up to 1."""
    import numpy as np

    # Few of a large vocabulary matter: the rest is not sorted.
    keep = min(how.top_k or len(logits), len(logits))
    numbers = np.argpartition(logits, -keep)[-keep:] if keep < len(logits) else np.arange(len(logits))
    numbers = numbers[np.argsort(-logits[numbers], kind="stable")]
    scores = logits[numbers].astype(np.float64) / how.temperature
    shares = np.exp(scores - scores[0])
    shares /= shares.sum()
    count = len(shares)
    if how.top_p < 1.0:
        count = min(count, int(np.searchsorted(np.cumsum(shares), how.top_p)) + 1)
    if how.min_p > 0.0:
        count = min(count, int((shares >= how.min_p * shares[0]).sum()))
    shares = shares[: max(count, 1)]
    return numbers[: len(shares)], shares / shares.sum()


def _penalised(logits: Any, before: Sequence[int], penalty: float) -> Any:
    import numpy as np

    logits = logits.copy()
    seen = np.unique(np.asarray(before))
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    return logits
