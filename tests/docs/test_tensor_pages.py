"""docs/tensor/ is what its generator writes; every method has a description and an example that runs."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest

from gradlet import Tensor

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "tensor.py"))


def test_the_pages_are_those_of_the_docstrings(generator: dict[str, Any]) -> None:
    written = {path.name: path.read_text() for path in (DOCS / "tensor").glob("*.md")}
    assert written == generator["pages"](), "run: python docs/tensor.py"


def test_every_method_has_an_example(generator: dict[str, Any]) -> None:
    function_of = generator["function_of"]
    silent = [name for name, a in generator["methods"]().items() if ">>> " not in (function_of(a).__doc__ or "")]
    assert not silent


def test_what_is_no_method_for_users_exists(generator: dict[str, Any]) -> None:
    assert all(hasattr(Tensor, name) for name in generator["HOOKS"])
    for name in generator["HOOKS"]:
        attribute = inspect.getattr_static(Tensor, name)
        assert generator["function_of"](attribute).__doc__ or not callable(attribute)
