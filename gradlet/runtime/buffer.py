"""`Buffer`: memory on one device, allocated on first use; and which buffer each BUFFER node stands for."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final
from weakref import ref

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError
from gradlet.graph.allocation import new_buffer_node as new_buffer_node  # buffers and their nodes, in one place
from gradlet.graph.node import UOp
from gradlet.ops.op import BufferArg
from gradlet.runtime.device import Device

PART_ALIGNMENT: Final = 64  # bytes; a line of the cache, and the widest vector

_stamps: Final = count()
# Two threads that touch a new buffer at once must get the same memory.
_allocating: Final = threading.RLock()
os.register_at_fork(before=_allocating.acquire, after_in_parent=_allocating.release, after_in_child=_allocating.release)


class Buffer:
    """`size` elements of `dtype` on `device`. The memory comes on first use and goes back when the object dies.

    Attributes:
        device: canonical device name.
        dtype: scalar type of the elements.
        size: number of elements.
        nbytes: bytes of all elements.
        stamp: a number that no other content of any buffer ever had, or will have.
        is_shown: whether somebody outside was given the address, and so could have written there.
        is_sparse: whether it is written a little at a time, so that most of it may never be: no page is to be larger
            than it must.
    """

    __slots__ = (
        "device", "dtype", "size", "nbytes", "stamp", "is_shown", "is_sparse", "_address", "_owner", "_offset",
        "__weakref__",
    )  # fmt: skip

    def __init__(self, device: str, dtype: DType, size: int) -> None:
        self.device = device
        self.dtype = dtype
        self.size = size
        self.nbytes = size * dtype.itemsize
        self.stamp = next(_stamps)
        self.is_shown = False
        self.is_sparse = False
        self._address: int | None = None
        # For memory that is not ours: the object that keeps it alive. None means the memory is ours.
        self._owner: object | None = None
        # Of a part: where it begins in the buffer that owns the memory.
        self._offset = 0

    @staticmethod
    def part(whole: Buffer, offset: int, dtype: DType, size: int) -> Buffer:
        """`size` elements that lie `offset` bytes into another buffer, which it keeps alive.

        Raises:
            ArgumentError: they do not lie inside it.
        """
        buffer = Buffer(whole.device, dtype, size)
        if offset < 0 or offset + buffer.nbytes > whole.nbytes:
            raise ArgumentError(
                f"{size} elements of {dtype.name} at byte {offset} do not fit into a buffer of {whole.nbytes} bytes"
            )
        buffer._owner = whole
        buffer._offset = offset
        return buffer

    @staticmethod
    def over(device: str, dtype: DType, size: int, memory: Any) -> Buffer:
        """A buffer over host memory that somebody else owns (numpy, mmap, bytearray), without a copy.

        The device must use host memory. Memory that does not lie on a multiple of the element size is copied.

        Raises:
            ArgumentError: `memory` holds fewer bytes than `size` elements.
        """
        buffer = Buffer(device, dtype, size)
        view = as_bytes(memory)
        if view.nbytes < buffer.nbytes:
            raise ArgumentError(
                f"memory has {view.nbytes} bytes, but {size} elements of {dtype.name} need {buffer.nbytes}"
            )
        if buffer.nbytes == 0:
            return buffer
        address = address_of(view)
        if address % dtype.itemsize:
            buffer.copyin(view[: buffer.nbytes])
        else:
            buffer._address = address
            buffer._owner = view
        return buffer

    @staticmethod
    def at(device: str, dtype: DType, size: int, address: int, owner: object) -> Buffer:
        """A buffer over host memory at an address, which `owner` keeps alive. The device must use host memory.

        Raises:
            ArgumentError: the address is no multiple of the element size.
        """
        if address % dtype.itemsize:
            raise ArgumentError(f"address {address:#x} is no multiple of {dtype.itemsize}, the size of a {dtype.name}")
        buffer = Buffer(device, dtype, size)
        buffer._address = address
        buffer._owner = (owner,)  # something even where nobody is named: the memory is never ours
        return buffer

    @property
    def is_allocated(self) -> bool:
        """Whether it holds memory yet."""
        return self._address is not None

    @property
    def is_external(self) -> bool:
        """Whether the memory belongs to somebody else."""
        return self._owner is not None

    @property
    def whole(self) -> Buffer:
        """The buffer whose part it is; itself where it is none."""
        return self._owner if isinstance(self._owner, Buffer) else self

    @property
    def is_watched(self) -> bool:
        """Whether every change of the memory gives it a new stamp: nobody else can write there."""
        return self._owner is None and not self.is_shown

    def show(self) -> None:
        """Somebody outside gets the address."""
        self.is_shown = True
        self.changed()  # for who compares stamps only

    def changed(self) -> None:
        """Something was written: the content is another one."""
        self.stamp = next(_stamps)

    @property
    def address(self) -> int:
        """Where the memory is; allocates it.

        Raises:
            DeviceError: out of memory.
        """
        address = self._address
        return self.allocate()._address if address is None else address  # type: ignore[return-value]

    def allocate(self) -> Buffer:
        """Take the memory now."""
        with _allocating:
            if self._address is None and isinstance(self._owner, Buffer):
                self._address = self._owner.address + self._offset
            elif self._address is None:
                allocator = Device[self.device].allocator
                take = allocator.allocate
                if self.is_sparse:
                    take = getattr(allocator, "allocate_sparse", take)
                self._address = take(self.nbytes, f"{self.dtype.name}[{self.size}]")
        return self

    def copyin(self, source: Any) -> None:
        """Fill from a bytes-like object of exactly `nbytes` bytes.

        Raises:
            ArgumentError: another number of bytes.
        """
        view = as_bytes(source)
        if view.nbytes != self.nbytes:
            raise ArgumentError(f"source has {view.nbytes} bytes, the buffer needs {self.nbytes}")
        if self.nbytes:
            Device[self.device].allocator.write(self.address, view)
            self.stamp = next(_stamps)

    def copy_from(self, source: Buffer) -> None:
        """Fill from another buffer of as many bytes, without the host where the devices can.

        Raises:
            ArgumentError: another number of bytes.
        """
        if source.nbytes != self.nbytes:
            raise ArgumentError(f"source has {source.nbytes} bytes, the buffer needs {self.nbytes}")
        if not self.nbytes:
            return
        here, there = Device[self.device].allocator, Device[source.device].allocator
        direct = getattr(here, "copy_from", None)
        if direct is not None and direct(self.address, there, source.address, self.nbytes):
            self.stamp = next(_stamps)
        else:
            self.copyin(source.memory())

    def copyout(self, target: Any) -> None:
        """Copy into a writable bytes-like object of exactly `nbytes` bytes.

        Raises:
            ArgumentError: another number of bytes, or not writable.
        """
        view = as_bytes(target)
        if view.readonly:
            raise ArgumentError("target is read-only; pass writable memory such as a bytearray")
        if view.nbytes != self.nbytes:
            raise ArgumentError(f"target has {view.nbytes} bytes, the buffer has {self.nbytes}")
        if self.nbytes:
            Device[self.device].allocator.read(self.address, view)

    def memory(self) -> memoryview:
        """The bytes as host memory: the memory itself where the device uses host memory. It keeps the buffer alive."""
        if self.nbytes == 0:
            return memoryview(bytearray())
        return Device[self.device].allocator.view(self.address, self.nbytes, self)

    def __repr__(self) -> str:
        state = "external" if self.is_external else "allocated" if self.is_allocated else "not allocated"
        return f"<Buffer {self.device} {self.dtype.name}[{self.size}] {state}>"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # A default of the function: names of the module may be gone when the interpreter ends.
        if self._address is not None and self._owner is None and not is_finalizing():
            Device[self.device].allocator.free(self._address, self.nbytes)


def side_by_side(device: str, rows: Sequence[tuple[DType, int]]) -> list[Buffer]:
    """New buffers of some types and sizes in one block, which lives as long as one of them.

    The system gives a large block large pages, whose first touch costs a quarter of that of many small ones.
    """
    offsets, end = [], 0
    for dtype, size in rows:
        offsets.append(end)
        end += -(-size * dtype.itemsize // PART_ALIGNMENT) * PART_ALIGNMENT
    block = Buffer(device, dtypes.uint8, end)
    return [Buffer.part(block, offset, *row) for offset, row in zip(offsets, rows, strict=True)]


def as_bytes(value: Any) -> memoryview:
    """Any bytes-like object as a flat view of its bytes."""
    view = value if isinstance(value, memoryview) else memoryview(value)
    if view.nbytes == 0:
        return memoryview(bytearray())
    return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")


class _PyBuffer(ctypes.Structure):
    """CPython's `Py_buffer`, as far as it is read here."""

    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]  # fmt: skip


