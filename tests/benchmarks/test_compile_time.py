"""The models whose compilation is measured are what their names say."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

# Numbers of weights as published, less tables of embeddings and places, which are no part of these models.
PUBLISHED = {
    "resnet50": 25_557_032,
    "gpt2": 124_439_808 - 1024 * 768,
    "llama8b": 8_030_261_248 - 128_256 * 4096,
    "llama405b": 405_853_388_800 - 128_256 * 16384,
}


@pytest.fixture
def load() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("name", ["resnet50", "gpt2", "llama8b"])
def test_weights_are_as_many_as_published(load: Any, name: str) -> None:
    shapes = load("compile_time").weight_shapes(load("compile_models").MODELS[name])
    assert sum(math.prod(shape) for shape in shapes) == PUBLISHED[name]


@pytest.mark.slow
def test_weights_of_the_largest(load: Any) -> None:
    models, shapes_of = load("compile_models").MODELS, load("compile_time").weight_shapes
    assert sum(math.prod(shape) for shape in shapes_of(models["llama405b"])) == PUBLISHED["llama405b"]
    shapes = shapes_of(models["unet"])
    assert sum(math.prod(shape) for shape in shapes) > 2_000_000_000


def test_a_model_becomes_kernels_that_a_second_measurement_finds(load: Any, tmp_path: Path) -> None:
    compile_time = load("compile_time")
    first, second = (compile_time.child(sys.executable, "gradlet", "llama1", str(tmp_path), ()) for _ in range(2))
    assert isinstance(first, dict) and isinstance(second, dict), (first, second)
    assert first["counts"] == second["counts"] and first["counts"]["kernels"] > 5
    assert "lower" in first["seconds"] and "lower" not in second["seconds"]
