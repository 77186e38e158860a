"""Text: no device has it, these operators run on the host.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Array


def _texts(values: list[str], shape: tuple[int, ...]) -> Array:
    made = np.empty(len(values), object)
    made[:] = values
    return made.reshape(shape)


@operator("StringConcat")
def string_concat(x: Array, y: Array) -> Array:
    """Texts joined element by element."""
    return np.asarray(x + y, object)


@operator("StringSplit")
def string_split(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """Texts cut into parts along a new axis, filled up with empty ones; and how many parts there are."""
    separator = delimiter or None
    parts = [t.split(separator, -1 if maxsplit is None else maxsplit) for t in x.reshape(-1)]
    most = max((len(p) for p in parts), default=0)
    flat = [t for p in parts for t in (*p, *[""] * (most - len(p)))]
    counts = np.array([len(p) for p in parts], np.int64).reshape(x.shape)
    return _texts(flat, (*x.shape, most)), counts


@operator("RegexFullMatch")
def regex_full_match(call: Call, x: Array, *, pattern: str) -> Array:
    """Whether the whole text matches."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise call.error(f"pattern {pattern!r}: {error}") from None
    return np.array([compiled.fullmatch(t) is not None for t in x.reshape(-1)], bool).reshape(x.shape)


@operator("StringNormalizer")
def string_normalizer(
    x: Array, *, case_change_action: str = "NONE", is_case_sensitive: int = 0, locale: str = "",
    stopwords: list[str] | None = None,
) -> Array:  # fmt: skip
    """Texts without stop words, in upper or lower case; one empty text where none is left."""
    changes: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    change = changes[case_change_action]
    stops = set(stopwords or ()) if is_case_sensitive else {s.lower() for s in stopwords or ()}
    kept = [t for t in x.reshape(-1) if (t if is_case_sensitive else t.lower()) not in stops]
    made = [change(t) for t in kept] or [""]
    return _texts(made, (len(made),) if x.ndim == 1 else (1, len(made)))


@operator("TfIdfVectorizer")
def tf_idf_vectorizer(
    x: Array, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str, ngram_counts: list[int],
    ngram_indexes: list[int], pool_int64s: list[int] | None = None, pool_strings: list[str] | None = None,
    weights: list[float] | None = None,
) -> Array:  # fmt: skip
    """How often n-grams of a pool occur, with up to so many elements left out between two of them."""
    pool: list[object] = list(pool_strings if pool_strings is not None else pool_int64s or ())
    grams: dict[tuple[object, ...], int] = {}
    number = 0
    for n, begin in enumerate(ngram_counts, 1):
        end = ngram_counts[n] if n < len(ngram_counts) else len(pool)
        for at in range(begin, end, n):
            grams[tuple(pool[at : at + n])] = number
            number += 1
    rows = x.reshape(1, -1) if x.ndim <= 1 else x
    result = np.zeros((rows.shape[0], max(ngram_indexes) + 1), np.float32)
    for r, row in enumerate(rows.tolist()):
        for n in range(min_gram_length, max_gram_length + 1):
            # An n-gram of one element has nothing to leave out.
            for skip in range(max_skip_count + 1 if n > 1 else 1):
                for at in range(len(row) - (n - 1) * (skip + 1)):
                    found = grams.get(tuple(row[at : at + n * (skip + 1) : skip + 1][:n]))
                    if found is not None:
                        result[r, ngram_indexes[found]] += 1
    scale = np.ones(result.shape[1], np.float32)
    if weights is not None:
        scale[list(ngram_indexes)] = weights
    counts = result
    if mode == "IDF":
        result = (counts > 0) * scale
    elif mode == "TFIDF":
        result = counts * scale
    result = result.astype(np.float32)
    return result[0] if x.ndim <= 1 else result
