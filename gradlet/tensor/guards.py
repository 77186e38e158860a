"""What a jitted function closes over: Python values that must not change unnoticed, and tensors to track."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from numbers import Number
from typing import Any, Final

from gradlet.graph.node import UOp
from gradlet.tensor.tensor import Tensor

SIMPLE: Final = (Number, str, bytes, type(None))
DEPTH: Final = 6  # objects inside objects that are looked into


class Guards:
    """Everything reachable from a function's closure, globals and bound object, down to `DEPTH` objects.

    Attributes:
        values: name of each plain value to what it is now; containers count with their length, tensors by identity.
        tensors: the tensors found.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.values: dict[str, Any] = {}
        self.tensors: list[Tensor] = []
        self._seen: set[int] = set()
        self._root = function
        self._function(function, 0)

    def unchanged(self) -> bool:
        """Whether all of it is as it was."""
        now = Guards(self._root)
        return now.values == self.values

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """The values as part of what a capture is for."""
        return tuple(sorted(self.values.items()))

    def _function(self, function: Callable[..., Any], depth: int) -> None:
        if id(function) in self._seen or depth > DEPTH:
            return
        self._seen.add(id(function))
        reference = getattr(function, "guarded_instance", None)
        if reference is not None:
            self._object("self", reference(), depth)
        owner = getattr(function, "__self__", None)
        if owner is not None:
            self._object("self", owner, depth)
        plain: Any = getattr(function, "__wrapped__", None) or getattr(function, "__func__", function)
        code = getattr(plain, "__code__", None)
        if code is None:
            self._object(type(function).__name__, function, depth)
            return
        for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
            if has_value(cell):
                self._value(name, cell.cell_contents, depth)
        for default in (*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values()):
            self._value(f"default of {plain.__name__}", default, depth)
        names = global_names(code)
        for name in names:
            if name in plain.__globals__:
                self._value(name, plain.__globals__[name], depth)
                self._module(name, plain.__globals__[name], names, depth)
        for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
            self._module(name, cell.cell_contents if has_value(cell) else None, names, depth)

    def _module(self, path: str, value: Any, names: tuple[str, ...], depth: int) -> None:
        """Of a module, what the function names: `settings.rate`. Whole modules would be far too much to look at."""
        if isinstance(value, types.ModuleType) and not is_ours(value) and depth < DEPTH:
            for name in names:
                if name in vars(value):
                    self._value(f"{path}.{name}", vars(value)[name], depth + 1)

    def _value(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, SIMPLE):
            self.values[path] = (type(value).__name__, repr(value))
        elif isinstance(value, Tensor):
            self.values[path] = ("Tensor", id(value))  # another object here means other memory to track
            self.tensors.append(value)
        elif isinstance(value, (UOp, types.ModuleType, types.BuiltinFunctionType)) or depth >= DEPTH:
            return
        elif isinstance(value, (list, tuple)):
            self.values[path] = len(value)
            for number, item in enumerate(value):
                self._value(f"{path}[{number}]", item, depth + 1)
        elif isinstance(value, dict):
            self.values[path] = len(value)
            for name, item in value.items():
                self._value(f"{path}[{name!r}]", item, depth + 1)
        elif isinstance(value, (set, frozenset)):
            self.values[path] = tuple(sorted(repr(item) for item in value))
        elif is_ours(value):
            self._object(path, value, depth)
        elif isinstance(value, type):
            self._class(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(value, depth + 1)
        else:
            self._object(path, value, depth)

    def _class(self, path: str, value: type) -> None:
        """Plain class attributes, as in `class Config: rate = 0.1`."""
        for base in reversed(value.__mro__):  # an attribute of a derived class hides the base's
            if is_ours(base):
                continue
            for name, item in vars(base).items():
                if not name.startswith("__") and isinstance(item, SIMPLE):
                    self.values[f"{path}.{name}"] = (type(item).__name__, repr(item))

    def _object(self, path: str, value: Any, depth: int) -> None:
        if value is None or id(value) in self._seen:
            return
        self._seen.add(id(value))
        jitted = getattr(value, "jitted_function", None)
        if jitted is not None:
            self._function(jitted, depth + 1)
            return
        if isinstance(value, (type, types.FunctionType)):
            return
        if not is_ours(value):
            self._class(path, type(value))
        for name, item in getattr(value, "__dict__", {}).items():
            self._value(f"{path}.{name}", item, depth + 1)


def has_value(cell: types.CellType) -> bool:
    """Whether a closed-over name has been assigned yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def is_ours(value: Any) -> bool:
    """Whether a function, class or object is the framework's own code, or Python's, whose classes do not change."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] == "gradlet"
    module = getattr(value, "__module__", None) or getattr(type(value), "__module__", None) or ""
    return module == "builtins" or module.partition(".")[0] == "gradlet"


@functools.lru_cache(maxsize=1024)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Global names that a function and the functions inside it may read."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += global_names(constant)
    return tuple(dict.fromkeys(names))
