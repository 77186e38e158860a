"""Eigenvalues of symmetric matrices and singular values by Jacobi rotations, in rounds that all have one structure.

In a round every index takes part in one rotation; between rounds the indices move on a circle (the first stays), so
that after n - 1 rounds, a sweep, every pair has met once. All rounds have the same kernels. The number of sweeps is
fixed, because no value of the data may decide what a graph looks like. All functions take axes [batch, rows, columns]
and know nothing of gradients.

Sources: Hestenes 1958, "Inversion of matrices by biorthogonalization and related results"; Brent and Luk 1985, "The
solution of singular-value and symmetric eigenvalue problems on multiprocessor arrays" (the ordering); Drmac and Veselic
2008, "New fast and accurate Jacobi SVD algorithm" (QR first).
"""

from __future__ import annotations

from typing import Any, Final

from gradlet.ops.elimination import householder, identity, orthogonal_factor, pause_after

# Beyond this size the rounding of the many rotations is taken out again.
REFINED: Final = 16

# These functions work on whatever has the methods of a tensor.
Matrices = Any


def sweeps_for(size: int, itemsize: int) -> int:
    """How many sweeps leave cosines of rounding size, as found for random, graded and clustered matrices."""
    return (3 if itemsize < 8 else 4) + (size - 1).bit_length()


def scaled_to_one(matrix: Matrices) -> tuple[Matrices, Matrices]:
    """The matrices with their largest element about 1, and the powers of two that they were divided by."""
    largest = matrix.abs().max((1, 2), keepdim=True)
    usable = largest.gt(0).bitwise_and(largest.isfinite())
    power = usable.where(usable.where(largest, 1.0).log2().floor().exp2(), 1.0)
    return matrix.fdiv(power), power


def rotation(first: Matrices, second: Matrices, product: Matrices, still: Matrices) -> tuple[Matrices, Matrices]:
    """Cosine and sine of the smaller angle that makes [[first, product], [product, second]] diagonal.

    No rotation where `still` says so. The vectors become `c * x - s * y` and `s * x + c * y`.
    """
    ratio = second.sub(first).fdiv(still.where(1.0, product.mul(2.0)))
    tangent = ratio.lt(0).where(-1.0, 1.0).fdiv(ratio.abs().add(ratio.mul(ratio).add(1.0).sqrt()))
    tangent = still.where(0.0, tangent)
    cosine = tangent.mul(tangent).add(1.0).rsqrt()
    return cosine, cosine.mul(tangent)


def orthogonal_rows(work: Matrices, inner: int, sweeps: int) -> Matrices:
    """The rows after rotations that make their first `inner` elements orthogonal.

    Rows `i` and `i + half` are a pair. After a round all but the first move by one place on their circle; after whole
    sweeps they are where they were.
    """
    count = work.shape[1]
    even = max(2, count + count % 2)
    half = even // 2
    # An odd number gets one more row, of zeros: it never rotates.
    work = work.pad_zeros([(0, 0), (0, even - count), (0, 0)])
    upper, lower = work.shrink((None, (0, half))).contiguous(), work.shrink((None, (half, even))).contiguous()
    epsilon = 2.0 ** (-24 if work.dtype.itemsize < 8 else -53)
    rounds = sweeps * (even - 1) if count > 1 else 0
    for turn in range(rounds):
        x, y = upper.shrink((None, None, (0, inner))), lower.shrink((None, None, (0, inner)))
        first, second = x.mul(x).sum(2, keepdim=True), y.mul(y).sum(2, keepdim=True)
        product = x.mul(y).sum(2, keepdim=True)
        still = product.abs().gt(first.mul(second).sqrt().mul(epsilon)).logical_not()
        cosine, sine = rotation(first, second, product, still)
        cosine, sine = cosine.contiguous(), sine.contiguous()
        upper, lower = cosine.mul(upper).sub(sine.mul(lower)), sine.mul(upper).add(cosine.mul(lower))
        if half > 1:
            upper, lower = _moved_on(upper, lower, half)
        upper, lower = upper.contiguous(), lower.contiguous()
        if pause_after(turn, rounds):
            upper.realize(lower)
    return upper.cat(lower, dim=1).shrink((None, (0, count))).contiguous()


