"""`OnnxRunner`: a model file as a function of named inputs.

A run walks the nodes and builds one lazy graph of tensors; what is known (constants, shapes, and what follows
from them) is folded on numpy on the way. Then the outputs are computed together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.base import settings
from gradlet.base.errors import ArgumentError, FileFormatError, GradletError, JitError
from gradlet.base.symint import Size
from gradlet.onnx import host
from gradlet.onnx.elements import ELEMENTS, STRING, dtype_of, element_name, number_of, numpy_type
from gradlet.onnx.graph import Graph, Info, Model, Node, body_for, load
from gradlet.onnx.kept import Interface, KeptCalls
from gradlet.onnx.layouts import checked_dims, keys_of
from gradlet.onnx.outline import Source
from gradlet.onnx.package import onnx_package
from gradlet.onnx.registry import OnnxError, Operator, Parameter
from gradlet.onnx.replays import Replays
from gradlet.onnx.sizes import Calls, Sizes
from gradlet.onnx.values import EMPTY, KEPT_BYTES, Array, Empty, Map, Value
from gradlet.tensor.tensor import Tensor

# Known values with more elements than this are computed on the device, in kernels.
MOST_FOLDED = 1 << 16


class Scope:
    """The values of the names of one graph, and of the graphs around it; `place` is the node that runs."""

    __slots__ = ("values", "outer", "graph", "place")

    def __init__(self, values: dict[str, Any], outer: Scope | None, graph: Graph) -> None:
        self.values = values
        self.outer = outer
        self.graph = graph
        self.place = 0

    def get(self, name: str) -> Any:
        """The value of a name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise OnnxError(f"value {name!r} is not defined")

    def needed_later(self) -> list[Tensor]:
        """What nodes further on need and nothing has computed yet."""
        found: list[Tensor] = []
        scope: Scope | None = self
        while scope is not None:
            uses = scope.graph.last_uses
            for name, value in scope.values.items():
                if isinstance(value, Value) and value.is_tensor and uses.get(name, -1) > scope.place:
                    tensor = value.needed()
                    if not tensor.is_realized:
                        found.append(tensor)
            scope = scope.outer
        return found


class Call:
    """One node while it runs: what an operator may ask beside its inputs and attributes."""

    def __init__(self, run: Run, node: Node, scope: Scope, values: Sequence[Any]) -> None:
        self.run = run
        self.node = node
        self.scope = scope
        self.values = values

    @property
    def version(self) -> int:
        return self.node.version

    @property
    def outputs(self) -> int:
        """How many outputs the node has; some of them may be left out."""
        return len(self.node.outputs)

    def wants(self, index: int) -> bool:
        """Whether somebody uses this output."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def elem(self, index: int) -> int:
        """The element type of an input."""
        value = self.values[index]
        return value.elem if isinstance(value, Value) else 0

    def constant(self, array: Any) -> Tensor:
        """A tensor of host data, the same one whenever the data is the same."""
        return self.run.constant(np.asarray(array))

    def tensor(self, value: Value) -> Tensor:
        """A value as a tensor."""
        return value.tensor(self.run.constant)

    def compute(self, *tensors: Tensor) -> None:
        """Compute these now, and with them what nodes further on need: they would compute it again."""
        lazy = [t for t in tensors if not t.is_realized]
        if lazy and not self.run.is_dry:
            lazy[0].realize(*lazy[1:], *self.scope.needed_later())

    def look(self, tensor: Tensor) -> None:
        """Compute a tensor whose numbers decide what comes.

        Raises:
            OnnxError: in a walk that computes nothing.
        """
        if self.run.is_dry:
            raise self.error("it looks at numbers that a device computes")
        self.compute(tensor)

    def subgraph(self, graph: Graph, inputs: Sequence[Any]) -> list[Any]:
        """Run a graph that is an attribute; it sees the names around the node."""
        return self.run.graph(graph, inputs, self.scope)

    def error(self, message: str) -> OnnxError:
        """An error that names the node."""
        return OnnxError(f"{self.node.where}: {message}")


class Run:
    """One walk over a model; `is_dry`: it is to compute nothing."""

    def __init__(self, runner: OnnxRunner, is_dry: bool = False) -> None:
        self.runner = runner
        self.is_dry = is_dry

    def constant(self, array: Array) -> Tensor:
        """A tensor of host data on the runner's device, interned by content where it is small."""
        return self.runner.constant(array)

    def graph(self, graph: Graph, inputs: Sequence[Any], outer: Scope | None) -> list[Any]:
        """The outputs of a graph for its inputs, in order."""
        values: dict[str, Any] = dict(graph.constants)
        for info, value in zip(graph.inputs, inputs):
            if value is not None:
                values[info.name] = value
        scope = Scope(values, outer, graph)
        for scope.place, node in enumerate(graph.nodes):
            found = [scope.get(name) if name else None for name in node.inputs]
            for name, value in zip(node.outputs, self.node(node, found, scope)):
                if name:
                    values[name] = value
        return [scope.get(o.name) for o in graph.outputs]

    def node(self, node: Node, found: list[Any], scope: Scope) -> list[Any]:
        """The outputs of one node.

        Raises:
            OnnxError: what the operator refuses, with the node's name.
        """
        try:
            if node.operator is None:
                body = node.body or body_for(node, [_type_of(v) for v in found])
                return self.graph(body, found, None)
            folded = host.fold(node, found)
            if folded is not None:
                return folded
            call = Call(self, node, scope, found)
            return self.outputs(node, found, _invoke(node.operator, call, found, node.attributes))
        except (OnnxError, JitError):
            raise
        except GradletError as error:
            raise OnnxError(f"{node.where}: {error}") from error

    def outputs(self, node: Node, found: list[Any], result: Any) -> list[Any]:
        """What an operator returned, as values."""
        results = result if isinstance(result, tuple) else (result,)
        made = []
        for index, one in enumerate(results):
            if isinstance(one, Tensor):
                pull = host.puller(node, found, index)
                elem = _kept_element(node, found, one)
                made.append(Value.of_tensor(one, elem, pull))
            elif isinstance(one, (np.ndarray, np.generic)):
                made.append(Value.of_array(one))
            else:
                made.append(one)
        return made


