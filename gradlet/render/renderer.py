"""What every renderer is: a function from a linear program and a target to source text."""

from __future__ import annotations

from typing import Protocol

from gradlet.graph.program import AnyProgram
from gradlet.target.target import Target


class Renderer(Protocol):
    """Prints a kernel, or a launch of several, in one language."""

    def __call__(self, program: AnyProgram, target: Target) -> str:
        """Source text of one kernel or launch; the same program and target always give the same text.

        Raises:
            RenderError: the language or target lacks an operation; code generation should have decomposed it.
        """
