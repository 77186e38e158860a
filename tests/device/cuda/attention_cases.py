"""Attention that tests compute, forwards and backwards: its sizes, its numbers, its masks."""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from gradlet import Tensor

Array = np.ndarray[Any, Any]
LARGE = {"large": -1e9, "lowest": float(np.finfo(np.float32).min)}  # numbers that are added to hide


class Case(NamedTuple):
    """One attention: heads of queries and of keys, queries, keys, width of keys and of values, and what is hidden."""

    heads: int
    of_keys: int
    queries: int
    keys: int
    depth: int = 64
    columns: int = 64
    causal: bool = False
    mask: str = ""
    dtype: str = "bfloat16"
    batch: int = 1
    scale: float = 1.0


def drawing(case: Case) -> np.random.Generator:
    """Random numbers of a case: the same whichever tests ran before."""
    return np.random.default_rng(crc32(repr(case).encode()))


def numbers(case: Case, rng: np.random.Generator, *shape: int) -> Array:
    """Random numbers that the type of the case has."""
    wide = (rng.standard_normal(shape) * case.scale).astype(np.float32)
    return Tensor(wide, device="CPU").cast(case.dtype).cast("float32").numpy()


def mask_of(case: Case, rng: np.random.Generator) -> Array | None:
    """What is added to scores, or which of them are seen; None where nothing but what comes after may be hidden."""
    rows, keys = np.arange(case.queries)[:, None], np.arange(case.keys)
    if case.mask == "added":
        return rng.standard_normal((case.queries, case.keys)).astype(np.float32)
    if case.mask in LARGE:  # some rows are hidden as a whole: there nothing is left of scores beside the mask
        hidden = rng.random((case.queries, case.keys)) < 0.5
        hidden[::7] = True
        return np.where(hidden, LARGE[case.mask], 0).astype(np.float32)
    if case.mask == "hidden":
        seen = rng.random((case.queries, case.keys)) < 0.5
        seen[::7] = False
        return seen
    return (keys <= rows) & (rows < keys + 100) if case.mask == "window" else None
