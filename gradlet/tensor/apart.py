"""What a call of a jitted function captures, to be written down: a call that is undone, or an earlier one."""

from __future__ import annotations

from typing import Any

from gradlet.base.errors import JitError
from gradlet.engine import execute
from gradlet.tensor import function as functions
from gradlet.tensor.callarguments import Arguments
from gradlet.tensor.captured import Capture
from gradlet.tensor.function import jit
from gradlet.tensor.guards import Guards


def traced_apart(function: jit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Capture, Arguments, Guards]:
    """What a call with these arguments captures. Later calls know nothing of it.

    Raises:
        JitError: the function cannot be captured, or its first call makes tensors that later ones use.
    """
    execute.refuse_in_capture("export()", "export the function outside")
    with functions._one_at_a_time:
        arguments = Arguments(args, kwargs)
        functions._realize_all(arguments.tensors)
        guards = Guards(*functions._roots_of(function.function))
        functions._realize_all(guards.tensors)
        function._key(arguments, guards)  # gives constants memory
        function._refuse_large(guards)
        traced = function._trace(arguments, guards, args, kwargs, "export", undo=True)
        kept = any(reference() is not None for reference in traced.capture.leftovers)
        if kept and not traced.unclear:
            # Tables of our own, which exist from now on, or tensors that the function keeps where nobody looks.
            traced = function._trace(arguments, guards, args, kwargs, "export", undo=True)
        if traced.unclear:
            raise JitError(
                f"{function._name()} changes {traced.unclear[0]}, and not to tensors in lists, tuples and dicts: what "
                "a program keeps are tensors"
            )
        if not traced.is_settled or traced.capture.without_gradient:
            raise JitError(
                f"{function._name()} makes tensors at its first call that later calls use (gradients, a cache): call "
                "it before it is exported, or make them outside"
            )
    return traced.capture, arguments, guards


def captured_before(
    function: jit, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Capture, Arguments, Guards] | None:
    """What calls with these arguments replay, None where there was none like it yet."""
    execute.refuse_in_capture("looking at captures", "look at them outside")
    with functions._one_at_a_time:
        arguments = Arguments(args, kwargs)
        functions._realize_all(arguments.tensors)
        guards = Guards(*functions._roots_of(function.function))
        capture = function.captures.get(function._key(arguments, guards))
        return None if capture is None else (capture, arguments, guards)
