"""Schedules as text and back: `SPLIT(range 1, 16, MASK), PARALLEL(range 0)` is a tuple of two opts.

An opt is its word with what it says in brackets: the range, the amount where it is not 0, the tail where it is not
EXACT, then the fields of its detail that differ from their defaults as `field=value`. Commas or line ends part opts,
and `#` begins a comment that ends with the line. The setting OPTS takes such a text for every kernel, or texts for
single kernels as `NAME: ...; NAME: ...`, where `*` in a name stands for any letters.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final, NoReturn

from gradlet.base.errors import ArgumentError
from gradlet.ops.opt import DETAILS, Opt, OptDetail, OptKind, Tail

_TOKEN: Final = re.compile(r"(?P<blank>(?:\s|#[^\n]*)+)|(?P<int>[+-]?\d+)|(?P<word>[A-Za-z_]\w*)|(?P<mark>[(),=])")
_PATTERN: Final = re.compile(r"(?:\s|#[^\n]*)*([\w*?\[\]]+)\s*:")
SHOWN: Final = 24  # letters around a mistake


def opts_text(opts: Iterable[Opt], separator: str = ", ") -> str:
    """The opts in order."""
    return separator.join(map(opt_text, opts))


def opt_text(opt: Opt) -> str:
    """One opt, e.g. `VECTORIZE(range 1, 16, MASK)`."""
    parts = [f"range {opt.axis}"]
    if opt.amount:
        parts.append(str(opt.amount))
    if opt.tail is not Tail.EXACT:
        parts.append(opt.tail.name)
    if opt.detail is not None:
        parts += _detail_text(opt.detail)
    return f"{opt.kind.name}({', '.join(parts)})"


def _detail_text(detail: Any) -> list[str]:
    defaults = detail._field_defaults
    fields = zip(detail._fields, detail, strict=True)
    return [f"{name}={_value_text(value)}" for name, value in fields if name not in defaults or value != defaults[name]]


def _value_text(value: Any) -> str:
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, tuple):
        inner = ", ".join(map(_value_text, value))
        return f"({inner})"
    return str(int(value))


def parse_opts(text: str) -> tuple[Opt, ...]:
    """The opts that a text names.

    Raises:
        ArgumentError: the text is no list of opts; the message says where and what is expected there.

    >>> parse_opts("SPLIT(range 1, 16, MASK), PARALLEL(range 0)") == (
    ...     Opt(OptKind.SPLIT, 1, 16, Tail.MASK),
    ...     Opt(OptKind.PARALLEL, 0, 0),
    ... )
    True
    """
    return _Parser(text).opts()


def opts_for(text: str, name: str) -> tuple[Opt, ...] | None:
    """What a text in the form of the setting OPTS says about the kernel called `name`; None when it says nothing.

    Raises:
        ArgumentError: the part for this kernel cannot be read.
    """
    if not text.strip():
        return None
    if _PATTERN.match(text) is None:
        return parse_opts(text)
    for entry in text.split(";"):
        found = _PATTERN.match(entry)
        if found is None:
            if not entry.strip():
                continue
            raise ArgumentError(f"OPTS: expected 'KERNEL: opts' between semicolons, got {entry.strip()[:60]!r}")
        if fnmatchcase(name, found[1]):
            return parse_opts(entry[found.end() :])
    return None


class _Parser:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                self.fail(position, "this letter has no meaning; write opts as SPLIT(range 1, 16, MASK)")
            if found.lastgroup != "blank":
                self.tokens.append((str(found.lastgroup), found[0], position))
            position = found.end()
        self.tokens.append(("end", "", len(text)))
        self.at = 0

    def fail(self, position: int, problem: str) -> NoReturn:
        """Raise, with the place of the mistake."""
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        rest = self.text[position : position + SHOWN].split("\n")[0]
        where = f"at {rest!r}" if rest else "at the end"
        raise ArgumentError(f"opts, line {line}, column {column}, {where}: {problem}")

    def fail_here(self, problem: str) -> NoReturn:
        self.fail(self.tokens[self.at][2], problem)

    def take(self, kind: str, value: str | None = None) -> str | None:
        """The next token if it is of this kind (and value)."""
        found, text, _ = self.tokens[self.at]
        if found != kind or (value is not None and text != value):
            return None
        self.at += 1
        return text

    def need(self, kind: str, value: str | None, problem: str) -> str:
        found = self.take(kind, value)
        if found is None:
            self.fail_here(problem)
        return found

    def opts(self) -> tuple[Opt, ...]:
        found: list[Opt] = []
        while self.tokens[self.at][0] != "end":
            found.append(self.opt())
            if self.take("mark", ",") is not None and self.tokens[self.at][0] == "end":
                self.fail_here("an opt has to follow the comma; remove the comma or add one")
        return tuple(found)

    def opt(self) -> Opt:
        kinds = ", ".join(OptKind.__members__)
        start = self.at
        word = self.need("word", None, f"expected the name of an opt; they are {kinds}")
        if word not in OptKind.__members__:
            self.at = start
            self.fail_here(f"there is no opt {word}; they are {kinds}")
        kind = OptKind[word]
        self.need("mark", "(", f"expected '(' as in {word}(range 0, 4)")
        self.need("word", "range", f"an opt names a range first, as in {word}(range 0, 4)")
        axis = int(self.need("int", None, "expected the number of the range (DEBUG=3 shows them)"))
        amount, tail = 0, Tail.EXACT
        fields: dict[str, Any] = {}
        seen_amount = seen_tail = False
        while self.take("mark", ",") is not None:
            kind_of, text, _ = self.tokens[self.at]
            follows = self.tokens[min(self.at + 1, len(self.tokens) - 1)][1]
            if kind_of == "int" and not (seen_amount or seen_tail or fields):
                amount, seen_amount = int(str(self.take("int"))), True
            elif kind_of == "word" and follows != "=" and not (seen_tail or fields):
                tail, seen_tail = self.tail(text), True
            elif kind_of == "word" and follows == "=":
                self.field(kind, fields)
            else:
                self.fail_here("expected an amount, then a tail, then field=value, each at most once")
        self.need("mark", ")", "expected ',' or ')'")
        return Opt(kind, axis, amount, tail, self.detail(kind, fields, start))

    def tail(self, text: str) -> Tail:
        if text not in Tail.__members__:
            self.fail_here(f"there is no tail {text}; use one of {', '.join(Tail.__members__)}")
        self.at += 1
        return Tail[text]

    def field(self, kind: OptKind, fields: dict[str, Any]) -> None:
        detail = DETAILS.get(kind)
        known = _hints(detail) if detail is not None else {}
        name = self.tokens[self.at][1]
        if name not in known:
            has = f"its fields are {', '.join(known)}" if known else "it has none"
            self.fail_here(f"{kind.name} has no field {name}; {has}")
        if name in fields:
            self.fail_here(f"field {name} is given twice; give it once")
        self.at += 2
        fields[name] = self.value(known[name])

    def value(self, hint: Any) -> Any:
        if self.take("mark", "(") is not None:
            inner = next(iter(typing.get_args(hint)), int)
            values: list[Any] = []
            while self.take("mark", ")") is None:
                values.append(self.value(inner))
                if self.take("mark", ",") is None:
                    self.need("mark", ")", "expected ',' or ')' inside a tuple")
                    break
            return tuple(values)
        kind_of, text, _ = self.tokens[self.at]
        if kind_of == "int":
            self.at += 1
            return bool(int(text)) if hint is bool else int(text)
        names = hint.__members__ if isinstance(hint, type) and issubclass(hint, IntEnum) else {}
        if kind_of != "word" or not names:
            self.fail_here("expected an integer or a tuple as (1, 2)")
        if text not in names:
            self.fail_here(f"{text} is not among {', '.join(names)}")
        self.at += 1
        return names[text]

    def detail(self, kind: OptKind, fields: dict[str, Any], start: int) -> OptDetail | None:
        detail: Any = DETAILS.get(kind)
        if detail is None:
            return None
        missing = [f for f in detail._fields if f not in fields and f not in detail._field_defaults]
        if missing:
            self.at = start
            self.fail_here(f"{kind.name} needs {', '.join(f'{name}=...' for name in missing)}")
        if not fields:
            return None
        made: OptDetail = detail(**fields)
        return made


@cache
def _hints(detail: type[OptDetail]) -> dict[str, Any]:
    return typing.get_type_hints(detail)