def _moved_on(upper: Matrices, lower: Matrices, half: int) -> tuple[Matrices, Matrices]:
    parts = [upper.shrink((None, (0, 1))), lower.shrink((None, (0, 1)))]
    if half > 2:
        parts.append(upper.shrink((None, (1, half - 1))))
    last = upper.shrink((None, (half - 1, half)))
    return parts[0].cat(*parts[1:], dim=1), lower.shrink((None, (1, half))).cat(last, dim=1)


def descending(values: Matrices) -> Matrices:
    """For each row of `values` [batch, n] the places of its elements in descending order (int32)."""
    count = values.shape[1]
    place = values.positions(count, values.place)
    mine, other = values.unsqueeze(2), values.unsqueeze(1)
    earlier = place.reshape(1, 1, count).lt(place.reshape(1, count, 1))
    before = other.gt(mine).bitwise_or(other.eq(mine).bitwise_and(earlier))
    rank = before.where(1, 0).cast(place.dtype).sum(2).cast(place.dtype).unsqueeze(1)
    hit = rank.eq(place.reshape(1, count, 1))
    return hit.where(place.reshape(1, 1, count), 0).sum(2).cast(place.dtype)


def poison(matrix: Matrices) -> Matrices:
    """0, but NaN for a matrix that holds a NaN or an infinity; axes [batch, 1, 1]."""
    return matrix.mul(0).sum((1, 2), keepdim=True)


def eigen(matrix: Matrices) -> tuple[Matrices, Matrices]:
    """Ascending eigenvalues [batch, n] and eigenvectors (columns) of symmetric matrices; lower triangles are read.

    A multiple of the identity is added, so that all eigenvalues are positive and of similar size. Rotations that make
    the rows of such a matrix orthogonal turn it into its eigenvectors times its eigenvalues.
    """
    size = matrix.shape[-1]
    scaled, power = scaled_to_one(matrix.tril())
    symmetric = scaled.add(scaled.tril(-1).transpose(1, 2)).contiguous()
    # No eigenvalue is larger than a row's sum.
    bound = symmetric.abs().sum(2, keepdim=True).max(1, keepdim=True)
    shifted = symmetric.add(identity(matrix, size).mul(bound.mul(2.0)))
    rows = orthogonal_rows(shifted, size, sweeps_for(size, matrix.dtype.itemsize))
    length = rows.mul(rows).sum(2, keepdim=True).sqrt()
    rows = rows.fdiv(length.eq(0).where(1.0, length)).contiguous()
    # A matrix of zeros has no bound, and no rotations.
    rows = bound.eq(0).where(identity(matrix, size), rows).contiguous()
    if size > REFINED:
        rows = _refined(symmetric, rows, bound)
    values = rows.dot(symmetric).mul(rows).sum(2).contiguous()
    order = descending(values.neg()).contiguous()
    bad = poison(symmetric)
    values = values.gather_rows(order, 1).mul(power.squeeze(2)).add(bad.squeeze(2))
    return values, rows.gather_rows(order, 1).transpose(1, 2).add(bad)


def _orthonormal(rows: Matrices) -> Matrices:
    """Rows that are nearly orthonormal, made so by a step of Newton and Schulz, which squares the error."""
    return rows.mul(1.5).sub(rows.dot(rows.transpose(1, 2)).dot(rows).mul(0.5)).contiguous()


