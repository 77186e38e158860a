"""Examples in docstrings run with the public names at hand (`./check` runs them)."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def public_names(doctest_namespace: dict[str, Any]) -> None:
    """`Tensor` and its friends need no import in an example."""
    import gradlet

    for name in gradlet.__all__:
        doctest_namespace[name] = getattr(gradlet, name)
    gradlet.Tensor.manual_seed(0)
