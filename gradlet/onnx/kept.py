"""What processes captured of a model file, on disk: later ones replay it, and neither parse, check nor walk the model.

Entries are named by everything in the file but the data of large weights, which each process reads for itself. Where
such data decided something while the model was walked, the entry says which data that was.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final
from weakref import WeakSet

import numpy as np

from gradlet.base import settings
from gradlet.base.dtype import dtypes
from gradlet.base.errors import JitError
from gradlet.base.fingerprint import fingerprint
from gradlet.engine.execute import base_buffer
from gradlet.io.exported import described
from gradlet.io.kept import count_work, entry_name, is_watched, packed, unpacked, work_of
from gradlet.io.manifest import Manifest, largest
from gradlet.io.program import Program
from gradlet.onnx.graph import Info, Model
from gradlet.onnx.layouts import Dim, Layout
from gradlet.onnx.outline import Source
from gradlet.onnx.sizes import MOST_LAYOUTS, Sizes
from gradlet.runtime import diskcache
from gradlet.runtime.buffer import Buffer, buffer_of, side_by_side
from gradlet.runtime.device import Device
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor

MOST_DATA: Final = 1 << 25  # bytes of weights that no name finds and that are kept in a capture
MOST_SORTS: Final = 32  # of calls, whose programs are held


class Interface:
    """What a model takes and gives, as far as calls need it."""

    def __init__(self, model: Model) -> None:
        graph = model.graph
        self.all_inputs: list[Info] = graph.inputs
        self.inputs: list[Info] = [i for i in graph.inputs if i.name not in graph.constants]
        self.outputs: list[Info] = list(graph.outputs)


class KeptCalls:
    """The captures of one model that lie on disk."""

    def __init__(self, source: Source, device: str | None) -> None:
        self._source = source
        self._device = device
        self._replays: dict[Any, _Sort | None] = {}  # by sort of call; None: nothing is kept of it
        self._layouts: dict[Any, dict[Layout, _Sort]] = {}  # of calls with some sizes that vary, by all else
        self._setting, self._changes = "", -1  # what the replays belong to
        self._written: WeakSet[jit] = WeakSet()  # captures that were written down, or cannot be

    @property
    def _name(self) -> str:
        outline = self._source.outline
        assert outline is not None
        return outline.name

    # the model
    def interface(self) -> Interface | None:
        """What the model takes and gives, if some process checked it."""
        content = diskcache.get(self._interface_entry())
        return None if content is None else pickle.loads(content)  # type: ignore[no-any-return]

    def remember_interface(self, interface: Interface) -> None:
        """Say that the model was checked."""
        diskcache.put(self._interface_entry(), pickle.dumps(interface, pickle.HIGHEST_PROTOCOL))

    def _interface_entry(self) -> str:
        return diskcache.key("onnx", self._name, fingerprint())

    # calls
    def results(self, given: Mapping[str, Any], sizes: Sizes) -> list[Tensor] | None:
        """The outputs for some arrays, or None where this call has to be made the long way: nothing was done.

        `sizes` says which sizes may vary, and how often calls came.
        """
        sort = self._sort(given)
        if sort is None:
            return None
        if not sizes.given:
            if sort not in self._replays:
                if len(self._replays) >= MOST_SORTS:
                    del self._replays[next(iter(self._replays))]
                content = diskcache.get(self._entry(sort))
                self._replays[sort] = None if content is None else _Sort(pickle.loads(content))
            found = self._replays[sort]
            if found is not None:
                replay = self._replay(sort, found, given, None)
                if replay is not None:
                    return replay.run(given)
        return self._results_of_sizes(given, sizes)

    def _replay(self, sort: Any, found: _Sort, given: Mapping[str, Any], layout: Layout | None) -> _Replay | None:
        numbers = tuple([given[name].tobytes() for name in found.numbers])
        if numbers not in found.replays:
            if len(found.replays) >= MOST_SORTS:
                del found.replays[next(iter(found.replays))]
            found.replays[numbers] = self._recall(sort, numbers, layout)
        return found.replays[numbers]

    def _results_of_sizes(self, given: Mapping[str, Any], sizes: Sizes) -> list[Tensor] | None:
        """The outputs by a capture whose sizes vary, the one with the least memory."""
        kind = _kind(given, sizes)
        if kind not in self._layouts:
            if len(self._layouts) >= MOST_SORTS:
                del self._layouts[next(iter(self._layouts))]
            content = diskcache.get(self._entry(kind))
            rows = [] if content is None else pickle.loads(content)
            self._layouts[kind] = {layout: _Sort(numbers) for layout, numbers in rows}
        if not self._layouts[kind]:
            return None
        shapes = sizes.shapes(given)
        fitting = [(layout, values) for layout in self._layouts[kind] if (values := layout.values(shapes)) is not None]
        if not fitting or sizes.count(shapes):
            return None
        layout, values = min(fitting, key=lambda pair: pair[0].elements)
        replay = self._replay((kind, layout), self._layouts[kind][layout], given, layout)
        return None if replay is None else replay.run(given, values)

    def remember(
        self,
        given: Mapping[str, Any],
        names: Sequence[str],
        numbers: Sequence[str],
        function: jit,
        args: Any,
        model: Model,
        varying: tuple[Layout, Sizes] | None = None,
    ) -> None:
        """Write down what was captured for some arrays, if it can be.

        Args:
            given: the arrays of the call.
            names: of the inputs that became arguments, in order.
            numbers: the inputs whose data decided something.
            function: the model, jitted.
            args: its arguments.
            model: with the weights that it reads.
            varying: which sizes vary, and what the model has of such captures.
        """
        sort = self._sort(given)
        if sort is None or model.borrows or function in self._written:
            return
        self._written.add(function)
        layout = None if varying is None else varying[0]
        try:
            found = described(function, args)
        except JitError:
            return
        if found is None or not _is_plain(found.manifest, given, names, layout):
            return
        weights = self._weights(found.weights, model)
        if weights is None:
            return
        places, data = weights
        read = {name: self._digest(name) for name in self._layout() if model.graph.constants[name].was_read}
        content = (self._layout(), read, tuple(names), places, packed(found, data))
        values = tuple([given[name].tobytes() for name in numbers])
        entry: Any = tuple(numbers)
        if varying is not None:
            sort = _kind(given, varying[1])
            before = diskcache.get(self._entry(sort))
            rows = [row for row in (pickle.loads(before) if before else []) if row[0] != layout]
            entry = [*rows[-MOST_LAYOUTS:], (layout, tuple(numbers))]
            self._layouts.pop(sort, None)
        place = sort if layout is None else (sort, layout)
        diskcache.put(self._capture_entry(place, values), pickle.dumps(content, pickle.HIGHEST_PROTOCOL))
        diskcache.put(self._entry(sort), pickle.dumps(entry, pickle.HIGHEST_PROTOCOL))

    def _sort(self, given: Mapping[str, Any]) -> Any:
        """What is the same for calls that do the same; None for those of which nothing is kept."""
        if is_watched() or Device.canonicalize(self._device) != "CPU":
            return None
        found = []
        for name, array in given.items():
            if array.__class__ is not np.ndarray or not array.dtype.isnative:
                return None
            found.append((name, array.dtype, array.shape))
        if self._changes != settings.Setting.changes:
            setting = entry_name("onnx settings", dtypes.default_float.name, dtypes.default_int.name)
            if setting != self._setting:
                self._replays.clear()
                self._layouts.clear()
            self._setting, self._changes = setting, settings.Setting.changes
        return tuple(found)

    def _entry(self, sort: Any) -> str:
        return entry_name("onnx", self._name, self._setting, repr(sort))

    def _capture_entry(self, sort: Any, numbers: Sequence[bytes]) -> str:
        return entry_name("onnx numbers", self._entry(sort), *[number.hex() for number in numbers])

    def _layout(self) -> dict[str, tuple[int, int]]:
        outline = self._source.outline
        assert outline is not None
        return outline.stored

    # weights
    def _weights(self, tensors: Mapping[str, Tensor], model: Model) -> tuple[dict[str, str], dict[str, bytes]] | None:
        """Which weights of a capture are which of the file, and the data of all others; None where that is too much."""
        stored: dict[int, str] = {}
        for name in self._layout():
            value = model.graph.constants[name]
            if value.is_tensor:
                stored[id(buffer_of(base_buffer(value.needed().uop)))] = name
        places: dict[str, str] = {}
        data: dict[str, bytes] = {}
        for name, tensor in tensors.items():
            buffer = buffer_of(base_buffer(tensor.uop))
            memory, origin = np.frombuffer(buffer.memory(), np.uint8), stored.get(id(buffer))
            if origin is not None and np.array_equal(memory, np.frombuffer(self._stored(origin), np.uint8)):
                places[name] = origin
            else:
                data[name] = memory.tobytes()
        return None if sum(map(len, data.values())) > MOST_DATA else (places, data)

    def _stored(self, name: str) -> memoryview:
        """The data of a weight in the file."""
        begin, end = self._layout()[name]
        return memoryview(self._source.data)[begin:end]

    def _digest(self, name: str) -> bytes:
        """What tells the data of a weight from other data."""
        begin, end = self._layout()[name]
        data = bytearray(end - begin)
        self._source.read(begin, memoryview(data))
        return hashlib.blake2b(data).digest()

    def _filled(self, manifest: Manifest, places: Mapping[str, str], data: Mapping[str, bytes]) -> dict[str, Buffer]:
        """The weights of a capture, those that only its first launches read in a block of their own."""
        launched = {word for launch in manifest.launches for word in launch.words}
        buffers: dict[str, Buffer] = {}
        for stays in (True, False):
            values = [value for value in manifest.weights if (value.buffer in launched) is stays]
            new = side_by_side("CPU", [(value.dtype, prod(largest(value.shape))) for value in values])
            for value, buffer in zip(values, new, strict=True):
                origin = places.get(value.name)
                if origin is None:
                    buffer.copyin(data[value.name])
                else:
                    self._source.read(self._layout()[origin][0], buffer.memory())
                buffers[value.name] = buffer
        return buffers

    def _recall(self, sort: Any, numbers: Sequence[bytes], varying: Layout | None) -> _Replay | None:
        content = diskcache.get(self._capture_entry(sort, numbers))
        if content is None:
            return None
        layout, read, names, places, rest = pickle.loads(content)
        if layout != self._layout() or any(self._digest(name) != digest for name, digest in read.items()):
            return None
        program = unpacked(rest)
        if program is None:
            return None
        manifest, kernels, data = program
        buffers = self._filled(manifest, places, data)
        made = Program(manifest, [k.program for k in kernels], buffers, {})
        return _Replay(made, names, work_of(manifest, kernels), varying)


class _Sort:
    """Calls with arrays of certain names, types and sizes."""

    def __init__(self, numbers: tuple[str, ...]) -> None:
        self.numbers = numbers  # names of the inputs whose data decided something
        self.replays: dict[tuple[bytes, ...], _Replay | None] = {}


class _Replay:
    """One capture, ready; `layout` says which sizes vary: then arrays are copied to memory of the largest ones."""

    def __init__(
        self, program: Program, names: Sequence[str], work: tuple[int, int], layout: Layout | None = None
    ) -> None:
        self._program, self._names, self._work = program, names, work
        self._order = [one["output"] for one in program.manifest.result["list"]]
        self._variables = {} if layout is None else {v.arg.name: dim for dim, v in layout.variables().items()}
        self._memory = [
            np.zeros(largest(value.shape), value.dtype.name) for value in (program.manifest.inputs if layout else ())
        ]
        self._lock = threading.Lock()  # while the memory is in use

    def run(self, given: Mapping[str, Any], values: Mapping[Dim, int] | None = None) -> list[Tensor]:
        """The outputs for other arrays of the same sort."""
        if values is not None:
            return self._run_sizes(given, values)
        arrays = []
        for name in self._names:
            array = given[name]
            flags = array.flags
            arrays.append(array if flags.c_contiguous and flags.aligned else np.array(array, order="C"))
        outputs = self._program.run_over([a.ctypes.data if a.nbytes else 0 for a in arrays])
        count_work(self._work)
        return [outputs[number] for number in self._order]

    def _run_sizes(self, given: Mapping[str, Any], values: Mapping[Dim, int]) -> list[Tensor]:
        variables = {name: values[dim] // dim.step for name, dim in self._variables.items()}
        with self._lock:
            for name, memory in zip(self._names, self._memory, strict=True):
                memory[tuple([slice(size) for size in given[name].shape])] = given[name]
            outputs = self._program.run_over([a.ctypes.data if a.nbytes else 0 for a in self._memory], variables)
        count_work(self._work)
        return [outputs[number] for number in self._order]


def _kind(given: Mapping[str, Any], sizes: Sizes) -> Any:
    """What is the same for calls that differ in sizes alone."""
    limits = None if sizes.given is None else tuple(sizes.given.values())
    return "sizes", limits, tuple([(name, array.dtype, array.ndim) for name, array in given.items()])


def _is_plain(manifest: Manifest, given: Mapping[str, Any], names: Sequence[str], layout: Layout | None) -> bool:
    """Whether a program takes the arrays as they are, gives new tensors, and changes nothing else."""
    if manifest.state or manifest.random or manifest.moves or manifest.updated:
        return False
    known = set() if layout is None else {variable.arg.name for variable in layout.variables().values()}
    if any(variable.source != "constant" and variable.name not in known for variable in manifest.variables):
        return False
    if any(manifest.buffers[value.buffer].role != "output" for value in manifest.outputs):
        return False
    if len(names) != len(manifest.inputs) or set(names) != set(given):
        return False
    result = manifest.result.get("list")
    if result is None or any(set(one) != {"output"} for one in result):
        return False
    pairs = [(given[name], value) for name, value in zip(names, manifest.inputs, strict=True)]
    if layout is not None:
        shapes = [shape for shape in layout.largest() if shape is not None]
        fits = [largest(value.shape) == shape for (_, value), shape in zip(pairs, shapes, strict=True)]
        return all(fits) and all(a.dtype.name == value.dtype.name for a, value in pairs)
    return all(a.dtype.name == value.dtype.name and a.shape == value.shape for a, value in pairs)
