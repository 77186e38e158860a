"""The algorithms behind Cholesky, LU and QR on batches of matrices, as graphs whose steps all have one structure.

The number of a step is not a constant of the graph but stands in memory, beside the matrix that the step works on: so
all steps have the same kernels. All functions take axes [batch, rows, columns] and know nothing of gradients.
"""

from __future__ import annotations

from typing import Any, Final

# More steps than this are computed in parts of so many: the parts are equal, so only one of them is scheduled.
PART: Final = 32

# These functions work on whatever has the methods of a tensor.
Matrices = Any


def row_numbers(like: Matrices, count: int) -> Matrices:
    """0, 1, ... down the rows."""
    return like.positions(count, like.place).reshape(1, count, 1)


def column_numbers(like: Matrices, count: int) -> Matrices:
    """0, 1, ... along the columns."""
    return like.positions(count, like.place).reshape(1, 1, count)


def identity(like: Matrices, size: int) -> Matrices:
    """The identity of this type, axes [1, size, size]."""
    return row_numbers(like, size).eq(column_numbers(like, size)).where(like.constant_like(1, (), like.dtype), 0)


def pause_after(step: int, steps: int) -> bool:
    """Whether what a step leaves is computed before the next one is added to the graph."""
    return steps >= 4 * PART and step % PART == PART - 1


def settled(work: Matrices, step: int, steps: int) -> Matrices:
    """What a step leaves, in memory; of many steps some are computed at once."""
    work = work.contiguous()
    return work.realize() if pause_after(step, steps) else work


def cholesky(matrix: Matrices) -> Matrices:
    """L with L @ L.T = matrix, of which only the lower triangle is read; NaN from the first pivot that is negative.

    Right-looking: each step divides a column by the root of its pivot and takes its square off what lies below.
    """
    size = matrix.shape[-1]
    row, column = row_numbers(matrix, size), column_numbers(matrix, size)
    line = row_numbers(matrix, size + 1)
    # One more row holds the number of the step.
    work = matrix.pad_zeros([(0, 0), (0, 1), (0, 0)]).contiguous()
    for number in range(size):
        step = work.shrink((None, (size, size + 1), (0, 1))).cast(row.dtype)
        here = column.eq(step)
        reading = here.where(work.shrink((None, (0, size))), 0)
        pivot = row.eq(step).where(reading, 0).sum((1, 2), keepdim=True).sqrt()
        scaled = reading.sum(2, keepdim=True).fdiv(pivot)
        beside = scaled.transpose(1, 2)
        scaled = scaled.pad_zeros([(0, 0), (0, 1), (0, 0)])
        rest = column.gt(step).bitwise_and(line.gt(step)).where(work.sub(scaled.mul(beside)), work)
        work = settled(line.eq(size).where(work.add(1), here.where(scaled, rest)), number, size)
    return work.shrink((None, (0, size))).tril()


def lu(matrix: Matrices) -> tuple[Matrices, Matrices, Matrices]:
    """Gaussian elimination with partial pivoting.

    Returns:
        L below the diagonal (its own is 1) and U on and above it; for each step the row (int32) that it exchanged with
        its own; for each row of the result which one of the matrix it is (int32).
    """
    rows, columns = matrix.shape[-2:]
    steps = min(rows, columns)
    row, column = row_numbers(matrix, rows), column_numbers(matrix, columns + 3)
    # Three more columns, which are no part of the elimination: the number of the step in every row, the exchanges, and
    # the numbers of the rows.
    numbers = row.cast(matrix.dtype).expand(matrix.shape[:1] + (rows, 1))
    work = matrix.cat(numbers.mul(0), numbers, numbers, dim=2).contiguous()
    for number in range(steps):
        step = work.shrink((None, (0, 1), (columns, columns + 1))).cast(row.dtype)
        here = column.eq(step)
        size = here.where(work, 0).sum(2, keepdim=True).abs()
        pivot = row.lt(step).where(-1, size).argmax(1, keepdim=True).cast(row.dtype).contiguous()
        source = row.eq(step).where(pivot, row.eq(pivot).where(step, row))
        swapped = work.gather_rows(source.squeeze(2), 1)
        upper = work.gather_rows(pivot.squeeze(2), 1)
        head = here.where(upper, 0).sum(2, keepdim=True)
        left = here.where(swapped, 0).sum(2, keepdim=True)
        factor = head.eq(0).where(left, left.fdiv(head))
        rest = column.gt(step).bitwise_and(column.lt(columns)).where(swapped.sub(factor.mul(upper)), swapped)
        updated = row.gt(step).where(here.where(factor, rest), swapped)
        exchange = row.eq(step).bitwise_and(column.eq(columns + 1))
        updated = exchange.where(pivot.cast(matrix.dtype), updated)
        work = settled(column.eq(columns).where(work.add(1), updated), number, steps)
    packed = work.shrink((None, None, (0, columns)))
    swaps = work.shrink((None, (0, steps), (columns + 1, columns + 2))).squeeze(2)
    order = work.shrink((None, None, (columns + 2, columns + 3))).squeeze(2)
    return packed, swaps.cast(row.dtype), order.cast(row.dtype)


