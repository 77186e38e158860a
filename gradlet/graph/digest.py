"""The digest of a graph: equal for equal graphs in every process, so that what was made of one is found on disk."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any, Final

from gradlet.base.dtype import DType
from gradlet.graph.node import UOp

DIGEST_BYTES: Final = 20

# Types whose `repr` says all that there is, the same in every process; it tells 1 from 1.0 and True, and 0.0 from -0.0.
_PLAIN: Final = frozenset({int, float, bool, str, bytes, type(None), DType})


def digest(root: UOp) -> str:
    """A hash of everything below `root`: ops, types, arguments and how the nodes hang together.

    Nodes are numbered as a walk from the root meets them, so the hash depends on structure alone.

    Returns:
        40 hexadecimal digits.

    Raises:
        TypeError: an argument has no text that is the same in every process.
    """
    numbers: dict[UOp, int] = {root: 0}
    number = numbers.setdefault
    order = [root]
    lines: list[str] = []
    for node in order:
        sources: list[int] = []
        for source in node.src:
            count = len(order)
            known = number(source, count)
            if known == count:
                order.append(source)
            sources.append(known)
        arg = node.arg
        lines.append(f"{node.op:d} {node.dtype!r} {sources} {arg if arg is None else text_of(arg)}")
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=DIGEST_BYTES).hexdigest()


def text_of(value: Any) -> str:
    """A text that equal values of equal types have in every process, and no others: the form of arguments of nodes.

    Raises:
        TypeError: the value is, or contains, something else than numbers, texts, types of elements, enumerated values
            and tuples of these.
    """
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is UOp:
        return f"graph {digest(value)}"
    if isinstance(value, tuple):
        name = "" if kind is tuple else kind.__name__
        return f"{name}({','.join([text_of(part) for part in value])})"
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    raise TypeError(f"{kind.__name__} has no text that is the same in every process")
