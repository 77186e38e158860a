"""Host memory: classes of sizes, blocks used again, running out."""

from __future__ import annotations

import mmap

import pytest

from gradlet.base.errors import DeviceError
from gradlet.device.common.hostmemory import (
    ALIGNMENT,
    HUGE_ADVICE,
    HUGE_PAGE,
    SLACK,
    HostAllocator,
    physical_memory,
    size_class,
)
from gradlet.runtime.counters import GlobalCounters


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, 4096, 10**6, 123_456_789])
def test_a_class_holds_its_requests_with_little_waste(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes + SLACK
    assert size % ALIGNMENT == 0
    assert size <= (nbytes + SLACK) * 1.125 + ALIGNMENT
    assert size_class(size - SLACK) == size


def test_blocks_are_aligned_and_used_again() -> None:
    memory = HostAllocator("TEST")
    first = memory.allocate(1000, "a")
    second = memory.allocate(1000, "b")
    assert first % ALIGNMENT == 0
    assert first != second
    memory.free(first, 1000)
    assert memory.kept == size_class(1000)
    assert memory.allocate(990, "c") == first  # the same class
    assert memory.kept == 0
    memory.free(first, 990)
    memory.free(second, 1000)
    memory.release_kept()
    assert memory.kept == 0
    assert memory.used == 0


def test_what_is_kept_has_a_limit() -> None:
    memory = HostAllocator("TEST", keep_bytes=10_000)
    blocks = [memory.allocate(4000, "x") for _ in range(5)]
    for block in blocks:
        memory.free(block, 4000)
    assert 0 < memory.kept <= 10_000
    memory.release_kept()


def test_freeing_twice_is_ignored() -> None:
    memory = HostAllocator("TEST")
    before = GlobalCounters.mem_used
    block = memory.allocate(64, "x")
    memory.free(block, 64)
    memory.free(block, 64)
    assert memory.used == 0
    assert GlobalCounters.mem_used == before
    assert memory.allocate(64, "y") != memory.allocate(64, "z")


def test_running_out_names_what_was_asked_and_the_largest_holders() -> None:
    memory = HostAllocator("TEST")
    blocks = [(memory.allocate(n, label), n) for n, label in ((5000, "float32[1250]"), (100, "int8[100]"))]
    with pytest.raises(DeviceError) as caught:
        memory.allocate(10**18, "float64[125000000000000000]")
    message = str(caught.value)
    assert "out of memory on TEST" in message
    assert "float64[125000000000000000] needs" in message
    assert f"({10**18} bytes)" in message
    assert message.index("float32[1250] (5.00 kB)") < message.index("int8[100] (100 B)")
    for block, n in blocks:
        memory.free(block, n)


def test_kept_blocks_are_given_back_before_giving_up() -> None:
    memory = HostAllocator("TEST")
    memory.limit = 1_000_000
    first = memory.allocate(900_000, "x")
    memory.free(first, 900_000)
    memory.free(memory.allocate(800_000, "y"), 800_000)
    memory.release_kept()
    assert memory.allocate(850_000, "z")
    with pytest.raises(DeviceError, match="out of memory"):
        memory.allocate(500_000, "w")


def test_physical_memory_is_plausible() -> None:
    assert 2**26 < physical_memory() < 2**50


def test_large_blocks_begin_with_a_huge_page_and_the_system_is_asked_for_those_inside() -> None:
    memory = HostAllocator("TEST")
    asked: list[tuple[int, int, int]] = []
    memory._madvise = lambda *advice: asked.append(advice) or 0
    small = memory.allocate(HUGE_PAGE // 2, "small")
    assert not asked
    large = memory.allocate(5 * HUGE_PAGE // 2, "large")
    assert large % HUGE_PAGE == 0
    assert [(address, n) for address, n, _ in asked] == [(large, 2 * HUGE_PAGE)]  # none that reaches past the block
    assert (memory.used, memory.kept) == (3 * HUGE_PAGE, 0)
    memory.free(large, 5 * HUGE_PAGE // 2)
    assert memory.allocate(5 * HUGE_PAGE // 2, "again") == large
    assert len(asked) == 1
    sparse = memory.allocate_sparse(9 * HUGE_PAGE // 2, "sparse")
    assert len(asked) == 1
    memory.free(sparse, 9 * HUGE_PAGE // 2)
    memory.free(large, 5 * HUGE_PAGE // 2)
    memory.free(small, HUGE_PAGE // 2)
    memory.release_kept()
    assert (memory.used, memory.kept) == (0, 0)


@pytest.mark.parametrize("answer", [-1, None], ids=["refused", "no such call"])
def test_a_system_without_huge_pages_gives_ordinary_ones(answer: int | None) -> None:
    memory = HostAllocator("TEST")
    memory._madvise = None if answer is None else lambda *_: answer
    block = memory.allocate(3 * HUGE_PAGE, "x")
    assert block % ALIGNMENT == 0
    view = memory.view(block, 3 * HUGE_PAGE, None)
    view[0], view[-1] = 1, 2
    assert (view[0], view[-1]) == (1, 2)
    memory.free(block, 3 * HUGE_PAGE)
    memory.release_kept()
    assert memory.used == memory.kept == 0


@pytest.mark.skipif(HUGE_ADVICE is None, reason="the system knows no huge pages")
def test_the_advice_is_the_systems_own() -> None:
    assert HUGE_ADVICE == mmap.MADV_HUGEPAGE
    memory = HostAllocator("TEST")
    assert memory._madvise is not None
    block = memory.allocate(HUGE_PAGE, "x")
    assert memory._madvise(block, HUGE_PAGE, -1) == -1  # an advice that no system knows
    memory.free(block, HUGE_PAGE)
    memory.release_kept()
