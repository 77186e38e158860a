"""Maps of the domain ai.onnx.ml: made of scores, packed into tensors. They lie on the host.

Source: the pages of these operators in the ONNX specification, "Operators" of that domain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.onnx.elements import number_of, numpy_type
from gradlet.onnx.operators.ml import ML
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Array, Map, Value
from gradlet.tensor.tensor import Tensor


@operator("ZipMap", ML)
def zip_map(
    call: Call, x: Tensor, *, classlabels_int64s: list[int] | None = None, classlabels_strings: list[str] | None = None
) -> list[Map]:
    """For every row a map of labels to its elements."""
    labels: list[Any] = list(classlabels_strings or classlabels_int64s or ())
    rows = x.numpy()
    rows = rows.reshape(1, -1) if rows.ndim == 1 else rows
    if not labels or (classlabels_strings and classlabels_int64s):
        raise call.error("it must have labels of one kind, integers or strings")
    if rows.ndim != 2 or rows.shape[1] != len(labels):
        raise call.error(f"its input has shape {x.shape}, for {len(labels)} labels")
    return [Map(dict(zip(labels, row)), number_of(x.dtype)) for row in rows.tolist()]


@operator("DictVectorizer", ML)
def dict_vectorizer(
    call: Call, x: Value, *, int64_vocabulary: list[int] | None = None, string_vocabulary: list[str] | None = None
) -> Array:
    """What a map has for every word of a vocabulary, zero where it has nothing; a row for each map of a sequence."""
    vocabulary: list[Any] = list(string_vocabulary or int64_vocabulary or ())
    place = {word: i for i, word in enumerate(vocabulary)}
    maps = _maps(call, x)
    kind = _kind(maps[0])
    made = np.full((len(maps), len(vocabulary)), "" if kind.kind == "O" else 0, kind)
    for row, one in enumerate(maps):
        for word, value in one.entries.items():
            if word not in place:
                raise call.error(f"the vocabulary has no {word!r}")
            made[row, place[word]] = value
    return made if isinstance(x, list) else made[0]


@operator("CastMap", ML)
def cast_map(
    call: Call, x: Value, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> Array:  # fmt: skip
    """The values of a map in the order of their keys, or each at the place that its key says; one row."""
    kinds: dict[str, np.dtype[Any]] = {
        "TO_FLOAT": np.dtype(np.float32),
        "TO_INT64": np.dtype(np.int64),
        "TO_STRING": np.dtype(object),
    }
    if cast_to not in kinds or map_form not in ("DENSE", "SPARSE"):
        raise call.error(f"cast_to {cast_to!r} or map_form {map_form!r} is not known")
    (one,) = _maps(call, x)
    kind = kinds[cast_to]
    keys = sorted(one.entries)
    if any(not isinstance(k, int) or (map_form == "SPARSE" and not 0 <= k < max_map) for k in keys):
        raise call.error(f"keys must be integers, of a sparse map from 0 to max_map - 1 = {max_map - 1}; it has {keys}")
    places = list(range(len(keys))) if map_form == "DENSE" else keys
    made = np.full((1, len(keys) if map_form == "DENSE" else max_map), "" if kind.kind == "O" else 0, kind)
    for place, key in zip(places, keys):
        made[0, place] = _cast(call, one.entries[key], kind)
    return made


def _cast(call: Call, value: Any, kind: np.dtype[Any]) -> Any:
    if kind.kind == "O":
        return value if isinstance(value, str) else f"{value:f}"
    try:
        return kind.type(float(value) if kind.kind == "f" else int(value))
    except (ValueError, OverflowError):
        raise call.error(f"{value!r} is no {kind.name}") from None


def _kind(one: Map) -> np.dtype[Any]:
    kind: np.dtype[Any] = numpy_type(one.elem)
    return np.dtype(object) if kind.kind in "OUST" else kind


def _maps(call: Call, x: Any) -> list[Map]:
    maps = x if isinstance(x, list) else [x]
    if not maps or not all(isinstance(one, Map) for one in maps):
        raise call.error("its input must be a map, or a sequence of at least one")
    return maps
