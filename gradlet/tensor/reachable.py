"""What kinds of Python objects there are for a jit's guards, and how to read what each of them holds."""

from __future__ import annotations

import datetime
import enum
import functools
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from numbers import Number
from typing import Any, Final

from gradlet.graph.node import UOp
from gradlet.tensor.tensor import Tensor

CALLED: Final = (types.FunctionType, types.MethodType, functools.partial)
SIMPLE: Final = (Number, str, bytes, type(None), Enum)
# With one of these names in its code a function may read attributes that it does not name.
BY_COMPUTED_NAME: Final = frozenset({
    "getattr", "vars", "__dict__", "__getattribute__", "asdict", "astuple", "fields", "replace", "attrgetter",
    "eval", "exec", "locals", "dir", "getmembers", "copy", "deepcopy", "get_state_dict", "get_parameters",
    "match_args",
})  # fmt: skip
MEMBERS: Final = (types.FunctionType, property, staticmethod, classmethod, functools.cached_property)
# Methods that run without being named where an object is made or shown, not where it is used.
NOT_USED: Final = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__repr__", "__str__"})
# Parts of gradlet whose objects hold nothing that a function could use as a number, but much that changes.
_MACHINERY: Final = frozenset({
    "base", "ops", "graph", "rules", "grad", "target", "schedule", "optimize", "codegen", "render", "runtime",
    "device", "engine", "tensor", "onnx",
})  # fmt: skip
_HOLDERS: Final = (types.SimpleNamespace,)  # of the standard library, whose other objects are its own business
_MISSING: Final = object()
_DEFAULTS: Final = ("__code__", "__defaults__", "__kwdefaults__")  # what a function holds first
_first_of_function: Final[Callable[[Any], tuple[Any, ...]]] = operator.attrgetter(*_DEFAULTS)

Read = Callable[[Any], tuple[Any, ...]]


class Kind(enum.Enum):
    """How an object takes part in guards."""

    PLAIN = "a number, string or the like"
    TENSOR = "a tensor"
    VALUE = "compared by value, and never changes"
    SKIPPED = "not looked at: the framework's own, the standard library's"
    ARRAY = "compared by content"
    GENERATOR = "of random numbers"
    OPAQUE = "nobody can see what is inside"
    SEQUENCE = "list, tuple, deque, set"
    MAPPING = "dictionary"
    FUNCTION = "Python function"
    METHOD = "function bound to an object"
    PARTIAL = "functools.partial"
    CLASS = "class"
    MODULE = "module"
    JITTED = "another jitted function"
    OBJECT = "attributes"


def kind_of(value: Any) -> Kind:
    """The kind of an object."""
    if isinstance(value, SIMPLE):
        return Kind.PLAIN
    if isinstance(value, Tensor):
        return Kind.TENSOR
    return _kind_of_type(type(value)) or _kind_of_object(value)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=4096)
def _kind_of_type(kind: Any) -> Kind | None:
    if issubclass(kind, UOp):
        return Kind.VALUE
    for kinds, found in _BY_TYPE:
        if issubclass(kind, kinds):
            return found
    if kind.__name__ == "jit" and kind.__module__ == "gradlet.tensor.function":
        return Kind.JITTED
    root, _, rest = kind.__module__.partition(".")
    if root == "numpy":
        if kind.__name__ == "ndarray":
            return Kind.ARRAY
        return Kind.GENERATOR if kind.__name__ in ("Generator", "RandomState") else Kind.SKIPPED
    if kind.__module__ == "random":
        return Kind.GENERATOR
    if root == "gradlet" and rest.partition(".")[0] in _MACHINERY:
        return Kind.SKIPPED
    return None


_BY_TYPE: Final[list[tuple[Any, Kind]]] = [
    ((list, tuple, deque, set, frozenset), Kind.SEQUENCE),
    ((dict, types.MappingProxyType), Kind.MAPPING),
    (types.FunctionType, Kind.FUNCTION),
    (types.MethodType, Kind.METHOD),
    (functools.partial, Kind.PARTIAL),
    (types.ModuleType, Kind.MODULE),
    ((datetime.date, datetime.time, datetime.timedelta, range, slice), Kind.VALUE),
]


