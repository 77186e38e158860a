"""Why a graph has no schedule yet: the first thing in which it differs from the known graph that is nearest to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gradlet.graph.key import Key
from gradlet.ops.op import SCALAR_LEAVES, LimitArg, Op, ReduceAxesArg, ShapeArg

if TYPE_CHECKING:
    from gradlet.schedule.cache import Environment

PACKAGE: Final = str(Path(__file__).parents[1])
# Of more graphs than this only those used last are compared.
COMPARED: Final = 64


class Difference(NamedTuple):
    """What makes a graph a new one.

    Attributes:
        kind: one word: first, op, dtype, shape, constant, operands, device, setting, outputs, held or weights.
        text: the same in words, with both values.
    """

    kind: str
    text: str


class Row(NamedTuple):
    """One node of a key: its sources are numbers, which tell equal nodes."""

    op: Op
    dtype: Any
    arg: Any
    src: tuple[int, ...]


def first_difference(asked: tuple[Any, ...], known: Sequence[tuple[Any, ...]]) -> Difference:
    """The first difference of a key of the schedule cache from the nearest of others, the one used last first.

    Keys begin with an environment and a structure; see `schedule/cache`.
    """
    if not known:
        return Difference("first", "the first graph of this process")
    structure = asked[1]
    nearest = max(known[:COMPARED], key=lambda key: (_equal_until(structure, key[1]), key[0] is asked[0]))
    if nearest[1] == structure:
        return _beside_structure(asked, nearest)
    return _between(structure, nearest[1])


def _equal_until(first: Key, second: Key) -> int:
    """How many elements two keys begin with alike: slices compare fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _beside_structure(asked: tuple[Any, ...], known: tuple[Any, ...]) -> Difference:
    """Graphs of one structure that are not decided alike."""
    new, old = asked[0], known[0]
    if new is not old:
        return _between_environments(new, old)
    if asked[2] != known[2]:
        return Difference("outputs", f"{asked[2]} tensors are computed together, not {known[2]}")
    if asked[3] != known[3] or asked[5:] != known[5:]:
        return Difference("held", "other tensors still need the old values of what this writes, or no longer do")
    return Difference("weights", "other inputs count as weights that stay as they are")


def _between_environments(new: Environment, old: Environment) -> Difference:
    for (name, value), (_, before) in zip(new.settings, old.settings):
        if value != before:
            return Difference("setting", f"{name}={value!r}, not {before!r}")
    if new.default_device != old.default_device:
        return Difference("device", f"the default device is {new.default_device}, not {old.default_device}")
    for (device, target), (other, before) in zip(new.targets, old.targets):
        if device != other:
            return Difference("device", f"data on {device}, not on {other}")
        for field in fields(target):
            value, was = getattr(target, field.name), getattr(before, field.name)
            if value != was:
                return Difference("device", f"{device} has {field.name} {value}, not {was}")
    return Difference("device", "other devices")


def _between(new: Key, old: Key) -> Difference:
    new_count, new_rows = rows_of(new)
    old_count, old_rows = rows_of(old)
    if new_count != old_count:
        return Difference("outputs", f"{new_count} tensors are computed together, not {old_count}")
    for row, other in zip(new_rows, old_rows):
        if row != other or row.arg.__class__ is not other.arg.__class__:
            return _between_rows(row, other)
    more = "more" if len(new_rows) > len(old_rows) else "fewer"
    return Difference("op", f"{len(new_rows)} operations, {more} than {len(old_rows)}")


def _between_rows(new: Row, old: Row) -> Difference:
    """In words how two nodes at the same place differ."""
    name = new.op.name
    if new.op is not old.op:
        if new.op in SCALAR_LEAVES or old.op in SCALAR_LEAVES or Op.BUFFER in (new.op, old.op):
            return Difference("op", f"{_noun(new)} where it was {_noun(old)}")
        return Difference("op", f"{name} where it was {old.op.name}")
    if new.dtype is not old.dtype:
        return Difference("dtype", f"{name} of {new.dtype.name}, not {old.dtype.name}")
    if new.arg != old.arg or new.arg.__class__ is not old.arg.__class__:
        if new.op is Op.CONST:
            return Difference("constant", f"constant {new.arg}, not {old.arg} ({new.dtype.name})")
        if new.op is Op.BUFFER:
            if new.arg[1] != old.arg[1]:
                return Difference("device", f"data on {new.arg[1]}, not on {old.arg[1]}")
            return Difference("shape", f"a buffer of {abs(new.arg[0])} elements, not {abs(old.arg[0])}")
        if isinstance(new.arg, ShapeArg):
            return Difference("shape", f"{name} to shape {new.arg.shape}, not {old.arg.shape}")
        if isinstance(new.arg, (ReduceAxesArg, LimitArg)) or new.op is Op.VARIABLE:
            return Difference("op", f"{name} {_plain(new.arg)}, not {_plain(old.arg)}")
        return Difference("shape", f"{name} {_plain(new.arg)}, not {_plain(old.arg)}")
    return Difference("operands", f"{name} reads {len(new.src)} operands that are shared differently")


def _noun(row: Row) -> str:
    """A node as what its value is."""
    if row.op is Op.CONST:
        return f"the constant {row.arg}"
    return "data in memory" if row.op is Op.BUFFER else f"the result of {row.op.name}"


def _plain(arg: Any) -> str:
    """An argument as its values alone."""
    if not isinstance(arg, tuple):
        return str(arg)
    return " ".join(getattr(part, "name", None) or str(part) for part in arg if part != ())


def rows_of(key: Key) -> tuple[int, list[Row]]:
    """How many roots a structural key has, and its nodes as `graph/key` met them."""
    roots = key.index(None)
    rows: list[Row] = []
    place = roots + 1
    while place < len(key):
        word = int(key[place])
        op, count = Op(word & 255), word >> 8
        dtype = key[place + 1]
        if count:
            if op is Op.BIND:
                count = 1  # the value is exchangeable
            rows.append(Row(op, dtype, key[place + 2], key[place + 3 : place + 3 + count]))
            place += 3 + count
        elif op in (Op.BUFFER, Op.VARIABLE):
            rows.append(Row(op, dtype, key[place + 2 : place + 4], ()))
            place += 4
        else:
            rows.append(Row(op, dtype, key[place + 2], ()))
            place += 3
    return roots, rows


def user_line() -> str:
    """Where the program is: file and line of the nearest caller outside of this package; "" where there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