def exchanged_rows(swaps: Matrices, rows: int) -> Matrices:
    """For exchanges of row `step` with row `swaps[:, step]`, one after another: which row ends where.

    The exchanges are joined in pairs, the result of one looked up in the other, so that few kernels do it.
    """
    batch, steps = swaps.shape
    position = swaps.positions(rows, swaps.place).reshape(1, 1, rows)
    step = swaps.positions(steps, swaps.place).reshape(1, steps, 1)
    other = swaps.reshape(batch, steps, 1).cast(position.dtype)
    orders = position.eq(step).where(other, position.eq(other).where(step, position))
    while orders.shape[1] > 1:
        if orders.shape[1] % 2:
            orders = orders.cat(position.expand(batch, 1, rows), dim=1)
        half = orders.shape[1] // 2
        pairs = orders.reshape(batch * half, 2, rows)
        first, second = pairs.shrink((None, (0, 1))).squeeze(1), pairs.shrink((None, (1, 2))).squeeze(1)
        orders = first.gather_rows(second.contiguous(), 1).reshape(batch, half, rows).contiguous()
    return orders.reshape(batch, rows)


def householder(matrix: Matrices) -> tuple[Matrices, Matrices]:
    """R on and above the diagonal, reflectors below it, and their factors: LAPACK's `geqrf`.

    Step k reflects by H = I - factor * v @ v.T, v = (0, ..., 0, 1, column below the diagonal).
    """
    rows, columns = matrix.shape[-2:]
    steps = min(rows, columns)
    row, column = row_numbers(matrix, rows), column_numbers(matrix, columns)
    # Two more rows hold the factors and the number of the step.
    line = row_numbers(matrix, rows + 2)
    work = matrix.pad_zeros([(0, 0), (0, 2), (0, 0)]).contiguous()
    for number in range(steps):
        step = work.shrink((None, (rows + 1, rows + 2), (0, 1))).cast(row.dtype)
        here = column.eq(step)
        body = work.shrink((None, (0, rows)))
        active = here.where(body, 0).sum(2, keepdim=True)
        head = row.eq(step).where(active, 0).sum(1, keepdim=True)
        below = row.gt(step).where(active, 0)
        # The sum of squares of values near 1, which neither overflows nor vanishes.
        largest = active.abs().mul(row.lt(step).where(0.0, 1.0)).max(1, keepdim=True)
        unit = largest.eq(0).where(1.0, largest)
        scaled_tail = below.fdiv(unit)
        tail = scaled_tail.mul(scaled_tail).sum(1, keepdim=True)
        scaled_head = head.fdiv(unit)
        length = scaled_head.mul(scaled_head).add(tail).sqrt().mul(unit)
        flat = tail.eq(0)
        result = flat.where(head, head.lt(0).where(length, length.neg())).contiguous()
        factor = flat.where(0.0, result.sub(head).fdiv(flat.where(1.0, result))).contiguous()
        divisor = flat.where(1.0, head.sub(result))
        reflector = row.eq(step).where(1.0, below.fdiv(divisor)).contiguous()
        weights = body.mul(reflector).sum(1, keepdim=True).mul(factor)
        changed = body.sub(reflector.mul(weights))
        own = row.lt(step).where(body, row.eq(step).where(result, reflector))
        updated = column.gt(step).where(changed, here.where(own, body))
        updated = updated.pad_zeros([(0, 0), (0, 2), (0, 0)])
        factors = here.where(factor, work)
        work = settled(line.lt(rows).where(updated, line.eq(rows).where(factors, work.add(1))), number, steps)
    factors = work.shrink((None, (rows, rows + 1), (0, steps))).squeeze(1)
    return work.shrink((None, (0, rows))), factors


