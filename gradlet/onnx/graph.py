"""A model as a checked graph: operators found, attributes typed, names defined before they are used.

Everything that can be wrong with a file is an error here, before anything runs. Source: the page "Open Neural Network
Exchange Intermediate Representation" of the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gradlet.base.errors import FileFormatError
from gradlet.onnx.elements import ELEMENTS, element_name
from gradlet.onnx.package import onnx_package
from gradlet.onnx.registry import NEWEST, OnnxError, Operator, check_attributes, check_inputs, domain_name, find
from gradlet.onnx.values import Value
from gradlet.onnx.weights import read_sparse, read_tensor

MOST_NESTED = 100


@dataclass(frozen=True)
class Info:
    """An input or output as the file declares it: sizes are numbers, names of sizes, or None.

    A map, and a sequence of maps, has the type of its keys, and as `elem` that of its values.
    """

    name: str
    kind: str
    elem: int
    shape: tuple[int | str | None, ...] | None
    key: int = 0

    def __str__(self) -> str:
        if self.key:
            one = f"map of {element_name(self.key)} to {element_name(self.elem)}"
            return one if self.kind == "map" else f"sequence of: {one}"
        sizes = "" if self.shape is None else "[" + ", ".join("?" if s is None else str(s) for s in self.shape) + "]"
        return f"{element_name(self.elem)}{sizes}" if self.kind == "tensor" else self.kind


@dataclass
class Node:
    """One node: what it runs is an operator, or the body of a function."""

    where: str
    op: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    operator: Operator | None = None
    body: Graph | None = None
    schema: Any = None
    proto: Any = None


@dataclass
class Graph:
    """A graph, or a part of one that a node runs: it sees the names of the graph around it."""

    name: str
    inputs: list[Info]
    outputs: list[Info]
    constants: dict[str, Value]
    nodes: list[Node]

    @cached_property
    def last_uses(self) -> dict[str, int]:
        """For every name the last node that needs it, their number for what is returned; parts of nodes count."""
        found: dict[str, int] = {}
        for number, node in enumerate(self.nodes):
            found.update(dict.fromkeys(node.inputs, number))
            for value in node.attributes.values():
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, Graph):
                        found.update(dict.fromkeys(part.last_uses, number))
        found.update(dict.fromkeys([o.name for o in self.outputs], len(self.nodes)))
        return found


@dataclass
class Model:
    """A loaded file."""

    graph: Graph
    opsets: dict[str, int]
    producer: str
    ir_version: int
    metadata: dict[str, str]
    borrows: bool = False  # whether some operator is what the package onnx says of it


def _info(proto: Any) -> Info:
    kind = proto.type.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        short = kind.removesuffix("_type")
        one = proto.type.sequence_type.elem_type if short == "sequence" else proto.type
        if one.HasField("map_type"):
            return Info(proto.name, short, one.map_type.value_type.tensor_type.elem_type, None, one.map_type.key_type)
        return Info(proto.name, short, 0, None)
    tensor = proto.type.tensor_type
    if not tensor.HasField("shape"):
        return Info(proto.name, "tensor", tensor.elem_type, None)
    sizes: list[int | str | None] = []
    for d in tensor.shape.dim:
        which = d.WhichOneof("value")
        sizes.append(d.dim_value if which == "dim_value" else d.dim_param or None if which else None)
    return Info(proto.name, "tensor", tensor.elem_type, tuple(sizes))


class _Loader:
    """Walks the messages of one model."""

    def __init__(self, functions: dict[tuple[str, str], Any], folder: Path | None) -> None:
        self.functions = functions
        self.folder = folder
        self.nested = 0
        self.borrows = False

    def graph(
        self,
        proto: Any,
        opsets: dict[str, int],
        outer: set[str],
        given: dict[str, Any],
        raw: Mapping[str, memoryview] | None = None,
    ) -> Graph:
        """A graph with everything in it; `raw` is the data of some weights, by name, where the message need not say."""
        constants: dict[str, Value] = {}
        place = f"graph {proto.name!r}"
        for tensor in proto.initializer:
            constants[tensor.name] = read_tensor(tensor, self.folder, place, raw.get(tensor.name) if raw else None)
        for sparse in proto.sparse_initializer:
            constants[sparse.values.name] = read_sparse(sparse, self.folder, place)
        inputs = [_info(i) for i in proto.input]
        names = [i.name for i in inputs]
        if len(set(names)) < len(names):
            raise OnnxError(f"{place}: two inputs have the same name")
        nodes, last = self.nodes(proto.node, opsets, outer | set(names) | set(constants), given, place)
        outputs = [_info(o) for o in proto.output]
        for o in outputs:
            if o.name not in last:
                raise OnnxError(f"{place}: output {o.name!r} is computed by no node")
        return Graph(proto.name, inputs, outputs, constants, nodes)

    def nodes(
        self, protos: Iterable[Any], opsets: dict[str, int], outer: set[str], given: dict[str, Any], place: str
    ) -> tuple[list[Node], set[str]]:
        """Nodes in order, and all names that are defined after them."""
        defined = set(outer)
        made: set[str] = set()
        nodes = []
        for number, proto in enumerate(protos):
            title = f"node {proto.name!r}" if proto.name else f"node {number}"
            where = f"{title} ({proto.op_type}) of {place}"
            for name in proto.input:
                if name and name not in defined:
                    raise OnnxError(f"{where}: input {name!r} is not defined before it")
            nodes.append(self.node(proto, opsets, defined, given, where))
            for name in proto.output:
                if name and name in made:
                    raise OnnxError(f"{where}: output {name!r} is defined twice")
                if name:
                    made.add(name)
                    defined.add(name)
        return nodes, defined

    def node(self, proto: Any, opsets: dict[str, int], defined: set[str], given: dict[str, Any], where: str) -> Node:
        """One node with its operator."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        function = self.functions.get((domain, proto.op_type))
        version = opsets.get(domain)
        if version is None:
            if function is None:
                raise OnnxError(f"{where}: the model imports no version of domain {domain_name(domain)!r}")
            version = 1
        attributes = {}
        for a in proto.attribute:
            name, value = self.attribute(a, opsets, defined, given, where)
            if name is not None:
                attributes[name] = value
        made = Node(
            where, proto.op_type, domain, version, tuple(proto.input), tuple(proto.output), attributes, proto=proto
        )
        if function is not None:
            made.body = self.function(function, attributes, where)
            return made
        found = find(domain, proto.op_type, version)
        if isinstance(found, Operator):
            made.operator = found
            made.attributes = check_attributes(found, attributes, where)
            check_inputs(found, proto.input, f"{where}: operator {proto.op_type}")
            return made
        schema = _function_schema(domain, proto.op_type, version)
        if schema is None:
            raise OnnxError(f"{where}: {found}")
        made.schema = schema
        self.borrows = True
        if schema.has_function:
            made.body = self.function(schema.function_body, {**_defaults(schema), **attributes}, where)
        return made

    def attribute(
        self, proto: Any, opsets: dict[str, int], defined: set[str], given: dict[str, Any], where: str
    ) -> tuple[str | None, Any]:
        """An attribute as a Python value; None as its name where a function was called without it."""
        if proto.ref_attr_name:
            return (proto.name, given[proto.ref_attr_name]) if proto.ref_attr_name in given else (None, None)
        kind = proto.type
        T = onnx_package().AttributeProto
        if kind in (T.GRAPH, T.GRAPHS):
            self.nested += 1
            if self.nested > MOST_NESTED:
                raise OnnxError(f"{where}: graphs are nested more than {MOST_NESTED} deep")
            graphs = [self.graph(g, opsets, defined, given) for g in ([proto.g] if kind == T.GRAPH else proto.graphs)]
            self.nested -= 1
            return proto.name, graphs[0] if kind == T.GRAPH else graphs
        place = f"{where}: attribute {proto.name!r}"
        if kind == T.TENSOR:
            return proto.name, read_tensor(proto.t, self.folder, place)
        if kind == T.SPARSE_TENSOR:
            return proto.name, read_sparse(proto.sparse_tensor, self.folder, place)
        try:
            value = onnx_package().helper.get_attribute_value(proto)
        except ValueError as error:
            raise OnnxError(f"{place}: {error}") from None
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif kind in (T.INTS, T.FLOATS, T.STRINGS):
            value = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]
        return proto.name, value

    def function(self, proto: Any, attributes: dict[str, Any], where: str) -> Graph:
        """The body of a function with the attributes of one call written into it."""
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise OnnxError(f"{where}: functions call one another more than {MOST_NESTED} deep")
        opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
        opsets.setdefault("", NEWEST[""])
        given = dict(attributes)
        for a in getattr(proto, "attribute_proto", ()):
            if a.name not in given:
                given[a.name] = self.attribute(a, opsets, set(), {}, where)[1]
        place = f"function {proto.name!r} of {where}"
        nodes, defined = self.nodes(proto.node, opsets, set(proto.input), given, place)
        for name in proto.output:
            if name not in defined:
                raise OnnxError(f"{place}: output {name!r} is computed by no node")
        self.nested -= 1
        inputs = [Info(n, "tensor", 0, None) for n in proto.input]
        return Graph(proto.name, inputs, [Info(n, "tensor", 0, None) for n in proto.output], {}, nodes)


