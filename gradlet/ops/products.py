"""Composed mixin: products of matrices with sums, of batches, of chains, and powers."""

# Batches of matrices are Any to the type checker, see `matrices`.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import axis_number, broadcast_shapes, integer, number
from gradlet.ops.linalg import LinalgMixin
from gradlet.ops.movement import operand


def need_axes(value: Any, what: str, name: str, ndim: int) -> Any:
    """The argument itself, which must be a tensor of `ndim` axes.

    Raises:
        DTypeError: it is no tensor.
        ShapeError: another number of axes.
    """
    kind = {1: "a vector", 2: "a matrix", 3: "a batch of matrices"}.get(ndim, "a tensor")
    if operand(value, what, name).ndim != ndim:
        raise ShapeError(f"{what}: {name} must be {kind} ({ndim} axes), got shape {value.shape}")
    return value


class ProductsMixin(LinalgMixin):
    """Products."""

    __slots__ = ()

    def mm(self, mat2: Self) -> Self:
        """Product of two matrices; unlike `matmul` it takes nothing else.

        Raises:
            ShapeError: not two matrices that fit.

        >>> Tensor([[1, 2]]).mm(Tensor([[3], [4]])).tolist()
        [[11]]
        """
        return need_axes(self, "mm", "this", 2).dot(need_axes(mat2, "mm", "mat2", 2))

    def mv(self, vec: Self) -> Self:
        """Product of a matrix and a vector.

        Raises:
            ShapeError: not a matrix and a vector that fit.

        >>> Tensor([[1, 2], [3, 4]]).mv(Tensor([1, 1])).tolist()
        [3, 7]
        """
        return need_axes(self, "mv", "this", 2).dot(need_axes(vec, "mv", "vec", 1))

    def bmm(self, mat2: Self) -> Self:
        """Product of two batches of matrices, one with one: [b, n, k] and [b, k, m] give [b, n, m].

        Raises:
            ShapeError: not two batches of one size whose matrices fit.

        >>> Tensor([[[1, 2]], [[3, 4]]]).bmm(Tensor([[[1], [1]], [[1], [1]]])).tolist()
        [[[3]], [[7]]]
        """
        need_axes(self, "bmm", "this", 3), need_axes(mat2, "bmm", "mat2", 3)
        if self.shape[0] != mat2.shape[0]:
            raise ShapeError(f"bmm: shapes {self.shape} and {mat2.shape} have batches of different size; use matmul")
        return self.dot(mat2)

    def vdot(self, other: Self) -> Self:
        """Sum of the products of two vectors.

        Raises:
            ShapeError: not two vectors of one size.

        >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
        11
        """
        need_axes(self, "vdot", "this", 1), need_axes(other, "vdot", "other", 1)
        if self.shape != other.shape:
            raise ShapeError(f"vdot: vectors of different size {self.shape[0]} and {other.shape[0]}")
        return self.dot(other)

    def vecdot(self, other: Self, dim: int = -1) -> Self:
        """Sums of products along one axis; the others broadcast.

        Raises:
            ShapeError: shapes that do not broadcast, or sizes along `dim` that differ.

        >>> Tensor([[1, 2], [3, 4]]).vecdot(Tensor([1, 1])).tolist()
        [3, 7]
        """
        shape = broadcast_shapes([self.shape, operand(other, "vecdot", "other").shape], "vecdot")
        if not shape:
            raise ShapeError("vecdot: both need at least one axis; use * for scalars")
        axis = axis_number(dim, len(shape), "vecdot") - len(shape)
        if max(-axis, 1) <= min(self.ndim, other.ndim) and self.shape[axis] != other.shape[axis]:
            raise ShapeError(
                f"vecdot: shapes {self.shape} and {other.shape} differ along axis {dim}, which is summed and so does "
                "not broadcast"
            )
        left, right = [x.expand(shape) for x in self.same_dtype([other])]
        return left.mul(right).sum(axis, dtype=left.dtype)

    def inner(self, other: Self) -> Self:
        """Sums of products over the last axes of both; with a scalar the product.

        The result has the other axes of this, then those of `other`.

        Raises:
            ShapeError: the last axes differ.

        >>> Tensor([[1, 2], [3, 4]]).inner(Tensor([[1, 1], [0, 1]])).tolist()
        [[3, 2], [7, 4]]
        """
        if self.ndim == 0 or operand(other, "inner", "other").ndim == 0:
            return self.mul(other)
        if self.shape[-1] != other.shape[-1]:
            raise ShapeError(f"inner: the last axes of shapes {self.shape} and {other.shape} differ")
        return self.tensordot(other, ([-1], [-1]))

    def tensordot(self, other: Self, dims: int | Sequence[Sequence[int]] = 2) -> Self:
        """Sums of products over several axes at once.

        Args:
            other: the right factor.
            dims: how many of the last axes of this meet as many first ones of `other`; or two lists of axes.

        Raises:
            ShapeError: sizes of axes that meet differ.
            ArgumentError: lists of different length.

        >>> Tensor([[1, 2], [3, 4]]).tensordot(Tensor([[1, 1], [1, 1]])).item()
        10
        """
        operand(other, "tensordot", "other")
        if isinstance(dims, (tuple, list)):
            if len(dims) != 2:
                raise ArgumentError(f"tensordot: dims must be a number or two lists of axes, got {dims!r}")
            first, second = [list(d) if isinstance(d, (tuple, list)) else [d] for d in dims]
        else:
            count = integer(dims, "tensordot", "dims", 0)
            if count > min(self.ndim, other.ndim):
                raise ArgumentError(
                    f"tensordot: dims {count} for tensors of {self.ndim} and {other.ndim} axes; sum over at most "
                    f"{min(self.ndim, other.ndim)}"
                )
            first, second = list(range(self.ndim - count, self.ndim)), list(range(count))
        if len(first) != len(second):
            raise ArgumentError(f"tensordot: {len(first)} axes of the first meet {len(second)} of the second")
        first = [axis_number(a, self.ndim, "tensordot") for a in first]
        second = [axis_number(a, other.ndim, "tensordot") for a in second]
        pairs = [(self.shape[a], other.shape[b]) for a, b in zip(first, second)]
        if any(a != b and 1 not in (a, b) for a, b in pairs):
            raise ShapeError(
                f"tensordot: axes {first} of shape {self.shape} do not fit axes {second} of shape {other.shape}"
            )
        # A size of 1 meets every size, as if it were repeated.
        sizes = [min(pair) if 1 in pair else pair[0] for pair in pairs]
        left_sums = [a for a, (x, y) in zip(first, pairs) if x != y]
        right_sums = [b for b, (x, y) in zip(second, pairs) if x != y]
        left = self.sum(left_sums, keepdim=True, dtype=self.dtype) if left_sums else self
        right = other.sum(right_sums, keepdim=True, dtype=other.dtype) if right_sums else other
        mine = [a for a in range(self.ndim) if a not in first]
        others = [a for a in range(other.ndim) if a not in second]
        left_shape, right_shape = [self.shape[a] for a in mine], [other.shape[a] for a in others]
        total = prod(sizes)
        left = left.permute([*mine, *first]).reshape(prod(left_shape), total)
        right = right.permute([*second, *others]).reshape(total, prod(right_shape))
        return left.dot(right).reshape([*left_shape, *right_shape])

    # with a sum
    def addmm(self, mat1: Self, mat2: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """`beta * self + alpha * (mat1 @ mat2)` of matrices; this broadcasts, and is not read where beta is 0.

        Raises:
            ShapeError: not matrices that fit.

        >>> Tensor([[1.0]]).addmm(Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]])).tolist()
        [[12.0]]
        """
        product = need_axes(mat1, "addmm", "mat1", 2).dot(need_axes(mat2, "addmm", "mat2", 2))
        return self._with_product(product, beta, alpha, "addmm")

    def addmv(self, mat: Self, vec: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """`beta * self + alpha * (mat @ vec)`; this broadcasts, and is not read where beta is 0.

        Raises:
            ShapeError: not a matrix and a vector that fit.

        >>> Tensor([1.0]).addmv(Tensor([[1.0, 2.0]]), Tensor([3.0, 4.0])).tolist()
        [12.0]
        """
        product = need_axes(mat, "addmv", "mat", 2).dot(need_axes(vec, "addmv", "vec", 1))
        return self._with_product(product, beta, alpha, "addmv")

    def addr(self, vec1: Self, vec2: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """`beta * self + alpha * outer(vec1, vec2)`; this broadcasts, and is not read where beta is 0.

        Raises:
            ShapeError: not two vectors, or this does not broadcast.

        >>> Tensor([[1.0, 1.0]]).addr(Tensor([2.0]), Tensor([3.0, 4.0])).tolist()
        [[7.0, 9.0]]
        """
        product = need_axes(vec1, "addr", "vec1", 1).outer(need_axes(vec2, "addr", "vec2", 1))
        return self._with_product(product, beta, alpha, "addr")

    def baddbmm(self, batch1: Self, batch2: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """`beta * self + alpha * bmm(batch1, batch2)`; this broadcasts, and is not read where beta is 0.

        Raises:
            ShapeError: not batches of matrices that fit.

        >>> Tensor([[[1.0]]]).baddbmm(Tensor([[[1.0, 2.0]]]), Tensor([[[3.0], [4.0]]])).tolist()
        [[[12.0]]]
        """
        return self._with_product(operand(batch1, "baddbmm", "batch1").bmm(batch2), beta, alpha, "baddbmm")

    def addbmm(self, batch1: Self, batch2: Self, *, beta: float = 1, alpha: float = 1) -> Self:
        """`beta * self + alpha * bmm(batch1, batch2).sum(0)`; this broadcasts, and is not read where beta is 0.

        Raises:
            ShapeError: not batches of matrices that fit.

        >>> Tensor([[1.0]]).addbmm(Tensor([[[1.0, 2.0]]]), Tensor([[[3.0], [4.0]]])).tolist()
        [[12.0]]
        """
        need_axes(batch1, "addbmm", "batch1", 3), need_axes(batch2, "addbmm", "batch2", 3)
        if batch1.shape[0] != batch2.shape[0] or batch1.shape[2] != batch2.shape[1]:
            raise ShapeError(
                f"addbmm: shapes {batch1.shape} and {batch2.shape} do not fit: they are [batch, n, k] and [batch, k, m]"
            )
        return self._with_product(batch1.tensordot(batch2, ([0, 2], [0, 1])), beta, alpha, "addbmm")

    def _with_product(self, product: Self, beta: float, alpha: float, what: str) -> Self:
        beta, alpha = number(beta, what, "beta"), number(alpha, what, "alpha")
        for name, value in (("beta", beta), ("alpha", alpha)):
            if isinstance(value, float) and not product.dtype.is_float:
                raise DTypeError(f"{what}: {name} is {value}, but the product is {product.dtype}; use an integer")
        if broadcast_shapes([self.shape, product.shape], what) != product.shape:
            raise ShapeError(f"{what}: shape {self.shape} does not broadcast to that of the product, {product.shape}")
        scaled = product if alpha == 1 else product.mul(alpha)
        if beta == 0:
            return scaled
        return (self if beta == 1 else self.mul(beta)).add(scaled)

    # several factors
    @staticmethod
    def multi_dot(tensors: Sequence[Any]) -> Any:
        """Product of a chain of matrices, in the order that takes the fewest multiplications.

        The first and the last may be vectors.

        Raises:
            ArgumentError: fewer than two factors.
            ShapeError: factors that do not fit.

        >>> Tensor.multi_dot([Tensor([[1, 2]]), Tensor([[1], [1]]), Tensor([[5]])]).tolist()
        [[15]]
        """
        if not isinstance(tensors, (tuple, list)):
            raise ArgumentError(f"multi_dot: tensors must be a list of factors, got {type(tensors).__name__}")
        factors = [operand(t, "multi_dot", f"factor {i}") for i, t in enumerate(tensors)]
        if len(factors) < 2:
            raise ArgumentError(f"multi_dot: needs at least 2 factors, got {len(factors)}")
        row, column = factors[0].ndim == 1, factors[-1].ndim == 1
        factors[0] = factors[0].unsqueeze(0) if row else factors[0]
        factors[-1] = factors[-1].unsqueeze(1) if column else factors[-1]
        for position, factor in enumerate(factors):
            need_axes(factor, "multi_dot", f"factor {position}", 2)
        sizes = [factors[0].shape[0], *[f.shape[1] for f in factors]]
        for left, right in zip(factors, factors[1:]):
            if left.shape[1] != right.shape[0]:
                raise ShapeError(f"multi_dot: neighbours of shapes {left.shape} and {right.shape} do not fit")
            if left.dtype is not right.dtype:
                raise DTypeError(f"multi_dot: factors have types {left.dtype} and {right.dtype}; cast them to one")
        product = _in_order(factors, _cheapest_cuts(sizes))
        return product.reshape([s for s, gone in zip(product.shape, (row, column)) if not gone])

    @staticmethod
    def chain_matmul(*matrices: Any) -> Any:
        """Same as `multi_dot`; one matrix is its own product.

        >>> Tensor.chain_matmul(Tensor([[1, 2]]), Tensor([[1], [1]])).tolist()
        [[3]]
        """
        listed = matrices[0] if len(matrices) == 1 and isinstance(matrices[0], (tuple, list)) else matrices
        return listed[0] if len(listed) == 1 else ProductsMixin.multi_dot(listed)

    def bilinear(self, other: Self, weight: Self, bias: Self | None = None) -> Self:
        """`result[..., o] = sum(self[..., i] * weight[o, i, j] * other[..., j]) + bias[o]`.

        Raises:
            ShapeError: shapes that do not fit.

        >>> Tensor([[1.0, 2.0]]).bilinear(Tensor([[3.0]]), Tensor([[[1.0], [1.0]]])).tolist()
        [[9.0]]
        """
        need_axes(weight, "bilinear", "weight", 3)
        lead, sizes = self.shape[:-1], weight.shape[1:]
        if self.ndim < 1 or other.ndim < 1 or (self.shape[-1], other.shape[-1]) != sizes or other.shape[:-1] != lead:
            raise ShapeError(
                f"bilinear: inputs of shapes {self.shape} and {other.shape} do not fit a weight of shape "
                f"{weight.shape}: their last axes are the weight's second and third, the others are equal"
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ShapeError(f"bilinear: bias has shape {bias.shape}, the weight needs {weight.shape[:1]}")
        left, right = self.reshape(prod(lead), sizes[0]), other.reshape(prod(lead), sizes[1])
        result = _bilinear(left, weight, right).reshape(*lead, weight.shape[0])
        return result if bias is None else result.add(bias)

    def cross(self, other: Self, dim: int | None = None) -> Self:
        """Cross product of vectors of three elements along `dim`: (a1 b2 - a2 b1, a2 b0 - a0 b2, a0 b1 - a1 b0).

        Args:
            other: the right factor; both broadcast.
            dim: the axis; None takes the first of size 3.

        Raises:
            ShapeError: the axis does not have size 3.

        >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]
        """
        if self.ndim != operand(other, "cross", "other").ndim:
            raise ShapeError(f"cross: shapes {self.shape} and {other.shape} must have as many axes")
        if dim is None:
            threes = [a for a, size in enumerate(self.shape) if size == 3]
            if not threes:
                raise ShapeError(f"cross: no axis of shape {self.shape} has size 3")
            dim = threes[0]
        axis = axis_number(dim, self.ndim, "cross")
        if self.ndim == 0 or self.shape[axis] != 3 or other.shape[axis] != 3:
            raise ShapeError(f"cross: axis {dim} of shapes {self.shape} and {other.shape} must have size 3")
        shape = broadcast_shapes([self.shape, other.shape], "cross")
        a, b = [x.expand(shape) for x in self.same_dtype([other])]
        a1, a2 = [x.cat(x, dim=axis)._box(axis, shift, shift + 3) for x, shift in ((a, 1), (a, 2))]
        b1, b2 = [x.cat(x, dim=axis)._box(axis, shift, shift + 3) for x, shift in ((b, 1), (b, 2))]
        return a1.mul(b2).sub(a2.mul(b1))

    def linalg_cross(self, other: Self, dim: int = -1) -> Self:
        """`cross` along the last axis unless another is given.

        >>> Tensor([1, 0, 0]).linalg_cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]
        """
        return self.cross(other, dim)

    def matrix_power(self, n: int) -> Self:
        """`self @ self @ ...`, n factors, by repeated squaring; 0 gives the identity, negative n the inverse's power.

        Raises:
            ShapeError: not square matrices.

        >>> Tensor([[1.0, 1.0], [0.0, 1.0]]).matrix_power(5).tolist()
        [[1.0, 5.0], [0.0, 1.0]]
        """
        n = integer(n, "matrix_power", "n")
        if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
            raise ShapeError(f"matrix_power: needs square matrices, got shape {self.shape}")
        if n == 0:
            one = self.eye(self.shape[-1], dtype=self.dtype, device=self.place)
            return one.expand(self.shape)
        square = self.inv() if n < 0 else self
        exponent, result = abs(n), None
        while True:
            if exponent & 1:
                result = square if result is None else result.dot(square)
            exponent >>= 1
            if not exponent:
                return result if result is not None else square
            square = square.dot(square)

    def inv(self) -> Self:
        """The inverse of square matrices."""
        raise NotImplementedError

    def vander(self, N: int | None = None) -> Self:
        """Powers of each element along a new last axis: 1, x, x ** 2, ... x ** (N - 1).

        Args:
            N: how many; None takes as many as the last axis has elements.

        Raises:
            ArgumentError: N is not at least 2.

        >>> Tensor([1, 2, 3]).vander().tolist()
        [[1, 1, 1], [1, 2, 4], [1, 3, 9]]
        """
        if self.ndim == 0 and N is None:
            raise ArgumentError("vander: a tensor without axes does not say how many powers to take; give N")
        if self.ndim == 0:
            return self.reshape(1).vander(N)
        count = self.shape[-1] if N is None else integer(N, "vander", "N", 2)
        if count == 0:
            return self.constant_like(0, (*self.shape, 0))
        column = self.unsqueeze(-1)
        # x ** k as running products of 1, x, x, ...
        first = column.constant_like(1)
        if count == 1:
            return first
        return first.cat(column.expand((*self.shape, count - 1)), dim=-1).cumprod(-1)

    def newton_schulz(self, steps: int, params: Sequence[float], eps: float = 1.0e-7) -> Self:
        """Newton-Schulz iteration of an odd polynomial: with the right one it tends to the orthogonal polar factor.

        `X = self / (norm + eps)`, then `steps` times `X = (p0 + p1 * (X X') + p2 * (X X') ** 2 + ...) X`. Source:
        Bernstein and Newhouse 2024, "Old optimizer, new norm: an anthology"; Jordan 2024 (the Muon optimizer).

        Args:
            steps: iterations.
            params: factors of the polynomial, lowest power first.
            eps: added to the Frobenius norm of each matrix.

        Raises:
            ShapeError: fewer than two axes.

        >>> x = Tensor([[2.0, 0.0], [0.0, 1.0]]).newton_schulz(12, (1.5, -0.5))
        >>> x.sub(Tensor.eye(2)).abs().max().item() < 1e-5
        True
        """
        steps = integer(steps, "newton_schulz", "steps", 0)
        if self.ndim < 2:
            raise ShapeError(f"newton_schulz: needs matrices, got shape {self.shape}")
        if not isinstance(params, (tuple, list)) or not params:
            raise ArgumentError(f"newton_schulz: params must be a list of factors, got {params!r}")
        factors = [number(factor, "newton_schulz", "params") for factor in params]
        tall = self.shape[-2] > self.shape[-1]
        x = self.same_float("newton_schulz")
        x = x.transpose(-1, -2) if tall else x
        x = x.fdiv(x.square().sum((-2, -1), keepdim=True).sqrt().add(eps))
        for _ in range(steps):
            square = x.dot(x.transpose(-1, -2))
            term = x
            total = x.mul(factors[0])
            for factor in factors[1:]:
                term = square.dot(term)
                total = total.add(term.mul(factor))
            x = total
        return x.transpose(-1, -2) if tall else x


def _bilinear(left: Any, weight: Any, right: Any) -> Any:
    """[b, i], [o, i, j], [b, j] -> [b, o]."""
    outputs, inner, other = weight.shape
    half = left.dot(weight.permute(1, 0, 2).reshape(inner, outputs * other))
    half = half.reshape(left.shape[0], outputs, other)
    return half.mul(right.unsqueeze(1)).sum(-1)


def _cheapest_cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """For each chain of factors [i, j] after which factor it is cut in two: the classic dynamic program."""
    count = len(sizes) - 1
    cost: dict[tuple[int, int], int] = {(i, i): 0 for i in range(count)}
    cuts: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = {k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)}
            cuts[i, j] = min(options, key=lambda k: options[k])
            cost[i, j] = options[cuts[i, j]]
    return cuts


def _in_order(factors: Sequence[Any], cuts: dict[tuple[int, int], int]) -> Any:
    """The product of the chain, cut as `cuts` says."""
    products = {(i, i): factor for i, factor in enumerate(factors)}
    pending = [(0, len(factors) - 1)]
    order = []
    while pending:
        ends = pending.pop()
        order.append(ends)
        if ends[0] != ends[1]:
            cut = cuts[ends]
            pending += [(ends[0], cut), (cut + 1, ends[1])]
    for i, j in reversed(order):
        if i != j:
            products[i, j] = products[i, cuts[i, j]].dot(products[cuts[i, j] + 1, j])
    return products[0, len(factors) - 1]
