"""What a jitted function captured, in words: for `explain`, and for the error that names the value which moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradlet.engine.arenas import memory_line
from gradlet.engine.compile import CompiledKernel


@dataclass(frozen=True)
class ReplayedKernel:
    """One launch of a capture.

    Attributes:
        name: the kernel's.
        device: where it runs.
        reads, writes: its memory: number of elements and type of each buffer; one that is written is in `writes` only.
        once: whether it runs once for the values of the weights, not at every call.
    """

    name: str
    device: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    once: bool
    _kernel: Any

    @property
    def ast(self) -> Any:
        """Its graph, of stage KERNEL."""
        return self._kernel.ast

    @property
    def opts(self) -> str:
        """The words of the schedule language that it was compiled with; of a launch, those of each of its kernels."""
        if not isinstance(self._kernel, CompiledKernel):
            return "none"  # run by the reference evaluator
        from gradlet.optimize.opttext import opts_text

        program: Any = self._kernel.lowered()
        return "; ".join(opts_text(each.opts) or "none" for each in getattr(program, "programs", (program,)))

    def __str__(self) -> str:
        once = ", once for the weights' values" if self.once else ""
        read = ", ".join(self.reads) or "nothing"
        return f"{self.name} on {self.device}: reads {read}, writes {', '.join(self.writes)}{once}"


def kernels(capture: Any) -> list[ReplayedKernel]:
    """The launches of a capture, in order."""
    program, found = capture.program, []
    once = {id(call) for call in program.prologue.once.calls} if program.prologue is not None else set()
    for call in program.calls:
        if call.kernel is None:
            continue
        sizes = [_elements(program.nodes[slot]) for slot in call.slots]
        reads = tuple([size for place, size in enumerate(sizes) if place not in call.written])
        writes = tuple([sizes[place] for place in call.written])
        found.append(ReplayedKernel(call.kernel.name, call.device, reads, writes, id(call) in once, call.kernel))
    return found


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
            if _is_tensor(before[path]) and _is_tensor(now[path]):
                return f"aliasing of {path}: which names stand for one tensor"
            return f"values of {path or 'the function'} ({_shown(before[path])}, now {_shown(now[path])})"
    for old, new in zip(last[4], key[4], strict=False):
        if old != new:
            return f"form of {new[0]}: its shape, dtype, device or view"
    if last[5] != key[5]:
        return "aliasing of arguments with each other or with what is closed over"
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


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] == "Tensor"


def _form(node: Any) -> str:
    return f"{tuple(node.shape)} {str(node.dtype).removeprefix('dtypes.')}"


def inputs(capture: Any) -> list[str]:
    """The tensor arguments of a capture."""
    nodes = capture.program.nodes
    return [f"{capture.names[slot]}: {_memory(nodes[slot])}" for slot in capture.inputs]


def _memory(node: Any) -> str:
    return f"{_elements(node)} on {node.arg.device}"


def _elements(node: Any) -> str:
    return f"{node.arg.size} x {str(node.dtype).removeprefix('dtypes.')}"


def outputs(capture: Any) -> list[str]:
    """The tensors in the result of a capture."""
    found = zip(capture.result_paths, capture.results, strict=True)
    return [f"{path}: {_form(node)}" for path, node in found if path.startswith("result")]


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
    lines += _list("put into places", [put.name for put in capture.puts.all])
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
    lines += _list("launches", [str(kernel) for kernel in kernels(capture)])
    return [*lines, f"  {memory_line(program.memory)}"]


def _absent(path: str, value: Any) -> bool:
    """Whether it says only that a function has no defaults."""
    return path.startswith("default of ") and _shown(value) == "None"


def _plain(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and value[0] != "Tensor"


def _list(title: str, entries: Sequence[str]) -> list[str]:
    return [f"  {title}", *[f"    {entry}" for entry in entries]] if entries else []


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
