"""A size that is known only at launch: arithmetic and comparisons that hold for all its values, or an error."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from gradlet.base.errors import ShapeError, SizeLimitError, SizeStepError


def _operation() -> str:
    """The function of this package that the caller used, for messages."""
    frame: Any = sys._getframe(1)
    name = "size"
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("gradlet."):
        name = frame.f_code.co_name
        frame = frame.f_back
    return name.strip("_")


def _error(message: str) -> SizeLimitError:
    return SizeLimitError(f"{_operation()}: {message}")


class Unknown(NamedTuple):
    """A bound variable of a size.

    Attributes:
        node: what stands for it in a graph; two unknowns are the same when this is.
        name: how it is called.
        low, high: its limits, both included.
        value: what it is bound to.
    """

    node: Any
    name: str
    low: int
    high: int
    value: int


class Size:
    """A sum of bound variables times constants, plus a constant.

    It adds, subtracts and multiplies with integers, adds to other sizes, and divides by integers where the rest is the
    same for all values. It is equal to the same expression only, and to no integer: sizes that happen to agree stay
    different. What it cannot answer for all values raises `ShapeError`.

    Attributes:
        terms: the variables and their factors.
        constant: what is added.
    """

    __slots__ = ("constant", "terms")

    def __init__(self, terms: Mapping[Unknown, int], constant: int = 0) -> None:
        self.terms = {unknown: factor for unknown, factor in terms.items() if factor}
        self.constant = constant

    @property
    def low(self) -> int:
        """The smallest it can be."""
        return self.constant + sum(min(u.low * f, u.high * f) for u, f in self.terms.items())

    @property
    def high(self) -> int:
        """The largest it can be: so many positions have memory."""
        return self.constant + sum(max(u.low * f, u.high * f) for u, f in self.terms.items())

    @property
    def value(self) -> int:
        """What it is with the values that the variables are bound to."""
        return self.constant + sum(u.value * f for u, f in self.terms.items())

    def _plain(self) -> Any:
        return self if self.terms else self.constant

    # arithmetic
    def __add__(self, other: Any) -> Any:
        if isinstance(other, Size):
            terms = dict(self.terms)
            for unknown, factor in other.terms.items():
                terms[unknown] = terms.get(unknown, 0) + factor
            return Size(terms, self.constant + other.constant)._plain()
        return Size(self.terms, self.constant + other) if isinstance(other, int) else NotImplemented

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Size):
            raise ShapeError(
                f"{_operation()}: the product of the sizes {self} and {other} is no size: join such axes one at a time"
            )
        if not isinstance(other, int):
            return NotImplemented
        return Size({u: f * other for u, f in self.terms.items()}, self.constant * other)._plain()

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Size):
            quotient = self._times_of(other)
            if quotient is not None:
                return quotient
        elif isinstance(other, int) and other and self % other is not None:
            return Size({u: f // other for u, f in self.terms.items()}, self.constant // other)
        raise _error(f"the size {self} does not divide by {other} for every value of its variables")

    def __mod__(self, other: Any) -> int:
        if isinstance(other, Size) and self._times_of(other) is not None:
            return 0
        if isinstance(other, int) and other and not any(f % other for f in self.terms.values()):
            return self.constant % other
        raise SizeStepError(
            f"{_operation()}: the rest of the size {self} divided by {other} depends on the values of its variables"
        )

    def __rmod__(self, other: int) -> int:
        raise ShapeError(
            f"{_operation()}: the rest of {other} divided by the size {self} depends on the values of its variables"
        )

    def __rfloordiv__(self, other: int) -> Any:
        raise _error(f"{other} divided by the size {self} is no size")

    def __truediv__(self, other: Any) -> Any:
        raise _error(f"the size {self} divided by {other} depends on the values of its variables")

    def __rtruediv__(self, other: Any) -> Any:
        raise _error(f"{other} divided by the size {self} depends on the values of its variables")

    def _times_of(self, other: Size) -> int | None:
        """The constant that times `other` is this."""
        unknown = next(iter(other.terms), None)
        factor = self.terms.get(unknown, 0) // other.terms[unknown] if unknown is not None else 0
        return factor if other * factor == self else None

    # comparisons
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms and self.constant == other.constant

    def __hash__(self) -> int:
        return hash((frozenset(self.terms.items()), self.constant))

    def _compare(self, other: Any, sign: str) -> bool:
        difference = self - other
        low, high = (difference.low, difference.high) if isinstance(difference, Size) else (difference, difference)
        answers = {"<": (high < 0, low >= 0), "<=": (high <= 0, low > 0), ">": (low > 0, high <= 0),
                   ">=": (low >= 0, high < 0)}  # fmt: skip
        yes, no = answers[sign]
        if not yes and not no:
            raise _error(
                f"whether the size {self} {sign} {other} depends on the values of its variables, which are known only "
                "at launch; give the variables other limits, or work on all positions and mask them"
            )
        return yes

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, "<")

    def __le__(self, other: Any) -> bool:
        return self._compare(other, "<=")

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, ">")

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, ">=")

    def __bool__(self) -> bool:
        return True  # it may be 0 at launch, and then there is nothing to do

    # what needs a number
    def _refuse(self) -> NoReturn:
        raise _error(
            f"the size {self} of an axis is known only at launch, and this operation needs a number: use it on tensors "
            "of fixed sizes (take all positions and mask them), or on an axis whose size is fixed"
        )

    def __index__(self) -> int:
        self._refuse()

    def __int__(self) -> int:
        self._refuse()

    def __float__(self) -> float:
        self._refuse()

    def __repr__(self) -> str:
        parts = [u.name if f == 1 else f"{f} * {u.name}" for u, f in self.terms.items()]
        return " + ".join([*parts, str(self.constant)] if self.constant else parts)
