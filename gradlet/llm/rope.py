"""Rotary positions: the wave lengths of every scaling method, their tables, and the turn itself."""

from __future__ import annotations

from math import log, pi
from typing import Any, NamedTuple

from gradlet.llm.config import Rope
from gradlet.tensor.tensor import Tensor


class Table(NamedTuple):
    """Cosines and sines [positions, width / 2]."""

    cosines: Tensor
    sines: Tensor


def frequencies(rope: Rope) -> tuple[Any, float]:
    """Radians a position for every pair of features (float64), and what cosines and sines are multiplied by."""
    import numpy as np

    plain = rope.base ** -(np.arange(0, rope.width, 2, dtype=np.float64) / rope.width)
    if rope.factors:
        plain = plain / np.asarray(rope.factors, np.float64)
    scale = rope.attention_factor or 1.0
    if rope.scaling == "linear":
        return plain / rope.factor, scale
    if rope.scaling == "llama3":
        # Long waves are stretched, short ones kept, those between are blended.
        turns = rope.original * plain / (2 * pi)
        blend = np.clip((turns - rope.low) / (rope.high - rope.low), 0.0, 1.0)
        return plain * blend + plain / rope.factor * (1 - blend), scale
    if rope.scaling == "yarn":

        def feature(turns: float) -> float:
            return rope.width * log(rope.original / (turns * 2 * pi)) / (2 * log(rope.base))

        low, high = feature(rope.fast), feature(rope.slow)
        ramp = np.clip((np.arange(rope.width // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        if rope.attention_factor is None:
            scale = 0.1 * log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
        return plain * (1 - ramp) + plain / rope.factor * ramp, scale
    return plain, scale


def table(rope: Rope, positions: int) -> Table:
    """The tables for so many positions."""
    import numpy as np

    step, scale = frequencies(rope)
    angles = np.arange(positions, dtype=np.float64)[:, None] * step
    return Table(*[Tensor((scale * part(angles)).astype(np.float32)).realize() for part in (np.cos, np.sin)])


def turn(x: Tensor, table: Table) -> Tensor:
    """Turn the first features of every head, those half of them apart together.

    Args:
        x: [..., positions, features].
        table: [positions, turned / 2] each.
    """
    cosines, sines = table
    half = cosines.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = [first * cosines - second * sines, second * cosines + first * sines]
    return Tensor.cat(*parts, *([x[..., 2 * half :]] if x.shape[-1] > 2 * half else []), dim=-1)
