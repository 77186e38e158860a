"""Buffers: lazy memory, copies, external memory, and the registry of BUFFER nodes."""

from __future__ import annotations

import gc
import mmap
import weakref

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, DeviceError
from gradlet.runtime.buffer import Buffer, address_of, bind, bind_parts, buffer_of, new_buffer_node
from gradlet.runtime.counters import GlobalCounters
from gradlet.runtime.device import Device


def test_memory_comes_on_first_use_and_goes_with_the_buffer() -> None:
    gc.collect()
    before = GlobalCounters.mem_used
    buffer = Buffer("CPU", dtypes.float32, 1000)
    assert not buffer.is_allocated
    assert GlobalCounters.mem_used == before
    assert buffer.address % 64 == 0
    assert buffer.is_allocated
    assert GlobalCounters.mem_used == before + 4000
    del buffer
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_copies_go_in_and_out() -> None:
    values = np.arange(10, dtype=np.float64)
    buffer = Buffer("CPU", dtypes.float64, 10)
    buffer.copyin(values)
    out = np.zeros(10)
    buffer.copyout(out)
    np.testing.assert_array_equal(out, values)
    buffer.copyin(bytes(80))
    assert not np.frombuffer(buffer.memory(), np.float64).any()


def test_memory_is_the_memory_itself_and_outlives_the_name() -> None:
    buffer = Buffer("CPU", dtypes.int32, 4)
    buffer.copyin(np.arange(4, dtype=np.int32))
    view = np.frombuffer(buffer.memory(), np.int32)
    view[2] = 77
    out = np.zeros(4, np.int32)
    buffer.copyout(out)
    assert out.tolist() == [0, 1, 77, 3]
    address = buffer.address
    del buffer
    gc.collect()
    other = Buffer("CPU", dtypes.int32, 4).allocate()
    assert other.address != address
    assert view.tolist() == [0, 1, 77, 3]


@pytest.mark.parametrize("size", [9, 11, 0])
def test_a_copy_of_the_wrong_size_is_refused(size: int) -> None:
    buffer = Buffer("CPU", dtypes.float32, 10)
    with pytest.raises(ArgumentError, match="source has .* bytes, the buffer needs 40"):
        buffer.copyin(bytes(4 * size))
    with pytest.raises(ArgumentError, match="target has .* bytes, the buffer has 40"):
        buffer.copyout(bytearray(4 * size))


def test_copying_out_needs_writable_memory() -> None:
    with pytest.raises(ArgumentError, match="read-only"):
        Buffer("CPU", dtypes.uint8, 4).copyout(bytes(4))


def test_zero_size_buffers_are_valid() -> None:
    buffer = Buffer("CPU", dtypes.float32, 0)
    buffer.copyin(np.zeros(0, np.float32))
    buffer.copyout(bytearray())
    assert buffer.memory().nbytes == 0
    assert buffer.address
    assert Buffer.over("CPU", dtypes.float32, 0, b"").address


def test_external_memory_is_used_without_a_copy() -> None:
    values = np.arange(6, dtype=np.float32)
    buffer = Buffer.over("CPU", dtypes.float32, 6, values)
    assert buffer.is_external
    assert buffer.address == values.ctypes.data
    values[3] = -1
    assert np.frombuffer(buffer.memory(), np.float32)[3] == -1


def test_external_memory_lives_as_long_as_the_buffer() -> None:
    buffer = Buffer.over("CPU", dtypes.uint8, 1000, bytearray(range(250)) * 4)
    gc.collect()
    trash = [bytearray(1000) for _ in range(50)]
    assert bytes(buffer.memory()[:250]) == bytes(range(250))
    del trash


def test_read_only_memory_and_maps_can_be_external(tmp_path) -> None:
    data = bytes(range(64))
    assert Buffer.over("CPU", dtypes.uint8, 64, data).address == address_of(memoryview(data))
    path = tmp_path / "file"
    path.write_bytes(data)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    buffer = Buffer.over("CPU", dtypes.float32, 16, mapped)
    assert bytes(buffer.memory()) == data


def test_external_memory_off_the_element_grid_is_copied() -> None:
    block = bytearray(41)
    view = memoryview(block)[1:]
    if address_of(view) % 4 == 0:
        view = memoryview(block)[:40]
    buffer = Buffer.over("CPU", dtypes.float32, 10, view)
    assert not buffer.is_external
    assert buffer.address % 4 == 0
    assert bytes(buffer.memory()) == bytes(view)


