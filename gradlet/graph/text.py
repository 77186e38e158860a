"""The graph as text, one node a line, and back: `from_text(to_text(node)) is node`.

    %0 = BUFFER float32 [number=0, size=12, device='CPU']
    %1 = RESHAPE float32 (%0) [shape=(3, 4)]
    %2 = CONST float32 [1.0]
    %3 = ADD float32 (%1, %2)

The last line is the root. Numbers follow the structure of the graph alone, so equal graphs have equal texts.
"""

from __future__ import annotations

import ast
import math
import re
import types
import typing
from enum import IntEnum
from functools import cache
from typing import Any, Final

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError
from gradlet.graph.node import UOp, mk
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import OP_INFO, BodyUse, CustomArg, LaunchArg, Op
from gradlet.ops.opt import DETAILS, Opt

ONE_LINE_DEPTH: Final = 2
ONE_LINE_SOURCES: Final = 6
ONE_LINE_LENGTH: Final = 300


# printing
def to_text(root: UOp) -> str:
    """One line a node, sources first, the root last."""
    numbers: dict[UOp, int] = {}
    lines: list[str] = []
    for node in structural_order(root):
        numbers[node] = len(lines)
        sources = ", ".join(f"%{numbers[s]}" for s in node.src)
        lines.append(f"%{len(lines)} = {_describe(node)}" + (f" ({sources})" if node.src else "") + _arg(node))
    return "\n".join(lines) + "\n"


def structural_order(root: UOp) -> list[UOp]:
    """All nodes, sources first, in an order that depends on the structure of the graph and not on its history."""
    order: list[UOp] = []
    done: set[UOp] = set()
    stack: list[tuple[UOp, bool]] = [(root, False)]
    while stack:
        node, sources_done = stack.pop()
        if node in done:
            continue
        if sources_done:
            done.add(node)
            order.append(node)
            continue
        stack.append((node, True))
        stack.extend((s, False) for s in reversed(node.src) if s not in done)
    return order


def program_text(program: LinearProgram) -> str:
    """A linear program with numbers for values, in execution order, loop bodies indented."""
    numbers = {node: i for i, node in enumerate(program.uops)}
    lines: list[str] = []
    depth = 0
    for node in program.uops:
        if node.op is Op.END:
            depth -= 1
        sources = ", ".join(f"%{numbers[s]}" for s in node.src)
        argument = "" if node.arg is None else f" [{arg_text(node.arg)}]"
        described = f"{node.op.name} {dtype_text(node.dtype)}" + (f" ({sources})" if sources else "") + argument
        lines.append(f"%{numbers[node]:<3d} {'    ' * depth}{described}")
        if node.op is Op.RANGE:
            depth += 1
    return "\n".join(lines)


def one_line(node: UOp) -> str:
    """The node and what is right below it on one line, for messages."""
    text = _short(node, ONE_LINE_DEPTH)
    return text if len(text) <= ONE_LINE_LENGTH else text[: ONE_LINE_LENGTH - 3] + "..."


def _short(node: UOp, depth: int) -> str:
    head = _describe(node)
    if node.src and depth == 0:
        return f"{head} (...){_arg(node)}"
    shown = [_short(s, depth - 1) for s in node.src[:ONE_LINE_SOURCES]]
    if len(node.src) > ONE_LINE_SOURCES:
        shown.append(f"... {len(node.src)} in all")
    return head + (f" ({', '.join(shown)})" if shown else "") + _arg(node)


def _describe(node: UOp) -> str:
    return f"{node.op.name} {dtype_text(node.dtype)}"


def _arg(node: UOp) -> str:
    return "" if node.arg is None else f" [{arg_text(node.arg)}]"


def arg_text(arg: Any) -> str:
    """A typed argument as `field=value, ...`, a constant as itself."""
    if hasattr(arg, "_fields"):
        named = zip(arg._fields, arg, strict=True)
        fields = [(name, value) for name, value in named if value or name not in ("limited", "detail")]
        return ", ".join(f"{name}={_value_text(value)}" for name, value in fields)
    return _value_text(arg)


def dtype_text(dtype: DType) -> str:
    """`float32`, or `float32x4` for a vector."""
    return dtype.name if dtype.count == 1 else f"{dtype.name}x{dtype.count}"