def triangular_inverse(lower: Matrices, adjugate: bool = False) -> Matrices:
    """The inverse of lower triangles (what lies above is not read), by doubling the size of inverted diagonal blocks.

    inverse([[A, 0], [C, D]]) = [[A', 0], [-D' C A', D']]: about log2(n) rounds of batched products. A zero on the
    diagonal gives infinities and NaN. The adjugate, inverse times determinant, is the same with A' det(D) and D' det(A)
    on the diagonal and needs no division.
    """
    batch, size = lower.shape[0], lower.shape[-1]
    padded = 1 << max(0, (size - 1).bit_length())
    if padded != size:
        position = row_numbers(lower, padded)
        extra = position.gt(size - 1).bitwise_and(position.eq(column_numbers(lower, padded)))
        lower = extra.where(1.0, lower.pad_zeros([(0, 0), (0, padded - size), (0, padded - size)]))
    lower = lower.contiguous()
    determinants = lower.diagonal(0, 1, 2).reshape(batch * padded, 1, 1)
    blocks = determinants.constant_like(1.0) if adjugate else determinants.reciprocal()
    width = 1
    while width < padded:
        count = padded // (2 * width)
        pairs = lower.reshape(batch, count, 2 * width, count, 2 * width).diagonal(0, 1, 3)
        corner = pairs.permute(0, 3, 1, 2).shrink((None, None, (width, 2 * width), (0, width)))
        corner = corner.reshape(batch * count, width, width)
        first, second = _pairs(blocks)
        below = second.dot(corner.dot(first)).neg()
        if adjugate:
            first_factor, second_factor = _pairs(determinants)
            first, second = first.mul(second_factor), second.mul(first_factor)
            determinants = first_factor.mul(second_factor).contiguous()
        upper_half = first.pad_zeros([(0, 0), (0, 0), (0, width)])
        blocks = upper_half.cat(below.cat(second, dim=2), dim=1)
        width *= 2
    return blocks.shrink((None, (0, size), (0, size))).contiguous()


def _pairs(blocks: Matrices) -> tuple[Matrices, Matrices]:
    """The even and the odd ones of [count, width, width]."""
    count, width, _ = blocks.shape
    both = blocks.contiguous().reshape(count // 2, 2, width, width)
    return both.shrink((None, (0, 1))).squeeze(1), both.shrink((None, (1, 2))).squeeze(1)


def orthogonal_factor(packed: Matrices, factors: Matrices, columns: int, inverse: Any = triangular_inverse) -> Matrices:
    """The first columns of the product of reflectors H_0 @ H_1 @ ..., as `householder` leaves them.

    Compact WY form (Schreiber and Van Loan 1989; Puglisi 1992): I - V @ T @ V.T, where the inverse of T has 1 / factors
    on the diagonal and the upper triangle of V.T @ V above it. Here T = inverse(I + F @ U) @ F, F the factors, which
    may be 0.
    """
    rows, count = packed.shape[-2], factors.shape[-1]
    reflectors = packed.shrink((None, None, (0, count))).tril(-1)
    diagonal = row_numbers(packed, rows).eq(column_numbers(packed, count))
    reflectors = diagonal.where(1.0, reflectors)
    products = reflectors.transpose(1, 2).dot(reflectors)
    scale = factors.unsqueeze(2)
    # Transposed, so that it is a lower triangle.
    system = products.triu(1).mul(scale).add(identity(packed, count)).transpose(1, 2)
    inner = inverse(system).transpose(1, 2).mul(factors.unsqueeze(1))
    head = reflectors.shrink((None, (0, columns))).transpose(1, 2)
    moved = reflectors.dot(inner.dot(head))
    return row_numbers(packed, rows).eq(column_numbers(packed, columns)).where(1.0, 0.0).sub(moved)
