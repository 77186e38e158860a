"""The axes of a model's inputs as captures know them: numbers, and sizes that vary between limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from gradlet.base.errors import ArgumentError
from gradlet.onnx.graph import Info
from gradlet.tensor.tensor import Variable

Shapes = tuple["tuple[int, ...] | None", ...]


class Dim(NamedTuple):
    """A size that varies: its name, its limits (both included), and what it is a multiple of."""

    name: str
    low: int
    high: int
    step: int = 1

    def __str__(self) -> str:
        step = f" in steps of {self.step}" if self.step > 1 else ""
        return f"{self.name} {self.low}..{self.high}{step}"


class Layout(NamedTuple):
    """The axes of all inputs, None for those that are left out: numbers, and sizes that vary."""

    axes: tuple[tuple[int | Dim, ...] | None, ...]

    @property
    def dims(self) -> list[Dim]:
        """The sizes that vary."""
        return list(dict.fromkeys([size for axes in self.axes for size in axes or () if isinstance(size, Dim)]))

    def values(self, shapes: Shapes) -> dict[Dim, int] | None:
        """What the sizes are in shapes, None where these are others."""
        found: dict[Dim, int] = {}
        for axes, shape in zip(self.axes, shapes, strict=True):
            if axes is None or shape is None:
                if axes is not shape:
                    return None
                continue
            if len(axes) != len(shape):
                return None
            for size, have in zip(axes, shape):
                if not isinstance(size, Dim):
                    if size != have:
                        return None
                elif found.setdefault(size, have) != have or have % size.step or not size.low <= have <= size.high:
                    return None
        return found

    def largest(self) -> list[tuple[int, ...] | None]:
        """The shapes that memory has."""
        return [
            None if axes is None else tuple([size.high if isinstance(size, Dim) else size for size in axes])
            for axes in self.axes
        ]

    @property
    def elements(self) -> int:
        """How many elements all inputs have in memory."""
        return sum([prod(shape) for shape in self.largest() if shape is not None])

    def variables(self) -> dict[Dim, Any]:
        """A variable for each size, in units of its step; their names are those of identifiers."""
        found: dict[Dim, Any] = {}
        taken: set[str] = set()
        for dim in self.dims:
            name = "size_" + re.sub(r"\W", "_", dim.name)
            while name in taken:
                name += "_"
            taken.add(name)
            found[dim] = Variable(name, dim.low // dim.step, dim.high // dim.step)
        return found


def keys_of(info: Info, rank: int) -> list[str | None]:
    """How the sizes of an input are called: by the file, or as `x.0` where it has no name for one; None: a number."""
    if info.shape is None or len(info.shape) != rank:
        return [f"{info.name}.{axis}" for axis in range(rank)]
    return [
        None if isinstance(size, int) and size > 0 else
        size if isinstance(size, str) and re.search(r"\w", size) else f"{info.name}.{axis}"
        for axis, size in enumerate(info.shape)
    ]  # fmt: skip


def checked_dims(given: Mapping[str, Any], infos: Sequence[Info]) -> dict[str, Dim]:
    """The limits that a user gives.

    Raises:
        ArgumentError: a name that no input has, or no limits.
    """
    known = [key for info in infos for key in keys_of(info, len(info.shape or ())) if key is not None]
    found: dict[str, Dim] = {}
    for name, limits in given.items():
        if name not in known:
            raise ArgumentError(f"dims: the model leaves no size {name!r} open; it has {', '.join(known) or 'none'}")
        numbers = list(limits) if isinstance(limits, (tuple, list)) else []
        if len(numbers) not in (2, 3) or not all(type(n) is int for n in numbers):
            raise ArgumentError(
                f"dims: {name!r} needs (smallest, largest) or (smallest, largest, step), got {limits!r}"
            )
        low, high, step = [*numbers, 1][:3]
        if step < 1 or not 0 <= low <= high or high < 2 * step or low % step or high % step:
            raise ArgumentError(
                f"dims: {name!r} from {low} to {high} in steps of {step}: limits are multiples of the step, and there "
                "are at least two"
            )
        found[name] = Dim(name, low, high, step)
    return found
