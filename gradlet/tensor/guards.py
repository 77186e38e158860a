"""What a jitted function closes over: Python values that must not change unnoticed, and tensors to track."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable
from itertools import repeat
from numbers import Number
from typing import Any, Final, NamedTuple
from weakref import ref

from gradlet.base.dtype import DType
from gradlet.graph.node import UOp
from gradlet.tensor.tensor import Tensor

SIMPLE: Final = (Number, str, bytes, type(None))
CONTAINERS: Final = (list, tuple, dict, set, frozenset)
_MISSING: Final = object()
DEPTH: Final = 6  # objects inside objects that are looked into


class _Step(NamedTuple):
    """Something that was looked into: item `position` of what step `parent` read, -1 for a root; and what was read."""

    parent: int
    position: int
    kind: type
    read: Callable[[Any], tuple[Any, ...]]
    ids: tuple[int, ...]


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
        self._classes: set[int] = set()
        self._steps: list[_Step] = []
        # An id says which object it is while that lives: plain values are kept, of others it is noticed when one dies.
        self._kept: list[Any] = []
        self._died: list[Any] = []
        self._is_sure = True
        self._root = ref(function)
        reference = getattr(function, "guarded_instance", None)
        self._instance = reference
        if reference is not None:
            self._object("self", reference(), 0, -1, 1)
        self._function(function, 0, -1, 0)

    def unchanged(self) -> bool:
        """Whether all of it is as it was."""
        function = self._root()
        if function is None or self._died:
            return False
        if not self._is_sure:
            return Guards(function).values == self.values
        roots = (function, None if self._instance is None else self._instance())
        found: list[tuple[Any, ...]] = []
        try:
            for parent, position, kind, read, ids in self._steps:
                holder = roots[position] if parent < 0 else found[parent][position]
                if type(holder) is not kind:
                    return False
                values = read(holder)
                if tuple(map(id, values)) != ids:
                    return False
                found.append(values)
        except (AttributeError, ValueError, IndexError, RuntimeError):  # something was taken away
            return False
        return not self._died

    def _step(
        self, parent: int, position: int, holder: Any, read: Callable[[Any], tuple[Any, ...]]
    ) -> tuple[int, tuple[Any, ...]]:
        """Look into something: the number of the step, and what it read."""
        values = read(holder)
        self._steps.append(_Step(parent, position, type(holder), read, tuple(map(id, values))))
        for value in values:
            if isinstance(value, SIMPLE) or value is _MISSING:
                self._kept.append(value)
            elif not isinstance(value, CONTAINERS):  # of those the contents are a step
                try:
                    self._kept.append(ref(value, self._died.append))
                except TypeError:
                    self._kept.append(value if not gc.is_tracked(value) or isinstance(value, DType) else None)
                    self._is_sure &= self._kept[-1] is value
        return len(self._steps) - 1, values

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """The values as part of what a capture is for."""
        return tuple(sorted(self.values.items()))

    def _function(self, function: Callable[..., Any], depth: int, parent: int, position: int) -> None:
        if id(function) in self._seen or depth > DEPTH:
            return
        self._seen.add(id(function))
        owner = getattr(function, "__self__", None)
        plain: Any = getattr(function, "__wrapped__", None) or getattr(function, "__func__", function)
        if plain is not function or owner is not None:
            step, _ = self._step(parent, position, function, _behind)
            if owner is not None:
                self._object("self", owner, depth, step, 0)
            parent, position = step, 1
        code = getattr(plain, "__code__", None)
        if code is None:
            self._object(type(function).__name__, plain, depth, parent, position)
            return
        names, cells = global_names(code), plain.__closure__ or ()
        step, values = self._step(parent, position, plain, functools.partial(_read_function, names))
        for place, (name, cell) in enumerate(zip(code.co_freevars, cells, strict=True)):
            if has_value(cell):
                self._value(name, cell.cell_contents, depth, step, place)
                self._module(name, cell.cell_contents, names, depth, step, place)
        defaults = (*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values())
        for place, default in enumerate(defaults, len(cells)):
            self._value(f"default of {plain.__name__}", default, depth, step, place)
        for place, name in enumerate(names, len(cells) + len(defaults)):
            if values[place] is not _MISSING:
                self._value(name, values[place], depth, step, place)
                self._module(name, values[place], names, depth, step, place)

    def _module(self, path: str, value: Any, names: tuple[str, ...], depth: int, parent: int, position: int) -> None:
        """Of a module, what the function names: `settings.rate`. Whole modules would be far too much to look at."""
        if isinstance(value, types.ModuleType) and not is_ours(value) and depth < DEPTH:
            step, values = self._step(parent, position, value, functools.partial(_read_module, names))
            for place, name in enumerate(names):
                if values[place] is not _MISSING:
                    self._value(f"{path}.{name}", values[place], depth + 1, step, place)

    def _value(self, path: str, value: Any, depth: int, parent: int, position: int) -> None:
        if isinstance(value, SIMPLE):
            self.values[path] = (type(value).__name__, repr(value))
        elif isinstance(value, Tensor):
            self.values[path] = ("Tensor", id(value))  # another object here means other memory to track
            self.tensors.append(value)
        elif isinstance(value, (UOp, types.ModuleType, types.BuiltinFunctionType)) or depth >= DEPTH:
            return
        elif isinstance(value, (list, tuple)):
            self.values[path] = len(value)
            step, _ = self._step(parent, position, value, tuple)
            for number, item in enumerate(value):
                self._value(f"{path}[{number}]", item, depth + 1, step, number)
        elif isinstance(value, dict):
            self.values[path] = len(value)
            step, _ = self._step(parent, position, value, _read_dictionary)
            for number, (name, item) in enumerate(value.items(), len(value)):
                self._value(f"{path}[{name!r}]", item, depth + 1, step, number)
        elif isinstance(value, (set, frozenset)):
            self.values[path] = tuple(sorted(repr(item) for item in value))
            self._step(parent, position, value, tuple)
        elif is_ours(value):
            self._object(path, value, depth, parent, position)
        elif isinstance(value, type):
            self._class(path, value, parent, position)
        elif isinstance(value, types.FunctionType):
            self._function(value, depth + 1, parent, position)
        else:
            self._object(path, value, depth, parent, position)

    def _class(self, path: str, value: type, parent: int, position: int) -> None:
        """Plain class attributes, as in `class Config: rate = 0.1`."""
        for base in reversed(value.__mro__):  # an attribute of a derived class hides the base's
            if is_ours(base):
                continue
            for name, item in vars(base).items():
                if not name.startswith("__") and isinstance(item, SIMPLE):
                    self.values[f"{path}.{name}"] = (type(item).__name__, repr(item))
        if id(value) not in self._classes:
            self._classes.add(id(value))
            self._step(parent, position, value, _read_class)

    def _object(self, path: str, value: Any, depth: int, parent: int, position: int) -> None:
        if value is None or id(value) in self._seen:
            return
        self._seen.add(id(value))
        jitted = getattr(value, "jitted_function", None)
        if jitted is not None:
            step, _ = self._step(parent, position, value, _read_jitted)
            self._function(jitted, depth + 1, step, 0)
            return
        if isinstance(value, (type, types.FunctionType)):
            return
        step, _ = self._step(parent, position, value, _read_object)
        if not is_ours(value):
            self._class(path, type(value), step, 0)
        names = getattr(value, "__dict__", {})
        for number, (name, item) in enumerate(names.items(), 1 + len(names)):
            self._value(f"{path}.{name}", item, depth + 1, step, number)


def _behind(function: Any) -> tuple[Any, ...]:
    """What a bound method or a wrapper stands for."""
    owner = getattr(function, "__self__", None)
    return owner, getattr(function, "__wrapped__", None) or getattr(function, "__func__", function)


def _read_function(names: tuple[str, ...], function: Any) -> tuple[Any, ...]:
    """What is closed over, the defaults, and the globals of these names."""
    cells = function.__closure__
    closed = () if cells is None else [c.cell_contents if has_value(c) else _MISSING for c in cells]
    named = map(function.__globals__.get, names, repeat(_MISSING))
    return *closed, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *named


def _read_module(names: tuple[str, ...], module: Any) -> tuple[Any, ...]:
    return tuple(map(vars(module).get, names, repeat(_MISSING)))


def _read_dictionary(value: Any) -> tuple[Any, ...]:
    return *value, *value.values()


def _read_class(value: Any) -> tuple[Any, ...]:
    """The plain attributes with their names, of its bases too."""
    found: list[Any] = []
    for base in value.__mro__:
        if not is_ours(base):
            found += [part for item in vars(base).items() if isinstance(item[1], SIMPLE) for part in item]
    return tuple(found)


def _read_jitted(value: Any) -> tuple[Any, ...]:
    return (value.jitted_function,)


def _read_object(value: Any) -> tuple[Any, ...]:
    attributes = getattr(value, "__dict__", {})
    return type(value), *attributes, *attributes.values()


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