# Operators that pass elements of their first input on, whatever these are.
MOVES = frozenset((
    "Identity", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Concat", "Split", "Gather", "Pad",
    "Expand", "Tile", "GatherElements", "GatherND",
))  # fmt: skip


def _kept_element(node: Node, found: list[Any], result: Tensor) -> int | None:
    if node.op in MOVES and found and isinstance(found[0], Value) and found[0].elem != STRING:
        if dtype_of(found[0].elem, node.op) is result.dtype:
            return found[0].elem
    return None


def _type_of(value: Any) -> Any:
    onnx = onnx_package()
    if not isinstance(value, Value):
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(value.elem, [_declared(s) for s in value.shape])


def _declared(size: Any) -> Any:
    """A size for the types of a function's body, which has names for those that are known only at launch."""
    return str(size) if isinstance(size, Size) else int(size)


def _invoke(operator: Operator, call: Call, found: list[Any], attributes: dict[str, Any]) -> Any:
    """Call an operator's function with its inputs read as the signature says."""
    arguments: list[Any] = [call] if operator.takes_call else []
    for index, parameter in enumerate(operator.inputs):
        value = found[index] if index < len(found) else None
        arguments.append(_read(value, parameter, call))
    if operator.variadic is not None:
        rest = found[len(operator.inputs) :]
        arguments.extend(_read(value, operator.variadic, call) for value in rest)
    return operator.function(*arguments, **attributes)


def _read(value: Any, parameter: Parameter, call: Call) -> Any:
    if value is None or parameter.kind == "Value":
        return value
    if not isinstance(value, Value):
        raise call.error(f"input {parameter.name!r} must be a tensor, it is {_kind_of(value)}")
    if parameter.kind == "Tensor":
        if value.is_text:
            raise call.error(f"input {parameter.name!r} is text, which this operator does not take")
        return value.tensor(call.run.constant)
    if not value.on_host:
        call.look(value.needed())
    array = value.array()
    if parameter.kind == "Array":
        return array
    if parameter.kind == "Ints":
        return [n if isinstance(n, Size) else int(n) for n in array.reshape(-1)]
    if array.size != 1:
        raise call.error(f"input {parameter.name!r} must be one number, it has shape {array.shape}")
    number = array.reshape(-1)[0]
    return number if isinstance(number, (Size, int)) else number.item()


def _kind_of(value: Any) -> str:
    kinds = {list: "a sequence", Empty: "an empty optional", Map: "a map"}
    return kinds.get(type(value), "missing")


