"""What a jitted function captured, in words: for `explain`, and for the error that names the value which moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def moving(captures: Mapping[tuple[Any, ...], Any], last: tuple[Any, ...] | None, key: tuple[Any, ...]) -> str:
    """Which part of the key differs from the one before, in words."""
    if last is None:
        last = list(captures)[-1]
    for old, new in zip(last[0], key[0], strict=False):
        if old != new:
            return _moving_argument(old, new)
    if len(last[0]) != len(key[0]):
        return "numbers of arguments"
    for number, (before, now) in enumerate(zip(last[1], key[1], strict=False)):
        what = [name for name, a, b in zip(_VIEW, before, now, strict=True) if a != b]
        if what:
            tensors = [path for path, value in key[0] if value == "Tensor"]
            return f"{what[0]} of argument {tensors[number]}"
    before, now = dict(last[2]), dict(key[2])
    for path in (*now, *before):
        if before.get(path) != now.get(path):
            if path not in before or path not in now:
                return f"contents: {path} {'is new' if path in now else 'is gone'}"
            return f"values of {path or 'the function'} ({_shown(before[path])}, now {_shown(now[path])})"
    return "training mode"


_VIEW = ("shapes, or views", "dtypes", "shapes, that is sizes of memory,", "devices", "aliasing with other arguments")


def _moving_argument(old: tuple[str, Any], new: tuple[str, Any]) -> str:
    if new[0] == "objects" and old[0] == "objects":
        before, now = dict(old[1]), dict(new[1])
        for path in (*now, *before):
            if before.get(path) != now.get(path):
                return f"values of argument {path} (now {_shown(now.get(path))})"
    return f"values of argument {new[0]} (now {_shown(new[1])})"


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:
        if value[0] == "Tensor":
            return "another Tensor object"
        value = value[1]
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _form(node: Any) -> str:
    return f"{tuple(node.shape)} {str(node.dtype).removeprefix('dtypes.')}"


def inputs(capture: Any) -> list[str]:
    """The tensor arguments of a capture."""
    nodes = capture.program.nodes
    return [f"{capture.names[slot]}: {_memory(nodes[slot])}" for slot in capture.inputs]


def _memory(node: Any) -> str:
    return f"{node.arg.size} x {str(node.dtype).removeprefix('dtypes.')} on {node.arg.device}"


def outputs(capture: Any) -> list[str]:
    """The tensors in the result of a capture."""
    return [f"{path}: {_form(node)}" for path, node in zip(capture.result_paths, capture.results, strict=True)]


def explain(name: str, calls: int, captures: Sequence[tuple[Any, Any]], history: Sequence[str]) -> str:
    """The whole report."""
    lines = [f"{name}: {_number(calls, 'call')}, {_number(len(captures), 'capture')} to replay"]
    if history:
        lines += ["captured at", *[f"  {entry}" for entry in history]]
    for number, (key, capture) in enumerate(captures, 1):
        lines += _one(number, key, capture)
    if not captures and calls:
        lines.append("nothing is replayed yet: the next call is captured again")
    return "\n".join(lines)


def _one(number: int, key: tuple[Any, ...], capture: Any) -> list[str]:
    program = capture.program
    lines = [
        f"capture {number} ({capture.reason}): {_number(capture.kernels, 'kernel')}, "
        f"replayed {_number(capture.replays, 'time')}"
    ]
    lines += _list("inputs", inputs(capture))
    lines += _list("outputs", outputs(capture))
    written = set(capture.in_place)
    moved = {update.node for update in capture.updates}
    state = []
    for slot in dict.fromkeys(s.number for s in capture.states):
        is_written = slot in written or program.nodes[slot] in moved
        what = "read and written" if is_written else "read"
        state.append(
            f"{capture.names.get(slot, 'a tensor that lives outside')}: {_memory(program.nodes[slot])}, {what}"
        )
    lines += _list("state", state)
    values = [f"argument {path} = {_shown(value)}" for path, value in key[0] if value != "Tensor" and path != "objects"]
    values += [
        f"argument {path} = {_shown(v)}" for p, found in key[0] if p == "objects" for path, v in found if _plain(v)
    ]
    values += [
        f"{path} = {_shown(value)}" for path, value in key[2] if path and _plain(value) and not _absent(path, value)
    ]
    values.append(f"Tensor.training = {key[3]}")
    lines += _list("guards", values)
    if capture.draws:
        lines.append(f"  random numbers: {_number(capture.draws, 'draw')} a call")
    names = [call.kernel.name for call in program.calls if call.kernel is not None]
    return lines + _list("launches", names)


def _absent(path: str, value: Any) -> bool:
    """Whether it says only that a function has no defaults."""
    return path.startswith("default of ") and _shown(value) == "None"


def _plain(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and value[0] != "Tensor"


def _list(title: str, entries: Sequence[str]) -> list[str]:
    return [f"  {title}", *[f"    {entry}" for entry in entries]] if entries else []


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
