"""Casts by name, and bitcasts."""

# The constructor `wrap` makes whatever class is public: it is Any to the type checker.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any, Self

from gradlet.base.dtype import DType, dtypes, to_dtype
from gradlet.base.errors import ShapeError
from gradlet.graph.node import mk
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.tensor.core import LazyTensor, wrap
from gradlet.tensor.nodes import no_leaf


class Casts(LazyTensor):
    """Type changes with a name."""

    __slots__ = ()

    def bitcast(self, dtype: DType | str) -> Self:
        """Read the same bytes as another type; the last axis grows or shrinks with the size of the type.

        Raises:
            ShapeError: the last axis does not divide.

        >>> Tensor([1.0]).bitcast("int32").tolist()
        [1065353216]
        """
        wanted, own = to_dtype(dtype), self.dtype
        if wanted is own:
            return self
        if wanted.itemsize == own.itemsize:
            return wrap(mk(Op.BITCAST, wanted, (no_leaf(self.uop),), None), self._place)
        return self._bitcast_resized(wanted)

    def _bitcast_resized(self, wanted: DType) -> Self:
        """A bitcast between sizes, through unsigned integers: little-endian, as memory is."""
        own = self.dtype
        unsigned = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
        bits = self.bitcast(unsigned[own.itemsize]) if own is not dtypes.bool else self.cast(dtypes.uint8)
        if self.ndim == 0:
            raise ShapeError(
                f"bitcast: {own} to {wanted} changes the size of the last axis, and there is none; use reshape(1)"
            )
        if wanted.itemsize < own.itemsize:
            parts = own.itemsize // wanted.itemsize
            shifts = [bits.rshift(8 * wanted.itemsize * i).cast(unsigned[wanted.itemsize]) for i in range(parts)]
            return shifts[0].stack(*shifts[1:], dim=-1).flatten(-2).bitcast(wanted)
        parts = wanted.itemsize // own.itemsize
        if self.shape[-1] % parts:
            raise ShapeError(f"bitcast: {own} to {wanted}: last axis of shape {self.shape} does not divide by {parts}")
        split = bits.unflatten(-1, (-1, parts)).cast(unsigned[wanted.itemsize])
        total: Any = None
        for i in range(parts):
            piece = split._box(split.ndim - 1, i, i + 1).squeeze(-1).lshift(8 * own.itemsize * i)
            total = piece if total is None else total.bitwise_or(piece)
        return total.bitcast(wanted)

    def float(self) -> Self:
        """Cast to float32.

        >>> Tensor([1]).float().dtype
        dtypes.float32
        """
        return self.cast(dtypes.float32)

    def half(self) -> Self:
        """Cast to float16.

        >>> Tensor([1]).half().dtype
        dtypes.float16
        """
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """Cast to bfloat16.

        >>> Tensor([1]).bfloat16().dtype
        dtypes.bfloat16
        """
        return self.cast(dtypes.bfloat16)

    def double(self) -> Self:
        """Cast to float64.

        >>> Tensor([1]).double().dtype
        dtypes.float64
        """
        return self.cast(dtypes.float64)

    def int(self) -> Self:
        """Cast to int32.

        >>> Tensor([1]).int().dtype
        dtypes.int32
        """
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """Cast to int64.

        >>> Tensor([1]).long().dtype
        dtypes.int64
        """
        return self.cast(dtypes.int64)

    def short(self) -> Self:
        """Cast to int16.

        >>> Tensor([1]).short().dtype
        dtypes.int16
        """
        return self.cast(dtypes.int16)

    def byte(self) -> Self:
        """Cast to uint8.

        >>> Tensor([1]).byte().dtype
        dtypes.uint8
        """
        return self.cast(dtypes.uint8)

    def char(self) -> Self:
        """Cast to int8.

        >>> Tensor([1]).char().dtype
        dtypes.int8
        """
        return self.cast(dtypes.int8)

    def type(self, dtype: DType | str | None = None) -> Any:
        """The type of the elements, or, with a `dtype`, the values in that type.

        >>> Tensor([1]).type("int8").type()
        dtypes.int8
        """
        return self.dtype if dtype is None else self.cast(dtype)

    def type_as(self, other: Self) -> Self:
        """Cast to the type of another tensor.

        >>> Tensor([1]).type_as(Tensor([0.5])).dtype
        dtypes.float32
        """
        return self.cast(operand(other, "type_as", "other").dtype)

    # every tensor is real
    @property
    def real(self) -> Self:
        """The real part: the tensor itself, as there are no complex numbers.

        >>> Tensor([1.5]).real.tolist()
        [1.5]
        """
        return self

    def conj(self) -> Self:
        """The complex conjugate: the tensor itself, as there are no complex numbers.

        >>> Tensor([1.5]).conj().tolist()
        [1.5]
        """
        return self

    conj_physical = resolve_conj = resolve_neg = conj

    def bool(self) -> Self:
        """Cast to bool: True where not zero.

        >>> Tensor([1]).bool().dtype
        dtypes.bool
        """
        return self.cast(dtypes.bool)
