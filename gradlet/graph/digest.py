"""The digest of a graph: equal for equal graphs in every process, so that what was made of one is found on disk."""

from __future__ import annotations

import hashlib
from typing import Final

from gradlet.graph.node import UOp

DIGEST_BYTES: Final = 20


def digest(root: UOp) -> str:
    """A hash of everything below `root`: ops, types, arguments and how the nodes hang together.

    Nodes are numbered as a walk from the root meets them, so the hash depends on structure alone. Arguments count by
    their text, which tells -0.0 from 0.0 and every other float from its neighbours.

    Returns:
        40 hexadecimal digits.
    """
    numbers: dict[UOp, int] = {root: 0}
    order = [root]
    lines: list[str] = []
    for node in order:
        for source in node.src:
            if source not in numbers:
                numbers[source] = len(order)
                order.append(source)
        lines.append(f"{node.op:d} {node.dtype!r} {[numbers[source] for source in node.src]} {node.arg!r}")
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=DIGEST_BYTES).hexdigest()
