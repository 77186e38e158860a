"""Several rendered texts as one LLVM IR module: each module costs LLVM as much as thirty to fifty lines.

The names of a text's functions get a tag in front, and the functions stand in a section of this tag, so that who has
the object file finds again what belongs to which text (`device/cpu/image`). Functions of other texts keep their names
(`Part.calls`). What is for those alone who load a text by itself, or optimise it, is left out: the array of entries,
and what is said about loops. Annotations that keep loads in order stay, and so does the node that they name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gradlet.base.errors import RenderError

_NAME: Final = re.compile(r"@(?!llvm\.)([\w.$-]+)")
_LOOP: Final = re.compile(r", !llvm\.loop !\d+")
_DECLARED: Final = re.compile(r"\ndeclare [^@\n]*@(?!llvm\.)([\w.$-]+)")
_LEFT_OUT: Final = ("target triple", "!")
_ANNOTATION: Final = "!0"  # whatever it is: it marks a place in a block
_ANNOTATED: Final = f"metadata {_ANNOTATION})"


def section(tag: str) -> str:
    """Where the functions of a tag stand in the object file."""
    return f".text.{tag}"


class Part(NamedTuple):
    """One text of a joined module.

    Attributes:
        text: as it is rendered.
        tag: what its names begin with; one of its own.
        calls: the names that functions of other parts have in the module, by the names under which the text calls them.
    """

    text: str
    tag: str
    calls: Mapping[str, str] = MappingProxyType({})


def imports(text: str) -> set[str]:
    """The functions that a text calls and does not define, those of LLVM aside."""
    return set(_DECLARED.findall(text))


def joined(parts: Sequence[Part]) -> str:
    """The module that has all functions of these texts.

    Raises:
        RenderError: a line that is none of those which the renderer writes.
    """
    head = next(line for line in parts[0].text.split("\n") if line.startswith("target triple"))
    groups: dict[str, int] = {}  # attributes of functions, which texts share
    declared: dict[str, str] = {}
    defined: set[str] = set()
    lines = [head]
    for part in parts:
        _add(part, groups, declared, defined, lines)
    lines += [line for name, line in declared.items() if name not in defined]
    lines += [f"attributes #{number} = {text}" for text, number in groups.items()]
    if any(_ANNOTATED in part.text for part in parts):
        lines.append(f"{_ANNOTATION} = !{{}}")
    return "\n".join(lines) + "\n"


def _add(part: Part, groups: dict[str, int], declared: dict[str, str], defined: set[str], lines: list[str]) -> None:
    """Add the lines of one text; those inside of functions as one."""
    tag, calls = part.tag, part.calls
    text = _NAME.sub(lambda found: "@" + calls.get(found[1], f"{tag}.{found[1]}"), _LOOP.sub("", part.text))
    functions: list[tuple[str, str]] = []
    numbers: dict[str, str] = {}
    for chunk in text.split("\n}\n"):
        begin = 0 if chunk.startswith("define ") else chunk.find("\ndefine ") + 1
        is_function = chunk.startswith("define ", begin)
        if is_function:
            head, _, body = chunk[begin:].partition("\n")
            functions.append((head, body))
        for row in chunk[:begin].split("\n") if is_function else chunk.split("\n"):
            if row.startswith("attributes #"):
                number, _, attributes = row.removeprefix("attributes #").partition(" = ")
                numbers[number] = str(groups.setdefault(attributes, len(groups)))
            elif row.startswith("declare "):
                declared[_function(row)] = row
            elif row.startswith("@"):
                if " = internal constant " in row:  # else the entries
                    lines.append(row)
            elif row and not row.startswith(_LEFT_OUT):
                raise RenderError(f"no line of a rendered module: {row}")
    for head, body in functions:
        start, _, number = head.removesuffix(" {").rpartition(" #")
        defined.add(_function(head))
        lines.append(f'{start} #{numbers[number]} section "{section(tag)}" {{\n{body}\n}}')


def _function(row: str) -> str:
    """The name in the first line of a function."""
    return row[row.index("@") : row.index("(", row.index("@"))]
