"""Every function answers nonsense in any of its arguments with an error of ours, if it does not take it."""

from __future__ import annotations

import inspect
import operator
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradlet
import gradlet.array_api as xp
from gradlet import Tensor, nn
from gradlet.base.errors import UserError

PACKAGE = str(Path(gradlet.__file__).parent)
X = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
NONSENSE: tuple[Any, ...] = (
    None, "a", 1.5, -7, object(), [1, "b"], {}, Tensor([1.0, 2.0, 3.0]), float("nan"), (1, 2, 3), 1j,
)  # fmt: skip
# They change something for all tensors, take memory at an address as it is, or are what methods are written with.
LEFT_OUT = {"from_blob", "from_url", "manual_seed", "train", "elementary"}


def sensible(parameter: inspect.Parameter) -> Any:
    """Something to pass beside nonsense in another argument."""
    kind = str(parameter.annotation)
    if parameter.default is not parameter.empty:
        return parameter.default
    if parameter.name in ("axis", "dim", "dim0", "dim1", "n"):
        return 1
    if "Self" in kind or "Tensor" in kind or kind == "Any":
        return X
    for name, value in (("str", "sum"), ("Sequence", (2, 2)), ("tuple", (2, 2)), ("int", 1), ("float", 1.0)):
        if name in kind:
            return value
    return X


def calls(function: Callable[..., Any]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Arguments of which one is nonsense, and what it is."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for target in parameters:
        if "Callable" in str(target.annotation):
            continue  # what a function of the user's raises is the user's
        for nonsense in NONSENSE:
            positional: list[Any] = []
            named = {}
            for parameter in parameters:
                value = nonsense if parameter is target else sensible(parameter)
                if parameter.kind is parameter.KEYWORD_ONLY:
                    named[parameter.name] = value
                elif parameter.kind is not parameter.VAR_POSITIONAL or parameter is target:
                    positional.append(value)
            yield f"{target.name}={nonsense!r:.40}", positional, named


def answers(function: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> str:
    """What is wrong with the answer of a call; nothing where it is a value or an error for users."""
    try:
        function(*positional, **named)
    except UserError:
        return ""
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        if not place.filename.startswith(PACKAGE):
            return ""  # Python's own answer to operands that take no part in an operation
        return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
    return ""


def methods() -> list[str]:
    """Names of the methods for users, which have an example in their description."""
    found = []
    for name in dir(Tensor):
        attribute = inspect.getattr_static(Tensor, name)
        attribute = getattr(attribute, "__func__", attribute)
        if not name.startswith("_") and inspect.isfunction(attribute) and ">>> " in (attribute.__doc__ or ""):
            found.append(name)
    return sorted(set(found) - LEFT_OUT)


def test_methods() -> None:
    names = methods()
    assert len(names) > 500
    wrong = []
    for name in names:
        for shown, positional, named in calls(getattr(X.clone(), name)):
            if fault := answers(getattr(X.clone(), name), positional, named):
                wrong.append(f"{name}({shown}): {fault}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", [xp, xp.linalg], ids=["array_api", "linalg"])
def test_functions_of_the_array_api(module: Any) -> None:
    wrong = []
    for name, function in inspect.getmembers(module, inspect.isfunction):
        file = Path(inspect.getfile(function))
        if name.startswith("_") or file.parent.name != "array_api" or file.name == "arguments.py":
            continue  # what the functions look at their arguments with
        for shown, positional, named in calls(function):
            if fault := answers(function, positional, named):
                wrong.append(f"{name}({shown}): {fault}")
    assert not wrong, "\n".join(wrong)


def test_layers_and_optimizers() -> None:
    wrong = []
    for name, layer in [*inspect.getmembers(nn), *inspect.getmembers(nn.optim)]:
        if inspect.isclass(layer) and layer.__module__.startswith("gradlet.nn"):
            for shown, positional, named in calls(layer):
                if fault := answers(layer, positional, named):
                    wrong.append(f"{name}({shown}): {fault}")
    assert not wrong, "\n".join(wrong)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name)
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift",
        "lt", "le", "eq", "ne", "iadd", "getitem", "contains",
    )
} | {
    "divmod": divmod,
    "round": round,
    "x[nonsense] = 0": lambda x, nonsense: operator.setitem(x, nonsense, 0),
    "x[0] = nonsense": lambda x, nonsense: operator.setitem(x, 0, nonsense),
    "Tensor(nonsense)": lambda x, nonsense: Tensor(nonsense),
    "Tensor(1, dtype=nonsense)": lambda x, nonsense: Tensor(1, dtype=nonsense),
    "Tensor(1, device=nonsense)": lambda x, nonsense: Tensor(1, device=nonsense),
}  # fmt: skip
OPERANDS = (*NONSENSE, 10**30, np.array(["a"]), np.array([1j]), slice("a"), b"x", {1}, int)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    wrong = []
    for x in (X, Tensor([1, 2])):
        for nonsense in OPERANDS:
            for left, right in ((x.clone(), nonsense), (nonsense, x.clone())):
                if left is nonsense and "nonsense" in name:
                    continue
                if fault := answers(OPERATORS[name], [left, right], {}):
                    wrong.append(f"{left!r:.40} {name} {right!r:.40}: {fault}")
    assert not wrong, "\n".join(wrong)