def test_external_memory_that_is_too_small_is_refused() -> None:
    with pytest.raises(ArgumentError, match="memory has 12 bytes, but 4 elements of float32 need 16"):
        Buffer.over("CPU", dtypes.float32, 4, bytes(12))


def test_a_buffer_node_has_one_buffer() -> None:
    node, other = new_buffer_node("CPU", dtypes.int8, 5), new_buffer_node("CPU", dtypes.int8, 5)
    assert node is not other
    assert buffer_of(node) is buffer_of(node)
    assert buffer_of(node) is not buffer_of(other)
    assert (buffer_of(node).dtype, buffer_of(node).size) == (dtypes.int8, 5)
    mine = Buffer("CPU", dtypes.int8, 5)
    assert bind(other, mine) is other
    assert buffer_of(other) is mine


def test_memory_is_freed_with_the_node() -> None:
    gc.collect()
    before = GlobalCounters.mem_used
    node = new_buffer_node("CPU", dtypes.float32, 100)
    buffer_of(node).allocate()
    assert GlobalCounters.mem_used == before + 400
    del node
    gc.collect()
    assert GlobalCounters.mem_used == before


def test_the_null_device_holds_no_values() -> None:
    buffer = Buffer("NULL", dtypes.float32, 10**12)
    assert buffer.address
    Buffer("NULL", dtypes.float32, 2).copyin(bytes(8))
    with pytest.raises(DeviceError, match="NULL computes nothing"):
        buffer.memory()
    assert Device["NULL"].target.kind == "cpu"


def test_parts_lie_in_the_whole_and_keep_it_alive() -> None:
    whole = Buffer("CPU", dtypes.uint8, 256)
    first, second = Buffer.part(whole, 0, dtypes.float32, 4), Buffer.part(whole, 64, dtypes.int16, 8)
    assert not whole.is_allocated and not second.is_allocated
    second.copyin(np.arange(8, dtype=np.int16))
    first.copyin(np.full(4, 7, np.float32))
    assert second.address == whole.address + 64 and first.address == whole.address
    assert np.frombuffer(whole.memory(), np.int16)[32:40].tolist() == list(range(8))
    used = GlobalCounters.mem_used
    reference = weakref.ref(whole)
    del whole
    del first
    gc.collect()
    assert reference() is not None and GlobalCounters.mem_used == used
    assert np.frombuffer(second.memory(), np.int16).tolist() == list(range(8))
    del second
    gc.collect()
    assert reference() is None and GlobalCounters.mem_used == used - 256


@pytest.mark.parametrize(("offset", "size"), [(-4, 1), (252, 2), (0, 65)])
def test_a_part_lies_inside_the_whole(offset: int, size: int) -> None:
    with pytest.raises(ArgumentError, match=f"{size} elements of float32 at byte {offset} do not fit"):
        Buffer.part(Buffer("CPU", dtypes.uint8, 256), offset, dtypes.float32, size)


def test_nodes_get_parts_of_one_block_once() -> None:
    a, b, c = [new_buffer_node("CPU", dtypes.float32, 16) for _ in range(3)]
    own = Buffer("CPU", dtypes.float32, 16)
    bind(c, own)
    for _ in range(2):
        bind_parts({"CPU": 128}, {a: 0, b: 64, c: 0}, {})
    assert buffer_of(b).address == buffer_of(a).address + 64
    assert buffer_of(c) is own


def test_spare_blocks_are_used_where_they_are_large_enough() -> None:
    a, b, c = [new_buffer_node("CPU", dtypes.float32, size) for size in (32, 16, 64)]
    spare: dict[str, Buffer] = {}
    bind_parts({"CPU": 128}, {a: 0}, spare)
    bind_parts({"CPU": 64}, {b: 0}, spare)
    assert buffer_of(b).address == buffer_of(a).address
    bind_parts({"CPU": 256}, {c: 0}, spare)
    assert buffer_of(c).address != buffer_of(a).address and spare["CPU"].nbytes == 256


def test_a_buffer_takes_the_content_of_one_on_another_device() -> None:
    source, target = Buffer("CPU", dtypes.float32, 3), Buffer("PYTHON", dtypes.float32, 3)
    source.copyin(np.float32([1, 2, 3]))
    before = target.stamp
    target.copy_from(source)
    assert bytes(target.memory()) == bytes(source.memory()) and target.stamp != before
    Buffer("CPU", dtypes.float32, 0).copy_from(Buffer("CPU", dtypes.float32, 0))
    with pytest.raises(ArgumentError, match="source has 12 bytes, the buffer needs 8"):
        Buffer("CPU", dtypes.float32, 2).copy_from(source)
