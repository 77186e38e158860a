"""`x.size`: the number of elements, as the array API has it, that answers calls as torch's `x.size(dim)` does."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import MethodType
from typing import Any

from gradlet.base.symint import Size


class ElementCount(int):
    """A number of elements; called, it gives the sizes of the axes."""

    ask: Callable[[int | None], Any]

    def __call__(self, dim: int | None = None) -> Any:
        """All sizes, or the size of one axis."""
        return self.ask(dim)

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


class element_count:
    """Decorator of the method `size`: looked up on a tensor it is an `ElementCount`."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.method
        bound = MethodType(self.method, instance)
        number = prod(instance.shape)
        if isinstance(number, Size):
            return bound  # known only at launch: there is no number yet
        count = ElementCount(number)
        count.ask = bound
        return count
