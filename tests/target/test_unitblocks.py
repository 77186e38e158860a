"""Blocks of products on matrix units, and in how many parts sums are cut: what the model of clocks says."""

from __future__ import annotations

import pytest

from gradlet.target.target import SM_90
from gradlet.target.unitblocks import Sizes, best_block, blocks, parts


def test_blocks_fit_into_registers_and_shared_memory() -> None:
    found = list(blocks(SM_90, stores=2))
    assert found and all(b.rows * b.columns <= 192 * 192 and b.buffers >= 3 for b in found)
    assert all(b.buffers * (b.rows + b.columns) * 128 + 2 * b.rows * 256 <= SM_90.shared_bytes for b in found)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "count"),
    [
        (768, 3072, 16384, 2),  # weights of GPT-2: 128 blocks of 192 x 192 in place of 96 smaller ones
        (768, 768, 16384, 8),
        (2304, 768, 16384, 1),  # 108 blocks, and no number of parts that fills more
        (4096, 4096, 4096, 1),
        (768, 768, 256, 1),  # over before another kernel has begun
        (50304, 768, 16384, 1),
        (256, 256, 1 << 17, 32),
    ],
)
def test_sums_are_cut_where_parts_fill_the_gpu(rows: int, columns: int, depth: int, count: int) -> None:
    sizes = Sizes(rows, columns, depth, 1, 2, (True, True))
    assert parts(SM_90, sizes, depth) == count
    whole = best_block(SM_90, sizes)
    cut = best_block(SM_90, sizes._replace(depth=depth // count, others=count))
    assert whole is not None and cut is not None and cut[0] <= whole[0]


def test_parts_divide_what_they_are_parts_of() -> None:
    sizes = Sizes(768, 768, 16384, 1, 2)
    for length in (1, 7, 9, 6, 11, 16384):
        assert length % parts(SM_90, sizes, length) == 0


def test_what_is_not_for_matrix_units_has_no_block() -> None:
    for sizes in (Sizes(32, 512, 512, 1, 2), Sizes(512, 8, 512, 1, 2), Sizes(512, 512, 64, 1, 2)):
        assert best_block(SM_90, sizes) is None and parts(SM_90, sizes, sizes.depth) == 1


# What was measured on an H200 (docs/hopper.md; 5000: found by search, docs/search.md): side of a product, its block.
SIDES = {1024: (64, 128), 4096: (128, 256), 5000: (64, 256), 8192: (128, 256)}


@pytest.mark.parametrize(("side", "block"), SIDES.items())
def test_blocks_are_those_that_were_fastest(side: int, block: tuple[int, int]) -> None:
    found = best_block(SM_90, Sizes(side, side, side, 1, 2, (False, True)))
    assert found is not None and found[1][:2] == block