def _kind_of_object(value: Any) -> Kind:
    if isinstance(value, type):
        return Kind.CLASS if is_looked_into(value) else Kind.SKIPPED
    if isinstance(value, types.BuiltinFunctionType):
        return Kind.GENERATOR if _kind_of_type(type(value.__self__)) is Kind.GENERATOR else Kind.SKIPPED  # type: ignore[arg-type]
    kind = type(value)
    if isinstance(value, _HOLDERS) or not is_foreign(kind):
        if hasattr(value, "__dict__") or _slots(kind):  # type: ignore[arg-type]
            return Kind.OBJECT
    if kind.__eq__ is not object.__eq__ and kind.__hash__ is not None and not isinstance(value, types.GenericAlias):
        try:
            hash(value)
        except TypeError:
            return Kind.OPAQUE
        return Kind.VALUE
    return Kind.OPAQUE


def is_foreign(value: Any) -> bool:
    """Whether a class, function or module is Python's, numpy's or part of the compiler."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""
    root, _, rest = name.partition(".")
    if root == "__main__":
        return False
    if root == "gradlet":
        return isinstance(value, (types.FunctionType, types.ModuleType)) or rest.partition(".")[0] in _MACHINERY
    return root in sys.stdlib_module_names or root == "numpy"


@functools.lru_cache(maxsize=1024)
def is_library(root: str) -> bool:
    """Whether a package was installed: code that nobody changes while it runs, and far too much to look at."""
    path = getattr(sys.modules.get(root), "__file__", None) or ""
    # What a tool runs as a script is `__main__` to its own functions, wherever the tool lies.
    return root not in ("gradlet", "__main__") and ("site-packages" in path or "dist-packages" in path)


def is_looked_into(function: Any) -> bool:
    """Whether a function's or a class's own globals and members count."""
    root = (getattr(function, "__module__", None) or "").partition(".")[0]
    return not is_foreign(function) and not is_library(root)


def plain_value(value: Any) -> tuple[str, Any]:
    """A plain value with its type: 1, 1.0 and True are different, and so are 0.0 and -0.0; NaN is itself."""
    kind = type(value).__name__
    return (kind, value) if isinstance(value, (str, bytes, int)) and kind != "bool" else (kind, repr(value))


def content(array: Any) -> bytes:
    """All of an array that matters to who reads it."""
    return f"{array.dtype.str}{array.shape}".encode() + bytes(array.tobytes())


def generator_state(generator: Any) -> str:
    """The state of a random number generator, or of the one that a module's function belongs to."""
    owner = generator.__self__ if isinstance(generator, types.BuiltinFunctionType) else generator
    if hasattr(owner, "getstate"):
        return repr(owner.getstate())
    if hasattr(owner, "bit_generator"):
        return repr(owner.bit_generator.state)
    return repr(owner.get_state())  # type: ignore[union-attr]


def functions_of(member: Any) -> Iterator[types.FunctionType]:
    """The functions behind a member of a class."""
    if isinstance(member, types.FunctionType):
        yield member
    elif kind_of(member) is Kind.JITTED:
        if isinstance(member.jitted_function, types.FunctionType):
            yield member.jitted_function
    elif isinstance(member, property):
        yield from (f for f in (member.fget, member.fset, member.fdel) if isinstance(f, types.FunctionType))
    else:
        inner = getattr(member, "__func__", None) or getattr(member, "func", None)
        if isinstance(inner, types.FunctionType):
            yield inner


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals and attributes that a function and the functions inside it may read."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += names_in(constant)
        elif isinstance(constant, tuple):
            names += [name for name in constant if isinstance(name, str)]  # `case Config(rate=...)`
    return tuple(dict.fromkeys(names))


@functools.lru_cache(maxsize=4096)
def is_all_visible(kind: Any) -> bool:
    """Whether every method of a class is code that the guards look at."""
    return all(
        base is object or (is_looked_into(base) and base.__module__.partition(".")[0] != "gradlet")
        for base in kind.__mro__
    )


