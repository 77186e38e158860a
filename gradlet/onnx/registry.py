"""Operators and their signatures: a function becomes an operator by `@operator(name, domain, since, until)`.

Its signature says what a node may have. Positional parameters are the inputs, their annotations what they are read as;
keyword-only parameters are the attributes:

    Tensor    a tensor on the device          Ints    a list of integers, read on the host
    Array     an array, read on the host      Number  one number, read on the host
    Value     the value as it is (also sequences and empty optionals)

A parameter that may be missing has a default. `call`, when it is the first parameter, is the node's `Call`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from gradlet.base.errors import UserError

# The newest version of each domain whose operators are known here.
NEWEST: Final = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1, "com.microsoft": 1}

ATTRIBUTE_KINDS: Final = {
    "int": (int,), "float": (float, int), "str": (str,), "list[int]": (list,), "list[float]": (list,),
    "list[str]": (list,),
}  # fmt: skip
INPUT_KINDS: Final = ("Tensor", "Array", "Ints", "Number", "Value")


class OnnxError(UserError):
    """A model that cannot run here: the message names the node, its operator and version, and what is supported."""


class Parameter(NamedTuple):
    """One input or attribute of an operator."""

    name: str
    kind: str
    required: bool


class Operator(NamedTuple):
    """One implementation of an operator, for the versions `since` to `until`."""

    name: str
    domain: str
    since: int
    until: int
    function: Callable[..., Any]
    takes_call: bool
    inputs: tuple[Parameter, ...]
    variadic: Parameter | None
    attributes: dict[str, Parameter]


OPERATORS: Final[dict[tuple[str, str], list[Operator]]] = {}


def _kind(annotation: str) -> str:
    return annotation.removesuffix(" | None").strip()


def operator(
    name: str, domain: str = "", since: int = 1, until: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as an operator; see this module."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters.values())
        takes_call = bool(parameters) and parameters[0].name == "call"
        inputs, attributes = [], {}
        variadic = None
        for p in parameters[int(takes_call) :]:
            made = Parameter(p.name, _kind(str(p.annotation)), p.default is inspect.Parameter.empty)
            if p.kind is inspect.Parameter.VAR_POSITIONAL:
                variadic = made
            elif p.kind is inspect.Parameter.KEYWORD_ONLY:
                attributes[p.name] = made
            else:
                inputs.append(made)
            assert p.kind is inspect.Parameter.KEYWORD_ONLY or made.kind in INPUT_KINDS, f"{name}: {made}"
        last = NEWEST[domain] if until is None else until
        row = Operator(name, domain, since, last, function, takes_call, tuple(inputs), variadic, attributes)
        rows = OPERATORS.setdefault((domain, name), [])
        rows.append(row)
        rows.sort(key=lambda o: o.since)
        return function

    return register


def load_all() -> None:
    """Import every module of operators, once."""
    if not OPERATORS:
        # By name: the operators' modules import this one.
        folder = importlib.import_module("gradlet.onnx.operators")
        for module in pkgutil.iter_modules(folder.__path__):
            importlib.import_module(f"{folder.__name__}.{module.name}")


def domain_name(domain: str) -> str:
    """A domain as messages name it."""
    return domain or "ai.onnx"


def find(domain: str, name: str, version: int) -> Operator | str:
    """The implementation of an operator at a version of its domain, or, in words, why there is none."""
    load_all()
    rows = OPERATORS.get((domain, name))
    where = f"{domain_name(domain)} version {version}"
    if rows is None:
        near = get_close_matches(name, [n for d, n in OPERATORS if d == domain], 3)
        known = f"; similar ones that are: {', '.join(near)}" if near else ""
        return f"operator {name} of {where} is not supported{known}"
    for row in reversed(rows):
        if row.since <= version:
            if version > row.until:
                return f"operator {name} of {where} is not supported; versions {row.since} to {row.until} are"
            return row
    return f"operator {name} of {where} is not supported; it is from version {rows[0].since} on"


def check_attributes(row: Operator, attributes: dict[str, Any], where: str) -> dict[str, Any]:
    """The attributes of a node, checked against the signature.

    Raises:
        OnnxError: an unknown attribute, one of another type, or a missing one.
    """
    checked = {}
    for name, value in attributes.items():
        parameter = row.attributes.get(name)
        if parameter is None:
            if name == "consumed_inputs":  # a hint of the first versions, about memory
                continue
            known = ", ".join(sorted(row.attributes)) or "none"
            raise OnnxError(f"{where}: attribute {name!r} is not supported; supported are: {known}")
        wanted = ATTRIBUTE_KINDS.get(parameter.kind)
        if wanted is not None:
            fits = isinstance(value, wanted)
            if fits and parameter.kind.startswith("list"):
                element: Any = {"list[int]": int, "list[float]": (float, int), "list[str]": str}[parameter.kind]
                fits = all(isinstance(v, element) for v in value)
            if not fits:
                raise OnnxError(f"{where}: attribute {name!r} must be {parameter.kind}, got {_shown(value)}")
        checked[name] = value
    for name, parameter in row.attributes.items():
        if parameter.required and name not in checked:
            raise OnnxError(f"{where}: attribute {name!r} is missing")
    return checked


def _shown(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) < 60 else text[:57] + "..."


def check_inputs(row: Operator, inputs: Sequence[str], where: str) -> None:
    """Refuse a node with too many or too few inputs.

    Raises:
        OnnxError: see above.
    """
    least = max((i + 1 for i, p in enumerate(row.inputs) if p.required), default=0)
    most = None if row.variadic else len(row.inputs)
    if len(inputs) < least or (most is not None and len(inputs) > most):
        span = f"at least {least}" if most is None else f"{least}" if least == most else f"{least} to {most}"
        raise OnnxError(f"{where}: has {len(inputs)} inputs, must have {span}")
    for parameter, name in zip(row.inputs, inputs):
        if parameter.required and not name:
            raise OnnxError(f"{where}: input {parameter.name!r} is missing")
