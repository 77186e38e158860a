"""Jitted functions whose captures later processes find on disk, and run without tracing, scheduling or compiling.

    step = Kept(jit(model.step), "all that the function does depends on")
    step(x)

A capture lies beside the machine code of its kernels, as what `io/exported` says of it; data stays where it is: weights
and state are found again by the names that the function has for them.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Collection, Mapping, Sequence
from math import prod
from operator import attrgetter, getitem, is_
from typing import Any, Final, NamedTuple

from gradlet.base import events, settings
from gradlet.base.errors import JitError
from gradlet.base.fingerprint import fingerprint
from gradlet.device.cpu.launching import CpuProgram
from gradlet.engine import execute, programs
from gradlet.graph.digest import text_of
from gradlet.graph.node import UOp
from gradlet.io.exported import Described, described
from gradlet.io.manifest import Manifest, Value, largest
from gradlet.io.program import Program
from gradlet.ops.op import MOVEMENT, Op
from gradlet.runtime import diskcache
from gradlet.runtime.buffer import Buffer, buffer_of
from gradlet.runtime.counters import GlobalCounters
from gradlet.runtime.device import Device
from gradlet.tensor.elsewhere import Elsewhere, Programs
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor

MOST_DATA: Final = 1 << 20  # bytes of tables without a name that are kept in a capture
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]")
_node_of: Final = attrgetter("uop")


class Kept:
    """A jitted function: a call like one that some process made before replays what that captured.

    What is found on disk is used while the tensors that the function reads are in the places and the memory where they
    were; else, and wherever somebody watches launches, the function itself is called.

    Args:
        function: a jitted function whose names begin at `root`, as those of `jit(root.method)` do.
        root: the object in which weights and state are looked up.
        name: of all that the function does depends on, beside its arguments, gradlet and the machine.
    """

    def __init__(self, function: jit, root: Any, name: str) -> None:
        self.function, self._root, self._name = function, root, name
        self._found = Programs()  # by sort of call; None: what was captured here is replayed

    def __call__(self, *args: Any) -> Any:
        if is_watched():
            return self.function(*args)
        sort = _sort_of(args)
        replay = self._found.by_sort[sort] if sort in self._found.by_sort else self._recall(sort)
        if replay is not None and replay.fits():
            self._found.by_sort[sort] = replay
            return replay.run(args)
        result = self.function(*args)
        if sort not in self._found.by_sort and self._remember(sort, args):
            self._found.by_sort[sort] = None
        return result

    def _entry(self, sort: Any) -> str:
        """The name on disk of what calls of some sort do."""
        return entry_name(self._name, repr(sort))

    def _remember(self, sort: Any, args: Sequence[Any]) -> bool:
        """Write down what was captured for these arguments, if it can be; False where nothing is captured yet."""
        try:
            found = described(self.function, args)
        except JitError:
            return True
        if found is None:
            return False
        if found.manifest.once or found.manifest.random or found.manifest.moves:
            return True
        manifest = found.manifest
        data: dict[str, bytes] = {}
        places = _Places(self._root)
        tensors = {**found.weights, **found.state}
        for value in (*manifest.weights, *manifest.state):
            buffer = buffer_of(execute.base_buffer(tensors[value.name].uop))
            if places.buffer(value) is not buffer:
                data[value.name] = bytes(buffer.memory())
        if any(value.name in data for value in manifest.state) or sum(map(len, data.values())) > MOST_DATA:
            return True
        diskcache.put(self._entry(sort), packed(found, data))
        return True

    def _recall(self, sort: Any) -> _Replay | None:
        content = diskcache.get(self._entry(sort))
        if content is None:
            return None
        found = unpacked(content)
        if found is None:
            return None
        manifest, kernels, data = found
        places = _Places(self._root)
        buffers: dict[str, Buffer] = {}
        for value in (*manifest.weights, *manifest.state):
            raw = data.get(value.name)
            buffer = places.buffer(value) if raw is None else filled(value, raw)
            if buffer is None:
                return None
            buffers[value.name] = buffer
        return _Replay(manifest, kernels, buffers, places)


class _Places:
    """Where tensors were found from an object on, and whether they are still there."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}  # container, key, what it held
        self._tensors: dict[str, Tensor] = {}
        self._nodes: dict[str, UOp] = {}
        self._known: tuple[list[Any], ...] | None = None

    def buffer(self, value: Value) -> Buffer | None:
        """The memory of the tensor that a function calls `self.layers[0].weight`, None where there is none like it."""
        tensor = self._tensor(value.name)
        if tensor is None:
            return None
        base = node = tensor.uop
        while base.op in MOVEMENT:
            base = base.src[0]
        fits = base.op is Op.BUFFER and base.dtype is value.dtype and base.arg.device == "CPU"
        if not fits or base.arg.size != prod(largest(value.shape)):
            return None
        self._tensors[value.name], self._nodes[value.name] = tensor, node
        return buffer_of(base)

    def _tensor(self, name: str) -> Tensor | None:
        found, at = self._root, len("self")
        while at < len(name):
            step = _STEP.match(name, at)
            if step is None:
                return None
            attribute, number, key = step.groups()
            container = getattr(found, "__dict__", None) if attribute else found
            where = attribute or (int(number) if number else key)
            try:
                held = container[where]  # type: ignore[index]
            except (LookupError, TypeError):
                return None
            self._steps[id(container), where] = container, where, held
            found, at = held, step.end()
        return found if isinstance(found, Tensor) and name.startswith("self") else None

    def elsewhere(self, names: Collection[str]) -> Elsewhere:
        """Whether others see the memory of some of the tensors."""
        nodes = [execute.base_buffer(self._nodes[name]) for name in names]
        return Elsewhere(nodes, [id(self._tensors[name]) for name in names])

    def are_known(self) -> bool:
        """Whether all that was found is still there."""
        if self._known is None:
            steps = [[step[n] for step in self._steps.values()] for n in range(3)]
            self._known = (*steps, [*self._tensors.values()], [*self._nodes.values()])
        containers, keys, held, tensors, nodes = self._known
        try:
            return all(map(is_, map(getitem, containers, keys), held)) and all(map(is_, map(_node_of, tensors), nodes))
        except LookupError:
            return False


