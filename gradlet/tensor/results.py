"""What a jitted function returned or put into places: its tensors, and how to build the same around others."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gradlet.base.errors import JitError
from gradlet.tensor.guards import Guards
from gradlet.tensor.reachable import SIMPLE, Kind, kind_of
from gradlet.tensor.tensor import Tensor

Build = Callable[[Sequence[Any]], Any]
_DEEPEST: Final = 20
_NOTHING: Final[Mapping[int, int]] = types.MappingProxyType({})


class Intricate:
    """In place of a result that only `build` can put together."""


class Number(int):
    """In place of a tensor: its number."""


class Results:
    """The result of one call.

    Attributes:
        tensors: the tensors in it, each once.
        paths: where each was met first.
        build: puts the structure together around as many others; lists and dicts are new ones.
        tree: the structure with numbers in place of tensors, where it is simple enough.
    """

    def __init__(self, value: Any, is_tracked: Callable[[Tensor], bool]) -> None:
        """Take a result apart.

        Args:
            value: the result.
            is_tracked: whether a tensor is one that is closed over.

        Raises:
            JitError: something that hides tensors, or that can be used only once.
        """
        self.tensors: list[Tensor] = []
        self.paths: list[str] = []
        self._is_tracked = is_tracked
        self._open: set[int] = set()
        self._known: dict[int, int] = {}
        self.build, self.tree = self.more("result", value)

    def more(self, path: str, value: Any, known: Mapping[int, int] = _NOTHING) -> tuple[Build, Any]:
        """How to build another value, which may hold the same tensors, and its tree.

        Args:
            path: its name.
            value: what to take apart.
            known: tensors, by identity, that are not new ones, with negative numbers for them.

        Raises:
            JitError: as for a result.
        """
        self._is_plain, self._known = True, dict(known)
        build = self._take(path, value)
        numbers = range(len(self.tensors))
        tree = build([Number(n) for n in numbers]) if self._is_plain else Intricate()
        return build, tree

    def _take(self, path: str, value: Any) -> Build:
        if isinstance(value, Tensor):
            if id(value) in self._known:
                held, self._is_plain = self._known[id(value)], False
                return lambda made: made[held]
            number = next((n for n, t in enumerate(self.tensors) if t is value), len(self.tensors))
            if number == len(self.tensors):
                self.tensors.append(value)
                self.paths.append(path)
            return lambda made: made[number]
        if isinstance(value, SIMPLE):
            return lambda made: value
        if isinstance(value, (list, tuple, dict)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            if id(value) in self._open:
                raise JitError(
                    f"{path} of the jitted function contains itself; return lists, tuples and dicts without cycles"
                )
            self._open.add(id(value))
            try:
                return self._take_all(path, value)
            finally:
                self._open.discard(id(value))
        self._refuse_hidden(path, value)
        self._is_plain = False
        return (lambda made: value.copy()) if kind_of(value) is Kind.ARRAY else (lambda made: value)

    def _take_all(self, path: str, value: Any) -> Build:
        kind = type(value)
        self._is_plain = self._is_plain and (kind in (list, tuple, dict) or hasattr(value, "_fields"))
        if isinstance(value, dict):
            names = list(value)
            items = [self._take(f"{path}[{name!r}]", value[name]) for name in names]
            if kind is dict:
                return lambda made: {name: item(made) for name, item in zip(names, items, strict=True)}
            empty = copy.copy(value)
            empty.clear()

            def filled(made: Sequence[Any]) -> Any:
                new = copy.copy(empty)
                for name, item in zip(names, items, strict=True):
                    new[name] = item(made)
                return new

            return filled
        if isinstance(value, (list, tuple)):
            fields = getattr(value, "_fields", None)
            items = [
                self._take(f"{path}.{fields[n]}" if fields else f"{path}[{n}]", item) for n, item in enumerate(value)
            ]
            if fields:
                return lambda made: kind(*[item(made) for item in items])
            if kind is tuple:
                return lambda made: tuple([item(made) for item in items])
            return lambda made: kind([item(made) for item in items])
        names = [field.name for field in dataclasses.fields(value)]
        items = [self._take(f"{path}.{name}", getattr(value, name)) for name in names]
        hidden = copy.copy(value)

        def rebuilt(made: Sequence[Any]) -> Any:
            new = copy.copy(hidden)
            for name, item in zip(names, items, strict=True):
                object.__setattr__(new, name, item(made))  # also of a frozen one
            return new

        return rebuilt

    def _refuse_hidden(self, path: str, value: Any) -> None:
        remedy = "return tensors in lists, tuples, dicts or dataclasses"
        kind = "generator" if isinstance(value, types.GeneratorType) else type(value).__name__
        if hasattr(value, "__next__") or hasattr(value, "__await__"):
            raise JitError(f"{path} is a {kind}, which would be used up by the first call; {remedy}")
        guards = Guards((path, value), whole=True)
        if any(not self._is_tracked(t) for t in guards.tensors):
            raise JitError(
                f"{path} is a {kind} that holds a tensor of this call, which later calls would not renew; {remedy}"
            )


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors inside lists, tuples, dicts and dataclasses, each as often as it is met."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_in(item)]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors_in(item)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [t for field in dataclasses.fields(value) for t in tensors_in(getattr(value, field.name, None))]
    return []


def can_put(value: Any, depth: int = 0) -> bool:
    """Whether a value is tensors and plain values inside lists, tuples and dicts, not too deep."""
    if depth <= _DEEPEST and isinstance(value, (list, tuple)):
        return all(can_put(item, depth + 1) for item in value)
    if depth <= _DEEPEST and isinstance(value, dict):
        return all(can_put(item, depth + 1) for item in value.values())
    return isinstance(value, (Tensor, *SIMPLE))
