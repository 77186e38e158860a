"""Collecting a model's tensors by name, loading them back, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradlet import Tensor, nn
from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.nn.state import (
    get_parameters,
    get_state_dict,
    load_state_dict,
    safe_load,
    safe_load_metadata,
    safe_save,
)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Model:
    def __init__(self) -> None:
        self.head = nn.Linear(2, 3)
        self.blocks: list[Any] = [{"norm": nn.RMSNorm(2)}, Tensor.relu, (Tensor([1.0]),)]
        self.pair = Pair(Tensor([2.0]), Tensor([3.0]))
        self.size = 7
        self.kind = nn.Linear
        self.owner = self  # a cycle
        self.shared = self.head.weight


NAMES = [
    "head.weight", "head.bias", "blocks.0.norm.weight", "blocks.2.0", "pair.left", "pair.right", "shared",
]  # fmt: skip


def test_names_are_paths() -> None:
    model = Model()
    state = get_state_dict(model)
    assert list(state) == NAMES
    assert state["shared"] is state["head.weight"] is model.head.weight
    assert list(get_state_dict(model.head, prefix="a.b")) == ["a.b.weight", "a.b.bias"]
    assert list(get_state_dict({"x": [Tensor([1.0])]})) == ["x.0"]
    assert [p is q for p, q in zip(get_parameters(model), state.values(), strict=True)] == [True] * len(NAMES)


def other_values(model: Any) -> dict[str, Tensor]:
    return {name: (tensor + 100).realize() for name, tensor in get_state_dict(model).items()}


def test_loading_keeps_the_tensor_objects() -> None:
    model = nn.Linear(2, 3)
    weight, new = model.weight, other_values(model)
    loaded = load_state_dict(model, new)
    assert model.weight is weight and loaded[0] is weight
    assert weight.tolist() == new["weight"].tolist()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s.pop("bias"), ArgumentError, "missing 'bias'"),
        (lambda s: s.update(extra=Tensor([1.0])), ArgumentError, "unexpected 'extra'"),
        (lambda s: s.update(bias=Tensor([1.0])), ShapeError, r"'bias'.*\(1,\).*\(3,\)"),
        (lambda s: s.update(bias=Tensor([1, 2, 3])), DTypeError, "'bias'.*int32.*float32.*cast"),
        (lambda s: s.update(bias=[1.0, 2.0, 3.0]), ArgumentError, "'bias'.*list"),
    ],
)
def test_a_wrong_state_changes_nothing(change: Any, error: type[Exception], message: str) -> None:
    model = nn.Linear(2, 3)
    before = {name: tensor.tolist() for name, tensor in get_state_dict(model).items()}
    state = other_values(model)
    change(state)
    with pytest.raises(error, match=message):
        load_state_dict(model, state)
    assert {name: tensor.tolist() for name, tensor in get_state_dict(model).items()} == before


def test_not_strict_loads_what_agrees() -> None:
    model = nn.Linear(2, 3)
    before, state = model.bias.tolist(), other_values(model)
    del state["bias"]
    state["extra"] = Tensor([1.0])
    load_state_dict(model, state, strict=False)
    assert model.weight.tolist() == state["weight"].tolist() and model.bias.tolist() == before


def test_consume_empties_the_state() -> None:
    model = nn.Linear(2, 3)
    state = other_values(model)
    load_state_dict(model, state, consume=True)
    assert state == {}


def test_long_lists_of_names_are_cut() -> None:
    with pytest.raises(ArgumentError, match="and 7 more"):
        load_state_dict([Tensor([1.0])] * 12, {})


def test_a_model_survives_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    first, second = nn.BatchNorm(3), nn.BatchNorm(3)
    with Tensor.train():
        first(Tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]])).realize(*get_parameters(first))
    safe_save(get_state_dict(first), path, {"epoch": "1"})
    load_state_dict(second, safe_load(path))
    assert second.num_batches_tracked.item() == 1 and second.num_batches_tracked.dtype is dtypes.int64
    assert second.running_mean.tolist() == first.running_mean.tolist()
    assert safe_load_metadata(path) == {"epoch": "1"}