def _function_schema(domain: str, op: str, version: int) -> Any:
    """The schema of an operator that the specification defines by other operators; None if there is none."""
    defs = onnx_package().defs
    try:
        schema = defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None
    return schema if schema.has_function or schema.has_context_dependent_function else None


def _defaults(schema: Any) -> dict[str, Any]:
    return {
        name: onnx_package().helper.get_attribute_value(a.default_value)
        for name, a in schema.attributes.items()
        if a.default_value.type
    }


def body_for(node: Node, types: list[Any]) -> Graph:
    """The body of an operator whose definition by others depends on the types of its inputs."""
    encoded = node.schema.get_context_dependent_function_with_opset_version(
        node.version, node.proto.SerializeToString(), [t.SerializeToString() for t in types]
    )
    proto = onnx_package().FunctionProto()
    proto.ParseFromString(encoded)
    return _Loader({}, None).function(proto, {**_defaults(node.schema), **node.attributes}, node.where)


def load(source: Any, folder: Path | None = None, raw: Mapping[str, memoryview] | None = None) -> Model:
    """Read and check a model.

    Args:
        source: a path, the bytes of a file, or a `ModelProto`.
        folder: where data in other files lies, for bytes.
        raw: the data of some weights of the graph, by name: it is part of `source`, and need not be copied out of it.

    Raises:
        FileFormatError: no ONNX file, or one whose data does not fit.
        OnnxError: what it asks for is not supported.
    """
    onnx = onnx_package()
    if isinstance(source, onnx.ModelProto):
        proto = source
    else:
        if isinstance(source, (str, Path)):
            path = Path(source)
            if not path.is_file():
                raise FileFormatError(f"{path} is no file")
            folder = path.parent
            source = path.read_bytes()
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(bytes(source))
        except Exception as error:  # the parser's own error type belongs to another package
            raise FileFormatError(f"this is no ONNX model: {error}") from None
    if not proto.HasField("graph") or not proto.graph.output:
        raise FileFormatError("this is no ONNX model: it has no graph with outputs")
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    if not opsets:
        opsets = {"": 1}
    for domain, version in opsets.items():
        newest = NEWEST.get(domain)
        if newest is not None and not 1 <= version <= newest:
            raise OnnxError(f"the model needs version {version} of {domain_name(domain)}; supported are 1 to {newest}")
    functions = {("" if f.domain == "ai.onnx" else f.domain, f.name): f for f in proto.functions}
    loader = _Loader(functions, folder)
    graph = loader.graph(proto.graph, opsets, set(), {}, raw)
    for info in graph.inputs:
        if info.kind == "tensor" and info.elem not in ELEMENTS:
            raise OnnxError(f"input {info.name!r} has no known element type ({info.elem})")
    metadata = {m.key: m.value for m in proto.metadata_props}
    producer = f"{proto.producer_name} {proto.producer_version}".strip()
    return Model(graph, opsets, producer, proto.ir_version, metadata, loader.borrows)
