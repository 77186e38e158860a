"""Column sums in two steps: partial sums over chunks of rows, and the sum of these."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import Op
from gradlet.schedule.columns import CHUNKS, GPU_COLUMNS, GPU_ROWS, cut, cut_column_sums
from gradlet.target.target import NVPTX, SM_90
from tests.schedule.helpers import (
    contents,
    contiguous,
    expand,
    matmul,
    permute,
    reduce,
    reshape,
    target_of,
    tensor,
    total,
)  # fmt: skip


def sums(node: UOp) -> list[tuple[int, ...]]:
    """The shape of what each reduce adds up, sources first."""
    return [n.src[0].shape for n in toposort((node,)) if n.op is Op.REDUCE_AXES]


def changed(node: UOp) -> UOp:
    """The pass over one root; the values stay."""
    new = cut_column_sums(node, target_of, "CPU")
    buffers = contents([node])
    (have,), (want,) = evaluate([new], buffers), evaluate([node], buffers)
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-3)
    return new


def test_rows_are_cut_in_chunks() -> None:
    assert sums(changed(total(tensor(512, 64), 0))) == [(16, 32, 64), (16, 64)]
    assert sums(changed(total(tensor(600, 40), 0))) == [(20, 30, 40), (20, 40)]


def test_several_leading_axes_are_cut_from_the_outside() -> None:
    assert sums(changed(total(tensor(8, 64, 40), 0, 1))) == [(8, 1, 2, 32, 40), (8, 2, 40)]
    assert sums(changed(total(tensor(32, 16, 40), 0, 1))) == [(16, 2, 1, 16, 40), (16, 1, 40)]


@pytest.mark.parametrize(
    "node",
    [
        lambda: total(tensor(128, 64), 0),  # few rows
        lambda: total(tensor(512, 8), 0),  # few columns
        lambda: total(tensor(512, 64), 1),  # rows, not columns
        lambda: total(tensor(64, 512), 0, 1),  # everything
        lambda: reduce(tensor(512, 64), Op.MAX, 0),  # no sum
        lambda: total(tensor(1009, 64), 0),  # a prime number of rows
        lambda: total(tensor(0, 64), 0),
        lambda: matmul(permute(tensor(512, 40), 1, 0), tensor(512, 8)),  # a product's own sum
    ],
)
def test_other_sums_stay(node: object) -> None:
    assert callable(node)
    made = node()
    assert changed(made) is made


def test_a_sum_of_a_product_of_repeated_factors_stays() -> None:
    left = expand(reshape(tensor(512, 8), 512, 8, 1), 512, 8, 8)
    right = expand(reshape(tensor(512, 8), 512, 1, 8), 512, 8, 8)
    product = total(left * right, 0)
    assert changed(product) is product
    both = total(tensor(512, 64) * tensor(512, 64), 0)
    assert len(sums(changed(both))) == 2


def test_machines_without_regions_keep_the_sum() -> None:
    node = total(tensor(512, 64), 0)
    assert cut_column_sums(node, lambda device: NVPTX, "CPU") is node


def test_a_sum_below_another_is_cut_too() -> None:
    node = total(contiguous(tensor(512, 64) + expand(reshape(total(tensor(512, 64), 0), 1, 64), 512, 64)), 0)
    assert len(sums(changed(node))) == 4


def test_every_chunk_count_is_within_bounds() -> None:
    for rows in range(256, 700):
        made = sums(cut(total(tensor(rows, 32), 0)))
        if len(made) == 2:
            chunks, rest, _ = made[0]
            assert chunks * rest == rows and CHUNKS <= chunks <= 4 * CHUNKS and rest >= CHUNKS


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((64, 56, 56, 64), (0, 1, 2)), ((64, 7, 7, 2048), (0, 1, 2)), ((200704, 48), (0,)), ((48, 9, 13, 160), (0, 1, 2))],
)
def test_a_gpu_has_chunks_for_all_multiprocessors_that_are_whole_axes(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    node = total(tensor(*shape), *axes)
    new = cut_column_sums(node, lambda _: SM_90, "CPU")
    (chunks, rows, columns), (again, _) = sums(new)
    assert again == chunks and chunks * rows == np.prod(shape[:-1]) and rows >= GPU_ROWS
    blocks = chunks * -(-columns // GPU_COLUMNS)
    assert blocks >= min(SM_90.cores, np.prod(shape[:-1]) // (2 * GPU_ROWS))
    whole = np.cumprod(shape[:-1])
    assert any(chunks % n == 0 and (m % chunks) == 0 for n, m in zip((1, *whole), whole, strict=False))


def test_chunks_for_lanes_add_up_to_the_same() -> None:
    node = total(tensor(40, 6, 8, 33), 0, 1, 2)
    new = cut_column_sums(node, lambda _: SM_90, "CPU")
    assert len(sums(new)) == 2
    buffers = contents([node])
    (have,), (want,) = evaluate([new], buffers), evaluate([node], buffers)
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-3)
