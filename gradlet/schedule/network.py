"""Sorting networks: which places to compare and exchange, one after another, to put a few values in order."""

from __future__ import annotations


def sorting_network(size: int) -> list[tuple[int, int]]:
    """Pairs of places to compare and exchange, one after another, that put a power of two of values in order.

    Rows of a growing power of two are merged: first the even and the odd places of both, in steps that halve.
    """
    pairs: list[tuple[int, int]] = []
    row = 1
    while row < size:
        step = row
        while step:
            for low in range(step % row, size - step, 2 * step):
                for i in range(low, min(low + step, size - step)):
                    if i // (2 * row) == (i + step) // (2 * row):
                        pairs.append((i, i + step))
            step //= 2
        row *= 2
    return pairs