def _refined(symmetric: Matrices, rows: Matrices, bound: Matrices) -> Matrices:
    """Eigenvectors (rows) after one step that squares their error: Ogita and Aishima 2018, "Iterative refinement for
    symmetric eigenvalue decomposition"."""
    size = rows.shape[-1]
    one = identity(rows, size)
    turned = rows.transpose(1, 2)
    defect = one.sub(rows.dot(turned)).contiguous()
    products = rows.dot(symmetric.dot(turned)).contiguous()
    values = products.diagonal(0, 1, 2).fdiv(defect.diagonal(0, 1, 2).neg().add(1.0))
    mine, other = values.unsqueeze(2), values.unsqueeze(1)
    rest = products.sub(one.mul(mine))
    # Values closer than what is not known about them only become orthogonal.
    unsure = rest.mul(rest).sum((1, 2), keepdim=True).sqrt().mul(2.0)
    unsure = unsure.add(defect.mul(defect).sum((1, 2), keepdim=True).sqrt().mul(bound).mul(2.0))
    gap = other.sub(mine)
    apart = gap.abs().gt(unsure)
    change = apart.where(products.add(other.mul(defect)).fdiv(apart.where(gap, 1.0)), defect.mul(0.5))
    return _orthonormal(rows.add(change.transpose(1, 2).dot(rows)).contiguous())


def singular(matrix: Matrices, vectors: bool, full: bool) -> tuple[Matrices, Matrices, Matrices]:
    """Singular value decomposition U, s, V.T of matrices with at least as many rows as columns.

    A QR factorization of the columns in order of their length comes first: the rows of R are graded, and few sweeps
    make them orthogonal also where the matrix is near to singular. What rotated them are the left vectors of R. Another
    QR makes the right ones from the rows, orthogonal for singular values of 0 too. Without `vectors` the first and the
    last result mean nothing; `full` completes U.
    """
    batch, rows, size = matrix.shape
    scaled, power = scaled_to_one(matrix)
    bad = poison(scaled)
    columns = scaled.transpose(1, 2)
    arranged = descending(columns.mul(columns).sum(2).contiguous()).contiguous()
    packed, factors = householder(columns.gather_rows(arranged, 1).transpose(1, 2))
    work = packed.shrink((None, (0, size))).triu()
    if vectors:
        work = work.cat(identity(matrix, size).expand(batch, size, size), dim=2)
    work = orthogonal_rows(work, size, sweeps_for(size, matrix.dtype.itemsize))
    graded = work.shrink((None, None, (0, size)))
    lengths = graded.mul(graded).sum(2).sqrt().contiguous()
    order = descending(lengths).contiguous()
    values = lengths.gather_rows(order, 1).mul(power.squeeze(2)).add(bad.squeeze(2))
    if not vectors:
        return values, values, values
    work = work.gather_rows(order, 1).contiguous()
    right = _right_vectors(work.shrink((None, None, (0, size))), arranged)
    left = orthogonal_factor(packed, factors, rows if full else size)
    inner = work.shrink((None, None, (size, 2 * size))).contiguous()
    if size > REFINED:
        inner = _orthonormal(inner)
    turned = left.shrink((None, None, (0, size))).dot(inner.transpose(1, 2)).contiguous()
    if size > REFINED:
        # What the vectors say about the values.
        values = turned.mul(scaled.dot(right.transpose(1, 2))).sum(1).abs().mul(power.squeeze(2)).add(bad.squeeze(2))
    left = turned.cat(left.shrink((None, None, (size, rows))), dim=2) if full and rows > size else turned
    return left.add(bad), values, right.add(bad)


def _right_vectors(graded: Matrices, arranged: Matrices) -> Matrices:
    """Orthonormal rows in the direction of orthogonal ones, which may be 0, with the columns where they were before
    they were arranged."""
    size = graded.shape[-1]
    packed, factors = householder(graded.transpose(1, 2))
    signs = packed.diagonal(0, 1, 2).lt(0).where(-1.0, 1.0).unsqueeze(1)
    basis = orthogonal_factor(packed, factors, size).mul(signs).transpose(1, 2)
    place = arranged.positions(size, arranged.place)
    return basis.dot(arranged.unsqueeze(2).eq(place.reshape(1, 1, size)).cast(basis.dtype))