def _value_text(value: Any) -> str:
    if isinstance(value, IntEnum):
        return value.name
    if hasattr(value, "_fields"):
        return f"{type(value).__name__}({arg_text(value)})"
    if isinstance(value, DType):
        return repr(dtype_text(value))
    if isinstance(value, UOp):
        return repr(to_text(value))  # a graph in a graph
    if callable(value):
        return "None"  # the rule of a DERIVATIVE is code; read back, the derivative is the ordinary one
    if isinstance(value, tuple):
        inner = ", ".join(map(_value_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


# parsing
_NESTED: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (Opt, BodyUse, *DETAILS.values())
}  # arguments inside arguments
_LINE: Final = re.compile(r"%(\d+) = (\w+) (\w+)(?: \(([%\d, ]*)\))?(?: \[(.*)\])?")
_VECTOR: Final = re.compile(r"(\w+)x(\d+)")


def from_text(text: str) -> UOp:
    """The root of a printed graph. Empty lines and lines that begin with `#` are skipped.

    Raises:
        ArgumentError: naming the line that cannot be read.
    """
    nodes: dict[int, UOp] = {}
    root: UOp | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ArgumentError(f"line {number}: expected '%N = OP dtype (%A, %B) [arg]', got {line!r}")
        try:
            root = _parse_node(found, nodes)
        except (KeyError, ValueError, TypeError, SyntaxError) as error:
            raise ArgumentError(f"line {number}: {error} in {line!r}") from error
        nodes[int(found[1])] = root
    if root is None:
        raise ArgumentError("the text holds no node")
    return root


def _parse_node(found: re.Match[str], nodes: dict[int, UOp]) -> UOp:
    if found[2] not in Op.__members__:
        raise ValueError(f"unknown op {found[2]}")
    op = Op[found[2]]
    sources = [s.strip() for s in found[4].split(",")] if found[4] else []
    missing = [s for s in sources if int(s[1:]) not in nodes]
    if missing:
        raise ValueError(f"source {missing[0]} is not defined above")
    return mk(op, parse_dtype(found[3]), tuple(nodes[int(s[1:])] for s in sources), _parse_arg(op, found[5]))


def parse_dtype(text: str) -> DType:
    """The dtype that `dtype_text` printed."""
    vector = _VECTOR.fullmatch(text)
    name, count = (vector[1], int(vector[2])) if vector else (text, 1)
    return dtypes.void if name == "void" else dtypes.by_name(name).vec(count)


def _parse_arg(op: Op, text: str | None) -> Any:
    if text is None:
        return None
    kind = OP_INFO[op].arg
    call = ast.parse(f"_({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    if kind is None or kind is object:
        return _literal(call.args[0])
    if op is Op.SINK and any(k.arg == "stages" for k in call.keywords):
        return _named(LaunchArg, call)
    return _named(kind, call)


def _named(kind: type, call: ast.Call) -> Any:
    """A named tuple from the keywords of a call."""
    if call.args:
        raise ValueError(f"{kind.__name__}: write field=value")
    hints = _hints(kind)
    fields = {str(k.arg): _field(hints, str(k.arg), k.value) for k in call.keywords}
    if kind is CustomArg:
        fields["kernel"] = from_text(fields["kernel"])
        fields["types"] = tuple(map(parse_dtype, fields["types"]))
    return kind(**fields)


def _field(hints: dict[str, Any], name: str, value: ast.expr) -> Any:
    if name not in hints:
        raise ValueError(f"unknown field {name}")
    return _literal(value, _enum_of(hints[name]))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _enum_of(hint: Any) -> type[IntEnum] | None:
    """The enum in a type hint, also in `Op | None`."""
    choices = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for choice in choices:
        if isinstance(choice, type) and issubclass(choice, IntEnum):
            return choice
    return None


def _literal(value: ast.expr, enum: type[IntEnum] | None = None) -> Any:
    if isinstance(value, ast.Constant):
        return value.value
    if isinstance(value, ast.Tuple):
        return tuple(_literal(v, enum) for v in value.elts)
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        return -_literal(value.operand)
    if isinstance(value, ast.Name) and enum is not None:
        return enum[value.id]
    if isinstance(value, ast.Name) and value.id in ("inf", "nan"):
        return math.inf if value.id == "inf" else math.nan
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _NESTED:
        return _named(_NESTED[value.func.id], value)
    raise ValueError(f"cannot read {ast.unparse(value)}")
