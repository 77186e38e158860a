"""Which token comes next: greedy, or drawn from what temperature, top-k, top-p and min-p leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gradlet.base.errors import ArgumentError

FEW: Final = 512  # likely tokens, which mostly have the share that top-p asks for


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


@dataclass(frozen=True)
class Penalties:
    """What is added to logits before a token is chosen.

    Attributes:
        frequency: taken off for each time that a token was made before.
        presence: taken off once where it was made before.
        bias: added for each of some tokens, by number.
    """

    frequency: float = 0.0
    presence: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()

    def apply(self, logits: Any, made: Sequence[int]) -> Any:
        """The logits, from a NumPy vector and the tokens made so far."""
        import numpy as np

        if not self.bias and not (made and (self.frequency or self.presence)):
            return logits
        logits = logits.copy()
        for token, value in self.bias:
            logits[token] += value
        numbers, counts = np.unique(np.asarray(made, np.int64), return_counts=True)
        logits[numbers] -= (self.frequency * counts + self.presence).astype(logits.dtype)
        return logits


def likeliest(logits: Any, token: int, count: int) -> tuple[float, list[tuple[int, float]]]:
    """The log-probability of a token, and the `count` likeliest tokens with theirs, best first."""
    import numpy as np

    values = logits.astype(np.float64)
    highest = values.max()
    total = highest + np.log(np.exp(values - highest).sum())
    best = np.argpartition(values, -count)[-count:] if 0 < count < len(values) else np.arange(len(values))[:count]
    best = best[np.argsort(-values[best], kind="stable")]
    return float(values[token] - total), [(int(n), float(values[n] - total)) for n in best]


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
        bounds = shares.cumsum()
        drawn = int(bounds.searchsorted(self._random.random() * bounds[-1], side="right"))
        return int(numbers[min(drawn, len(numbers) - 1)])


def candidates(logits: Any, how: Sampling) -> tuple[Any, Any]:
    """The tokens that may be drawn, and their shares, which add up to 1; best first, unless all of many may be."""
    import numpy as np

    scores = logits.astype(np.float64) / how.temperature
    weights = np.exp(scores - scores.max())
    keep = min(how.top_k or len(logits), len(logits))
    if keep == len(logits) > FEW and how.top_p >= 1.0 and how.min_p <= 0.0:
        return np.arange(len(logits)), weights / weights.sum()
    # Few of a large vocabulary matter: the rest is not sorted, unless those do not have the share that is asked for.
    total = weights.sum() if keep == len(logits) else None
    for few in (min(FEW, keep), keep):
        numbers = np.argpartition(scores, -few)[-few:] if few < len(scores) else np.arange(len(scores))
        numbers = numbers[np.argsort(-scores[numbers], kind="stable")]
        shares = weights[numbers]
        if few < keep:
            whole = total if total is not None else np.partition(weights, -keep)[-keep:].sum()
        else:
            whole = shares.sum()
        shares = shares / whole
        count, is_certain = few, few == keep
        if how.top_p < 1.0:
            reached = int(np.searchsorted(np.cumsum(shares), how.top_p)) + 1
            is_certain |= reached <= few
            count = min(count, reached)
        if how.min_p > 0.0:
            likely = int((shares >= how.min_p * shares[0]).sum())
            is_certain |= likely < few
            count = min(count, likely)
        if is_certain:
            break
    shares = shares[: max(count, 1)]
    return numbers[: len(shares)], shares / shares.sum()


def _penalised(logits: Any, before: Sequence[int], penalty: float) -> Any:
    import numpy as np

    logits = logits.copy()
    seen = np.unique(np.asarray(before))
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    return logits