def address_of(view: memoryview) -> int:
    """Address of a view's first byte, also of read-only memory (which `ctypes.from_buffer` refuses)."""
    found = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(found), 0)
    address = int(found.buf)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(found))
    return address


def bind(node: UOp, buffer: Buffer) -> UOp:
    """Make a BUFFER node stand for this memory; returns the node."""
    node._memory = buffer
    return node


def bind_parts(arenas: Mapping[str, int], places: Mapping[UOp, int], spare: dict[str, Buffer]) -> None:
    """Let BUFFER nodes stand for parts of one block a device; nodes that stand for memory already keep it.

    Args:
        arenas: bytes of each device's block.
        places: where each node's memory begins in the block of its device.
        spare: blocks by device whose parts nobody needs any more; used where large enough, and renewed where not.
    """
    for device, nbytes in arenas.items():
        if device not in spare or spare[device].nbytes < nbytes:
            spare[device] = Buffer(device, dtypes.uint8, nbytes)
    for node, offset in places.items():
        if not hasattr(node, "_memory"):
            arg: BufferArg = node.arg
            node._memory = Buffer.part(spare[arg.device], offset, node.dtype, arg.size)


def buffer_of(node: UOp) -> Buffer:
    """The memory of a BUFFER node; made on first use, gone when the node is."""
    try:
        return node._memory  # type: ignore[no-any-return]
    except AttributeError:
        arg: BufferArg = node.arg
        with _allocating:  # two threads that ask at once get the same memory
            if not hasattr(node, "_memory"):
                node._memory = Buffer(arg.device, node.dtype, arg.size)
        return node._memory  # type: ignore[no-any-return]