class OnnxRunner:
    """A model as a function: `OnnxRunner("model.onnx")({"x": array})["y"].numpy()`.

    Args:
        source: a path, the bytes of a file, or an `onnx.ModelProto`.
        device: where it runs; the default device when None.
        dims: limits of sizes that the file leaves open, as `{"sequence": (1, 512)}` or with a step, as
            `{"height": (32, 1024, 32)}`: one capture serves all sizes inside them. Without it limits follow from the
            sizes that come. An axis without a name is `x.2`.

    Raises:
        FileFormatError: no ONNX file, or one whose data does not fit.
        OnnxError: an operator, version or attribute that is not supported, with the name of the node.
        ArgumentError: dims with a name that the file has not, or without limits.

    Attributes:
        inputs, outputs: what the file declares.
    """

    def __init__(self, source: Any, device: str | None = None, dims: Mapping[str, Sequence[int]] | None = None) -> None:
        self.device = device
        self._constants: dict[tuple[Any, ...], Tensor] = {}
        self._replays = Replays(self._walk)
        self._source = _opened(source) if settings.CACHE else None
        self._kept = None
        self._model: Model | None = None
        interface = None
        if self._source is not None and self._source.outline is not None:
            self._kept = KeptCalls(self._source, device)
            interface = self._kept.interface()
        if interface is None:
            self._model = self._load(source)
            interface = Interface(self._model)
            if self._kept is not None:
                self._kept.remember_interface(interface)
        self.inputs: list[Info] = interface.inputs
        self.outputs: list[Info] = interface.outputs
        self._all_inputs = interface.all_inputs
        self._names = [info.name for info in self._all_inputs]
        limits = None if dims is None else checked_dims(dims, self.inputs)
        self._sizes = Sizes(self._all_inputs, limits, self._walk, Calls())
        self._results = [info.name for info in self.outputs]

    @property
    def model(self) -> Model:
        """The checked graph. Who holds it may change its weights: what other processes captured is not asked from here
        on.
        """
        self._kept = None
        return self._parsed()

    def _parsed(self) -> Model:
        """The graph, which a model that was captured before does not need."""
        if self._model is None:
            self._model = self._load(None)
        return self._model

    def _load(self, given: Any) -> Model:
        source = self._source
        if source is None or source.outline is None:
            return load(given)
        view = memoryview(source.data)
        raw = {name: view[begin:end] for name, (begin, end) in source.outline.stored.items()}
        model = load(source.data, source.folder, raw)
        if not source.is_same:
            raise FileFormatError("the model's file was written to after it was opened; open it again")
        return model

    def constant(self, array: Array) -> Tensor:
        """A tensor of host data on this runner's device: one tensor for the same data, unless it is large."""
        if array.nbytes > KEPT_BYTES:
            return Tensor(np.ascontiguousarray(array), self.device)
        data = np.ascontiguousarray(array).tobytes()
        key = (array.dtype.name, array.shape, data if len(data) < 64 else hashlib.sha256(data).digest())
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = Tensor(np.array(array), self.device)
        return found

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """Run the model.

        Args:
            inputs: arrays, tensors or nested lists by name; lists of those for sequences.

        Returns:
            What the model computes, by name: tensors that are computed, lists for sequences, dictionaries for maps,
            None for empty optionals, arrays of text.

        Raises:
            ArgumentError: an input that is missing, unknown, or of another type or shape than the file declares.
            OnnxError: a node that refuses its inputs.
        """
        given = {**(inputs or {}), **named}
        replayed = self._replays.again(given)
        if replayed is None:
            replayed = self._sizes.again(given)
        if replayed is None and self._kept is not None:
            replayed = self._kept.results(given, self._sizes)
        if replayed is not None:
            return dict(zip(self._results, replayed))
        found = self._inputs(given)
        replayed = self._sizes.results(given, found)
        if replayed is not None:
            self._keep(given, found, True)
            return dict(zip(self._results, replayed))
        try:
            replayed, values = self._replays.results(found, self._sizes.is_frequent)
        except GradletError:
            self._sizes.withdraw()
            raise
        if replayed is not None:
            self._replays.place(given, self._names, found, replayed)
            self._keep(given, found)
            return dict(zip(self._results, replayed))
        results = {info.name: _result(value, self.constant) for info, value in zip(self.outputs, values)}
        lazy = [t for r in results.values() for t in _tensors(r)]
        if lazy:
            lazy[0].realize(*lazy[1:])
        return results

    def values(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> list[Any]:
        """The outputs as values that nothing has computed yet, with their element types."""
        return self._walk(self._inputs({**(inputs or {}), **named}))

    def open_sizes(self, inputs: Mapping[str, Any]) -> dict[str, str]:
        """How each size that the file leaves open may vary in one capture, by name, found out with such inputs.

        Raises:
            ArgumentError, OnnxError: as a call.
        """
        found = self._inputs(inputs)
        walk = Run(self, True).graph
        graph = self._parsed().graph
        return Sizes(self._all_inputs, None, lambda values: walk(graph, values, None), Calls()).explained(found)

    def _walk(self, found: Sequence[Any]) -> list[Any]:
        return Run(self).graph(self._parsed().graph, found, None)

    def _keep(self, given: Mapping[str, Any], found: Sequence[Any], varies: bool = False) -> None:
        """Let other processes find what a call captured."""
        if self._kept is None:
            return
        if varies:
            sized = self._sizes.captured(found)
            captured, varying = (None, None) if sized is None else (sized[1:], (sized[0], self._sizes))
        else:
            captured, varying = self._replays.captured(found), None
        if captured is not None:
            numbers, function, args = captured
            names = [name for name, value in zip(self._names, found) if value is not None]
            which = [self._names[i] for i in numbers]
            self._kept.remember(given, names, which, function, args, self._parsed(), varying)

    def _inputs(self, given: Mapping[str, Any]) -> list[Any]:
        graph = self._parsed().graph
        known = self._names
        for name in given:
            if name not in known:
                raise ArgumentError(f"the model has no input {name!r}; it has {', '.join(known) or 'none'}")
        sizes: dict[str, tuple[int, str]] = {}
        found = []
        for info in graph.inputs:
            if info.name in given:
                found.append(self._input(info, given[info.name], sizes))
            elif info.name in graph.constants:
                found.append(None)
            elif info.kind == "optional":
                found.append(EMPTY)
            else:
                raise ArgumentError(f"input {info.name!r} ({info}) is missing")
        return found

    def _input(self, info: Info, data: Any, sizes: dict[str, tuple[int, str]]) -> Any:
        """One input as a value, checked against its declaration."""
        if data is None and info.kind == "optional":
            return EMPTY
        if info.kind == "sequence" and info.key:
            one = Info(info.name, "map", info.elem, None, info.key)
            return [self._input(one, entries, sizes) for entries in data]
        if info.kind == "map":
            return _map_of(data, info)
        if info.kind == "sequence" or (info.kind == "optional" and isinstance(data, (list, tuple))):
            return [self._input(Info(info.name, "tensor", 0, None), one, sizes) for one in data]
        if isinstance(data, Tensor):
            self._check(info, number_of(data.dtype), data.shape, sizes)
            return Value.of_tensor(data if self.device is None else data.to(self.device))
        array = data if isinstance(data, (np.ndarray, np.generic)) else _array_of(data, info.elem)
        value = Value.of_array(array, known=False)
        self._check(info, value.elem, value.shape, sizes)
        if value.is_text:
            return Value.of_array(value.array())
        host_copy = value.array()
        return Value.of_tensor(Tensor(np.array(host_copy), self.device), value.elem, lambda: host_copy)

    def _check(self, info: Info, elem: int, shape: Sequence[Any], sizes: dict[str, tuple[int, str]]) -> None:
        if info.kind != "tensor" or not info.elem:
            return
        if elem != info.elem:
            raise ArgumentError(f"input {info.name!r} must be {info}, got {element_name(elem)}; cast it")
        if info.shape is None:
            return
        if len(shape) != len(info.shape):
            raise ArgumentError(f"input {info.name!r} must be {info}, got shape {tuple(shape)}")
        for size, wanted, key in zip(shape, info.shape, keys_of(info, len(shape))):
            if isinstance(wanted, int) and wanted > 0 and size != wanted:
                raise ArgumentError(f"input {info.name!r} must be {info}, got shape {tuple(shape)}")
            if key is not None:
                before, other = sizes.setdefault(key, (size, info.name))
                if size != before:
                    raise ArgumentError(
                        f"inputs {other!r} and {info.name!r} share the size {key!r}, and have {before} and {size} there"
                    )


def _opened(source: Any) -> Source | None:
    """The bytes of a model, None where it is given in another form or cannot be read."""
    if not isinstance(source, (str, Path, bytes)):
        return None
    try:
        return Source(source)
    except (OSError, ValueError):
        return None


def _array_of(data: Any, elem: int) -> Array:
    found = ELEMENTS.get(elem)
    if found is not None and found.dtype is not None:
        return np.asarray(data, numpy_type(elem))
    return np.asarray(data)


def _map_of(data: Any, info: Info) -> Map:
    """A dictionary as a map, checked against its declaration.

    Raises:
        ArgumentError: something else, or keys or values of other types.
    """
    if not isinstance(data, Mapping):
        raise ArgumentError(f"input {info.name!r} must be {info}, got {type(data).__name__}")
    kind = str if info.key == STRING else int
    for key, value in data.items():
        fits = isinstance(value, str) == (info.elem == STRING) and np.ndim(value) == 0
        if not fits or not isinstance(key, str if kind is str else (int, np.integer)):
            raise ArgumentError(f"input {info.name!r} must be {info}, it has {key!r}: {value!r}")
    if info.elem == STRING:
        return Map({kind(k): v for k, v in data.items()}, info.elem)
    number = numpy_type(info.elem).type
    return Map({kind(k): number(v).item() for k, v in data.items()}, info.elem)


def _result(value: Any, constant: Callable[[Array], Tensor]) -> Any:
    if isinstance(value, list):
        return [_result(v, constant) for v in value]
    if value is None or value is EMPTY:
        return None
    if isinstance(value, Map):
        return value.entries
    if isinstance(value, Value):
        return value.array() if value.is_text else value.tensor(constant)
    return value


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, list):
        return [t for r in result for t in _tensors(r)]
    return [result] if isinstance(result, Tensor) else []
