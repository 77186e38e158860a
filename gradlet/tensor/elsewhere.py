"""Whether anybody but its own tensors sees memory that is about to be written: then it must not be."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from gradlet.graph.node import UOp, toposort
from gradlet.runtime.buffer import protected
from gradlet.tensor.tensor import Tensor

MOST_HARMLESS: Final = 100_000


class Elsewhere:
    """Looks at all live tensors; a node that was harmless once is not looked at again.

    Args:
        targets: BUFFER nodes whose memory is written.
        owners: ids of the tensors that show it, and are to show what is written.
    """

    def __init__(self, targets: Collection[UOp], owners: Collection[int]) -> None:
        self._targets, self._owners = frozenset(targets), frozenset(owners)
        self._harmless: set[int] = set()

    def is_seen(self) -> bool:
        """Whether somebody else sees any of it now."""
        harmless, targets = self._harmless, self._targets
        if not targets:
            return False
        if not targets.isdisjoint(protected()):
            return True
        for tensor in Tensor.all_live():
            node = tensor.uop
            if node.uid in harmless or id(tensor) in self._owners:
                continue
            if any(n in targets for n in toposort((node,))):
                return True
            if len(harmless) >= MOST_HARMLESS:
                harmless.clear()
            harmless.add(node.uid)
        return False


class Programs:
    """What was found for calls of a function.

    It stands here, as the guards of a jit look at nothing of this folder:
    that another call was kept is no reason to trace a function again that reaches this.
    """

    __slots__ = ("by_sort",)

    def __init__(self) -> None:
        self.by_sort: dict[Any, Any] = {}
