"""A jitted call's arguments taken apart: tensors by path, and all else as part of what a capture is for."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradlet.base.errors import JitError
from gradlet.graph.node import UOp
from gradlet.ops.op import Op
from gradlet.tensor import symbolic
from gradlet.tensor.guards import Guards
from gradlet.tensor.reachable import SIMPLE, Kind, kind_of, plain_value
from gradlet.tensor.tensor import Tensor


class Arguments:
    """The arguments of one call.

    Attributes:
        tensors: tensors inside lists, tuples, dicts and dataclasses, in order.
        paths: name of each.
        bound: values of variables by name.
        values: everything else that was passed, as hashable values by path.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors: list[Tensor] = []
        self.paths: list[str] = []
        self.bound: dict[str, int] = {}
        self.values: list[tuple[str, Any]] = []
        self._objects: list[tuple[str, Any]] = []
        self._open: set[int] = set()
        for number, value in enumerate(args):
            self._add(str(number), value)
        for name in sorted(kwargs) if len(kwargs) > 1 else kwargs:
            self._add(name, kwargs[name])
        if self._objects:
            self._look_into_objects()

    def _add(self, path: str, value: Any) -> None:
        if isinstance(value, Tensor):
            self.tensors.append(value)
            self.paths.append(path)
            self.values.append((path, "Tensor"))
            for node in symbolic.bound_sizes(value.uop):
                self._bind(path, node)
        elif isinstance(value, SIMPLE):
            self.values.append((path, plain_value(value)))
        elif isinstance(value, UOp) and value.op is Op.BIND:
            self._bind(path, value)
            self.values.append((path, value.src[0].arg))
        elif isinstance(value, (list, tuple, dict)) or (
            dataclasses.is_dataclass(value) and not isinstance(value, type)
        ):
            self._add_all(path, value)
        else:
            self._objects.append((path, value))

    def _add_all(self, path: str, value: Any) -> None:
        if id(value) in self._open:
            raise JitError(f"argument {path} contains itself; pass tensors in lists, tuples and dicts without cycles")
        self._open.add(id(value))
        if isinstance(value, dict):
            self.values.append((path, (type(value).__name__, tuple([repr(k) for k in value]))))
            for name, item in value.items():
                self._add(f"{path}[{name!r}]", item)
        elif isinstance(value, (list, tuple)):
            self.values.append((path, (type(value).__name__, len(value))))
            for number, item in enumerate(value):
                self._add(f"{path}[{number}]", item)
        else:
            self.values.append((path, type(value)))
            for field in dataclasses.fields(value):
                self._add(f"{path}.{field.name}", getattr(value, field.name, None))
        self._open.discard(id(value))

    def _bind(self, path: str, node: UOp) -> None:
        """Note the value of a variable.

        Raises:
            JitError: it has another value in another argument.
        """
        name, value = node.src[0].arg.name, int(node.src[1].arg)
        if self.bound.setdefault(name, value) != value:
            raise JitError(
                f"argument {path}: variable {name!r} is bound to {self.bound[name]} and to {value} in one call; use "
                "two variables"
            )

    def _look_into_objects(self) -> None:
        """Of other objects all that they hold counts.

        Raises:
            JitError: something whose changes could not be noticed.
        """
        guards = Guards(*self._objects, whole=True)
        for path, value in [*guards.unwatched, *guards.generators, *[o for o in self._objects if unnoticed(o[1])]]:
            raise JitError(
                f"argument {path} of type {type(value).__name__} can change without the jit noticing; "
                "pass a Tensor, or a Python number, string, list, tuple or dict of these"
            )
        self.values.append(("objects", guards.key))
        for path, value in self._objects:
            if kind_of(value) is Kind.SKIPPED:
                self.values.append((path, value))


def unnoticed(value: Any) -> bool:
    """Whether an object can change without anybody noticing."""
    return isinstance(value, set) or type(value).__hash__ is None