@functools.lru_cache(maxsize=4096)
def _slots(kind: Any) -> tuple[str, ...]:
    names = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{name}"
            if name not in ("__dict__", "__weakref__"):
                names.append(name)
    return tuple(dict.fromkeys(names))


def identity_of(value: Any, kind: Kind) -> Any:
    """What of an object itself is part of a key, beside all that it holds."""
    if kind is Kind.MAPPING:
        return (type(value).__name__, tuple([repr(key) if isinstance(key, SIMPLE) else id(key) for key in value]))
    if kind is Kind.SEQUENCE:
        return (type(value).__name__, len(value))
    if kind is Kind.FUNCTION:
        return value.__code__
    return value if kind is Kind.CLASS else type(value)


def reader(path: str, value: Any, kind: Kind, names: tuple[str, ...]) -> tuple[Read, list[str | None]]:
    """How to read all that an object holds, and a name for each part; None for what only counts by identity.

    Args:
        path: name of the object.
        value: the object.
        kind: its kind.
        names: what the function that leads to a module reads of it.
    """
    if kind is Kind.SEQUENCE:
        labels: list[str | None] = [f"{path}[{number}]" for number in range(len(value))]
        read: Read = tuple
    elif kind is Kind.MAPPING:
        labels = [None] * len(value)
        labels += [f"{path}[{key!r}]" if isinstance(key, SIMPLE) else f"{path}[...]" for key in value]
        read = _read_mapping
    elif kind is Kind.FUNCTION:
        return _function_reader(value)
    elif kind is Kind.METHOD:
        return _METHOD, ["self", value.__func__.__name__]
    elif kind is Kind.PARTIAL:
        return _PARTIAL, [getattr(value.func, "__name__", "function"), "arguments", "keywords"]
    elif kind is Kind.JITTED:
        return _read_jitted, [path]
    elif kind is Kind.CLASS:
        return _class_reader(path, value)
    elif kind is Kind.MODULE:
        present = members_of(value, names)
        return _getter(present, vars), [f"{path}.{name}" for name in present]
    else:
        read, labels = _no_values, []
    return _with_attributes(path, value, kind, read, labels)


def members_of(module: types.ModuleType, names: tuple[str, ...]) -> tuple[str, ...]:
    """What a function uses of a module; of an installed one only plain values."""
    found = [name for name in names if name in vars(module)]
    if is_library(module.__name__.partition(".")[0]):
        found = [name for name in found if isinstance(vars(module)[name], SIMPLE)]
    return tuple(found)


def _read_mapping(value: Any) -> tuple[Any, ...]:
    return (*value, *value.values())


def _no_values(value: Any) -> tuple[Any, ...]:
    return ()


_METHOD: Final[Read] = operator.attrgetter("__self__", "__func__")
_PARTIAL: Final[Read] = operator.attrgetter("func", "args", "keywords")


def _read_jitted(value: Any) -> tuple[Any, ...]:
    return (value.jitted_function,)


def _getter(names: tuple[str, ...], table: Callable[[Any], Any]) -> Read:
    if not names:
        return _no_values
    if len(names) == 1:
        (name,) = names
        return lambda value: (table(value)[name],)
    get = operator.itemgetter(*names)
    return lambda value: get(table(value))


_globals: Final = operator.attrgetter("__globals__")


def _function_reader(function: types.FunctionType) -> tuple[Read, list[str | None]]:
    code = function.__code__
    present = tuple([name for name in names_in(code) if name in function.__globals__])
    of_globals = _getter(present, _globals)
    cells = [n for n, cell in enumerate(function.__closure__ or ()) if has_value(cell)]
    name = function.__name__

    def read(value: types.FunctionType) -> tuple[Any, ...]:
        closure = value.__closure__ or ()
        found = _first_of_function(value)
        if cells:
            found += tuple([closure[n].cell_contents for n in cells])
        if present:
            found += of_globals(value)
        attributes = value.__dict__
        return (*found, *attributes.values()) if attributes else found

    labels: list[str | None] = [None, f"default of {name}", f"default of {name}"]
    labels += [code.co_freevars[n] for n in cells]
    labels += present
    labels += [f"{name}.{attribute}" for attribute in function.__dict__]
    return read, labels


