"""Core mixin: one method per element-wise op, and the Python operators spelled with them.

Whoever mixes this in (graph node, pattern, Tensor) provides `alu` and `coerce`.
"""

from __future__ import annotations

from typing import Any, Self

from gradlet.ops.op import Op


class ElementwiseMixin:
    """Element-wise arithmetic. `alu(op, *others)` applies an op, `coerce(value)` turns a scalar into one of us."""

    __slots__ = ()

    def alu(self, op: Op, *others: Any) -> Self:
        """Apply `op` to this and `others`."""
        raise NotImplementedError

    def coerce(self, value: Any) -> Self:
        """Turn a Python scalar into a constant that fits this operand; others of our kind pass unchanged."""
        raise NotImplementedError

    # arithmetic
    def add(self, x: Any, reverse: bool = False, alpha: float = 1) -> Self:
        """`self + alpha * x`, element by element; `reverse` exchanges the two.

        >>> Tensor([1, 2]).add(10).tolist()
        [11, 12]
        """
        if reverse or alpha != 1:
            return self.coerce(x).add(self, alpha=alpha) if reverse else self.add(self.coerce(x).mul(alpha))
        return self.alu(Op.ADD, self.coerce(x))

    def mul(self, x: Any, reverse: bool = False) -> Self:
        """`self * x`, element by element; `reverse` exchanges the two.

        >>> Tensor([1, 2]).mul(10).tolist()
        [10, 20]
        """
        if reverse:
            return self.coerce(x).mul(self)
        return self.alu(Op.MUL, self.coerce(x))

    def neg(self) -> Self:
        """`-self`.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        return self.alu(Op.MUL, self.coerce(-1))

    def sub(self, x: Any, reverse: bool = False, alpha: float = 1) -> Self:
        """`self - alpha * x`, element by element; `reverse` exchanges the two.

        >>> Tensor([1, 2]).sub(10).tolist()
        [-9, -8]
        """
        if reverse or alpha != 1:
            return self.coerce(x).sub(self, alpha=alpha) if reverse else self.sub(self.coerce(x).mul(alpha))
        return self.alu(Op.ADD, self.coerce(x).neg())

    def fdiv(self, other: Any) -> Self:
        """True division of floats.

        >>> Tensor([1.0, 3.0]).fdiv(2).tolist()
        [0.5, 1.5]
        """
        return self.alu(Op.FDIV, self.coerce(other))

    def floordiv(self, other: Any) -> Self:
        """Integer division rounded down; division by zero gives 0.

        >>> Tensor([7, -7]).floordiv(2).tolist()
        [3, -4]
        """
        return self.alu(Op.IDIV, self.coerce(other))

    def mod(self, x: Any, reverse: bool = False) -> Self:
        """Remainder with the sign of the divisor; modulo zero gives 0.

        >>> Tensor([7, -7]).mod(3).tolist()
        [1, 2]
        """
        if reverse:
            return self.coerce(x).mod(self)
        return self.alu(Op.MOD, self.coerce(x))

    def maximum(self, x: Any) -> Self:
        """The larger of the two, NaN if either is NaN.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        return self.alu(Op.MAX, self.coerce(x))

    def minimum(self, x: Any) -> Self:
        """The smaller of the two, NaN if either is NaN.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        return self.alu(Op.MIN, self.coerce(x))

    # bits
    def bitwise_and(self, x: Any, reverse: bool = False) -> Self:
        """Bitwise and; logical and for bool.

        >>> Tensor([6, 3]).bitwise_and(2).tolist()
        [2, 2]
        """
        if reverse:
            return self.coerce(x).bitwise_and(self)
        return self.alu(Op.AND, self.coerce(x))

    def bitwise_or(self, x: Any, reverse: bool = False) -> Self:
        """Bitwise or; logical or for bool.

        >>> Tensor([4, 3]).bitwise_or(2).tolist()
        [6, 3]
        """
        if reverse:
            return self.coerce(x).bitwise_or(self)
        return self.alu(Op.OR, self.coerce(x))

    def bitwise_xor(self, x: Any, reverse: bool = False) -> Self:
        """Bitwise exclusive or.

        >>> Tensor([6, 3]).bitwise_xor(2).tolist()
        [4, 1]
        """
        if reverse:
            return self.coerce(x).bitwise_xor(self)
        return self.alu(Op.XOR, self.coerce(x))

    def lshift(self, x: Any, reverse: bool = False) -> Self:
        """Shift bits left.

        >>> Tensor([1, 3]).lshift(2).tolist()
        [4, 12]
        """
        if reverse:
            return self.coerce(x).lshift(self)
        return self.alu(Op.SHL, self.coerce(x))

    def rshift(self, x: Any, reverse: bool = False) -> Self:
        """Shift bits right, keeping the sign of signed integers.

        >>> Tensor([8, -8]).rshift(2).tolist()
        [2, -2]
        """
        if reverse:
            return self.coerce(x).rshift(self)
        return self.alu(Op.SHR, self.coerce(x))

    # comparison
    def lt(self, x: Any) -> Self:
        """`self < x` as bool.

        >>> Tensor([1, 2]).lt(2).tolist()
        [True, False]
        """
        return self.alu(Op.CMPLT, self.coerce(x))

    def eq(self, x: Any) -> Self:
        """`self == x` as bool.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        return self.alu(Op.CMPEQ, self.coerce(x))

    def ne(self, x: Any) -> Self:
        """`self != x` as bool.

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        return self.alu(Op.CMPNE, self.coerce(x))

    def logical_not(self) -> Self:
        """True where the value is zero or False.

        >>> Tensor([0, 2]).logical_not().tolist()
        [True, False]
        """
        return self.alu(Op.CMPEQ, self.coerce(0))

    # unary
    def sqrt(self) -> Self:
        """Square root; NaN for negative numbers.

        >>> Tensor([4.0, 9.0]).sqrt().tolist()
        [2.0, 3.0]
        """
        return self.alu(Op.SQRT)

    def exp(self) -> Self:
        """`e ** self`.

        >>> Tensor([0.0]).exp().item()
        1.0
        """
        return self.alu(Op.EXP)

    def exp2(self) -> Self:
        """`2 ** self`.

        >>> Tensor([3.0]).exp2().item()
        8.0
        """
        return self.alu(Op.EXP2)

    def log(self) -> Self:
        """Natural logarithm; -inf for 0, NaN for negative numbers.

        >>> Tensor([1.0]).log().item()
        0.0
        """
        return self.alu(Op.LOG)

    def log2(self) -> Self:
        """Base 2 logarithm.

        >>> Tensor([8.0]).log2().item()
        3.0
        """
        return self.alu(Op.LOG2)

    def sin(self) -> Self:
        """Sine of radians.

        >>> Tensor([0.0]).sin().item()
        0.0
        """
        return self.alu(Op.SIN)

    def cos(self) -> Self:
        """Cosine of radians.

        >>> Tensor([0.0]).cos().item()
        1.0
        """
        return self.alu(Op.COS)

    def trunc(self) -> Self:
        """Round toward zero.

        >>> Tensor([1.7, -1.7]).trunc().tolist()
        [1.0, -1.0]
        """
        return self.alu(Op.TRUNC)

    # operators
    def __add__(self, other: Any) -> Self:
        return self.add(other)

    def __radd__(self, other: Any) -> Self:
        return self.coerce(other).add(self)

    def __mul__(self, other: Any) -> Self:
        return self.mul(other)

    def __rmul__(self, other: Any) -> Self:
        return self.coerce(other).mul(self)

    def __neg__(self) -> Self:
        return self.neg()

    def __sub__(self, other: Any) -> Self:
        return self.sub(other)

    def __rsub__(self, other: Any) -> Self:
        return self.coerce(other).sub(self)

    def __floordiv__(self, other: Any) -> Self:
        return self.floordiv(other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self.coerce(other).floordiv(self)

    def __mod__(self, other: Any) -> Self:
        return self.mod(other)

    def __rmod__(self, other: Any) -> Self:
        return self.coerce(other).mod(self)

    def __and__(self, other: Any) -> Self:
        return self.bitwise_and(other)

    def __rand__(self, other: Any) -> Self:
        return self.coerce(other).bitwise_and(self)

    def __or__(self, other: Any) -> Self:
        return self.bitwise_or(other)

    def __ror__(self, other: Any) -> Self:
        return self.coerce(other).bitwise_or(self)

    def __xor__(self, other: Any) -> Self:
        return self.bitwise_xor(other)

    def __rxor__(self, other: Any) -> Self:
        return self.coerce(other).bitwise_xor(self)

    def __lshift__(self, other: Any) -> Self:
        return self.lshift(other)

    def __rlshift__(self, other: Any) -> Self:
        return self.coerce(other).lshift(self)

    def __rshift__(self, other: Any) -> Self:
        return self.rshift(other)

    def __rrshift__(self, other: Any) -> Self:
        return self.coerce(other).rshift(self)

    def __lt__(self, other: Any) -> Self:
        return self.lt(other)

    def __gt__(self, other: Any) -> Self:
        return self.coerce(other).lt(self)

    def __le__(self, other: Any) -> Self:
        # Not `not (other < self)`: that would be True for NaN.
        return self.lt(other).bitwise_or(self.eq(other))

    def __ge__(self, other: Any) -> Self:
        return self.coerce(other).lt(self).bitwise_or(self.eq(other))