# BUFFER nodes whose memory somebody outside sees, one entry for each who does: it is read, and never written in place.
# Entries come and go in destructors and in any thread, so each change is one operation of the dict.
_watched: Final[dict[int, ref[UOp]]] = {}
_numbers: Final = count()


def protect(node: UOp) -> int:
    """Do not write into the memory of a BUFFER node, which is seen outside, as long as the node lives, or until its
    number, which this returns, is given to `release`.
    """
    number = next(_numbers)
    _watched[number] = ref(node, lambda _: release(number))
    return number


def release(number: int) -> None:
    """One less looks at the memory of a node."""
    _watched.pop(number, None)


def protected() -> list[UOp]:
    """The BUFFER nodes whose memory somebody outside sees."""
    found = [watched() for watched in list(_watched.values())] if _watched else []
    return list(dict.fromkeys([node for node in found if node is not None]))


class Lease:
    """Somebody outside looks at the memory of a BUFFER node: it stays, and is not written, while this object lives."""

    __slots__ = ("_number", "buffer")

    def __init__(self, node: UOp) -> None:
        self.buffer = buffer_of(node)
        self._number = protect(node)

    def view(self) -> memoryview:
        """The bytes, read-only. The view keeps the lease alive."""
        if self.buffer.nbytes == 0:
            return memoryview(b"")
        allocator = Device[self.buffer.device].allocator
        return allocator.view(self.buffer.address, self.buffer.nbytes, self).toreadonly()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            release(self._number)
