"""`.gradlet` files: a jitted function with its weights and state in one file that runs without tracing or compiling.

    step.export("step.gradlet", x)          # write
    step = program.load("step.gradlet")     # read, in any process
    step(x)                                 # run

docs/export.md describes the format. A file holds machine code: run only files that you trust.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, FileFormatError, GradletError, ShapeError
from gradlet.device.cpu import processor
from gradlet.device.cpu.graph import CpuGraph
from gradlet.device.cpu.image import MAGIC, Parts, joined, put_together
from gradlet.device.cpu.jit import Loaded
from gradlet.device.cpu.jit import load as load_code
from gradlet.device.cpu.launching import CpuProgram
from gradlet.device.cpu.plan import plan_from
from gradlet.device.cpu.target import host_target, runnable
from gradlet.engine.compile import get_kernel
from gradlet.engine.execute import base_buffer
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp, mk
from gradlet.graph.spec import check_node
from gradlet.graph.text import from_text, to_text
from gradlet.io import safetensors
from gradlet.io.archive import Archive, write
from gradlet.io.exported import exported
from gradlet.io.files import path_text
from gradlet.io.manifest import Extent, Launch, Manifest, Value, largest, parse, shape_at
from gradlet.ops.op import KernelArg, Op, ShapeArg, Stage
from gradlet.runtime.buffer import Buffer, bind, buffer_of, new_buffer_node, side_by_side
from gradlet.runtime.counters import GlobalCounters
from gradlet.runtime.device import Device, GraphLaunch
from gradlet.tensor import symbolic
from gradlet.tensor.random_state import WORD
from gradlet.tensor.tensor import Tensor

MANIFEST: Final = "manifest.json"
WEIGHTS: Final = "weights.safetensors"
STATE: Final = "state.safetensors"
CODE: Final = "code.bin"
MOST_TEXT: Final = 1 << 28  # bytes of a manifest or of a kernel's graph
MOST_CODE: Final = 1 << 31
RANDOM: Final = "random"  # in the free text of a file of state


def export(
    function: Any, path: str | os.PathLike[str], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> None:
    """Write a jitted function as a file; `function.export(path, *args)` is the same.

    The function is traced with these arguments and the call is undone: nothing has changed afterwards.

    Raises:
        JitError: the function cannot be captured, or does something that a file cannot hold.
        OSError: the file cannot be written.
    """
    found = exported(function, args, kwargs or {})
    backend: Any = Device["CPU"]
    codes = [backend.compile(program) for program in found.lowered]
    manifest = found.manifest
    manifest.objects = [number for number, code in enumerate(codes) if not code.startswith(MAGIC)]
    nothing = put_together(Parts({}, [], b""))
    parts = joined([code if code.startswith(MAGIC) else nothing for code in codes])
    manifest.functions, manifest.addresses = parts.functions, parts.words
    packed: dict[str, bytes] = {MANIFEST: manifest.text().encode()}
    packed |= {_text_name(number): to_text(ast).encode() for number, ast in enumerate(found.asts)}
    packed |= {_object_name(number): codes[number] for number in manifest.objects}
    plain: dict[str, Sequence[bytes | memoryview]] = {
        CODE: [parts.code],
        WEIGHTS: safetensors.encoded(found.weights),
        STATE: safetensors.encoded(found.state),
    }
    write(path, packed, plain)


def _text_name(number: int) -> str:
    return f"kernels/{number:04}.txt"


def _object_name(number: int) -> str:
    return f"kernels/{number:04}.o"


def load(path: str | os.PathLike[str]) -> Program:
    """The program in a file. On a processor of the kind it was written for nothing is compiled.

    Raises:
        FileFormatError: truncated, damaged, inconsistent, or of a newer format; naming the file and the problem.
        OSError: the file cannot be opened.
    """
    archive = Archive(path_text(path))
    manifest = parse(archive.read(MANIFEST, MOST_TEXT), archive.path, max(0, archive.view(CODE).nbytes))
    weights = _arrays(archive, WEIGHTS, manifest.weights)
    state = _arrays(archive, STATE, manifest.state)
    if runs_here(manifest.target):
        programs, compiled = _from_code(archive, manifest), 0
    else:
        programs = [_from_text(archive, manifest, number) for number in range(len(manifest.kernels))]
        compiled = len(programs)
    return Program(manifest, programs, weights, state, compiled)


def runs_here(target: Mapping[str, str]) -> bool:
    """Whether this machine runs code for a target."""
    host = host_target()
    known = runnable()[runnable().index(host.name) :]  # CPU_FEATURES may ask for less than there is
    if target["triple"] != host.triple or target["name"] not in known:
        return False
    more = {word.removeprefix("+") for word in target["features"].split(",") if word.startswith("+")}
    return target["features"] == host.features or more <= processor.features()


def _arrays(archive: Archive, member: str, rows: Sequence[Value]) -> dict[str, Buffer]:
    """The buffers over a file's arrays, by name.

    Raises:
        FileFormatError: the arrays are not those of the manifest.
    """
    found = safetensors.load_from(archive.view(member), f"{archive.path}: {member}")
    if set(found) != {row.name for row in rows}:
        odd = sorted(set(found) ^ {row.name for row in rows})[0]
        raise FileFormatError(f"{archive.path}: {member} and the manifest differ: {odd!r} is in one of them only")
    buffers = {}
    for row in rows:
        tensor = found[row.name]
        if tensor.dtype is not row.dtype or tuple(tensor.shape) != largest(row.shape):
            raise FileFormatError(
                f"{archive.path}: {member}: {row.name!r} is {tensor.dtype.name}{list(tensor.shape)}, the manifest says "
                f"{row.dtype.name}{list(largest(row.shape))}"
            )
        buffers[row.name] = buffer_of(base_buffer(tensor.uop))
    return buffers


# kernels
class _Functions(Loaded):
    """Some functions of an image of many."""

    def __init__(self, image: Loaded, addresses: dict[str, int]) -> None:
        self._image = image
        self.addresses = addresses

    def keep_forever(self) -> None:
        self._image.keep_forever()

    def unload(self) -> None:
        """The image goes with the last of them."""


def _from_code(archive: Archive, manifest: Manifest) -> list[CpuProgram]:
    """All kernels as machine code."""
    code = archive.read(CODE, MOST_CODE)
    image: Loaded | None = None
    if manifest.functions:
        parts = Parts(manifest.functions, manifest.addresses, code)
        image = load_code(put_together(parts), tuple(manifest.functions))
    programs = []
    for number, row in enumerate(manifest.kernels):
        plan = plan_from(row)
        if number in manifest.objects:
            loaded = load_code(archive.read(_object_name(number), MOST_CODE), plan.stages, plan.entries)
        else:
            assert image is not None  # the manifest was checked: it has the functions of this kernel
            loaded = _Functions(image, {name: image.addresses[f"{number}:{name}"] for name in plan.stages})
        programs.append(CpuProgram(loaded, plan))
    return programs


def _from_text(archive: Archive, manifest: Manifest, number: int) -> CpuProgram:
    """A kernel compiled for this machine from its graph.

    Raises:
        FileFormatError: the graph is not that of a kernel of so many words.
    """
    name = _text_name(number)
    text = archive.read(name, MOST_TEXT).decode("utf-8", "replace")
    try:
        ast = _unscheduled(from_text(text))
        check_node(ast, Stage.KERNEL)
        program: CpuProgram = get_kernel(ast, "CPU").program  # type: ignore[attr-defined]
    except (GradletError, AttributeError, AssertionError, RecursionError) as error:
        raise FileFormatError(
            f"{archive.path}: {name} cannot be compiled for {host_target().name}, and the machine code is for "
            f"{manifest.target['name']}: {error}"
        ) from None
    if program.words != manifest.kernels[number].words:
        raise FileFormatError(f"{archive.path}: {name} takes {program.words} words, the manifest says otherwise")
    return program


def _unscheduled(ast: UOp) -> UOp:
    """A kernel whose schedule this machine chooses."""
    if ast.op is not Op.SINK:
        return ast
    if is_launch(ast.arg):
        return mk(Op.SINK, ast.dtype, tuple([_unscheduled(body) for body in ast.src]), ast.arg)
    return mk(Op.SINK, ast.dtype, ast.src, KernelArg(ast.arg.name))


class Program:
    """A loaded program: call it with its inputs, in order or by name.

    Attributes:
        name: of the function that was exported.
        inputs, outputs: what it takes and gives, in words.
        variables: sizes and positions that a call may choose: name -> (low, high).
        kernels: how many one call launches.
        compiled: how many were compiled when it was loaded: none on a processor of the kind it was written for.
    """

    def __init__(
        self, manifest: Manifest, programs: Sequence[CpuProgram], weights: Mapping[str, Buffer],
        state: Mapping[str, Buffer], compiled: int = 0, is_live: bool = False,
    ) -> None:  # fmt: skip
        """Make it ready; `is_live`: state is used where it is, and not as what a copy begins with."""
        self.manifest = manifest
        self.name, self.compiled, self.kernels = manifest.name, compiled, len(manifest.launches)
        self.inputs, self.outputs = [str(v) for v in manifest.inputs], [str(v) for v in manifest.outputs]
        self.variables = {v.name: (v.low, v.high) for v in manifest.variables if v.source == "call"}
        self._lock = threading.Lock()
        self._first = state  # what state is after `reset`
        self._places: list[Buffer | None] = [None] * len(manifest.buffers)
        arena = Buffer("CPU", dtypes.uint8, manifest.arena)
        for number, place in enumerate(manifest.buffers):
            if place.role == "scratch":
                self._places[number] = Buffer.part(arena, place.offset, place.dtype, place.size)
            elif place.role == "state":
                self._places[number] = Buffer("CPU", place.dtype, place.size)
        made = [number for number, place in enumerate(manifest.buffers) if place.role == "made"]
        rows = [(manifest.buffers[number].dtype, manifest.buffers[number].size) for number in made]
        for number, buffer in zip(made, side_by_side("CPU", rows), strict=True):
            self._places[number] = buffer
        for value in manifest.weights:
            self._places[value.buffer] = weights[value.name]
        for value in manifest.state if is_live else ():
            self._places[value.buffer] = state[value.name]
        self._graph = self._graph_of(programs, manifest.launches)
        self._random = dict(manifest.random or {})
        self._constants = [v.number for v in manifest.variables]  # where all variables are constants
        sizes = [(v, largest(v.shape)) for v in manifest.outputs]
        self._outputs = [(v.buffer, v.dtype, prod(shape), shape) for v, shape in sizes]
        if not is_live:
            self.reset()
        once = self._graph_of(programs, manifest.once)
        if once is not None:
            self._give_all(once)
            once.run()
            self._let_go()
        if self._graph is not None:
            self._give_all(self._graph)

    def _graph_of(self, programs: Sequence[CpuProgram], launches: Sequence[Launch]) -> CpuGraph | None:
        if not launches:
            return None
        words = len(self.manifest.buffers) + len(self.manifest.variables)
        return CpuGraph([GraphLaunch(programs[launch.kernel], launch.words) for launch in launches], words)

    def _let_go(self) -> None:
        """Drop the weights that only the launches which have run needed."""
        used = {word for launch in self.manifest.launches for word in launch.words}
        for value in self.manifest.weights:
            if value.buffer not in used:
                self._places[value.buffer] = None

    def _give_all(self, graph: CpuGraph) -> None:
        for number, buffer in enumerate(self._places):
            if buffer is not None and buffer.nbytes:
                graph.words[number] = buffer.address

    # state
    def state(self) -> dict[str, Tensor]:
        """A copy of what persists between calls, by name."""
        with self._lock:
            return {v.name: _tensor(self._copy(v.buffer), largest(v.shape)) for v in self.manifest.state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Give state other values: all of it or some, by name.

        Raises:
            ArgumentError: no such state.
        """
        rows = {v.name: v for v in self.manifest.state}
        new: dict[int, Buffer] = {}
        for name, value in state.items():
            row = rows.get(name)
            if row is None:
                raise ArgumentError(f"state: there is no {name!r}; it has {', '.join(rows) or 'none'}")
            new[row.buffer] = _dense(row, value, largest(row.shape))
        with self._lock:
            for number, buffer in new.items():
                self._place(number).copyin(buffer.memory())

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write state as a safetensors file; random numbers go on from there too."""
        with self._lock:
            found = {v.name: _tensor(self._copy(v.buffer), largest(v.shape)) for v in self.manifest.state}
            text = {RANDOM: json.dumps(self._random)} if self._random else None
        safetensors.save(found, path, text)

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Take state from a file that `save_state` wrote.

        Raises:
            FileFormatError: not such a file.
            ArgumentError: of another program.
        """
        found = safetensors.load(path)
        text = safetensors.load_metadata(path).get(RANDOM, "{}")
        try:
            random = json.loads(text)
            if not isinstance(random, dict) or not all(type(n) is int and 0 <= n < 1 << 64 for n in random.values()):
                raise ValueError("no counters")
        except ValueError as error:
            raise FileFormatError(f"{path}: the state of random numbers is damaged ({error})") from None
        missing = {v.name for v in self.manifest.state} ^ set(found)
        if missing or set(random) != set(self._random):
            what = sorted(missing)[0] if missing else RANDOM
            raise ArgumentError(f"{path}: is not the state of program {self.name!r}: {what!r} is in one of them only")
        self.set_state(found)
        self._random = random

    def reset(self) -> None:
        """Take the state that was exported."""
        with self._lock:
            for value in self.manifest.state:
                self._place(value.buffer).copyin(self._first[value.name].memory())
            self._random = dict(self.manifest.random or {})

    def _place(self, number: int) -> Buffer:
        found = self._places[number]
        assert found is not None
        return found

    def _copy(self, number: int) -> Buffer:
        source = self._place(number)
        buffer = Buffer("CPU", source.dtype, source.size)
        buffer.copyin(source.memory())
        return buffer

    # calls
    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run it once. Inputs are tensors, arrays or lists; variables are integers, by name, where no shape says them.

        Returns:
            What the function returned: its structure with new tensors.

        Raises:
            ArgumentError: a missing or unknown input, a variable outside of its limits.
            ShapeError, DTypeError: an input of another kind than was exported.
        """
        names = [v.name for v in self.manifest.inputs]
        if len(args) > len(names):
            raise ArgumentError(f"{self.name}: takes {len(names)} inputs in order, got {len(args)}: {self.signature()}")
        given = dict(zip(names, args, strict=False))
        twice = [name for name in inputs if name in given]
        if twice:
            raise ArgumentError(f"{self.name}: input {twice[0]!r} is given twice")
        return self._result(self.manifest.result, list(self.run({**given, **inputs}).values()))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Run it once; outputs by name, and behind them the inputs that it writes, with what they became.

        Raises:
            As for a call.
        """
        variables = self._variables(inputs)
        rows = self.manifest.inputs
        buffers = [self._input(row, inputs[row.name], shape_at(row.shape, variables)) for row in rows]
        outputs = {v.buffer: Buffer("CPU", v.dtype, prod(largest(v.shape))) for v in self.manifest.outputs}
        with self._lock:
            found = {row.buffer: buffer for row, buffer in zip(rows, buffers, strict=True) if row.buffer >= 0}
            self._run({**found, **outputs}, variables)
        result = {v.name: _cut(outputs[v.buffer], v, shape_at(v.shape, variables)) for v in self.manifest.outputs}
        for row, buffer in zip(rows, buffers, strict=True):
            if row.name in self.manifest.updated:
                new = _cut(buffer, row, shape_at(row.shape, variables))
                result[row.name if row.name not in result else f"{row.name} (input)"] = new
                given = inputs[row.name]
                if isinstance(given, Tensor):
                    given.replace(new)
        return result

    def run_over(self, addresses: Sequence[int], variables: Mapping[str, int] | None = None) -> list[Tensor]:
        """Run a program without state and written inputs over inputs that lie in host memory.

        Args:
            addresses: of the inputs, in order: dense, of the type and the largest shape that the manifest says.
            variables: the values of those that are no constants.

        Returns:
            The outputs, in order.
        """
        values = self._constants
        if variables:
            values = [variables.get(v.name, v.number) for v in self.manifest.variables]
        outputs = [(number, Buffer("CPU", dtype, size), shape) for number, dtype, size, shape in self._outputs]
        graph = self._graph
        with self._lock:
            if graph is not None:
                for row, address in zip(self.manifest.inputs, addresses, strict=True):
                    if row.buffer >= 0:
                        graph.words[row.buffer] = address
                for number, buffer, _ in outputs:
                    graph.words[number] = buffer.address if buffer.nbytes else 0
                for number, value in enumerate(values, len(self._places)):
                    graph.words[number] = value
                graph.run()
        GlobalCounters.kernels += self.kernels
        if not variables:
            return [_tensor(buffer, shape) for _, buffer, shape in outputs]
        known = {v.name: value for v, value in zip(self.manifest.variables, values, strict=True)}
        rows = zip(outputs, self.manifest.outputs, strict=True)
        return [_cut(buffer, row, shape_at(row.shape, known)) for (_, buffer, _), row in rows]

    def _run(self, moving: Mapping[int, Buffer], variables: Mapping[str, int]) -> None:
        places = {number: buffer.address if buffer.nbytes else 0 for number, buffer in moving.items()}
        if self._graph is not None:
            words = self._graph.words
            for number, address in places.items():
                words[number] = address
            for number, value in enumerate(self._values(variables), len(self._places)):
                words[number] = value
            self._graph.run()
        for to, source in self.manifest.moves:
            ends = [moving.get(n) or self._place(n) for n in (to, source)]
            if ends[0].nbytes:
                ctypes.memmove(ends[0].address, ends[1].address, ends[0].nbytes)
        if self._random:
            self._random["draws"] += self._random["each"]
        GlobalCounters.kernels += self.kernels

    def _values(self, variables: Mapping[str, int]) -> list[int]:
        found = []
        for row in self.manifest.variables:
            if row.source == "draw":
                found.append((self._random["draws"] + row.number) % WORD)
            elif row.source == "seed":
                found.append(self._random["seed"] // WORD if row.number else self._random["seed"] % WORD)
            else:
                found.append(variables[row.name])
        return found

    def _variables(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The values of all variables: given by name, or as sizes of inputs."""
        found = {v.name: v.number for v in self.manifest.variables if v.source == "constant"}
        rows = {v.name: v for v in self.manifest.inputs}
        for name, value in inputs.items():
            if name in self.variables and name not in rows:
                found[name] = _integer(self.name, name, value)
            elif name not in rows:
                raise ArgumentError(f"{self.name}: there is no input {name!r}; {self.signature()}")
        for row in self.manifest.inputs:
            if row.name not in inputs:
                raise ArgumentError(f"{self.name}: input {row.name!r} is missing; {self.signature()}")
            for extent, size in zip(row.shape, _shape(inputs[row.name]), strict=False):
                if isinstance(extent, Extent) and len(extent.terms) == 1 and extent.terms[0][0] not in found:
                    ((name, factor),) = extent.terms
                    found[name] = (size - extent.constant) // factor
        for name, (low, high) in self.variables.items():
            if name not in found:
                raise ArgumentError(f"{self.name}: the value of {name!r} is missing; {self.signature()}")
            if not low <= found[name] <= high:
                raise ArgumentError(f"{self.name}: {name} = {found[name]} is not from {low} to {high}")
        return found

    def _input(self, row: Value, value: Any, shape: tuple[int, ...]) -> Buffer:
        buffer = _dense(row, value, shape)
        if row.name in self.manifest.updated and buffer.is_external:
            copy = Buffer("CPU", buffer.dtype, buffer.size)
            copy.copyin(buffer.memory())
            return copy
        return buffer

    def _result(self, row: Any, outputs: Sequence[Tensor]) -> Any:
        ((kind, inner),) = row.items()
        if kind == "output":
            return outputs[inner]
        if kind == "value":
            return inner
        if kind == "dict":
            return {name: self._result(item, outputs) for name, item in inner.items()}
        found = [self._result(item, outputs) for item in inner]
        return found if kind == "list" else tuple(found)

    def signature(self) -> str:
        """What it takes and gives, in one line."""
        sizes = [f"{name}={low}..{high}" for name, (low, high) in self.variables.items()]
        return f"{self.name}({', '.join([*self.inputs, *sizes])}) -> {', '.join(self.outputs) or 'nothing'}"

    def __repr__(self) -> str:
        return f"<Program {self.signature()}, {self.kernels} kernels, {len(self.manifest.state)} arrays of state>"


# arrays
def _integer(program: str, name: str, value: Any) -> int:
    if isinstance(value, UOp) and value.op is Op.BIND:
        value = int(value.src[1].arg)
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"{program}: {name} is an integer, got {type(value).__name__}")
    return int(value)


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of whatever is given as an input, with the values that sizes have now."""
    shape = value.shape if hasattr(value, "shape") else np.shape(value)
    return tuple([int(getattr(size, "value", size)) for size in shape])


def _dense(row: Value, value: Any, shape: tuple[int, ...]) -> Buffer:
    """The elements of an input as the program wants them, in memory that has the largest shape.

    Raises:
        ShapeError, DTypeError: it has another shape or type than was exported.
    """
    given = _shape(value)
    if given != shape:
        raise ShapeError(f"{row.name}: shape {given} is not {shape}; the program takes {row}")
    if not isinstance(value, Tensor):
        value = Tensor(value, device="CPU") if hasattr(value, "dtype") else Tensor(value, dtype=row.dtype, device="CPU")
    if value.dtype is not row.dtype:
        raise DTypeError(
            f"{row.name}: {value.dtype.name} is not {row.dtype.name}; convert it, as in cast({row.dtype!r})"
        )
    most = largest(row.shape)
    if not _is_dense(value, most):
        if symbolic.is_symbolic(value.uop):
            value = Tensor(value.numpy()).cast(row.dtype)
        value = value.to("CPU").contiguous().realize()
    buffer = buffer_of(base_buffer(value.uop))
    if buffer.size == prod(most) and (shape == most or _is_dense(value, most)):
        return buffer
    whole = Buffer("CPU", row.dtype, prod(most))
    whole.copyin(bytes(whole.nbytes))
    if prod(shape):
        _array(whole, row.dtype, most)[tuple([slice(size) for size in shape])] = _array(buffer, row.dtype, shape)
    return whole


def _is_dense(tensor: Tensor, most: tuple[int, ...]) -> bool:
    """Whether a tensor's memory is laid out as that of an input whose largest shape this is."""
    node = tensor.uop
    while node.op in (Op.RESHAPE, Op.LIMIT):
        node = node.src[0]
    return (
        node.op is Op.BUFFER and node.arg.device == "CPU" and tensor.uop.shape == most and node.arg.size == prod(most)
    )


def _array(buffer: Buffer, dtype: DType, shape: tuple[int, ...]) -> Any:
    """The memory of a buffer as an array of words as wide as its elements."""
    words = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
    flat: Any = np.frombuffer(buffer.memory(), words[dtype.itemsize])
    return flat.reshape(shape)


def _tensor(buffer: Buffer, shape: tuple[int, ...]) -> Tensor:
    node = bind(new_buffer_node("CPU", buffer.dtype, buffer.size), buffer)
    if shape != (buffer.size,):
        node = mk(Op.RESHAPE, node.dtype, (node,), ShapeArg(shape))
    return Tensor.of_node(node)


def _cut(buffer: Buffer, row: Value, shape: tuple[int, ...]) -> Tensor:
    """An output as a tensor: the part of its memory that means something."""
    most = largest(row.shape)
    if shape == most:
        return _tensor(buffer, shape)
    part = Buffer("CPU", row.dtype, prod(shape))
    if part.nbytes:
        _array(part, row.dtype, shape)[...] = _array(buffer, row.dtype, most)[tuple([slice(size) for size in shape])]
    return _tensor(part, shape)
