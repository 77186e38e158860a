"""What the tests of ONNX share: running cases of the package onnx, comparing as its own runner does."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gradlet import Tensor
from gradlet.onnx.backend import GradletBackend

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def plain(value: Any) -> Any:
    """A value of a case as numpy has it."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def difference(got: Any, expected: Any, rtol: float, atol: float) -> str:
    """In words where two results differ; empty where they agree."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return "another sequence"
        return next(filter(None, (difference(g, e, rtol, atol) for g, e in zip(got, expected))), "")
    if expected is None:
        return "" if got is None else "something instead of nothing"
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        return f"shape {got.shape}, expected {expected.shape}"
    if expected.dtype.kind in "OSU":
        return "" if np.array_equal(got.astype(object), expected.astype(object)) else "other text"
    if got.dtype != expected.dtype:
        return f"type {got.dtype}, expected {expected.dtype}"
    if expected.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    if expected.dtype.kind not in "biufc":
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    try:
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def run_case(model: Any, sets: Iterable[Any], rtol: float = 1e-3, atol: float = 1e-7) -> str:
    """What is wrong with the result of a model for its inputs; empty where nothing is."""
    Tensor.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = GradletBackend.prepare(model, "CPU")
        for inputs, outputs in sets:
            got = prepared.run(inputs if isinstance(inputs, dict) else [plain(i) for i in inputs])
            wrong = difference(list(got), [plain(o) for o in outputs], rtol, atol)
            if wrong:
                return wrong
    return ""


def _read(path: Path, info: Any) -> Any:
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(path.read_bytes())
        return numpy_helper.to_list(sequence)
    if kind == "optional_type":
        optional = onnx.OptionalProto()
        optional.ParseFromString(path.read_bytes())
        return numpy_helper.to_optional(optional)
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    if info.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
        tensor.data_type = onnx.TensorProto.BFLOAT16  # older files keep the bits as uint16
        if tensor.int32_data:
            tensor.raw_data = np.array(tensor.int32_data, np.uint16).tobytes()
            del tensor.int32_data[:]
    return numpy_helper.to_array(tensor)


def read_case(folder: Path) -> tuple[Any, list[Any]]:
    """The model and the data sets of a case that lies in files."""
    model = onnx.load(folder / "model.onnx")
    weights = {w.name for w in model.graph.initializer}
    free = [i for i in model.graph.input if i.name not in weights]
    sets = []
    for place in sorted(folder.glob("test_data_set_*")):
        count = len(list(place.glob("input_*.pb")))
        infos = free if len(free) >= count else list(model.graph.input)
        inputs = {infos[k].name: _read(place / f"input_{k}.pb", infos[k]) for k in range(count)}
        sets.append((inputs, [_read(place / f"output_{k}.pb", o) for k, o in enumerate(model.graph.output)]))
    return model, sets
