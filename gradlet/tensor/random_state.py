"""The state of the random numbers: a seed, and how many draws were taken. Nothing else, so a jit can replay it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.arguments import integer
from gradlet.ops.op import Op, VariableArg

WORD: Final = 2**32

_seed: int = time.time_ns() % 2**64
_draws: int = 0


def set_seed(seed: int) -> None:
    """Start the sequence of draws that belongs to this seed; seeds count modulo 2**64.

    Raises:
        ArgumentError: not an integer.
    """
    global _seed, _draws
    _seed, _draws = integer(seed, "manual_seed", "seed") % 2**64, 0


def draws() -> int:
    """How many draws were taken since the seed was set."""
    return _draws


def advance(count: int) -> None:
    """Count draws as taken."""
    global _draws
    _draws += count


def seed_words() -> tuple[int, int]:
    """The seed as two 32-bit words, low one first."""
    return _seed % WORD, _seed // WORD


def next_draw() -> tuple[UOp, UOp, UOp]:
    """Nodes of the key and of the number of the next draw; takes the draw.

    They are variables with a value bound, named by the draw: kernels do not depend on seed or number.
    """
    number = _draws
    advance(1)
    low, high = seed_words()
    return _bound(f"seed{number}a", low), _bound(f"seed{number}b", high), _bound(f"draw{number}", number % WORD)


def _bound(name: str, value: int) -> UOp:
    variable = mk(Op.VARIABLE, dtypes.index, (), VariableArg(name, 0, WORD - 1))
    return mk(Op.BIND, dtypes.index, (variable, UOp.const(dtypes.index, value)), None)


def rebased(values: Mapping[UOp, int], start: int) -> dict[UOp, int]:
    """Variable values for running the same draws again from where the sequence is now.

    Args:
        values: values of a captured program; variables that are no draws keep theirs.
        start: number of draws taken when the capture began.
    """
    low, high = seed_words()
    result = {}
    for variable, value in values.items():
        name = variable.arg.name
        if name.startswith("draw") and name[4:].isdigit():
            value = (int(name[4:]) - start + _draws) % WORD
        elif name.startswith("seed") and name[4:-1].isdigit():
            value = low if name[-1] == "a" else high
        result[variable] = value
    return result
