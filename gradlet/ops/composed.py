"""The mixins together: every method that is written in terms of core methods, in one class."""

from __future__ import annotations

from gradlet.ops.neural import NeuralMixin
from gradlet.ops.triangles import TrianglesMixin
from gradlet.ops.updates import UpdatesMixin


class ComposedMixin(
    NeuralMixin,
    TrianglesMixin,
    UpdatesMixin,
):
    """All methods that are the same for whatever the core methods work on. One line a topic, in alphabetical order."""

    __slots__ = ()
