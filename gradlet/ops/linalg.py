"""Composed mixin: products of vectors, matrices and tensors."""

from __future__ import annotations

from typing import Any, Self

from gradlet.base.dtype import DType, accumulator, to_dtype
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import broadcast_shapes
from gradlet.ops.formula import parse_einsum
from gradlet.ops.movement import operand
from gradlet.ops.op import Op
from gradlet.ops.stats import StatsMixin


class LinalgMixin(StatsMixin):
    """Linear algebra."""

    __slots__ = ()

    def dot(self, w: Self, dtype: DType | str | None = None) -> Self:
        """Matrix product: the last axis of this with the second last of `w` (its only one if it is a vector).

        Leading axes broadcast. 16-bit floats add in float32; integers keep their type.

        Args:
            w: the right factor.
            dtype: type to add in and of the result.

        Raises:
            ShapeError: the contracted axes differ, or a factor has no axes.

        >>> Tensor([[1, 2], [3, 4]]).dot(Tensor([1, 1])).tolist()
        [3, 7]
        """
        x, y = self.same_dtype([w], "dot")
        if x.ndim == 0 or y.ndim == 0:
            raise ShapeError(f"dot: shapes {x.shape} and {y.shape}: both need at least one axis; use * for scalars")
        contracted = y.shape[-min(y.ndim, 2)]
        if x.shape[-1] != contracted:
            raise ShapeError(
                f"dot: shapes {x.shape} and {y.shape} do not fit: the last axis of the first is {x.shape[-1]}, the "
                f"{'second last' if y.ndim > 1 else 'only'} axis of the second is {contracted}"
            )
        result_dtype = x.dtype if dtype is None else to_dtype(dtype)
        carrier = accumulator(result_dtype)
        # Converted before they are repeated: gradients add up in the wide type, and are rounded once.
        x, y = x.cast(carrier), y.cast(carrier)
        right = y.transpose(-1, -2) if y.ndim > 1 else y.reshape(1, contracted)
        left = x if x.ndim > 1 else x.reshape(1, contracted)
        batch = broadcast_shapes([left.shape[:-2], right.shape[:-2]], "dot")
        rows, columns = left.shape[-2], right.shape[-2]
        left = left.reshape(left.shape[:-1] + (1, contracted)).expand(batch + (rows, columns, contracted))
        right = right.reshape(right.shape[:-2] + (1, columns, contracted)).expand(batch + (rows, columns, contracted))
        total = left.mul(right).reduce_over(Op.ADD, -1, False, "dot").cast(result_dtype)
        if y.ndim == 1:
            total = total.reshape(total.shape[:-1])
        return (
            total.reshape(total.shape[:-2] + total.shape[-1:] if y.ndim > 1 else total.shape[:-1])
            if x.ndim == 1
            else total
        )

    def matmul(self, x: Self, reverse: bool = False, dtype: DType | str | None = None) -> Self:
        """Matrix product; see `dot`. With `reverse` the operands swap.

        >>> Tensor([[1, 2]]).matmul(Tensor([[3], [4]])).tolist()
        [[11]]
        """
        return x.dot(self, dtype) if reverse else self.dot(x, dtype)

    def __matmul__(self, other: Any) -> Self:
        return self.dot(self.coerce(other))

    def __rmatmul__(self, other: Any) -> Self:
        return self.coerce(other).dot(self)

    def linear(self, weight: Self, bias: Self | None = None, dtype: DType | str | None = None) -> Self:
        """`self @ weight + bias`; a weight with one axis multiplies element by element.

        Raises:
            ShapeError: shapes do not fit.

        >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0], [1.0]]), Tensor([0.5])).tolist()
        [[3.5]]
        """
        weight = operand(weight, "linear", "weight")
        source = self if dtype is None else self.cast(dtype)
        weight = weight if dtype is None else weight.cast(dtype)
        if bias is None:
            return source.mul(weight) if weight.ndim == 1 else source.dot(weight)
        bias = source.coerce(bias) if dtype is None else bias.cast(dtype)
        own = source.dtype
        if weight.dtype is bias.dtype is own and weight.ndim > 1:
            # Narrow floats are rounded once, after the bias.
            carrier = accumulator(own)
            return source.dot(weight, carrier).add(bias.cast(carrier)).cast(own)
        return (source.mul(weight) if weight.ndim == 1 else source.dot(weight)).add(bias)

    def outer(self, other: Self) -> Self:
        """All products of two vectors.

        >>> Tensor([1, 2]).outer(Tensor([3, 4])).tolist()
        [[3, 4], [6, 8]]
        """
        if operand(other, "outer", "other").ndim != 1 or self.ndim != 1:
            raise ShapeError(f"outer: needs two vectors, got shapes {self.shape} and {other.shape}")
        return self.unsqueeze(1).mul(other.unsqueeze(0))

    def trace(self) -> Self:
        """Sum of the diagonal of a matrix.

        >>> Tensor([[1, 2], [3, 4]]).trace().item()
        5
        """
        if self.ndim != 2:
            raise ShapeError(
                f"trace: needs a matrix, got shape {self.shape}; use diagonal(0, -2, -1).sum(-1) for batches"
            )
        return self.diagonal().sum(-1)

    @staticmethod
    def einsum(formula: str, *operands: Any, dtype: DType | str | None = None) -> Any:
        """Sums of products by the Einstein convention: `Tensor.einsum("ij,jk->ik", a, b)`.

        Args:
            formula: letters of each operand's axes, `...` for broadcast axes, and after `->` those of the result;
                without `->` the letters that occur once, in alphabetical order.
            operands: tensors, or one list of them.
            dtype: type to add in and of the result.

        Raises:
            ArgumentError: a formula that cannot be read.
            ShapeError: shapes that do not fit it.

        >>> Tensor.einsum("ij,j->i", Tensor([[1, 2], [3, 4]]), Tensor([1, 1])).tolist()
        [3, 7]
        """
        tensors = list(operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands)
        if not isinstance(formula, str):
            raise ArgumentError(f"einsum: formula must be text such as 'ij,jk->ik', got {type(formula).__name__}")
        if not tensors:
            raise ArgumentError(f"einsum: {formula!r} has no tensors; give one for each group of letters")
        tensors = [operand(t, "einsum", f"operand {i}") for i, t in enumerate(tensors)]
        inputs, output = parse_einsum(formula, [t.shape for t in tensors])
        tensors = list(tensors[0].same_dtype(tensors[1:], "einsum"))
        prepared = [_without_repeats(t, letters) for t, letters in zip(tensors, inputs)]
        summed = sorted({c for _, letters in prepared for c in letters} - set(output))
        order = list(output) + summed
        result_dtype = tensors[0].dtype if dtype is None else to_dtype(dtype)
        carrier = accumulator(result_dtype)
        aligned = []
        for tensor, letters in prepared:
            present = [c for c in order if c in letters]
            moved = tensor.permute([letters.index(c) for c in present])
            sizes = dict(zip(present, moved.shape))
            aligned.append(moved.reshape([sizes.get(c, 1) for c in order]).cast(carrier))
        product = aligned[0]
        for tensor in aligned[1:]:
            product = product.mul(tensor)
        axes = tuple(range(len(output), len(order)))
        return (product.reduce_over(Op.ADD, axes, False, "einsum") if axes else product).cast(result_dtype)

    def kron(self, other: Self) -> Self:
        """Kronecker product: every element of this times all of `other`, block by block along every axis.

        >>> Tensor([[1, 2]]).kron(Tensor([[1], [1]])).tolist()
        [[1, 2], [1, 2]]
        """
        rank = max(self.ndim, operand(other, "kron", "other").ndim)
        mine, others = [(1,) * (rank - x.ndim) + x.shape for x in (self, other)]
        left = self.reshape([size for own in mine for size in (own, 1)])
        right = other.reshape([size for own in others for size in (1, own)])
        return left.mul(right).reshape([a * b for a, b in zip(mine, others)])


def _without_repeats(tensor: Any, letters: str) -> tuple[Any, str]:
    """A letter that occurs twice in one operand means the diagonal of its axes."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            if tensor.shape[first] != tensor.shape[second]:
                raise ShapeError(
                    f"einsum: letter {letter!r} has sizes {tensor.shape[first]} and {tensor.shape[second]} in shape "
                    f"{tensor.shape}; one letter stands for equal sizes"
                )
            tensor = tensor.diagonal(0, first, second)
            letters = "".join(c for i, c in enumerate(letters) if i not in (first, second)) + letter
    return tensor, letters
