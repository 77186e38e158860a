"""How an opt is put in words, and the error of one that a kernel does not allow."""

from __future__ import annotations

from gradlet.base.errors import ArgumentError
from gradlet.ops.op import Opt, Tail


def refusal(opt: Opt, reason: str) -> ArgumentError:
    """The error of an opt that cannot be applied."""
    return ArgumentError(f"{describe(opt)} is not possible here: {reason}")


def describe(opt: Opt) -> str:
    """The opt in words, e.g. `VECTORIZE(range 1, 16, MASK)`."""
    tail = "" if opt.tail is Tail.EXACT else f", {opt.tail.name}"
    return f"{opt.kind.name}(range {opt.axis}, {opt.amount}{tail})"
