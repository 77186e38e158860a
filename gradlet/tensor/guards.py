"""What a jitted function closes over: Python values that must not change unnoticed, and tensors to track.

`Guards` walks once over everything that the function can reach and keeps how it got there. `look` follows the same
steps and compares identities, which takes a small part of the time; only when something differs is all walked again.
A tensor counts by the place where it was found: another one there is the same input with another value. What a call
puts into places (`self.h = step(self.h)`) is told by `changes`, and `put` does it again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from weakref import ref

from gradlet.base.errors import JitError
from gradlet.tensor import reachable
from gradlet.tensor.reachable import SIMPLE, Kind, is_foreign, kind_of
from gradlet.tensor.tensor import Tensor

MOST_ITEMS: Final = 100_000  # objects that a jitted function may reach
_TAKEN_AWAY: Final = (AttributeError, ValueError, KeyError, IndexError, TypeError, RuntimeError)
LARGE_ARRAY: Final = 1 << 16  # bytes of an array that every call can compare


Row = list[Any]  # what one object held
Held = list[tuple[Any, ...]]  # what all of them held

GONE: Final = object()  # in a row: something else than before


class _Step(NamedTuple):
    """How one object was found and what it held: item `position` of what step `parent` read, -1 for a root."""

    path: str
    read: Callable[[Any], tuple[Any, ...]]
    parent: int
    position: int
    kind: type
    ids: tuple[int, ...]  # as it was found
    labels: Sequence[str | None]


class _Place(NamedTuple):
    """A place that calls put values into: its step, the steps of what lies in it, the tensors there, and how to."""

    number: int
    below: list[int]
    tensors: list[tuple[str, int, int]]
    put: Callable[[Any, Any], None]


class Change(NamedTuple):
    """Something that a call put into a place.

    Attributes:
        step: path of the object that holds it now.
        position: where among what that holds.
        path: what users call the place.
        old, new: what was there, what is there.
    """

    step: str
    position: int
    path: str
    old: Any
    new: Any


class _Pending(NamedTuple):
    """An object to look at, and the names that the function which leads to it uses."""

    path: str
    value: Any
    parent: int
    position: int
    names: tuple[str, ...] = ()


class _Member(NamedTuple):
    """A method of a class: looked at if some function asks for its name."""

    path: str
    name: str
    member: Any


class Guards:
    """Everything reachable from a function's closure, globals and bound object.

    Attributes:
        values: name of each plain value to what it is now; containers count with their length, tensors with a number
            that two names of one tensor share.
        generators: random number generators found, by name.
        unwatched: objects whose contents cannot be seen, by name.
        large: names of arrays that are too large to be compared at every call.
    """

    def __init__(self, *roots: tuple[str, Any], whole: bool = False) -> None:
        """Walk from named values. `whole`: all attributes count, whether or not a function found names them."""
        self.values: dict[str, Any] = {}
        self._tensors: dict[str, ref[Tensor]] = {}
        self._places: dict[str, tuple[int, int]] = {}  # of tensors: step and position
        self._numbers: dict[int, int] = {}
        self._numbers_of: dict[str, int] = {}
        self._known_places: dict[tuple[str, int], _Place] = {}
        self._died: list[Any] = []  # an id says which tensor it is only while that lives
        self.generators: list[tuple[str, Any]] = []
        self.unwatched: list[tuple[str, Any]] = []
        self.large: list[str] = []
        self._whole = whole
        self._roots = [value for _, value in roots]
        self._own: list[Any] = []  # roots that were found on the way: functions of classes
        self._steps: list[_Step] = []
        self._quick: list[Any] = []  # of each step what `look` needs
        self._contents: list[tuple[int, int, bytes]] = []
        self._kept: list[Any] = []  # values whose identity is compared must not make room for others
        self._seen: dict[int, str] = {}
        self._modules: dict[tuple[int, tuple[str, ...]], str] = {}
        self._names: set[str] = set()
        self._attributes: list[_Pending] = []
        self._members: list[_Member] = []
        self._pending = [_Pending(path, value, -1, number) for number, (path, value) in enumerate(roots)]
        self._key: tuple[tuple[str, Any], ...] | None = None
        self._walk()
        self._quick = [step[1:6] for step in self._steps]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors found, as far as they are alive, each once."""
        found = [tensor for reference in self._tensors.values() if (tensor := reference()) is not None]
        return list({id(tensor): tensor for tensor in found}.values())

    @property
    def by_path(self) -> dict[str, Tensor]:
        """The tensors found by their names; one that has several has the first of them only."""
        found: dict[int, str] = {}
        for path, reference in self._tensors.items():
            tensor = reference()
            if tensor is not None:
                found.setdefault(id(tensor), path)
        return {path: self._tensors[path]() for path in found.values()}  # type: ignore[misc]

    def tensor(self, path: str) -> Tensor | None:
        """The tensor of a name, None when it is gone."""
        reference = self._tensors.get(path)
        return None if reference is None else reference()

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """The values as part of what a capture is for."""
        if self._key is None:
            self._key = tuple(sorted(self.values.items(), key=lambda item: item[0]))
        return self._key

    @property
    def is_whole(self) -> bool:
        """Whether nothing was let go yet."""
        return bool(self._roots)

    def let_go(self) -> None:
        """Hold nothing any more that could keep tensors alive: only `key` and `unchanged` work from here on."""
        self._roots, self.unwatched, self.generators = [], [], []
        self._attributes, self._members = [], []

    def unchanged(self, *given: Any) -> bool:
        """Whether all of it is as it was, looking from the roots' values now. When in doubt it is not."""
        return self.look(*given) is not None

    def look(self, *given: Any) -> Held | None:
        """What every object holds if all of it is as it was, looking from the roots' values now; else None."""
        if self._died:
            return None
        found: list[tuple[Any, ...]] = []
        roots: Sequence[Any] = (*given, *self._own) if self._own else given
        try:
            for read, parent, position, kind, ids in self._quick:
                value = roots[position] if parent < 0 else found[parent][position]
                if type(value) is not kind:
                    return None
                values = read(value)
                if tuple(map(id, values)) != ids:
                    return None
                found.append(values)
            for parent, position, content in self._contents:
                if reachable.content(roots[position] if parent < 0 else found[parent][position]) != content:
                    return None
        except _TAKEN_AWAY:
            return None
        return found

    def changes(self, held: Sequence[tuple[Any, ...]], *given: Any) -> tuple[list[Change], list[str], set[str]]:
        """What places hold other than before, as `look` gave it then.

        Returns the changes; names of objects that changed in a way which `put` cannot repeat; and the names of tensors
        that are not where they were.
        """
        changes: list[Change] = []
        others: list[str] = []
        found: list[Row] = []
        roots = (*given, *self._own)
        for step, before in zip(self._steps, held, strict=True):
            value = roots[step.position] if step.parent < 0 else found[step.parent][step.position]
            row: Row = [GONE] * len(before)
            found.append(row)
            if value is GONE:
                continue
            try:
                values = step.read(value) if type(value) is step.kind else ()
            except _TAKEN_AWAY:
                values = ()
            if len(values) != len(before):
                others.append(step.path)
                continue
            for position, (old, new) in enumerate(zip(before, values, strict=True)):
                if old is new:
                    row[position] = new
                elif reachable.setter(value, kind_of(value), step.labels, position) is None:
                    others.append(step.labels[position] or step.path)
                else:
                    changes.append(Change(step.path, position, step.labels[position] or step.path, old, new))
        moved = {
            path for path, (parent, position) in self._places.items() if parent >= 0 and found[parent][position] is GONE
        }
        return changes, others, moved

    def put(self, held: Held, given: Sequence[Any], puts: Sequence[tuple[str, int, Any]]) -> None:
        """Put values into places.

        Args:
            held: what `look` gave.
            given: values of the roots.
            puts: path of the object, position, value.
        """
        roots = (*given, *self._own)
        for path, position, value in puts:
            known = self._known_places.get((path, position))
            if known is None:
                number = self._step_numbers[path]
                step = self._steps[number]
                owner = roots[step.position] if step.parent < 0 else held[step.parent][step.position]
                known = self._known_places[path, position] = self._place(number, position, owner)
            number, below, tensors, put = known
            before = held[number]
            held[number] = (*before[:position], value, *before[position + 1 :])
            self._expect(number, held[number])
            for later in below:
                other = self._steps[later]
                held[later] = other.read(held[other.parent][other.position])
                self._expect(later, held[later])
            for name, parent, place in tensors:
                # What was there dies unnoticed: it is expected to.
                self._tensors[name] = ref(held[parent][place], self._died.append)
            _, _, parent, place, *_ = self._steps[number]
            put(roots[place] if parent < 0 else held[parent][place], value)

    def _place(self, number: int, position: int, owner: Any) -> _Place:
        """What `put` needs of a place of a step."""
        below: list[int] = []
        for later in range(number + 1, len(self._steps)):
            step = self._steps[later]
            if step.parent in below or (step.parent == number and step.position == position):
                below.append(later)
        tensors = [
            (name, parent, place)
            for name, (parent, place) in self._places.items()
            if parent in below or (parent == number and place == position)
        ]
        put = reachable.setter(owner, kind_of(owner), self._steps[number].labels, position)
        assert put is not None  # `changes` asked
        return _Place(number, below, tensors, put)

    def _expect(self, number: int, values: tuple[Any, ...]) -> None:
        """Let the object of a step hold these from now on."""
        read, parent, position, kind, _ = self._quick[number]
        self._quick[number] = read, parent, position, kind, tuple(map(id, values))

    @property
    def _step_numbers(self) -> dict[str, int]:
        if len(self._numbers_of) != len(self._steps):
            self._numbers_of = {step.path: number for number, step in enumerate(self._steps)}
        return self._numbers_of

    def _walk(self) -> None:
        while True:
            while self._pending:
                self._visit(self._pending.pop())
            everything = self._whole or not self._names.isdisjoint(reachable.BY_COMPUTED_NAME)
            asked = [a for a in self._attributes if everything or a.path.rpartition(".")[2] in self._names]
            used = [m for m in self._members if m.name in self._names or m.name.startswith("__")]
            if not used and not asked:
                break
            self._attributes = [a for a in self._attributes if a not in asked]
            self._pending += asked
            self._members = [m for m in self._members if m not in used]
            for path, _, member in used:
                # Another method changes what its class holds, which is a step: these functions stay the same.
                for function in reachable.functions_of(member):
                    self._own.append(function)
                    self._pending.append(_Pending(path, function, -1, len(self._roots) + len(self._own) - 1))

    def _note(self, path: str, value: Any) -> str:
        while path in self.values:  # closures of two functions may use one name
            path += "'"
        self.values[path] = value
        return path

    def _visit(self, item: _Pending) -> None:
        path, value, parent, position, names = item
        kind = kind_of(value)
        if kind is Kind.PLAIN:
            self._note(path, reachable.plain_value(value))
        elif kind is Kind.TENSOR:
            # Of objects among the arguments nobody says what happens to their tensors: another one is another value.
            number = id(value) if self._whole else self._numbers.setdefault(id(value), len(self._numbers))
            path = self._note(path, ("Tensor", number))
            self._tensors[path] = ref(value, self._died.append)
            self._places[path] = parent, position
        elif kind is Kind.VALUE:
            self._note(path, (type(value).__name__, value))
            self._kept.append(value)
        elif kind is Kind.MODULE:
            if not is_foreign(value):
                self._visit_module(item)
            elif value.__name__ in ("random", "numpy"):
                self._generators_of(value, path, names)
        elif kind is not Kind.SKIPPED and not (kind is Kind.FUNCTION and not reachable.is_looked_into(value)):
            self._visit_once(item, kind)

    def _visit_module(self, item: _Pending) -> None:
        """A module by what a function names in it, once: modules of a package name each other, and themselves."""
        path, value, parent, position, names = item
        visit = id(value), names
        if visit in self._modules:
            self._note(path, ("the same as", self._modules[visit]))
            return
        self._modules[visit] = path
        self._look_into(path, value, Kind.MODULE, parent, position, names)

    def _visit_once(self, item: _Pending, kind: Kind) -> None:
        path, value, parent, position, names = item
        # The class of an object, which is made already, is less than a class that a function names.
        is_type = kind is Kind.CLASS and parent >= 0 and self._steps[parent].kind is value
        identity = id(value) + is_type
        if identity in self._seen:
            self._note(path, ("the same as", self._seen[identity]))
            return
        self._seen[identity] = path
        if len(self._seen) > MOST_ITEMS:
            raise JitError(
                f"the jitted function reaches more than {MOST_ITEMS} Python objects, the last of them through {path}; "
                "what it does not need must not hang on the objects that it uses"
            )
        if kind is Kind.ARRAY:
            self._array(path, value, parent, position)
        elif kind is Kind.GENERATOR:
            self.generators.append((path, value))
            self._kept.append(value)
        elif kind is Kind.OPAQUE:
            self.unwatched.append((path, value))
            self._note(path, type(value))
        else:
            self._look_into(path, value, kind, parent, position, names)

    def _array(self, path: str, value: Any, parent: int, position: int) -> None:
        """A small array counts with its contents. Of a large one little can be used but through a Tensor."""
        if value.nbytes <= LARGE_ARRAY and value.dtype.kind != "O":
            content = reachable.content(value)
            self._note(path, ("array", content))
            self._contents.append((parent, position, content))
        else:
            self.large.append(path)
            self._note(path, ("array", id(value)))

    def _generators_of(self, module: Any, path: str, names: tuple[str, ...]) -> None:
        """The hidden generators of `random` and `numpy.random`, where a function names one of their functions."""
        if module.__name__ == "numpy":
            if "random" not in names:
                return
            module = module.random
        for name in names:
            member = getattr(module, name, None)
            owner = getattr(member, "__self__", None)
            if owner is not None and kind_of(owner) is Kind.GENERATOR:
                self.generators.append((f"{path}.{name}", owner))

    def _look_into(
        self, path: str, value: Any, kind: Kind, parent: int, position: int, names: tuple[str, ...]
    ) -> None:  # fmt: skip
        if kind is Kind.FUNCTION:
            names = reachable.names_in(value.__code__)
            self._names.update(names)
        read, labels = reachable.reader(path, value, kind, names)
        values = read(value)
        own = self._note(path, reachable.identity_of(value, kind))
        step = len(self._steps)
        self._steps.append(_Step(own, read, parent, position, type(value), tuple(map(id, values)), labels))
        is_type = kind is Kind.CLASS and parent >= 0 and self._steps[parent].kind is value
        first = 1  # what an object holds comes after its class
        filtered = kind is Kind.OBJECT and reachable.is_all_visible(type(value))  # type: ignore[arg-type]
        for number, (label, item) in enumerate(zip(labels, values, strict=True)):
            if isinstance(item, (*SIMPLE, type, types.CodeType)):
                self._kept.append(item)
            if label is None:
                continue
            if filtered and number >= first:
                # Counts if some function asks for an attribute of this name.
                self._attributes.append(_Pending(label, item, step, number, names))
            elif kind is Kind.CLASS and (isinstance(item, reachable.MEMBERS) or kind_of(item) is Kind.JITTED):
                name = label.rpartition(".")[2]
                if not (is_type and name in reachable.NOT_USED):
                    self._members.append(_Member(label, name, item))
            else:
                self._pending.append(_Pending(label, item, step, number, names))
