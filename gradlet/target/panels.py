"""When a product copies its wide factor near inside its own kernel: what scheduler and optimiser agree on."""

from __future__ import annotations

from typing import Final

from gradlet.target.target import Target

MIN_ROWS: Final = 64  # fewer rows use each element of the wide factor too seldom to pay for a copy
MIN_DEPTH: Final = 16  # shorter sums are over before a copy is worth a loop of its own
MIN_VECTORS: Final = 8  # of a row of the result: two blocks of two panels


def room(target: Target, panel_bytes: int) -> int:
    """How many panels of a block a core has room for; 0 where that is not enough for a block."""
    count = target.scratch_bytes // max(1, panel_bytes)
    return count if count >= 2 and target.kind == "cpu" else 0
