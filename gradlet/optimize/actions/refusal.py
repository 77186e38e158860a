"""The error of an opt that a kernel does not allow."""

from __future__ import annotations

from gradlet.base.errors import ArgumentError
from gradlet.ops.opt import Opt
from gradlet.optimize.opttext import opt_text


def refusal(opt: Opt, reason: str) -> ArgumentError:
    """The error of an opt that cannot be applied."""
    return ArgumentError(f"{opt_text(opt)} is not possible here: {reason}")
