"""Which function of ours stands for each operator of torch's own operator database, or why none does."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "mapping"


@dataclass(frozen=True)
class Entry:
    """How one operator of torch is driven against `Tensor`.

    Attributes:
        ours: called as torch's function would be, with our tensors and types in place of torch's.
        random: results are random: shapes and types are compared, not values. A function says it of a sample's
            arguments (input, args, kwargs).
        compare: replaces the comparison of values: `compare(ours, theirs, arguments)` gets both results as lists of
            torch tensors, and torch's positional arguments; it raises AssertionError. For results that are not unique
            (signs of singular vectors).
        grad_view: the part of the results whose gradient is defined; it is applied to ours and to torch's.
        refused: for arguments (torch's: input, args, kwargs) that we refuse, the reason; such samples do not pass.
        relative, absolute: tolerance of float results. Against torch's result, or else twice the distance of torch's
            float32 result to its float64 result.
        gradient_relative, gradient_absolute: the same for gradients.
    """

    ours: Callable[..., Any]
    random: bool | Callable[..., bool] = False
    compare: Callable[[list[Any], list[Any], tuple[Any, ...]], None] | None = None
    grad_view: Callable[[Any], Any] | None = None
    refused: Callable[..., str | None] | None = None
    relative: float = 2e-5
    absolute: float = 1e-5
    gradient_relative: float = 2e-4
    gradient_absolute: float = 2e-5

    def is_random(self, sample: Any) -> bool:
        """Whether the results of a sample are random."""
        if isinstance(self.random, bool):
            return self.random
        return self.random(sample.input, *sample.args, **sample.kwargs)


def _load() -> tuple[dict[str, Entry], dict[str, str]]:
    entries: dict[str, Entry] = {}
    reasons: dict[str, str] = {}
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        module = importlib.import_module(f"tests.parity.mapping.{path.stem}")
        for name, value in getattr(module, "MAPPING", {}).items():
            if name in entries:
                raise ValueError(f"{name} is mapped twice, the second time in {path.name}")
            entries[name] = value if isinstance(value, Entry) else Entry(value)
        for name, reason in getattr(module, "REASONS", {}).items():
            if name in reasons:
                raise ValueError(f"{name} has two reasons, the second in {path.name}")
            reasons[name] = reason
    both = sorted(set(entries) & set(reasons))
    if both:
        raise ValueError(f"mapped, and with a reason why not: {both}")
    return entries, reasons


ENTRIES, REASONS = _load()


def key_of(operator: Any) -> str:
    """`name` or `name.variant` of a row of torch's database."""
    return f"{operator.name}.{operator.variant_test_name}" if operator.variant_test_name else str(operator.name)


def entry_of(operator: Any) -> Entry | None:
    """How the operator is driven; None where a reason says why not."""
    return ENTRIES.get(key_of(operator)) or (None if key_of(operator) in REASONS else ENTRIES.get(operator.name))


def reason_of(operator: Any) -> str | None:
    """Why the operator is not mapped."""
    return REASONS.get(key_of(operator)) or REASONS.get(operator.name)