def _class_reader(path: str, value: type) -> tuple[Read, list[str | None]]:
    # An attribute of a derived class hides the base's; all of them count.
    bases = [base for base in value.__mro__ if not is_foreign(base)]

    def read(kind: type) -> tuple[Any, ...]:
        return tuple([item for base in bases for item in vars(base).values()])

    labels: list[str | None] = [_member_label(path, name, item) for base in bases for name, item in vars(base).items()]
    return read, labels


def _member_label(path: str, name: str, item: Any) -> str | None:
    if name in ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__", "__slots__"):
        return None
    if name.startswith("__") and not isinstance(item, MEMBERS):
        return None
    return None if isinstance(item, (types.MemberDescriptorType, types.GetSetDescriptorType)) else f"{path}.{name}"


def _with_attributes(
    path: str, value: Any, kind: Kind, inner: Read, labels: list[str | None]
) -> tuple[Read, list[str | None]]:  # fmt: skip
    """Also what hangs on the object as attributes, and its class."""
    cls = type(value)
    slots = _slots(cls) if kind is Kind.OBJECT else ()  # type: ignore[arg-type]
    table = hasattr(value, "__dict__")
    if not slots and not table and kind is not Kind.OBJECT:
        return inner, labels
    labels = [*labels, path if is_looked_into(cls) else None]
    labels += [f"{path}.{name}" for name in slots]
    if table:
        labels += [*[None] * len(vars(value)), *[f"{path}.{name}" for name in vars(value)]]

    def read(item: Any) -> tuple[Any, ...]:
        of_slots = [getattr(item, name, _MISSING) for name in slots]
        if not table:
            return (*inner(item), type(item), *of_slots)
        attributes = item.__dict__
        return (*inner(item), type(item), *of_slots, *attributes, *attributes.values())

    return read, labels


def has_value(cell: types.CellType) -> bool:
    """Whether a closed-over name has been assigned yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def setter(value: Any, kind: Kind, labels: Sequence[str | None], position: int) -> Callable[[Any, Any], None] | None:
    """What lets an object like this hold something else at a position of what its reader gives; None: nothing does."""
    label = labels[position]
    if label is None:
        return None
    if kind is Kind.FUNCTION:
        name = label.rpartition(".")[2]
        if "." in label:
            return lambda owner, new: owner.__dict__.__setitem__(name, new)
        if name in value.__code__.co_freevars and label not in labels[3:position]:  # those come before globals
            number = value.__code__.co_freevars.index(name)
            return lambda owner, new: setattr(owner.__closure__[number], "cell_contents", new)
        return _set_global(name) if position >= len(_DEFAULTS) else None
    if kind is Kind.MODULE:
        return _set_attribute(label.rpartition(".")[2])
    items = {Kind.OBJECT: 0, Kind.SEQUENCE: 1, Kind.MAPPING: 2}.get(kind)
    if items is None:
        return None
    held = items * len(value) if items else 0
    if position < held:
        if isinstance(value, (list, deque)):
            return _set_item(position)
        is_value = isinstance(value, dict) and position >= len(value)
        return _set_item(list(value)[position - len(value)]) if is_value else None
    slots = _slots(type(value)) if kind is Kind.OBJECT else ()  # type: ignore[arg-type]
    place = position - held - 1  # the class comes first
    if 0 <= place < len(slots):
        slot = slots[place]
        return lambda owner, new: object.__setattr__(owner, slot, new)
    table = getattr(value, "__dict__", {})
    place -= len(slots) + len(table)
    return _set_attribute(list(table)[place]) if 0 <= place < len(table) else None


def _set_item(key: Any) -> Callable[[Any, Any], None]:
    return lambda owner, new: owner.__setitem__(key, new)


def _set_attribute(name: str) -> Callable[[Any, Any], None]:
    return lambda owner, new: owner.__dict__.__setitem__(name, new)


def _set_global(name: str) -> Callable[[Any, Any], None]:
    return lambda owner, new: owner.__globals__.__setitem__(name, new)