class _Replay:
    """What was found for one sort of calls, over the memory that its tensors have."""

    def __init__(self, manifest: Any, kernels: Sequence[Any], buffers: Mapping[str, Buffer], places: _Places) -> None:
        self._program = Program(manifest, [kernel.program for kernel in kernels], buffers, buffers, is_live=True)
        self._places, self._elsewhere = places, places.elsewhere([value.name for value in manifest.state])
        self._state = [buffers[value.name] for value in manifest.state]
        self._work = work_of(manifest, kernels)

    def fits(self) -> bool:
        """Whether the tensors are where they were, and nobody but them sees what is written."""
        return self._places.are_known() and not self._elsewhere.is_seen()

    def run(self, args: Sequence[Any]) -> Any:
        """Run it with other arguments of the same sort."""
        variables = {a.src[0].arg.name: a.src[1].arg for a in args if type(a) is UOp}
        result = self._program(*[a for a in args if isinstance(a, Tensor)], **variables)
        for buffer in self._state:
            buffer.changed()
        count_work(self._work)
        return result


def _sort_of(args: Sequence[Any]) -> Any:
    """What is the same for calls that do the same."""
    return tuple(
        [
            (a.dtype.name, a.shape, a.device)
            if isinstance(a, Tensor)
            else a.src[0].arg
            if type(a) is UOp
            else (type(a), a)
            for a in args
        ]
    )


def entry_name(*parts: str) -> str:
    """The name on disk of a capture: what it depends on beside gradlet, its settings and the machine is in `parts`."""
    keys = text_of((settings.codegen_key(), settings.schedule_key()))
    devices = Device.DEFAULT, Device["CPU"].target.text
    return diskcache.key("capture", *parts, *devices, keys, fingerprint()) + diskcache.CAPTURE


class Kernel(NamedTuple):
    """A kernel that some process compiled, with the operations and bytes of a launch."""

    program: CpuProgram
    flops: int
    bytes: int


def packed(found: Described, data: Mapping[str, bytes]) -> bytes:
    """A capture for other processes: all but its code, which they find by the names of its kernels.

    Args:
        found: the capture.
        data: the content of weights that they could not find.
    """
    target = Device["CPU"].target
    entries = [programs.entry_name(kernel.ast, target) for kernel in found.kernels]
    return pickle.dumps((found.manifest, entries, dict(data)), pickle.HIGHEST_PROTOCOL)


def unpacked(content: bytes) -> tuple[Manifest, list[Kernel], dict[str, bytes]] | None:
    """`packed` reversed, with the kernels ready; None where the code of one is gone."""
    manifest, entries, data = pickle.loads(content)
    kernels = []
    for entry in entries:
        kernel = _recalled(entry)
        if kernel is None:
            return None
        kernels.append(kernel)
    return manifest, kernels, data


def _recalled(entry: str) -> Kernel | None:
    record = programs.recall(entry)
    backend: Any = Device["CPU"]
    program = backend.recall(record.described) if record is not None else None
    return None if record is None or program is None else Kernel(program, record.flops, record.bytes)


def work_of(manifest: Manifest, kernels: Sequence[Kernel]) -> tuple[int, int]:
    """Operations and bytes of one call."""
    launched = [kernels[launch.kernel] for launch in manifest.launches]
    return sum([kernel.flops for kernel in launched]), sum([kernel.bytes for kernel in launched])


def count_work(work: tuple[int, int]) -> None:
    """Count a call."""
    GlobalCounters.ops += work[0]
    GlobalCounters.bytes += work[1]


def is_watched() -> bool:
    """Whether calls have to be made the long way: somebody looks at launches, or what they mean depends on more."""
    off = not settings.CACHE or settings.DEBUG >= 2 or events.active()
    return off or bool(Tensor.training) or execute.recording()


def filled(value: Value, raw: Any) -> Buffer:
    """New memory with some content."""
    buffer = Buffer("CPU", value.dtype, prod(largest(value.shape)))
    buffer.copyin(raw)
    return buffer
