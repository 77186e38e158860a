"""Host memory for devices that compute on it: aligned, and freed blocks are kept for the next request of their size."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import lru_cache
from typing import Final

from gradlet.base.errors import DeviceError
from gradlet.base.report import human_bytes
from gradlet.runtime.counters import GlobalCounters

ALIGNMENT: Final = 64
# A vector access that reaches past the last element stays inside the block.
SLACK: Final = 64
# What the system maps as one where it is asked to: one entry of the tables that translate addresses instead of 512, and
# the processor's prefetchers, which stop where a page ends, go on.
HUGE_PAGE: Final = 2 * 1024 * 1024
# How the system is asked; there is no such advice outside of Linux.
HUGE_ADVICE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


class HostAllocator:
    """Blocks of process memory. A block has the size of its class, at most an eighth more than asked for.

    Freed blocks wait in a list by class, at most `keep_bytes` of them: fresh pages cost more than the kernel that fills
    them. Blocks that hold a huge page begin with one, and the system is asked for as many as lie inside, but for sparse
    ones. No lock: every step is one operation of a dict or list, and `free` may run in the middle of `allocate`.
    """

    def __init__(self, name: str, keep_bytes: int | None = None) -> None:
        self.name = name
        self.limit = physical_memory()
        self.keep_bytes = self.limit // 4 if keep_bytes is None else keep_bytes
        self.kept = 0
        self.used = 0
        self._free: dict[int, list[int]] = {}
        self._live: dict[int, tuple[int, str]] = {}
        libc = ctypes.CDLL(None)
        self._memalign = libc.posix_memalign
        self._memalign.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t)
        self._madvise = getattr(libc, "madvise", None) if HUGE_ADVICE is not None else None
        if self._madvise is not None:
            self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._libc_free = libc.free
        self._libc_free.argtypes = (ctypes.c_void_p,)
        self._libc_free.restype = None

    def allocate_sparse(self, nbytes: int, label: str) -> int:
        """A block that is filled a little at a time: its first bytes do not bring in a huge page."""
        return self.allocate(nbytes, label, is_sparse=True)

    def allocate(self, nbytes: int, label: str, is_sparse: bool = False) -> int:
        """A block of at least `nbytes` bytes, aligned to 64, not cleared.

        Raises:
            DeviceError: no memory; names what was asked for and the largest holders.
        """
        size = size_class(nbytes)
        waiting = self._free.get(size)
        address = 0
        if waiting:
            try:
                address = waiting.pop()
                self.kept -= size
            except IndexError:
                address = 0  # another thread took it
        if not address:
            address = self._fresh(size, is_sparse)
            if not address:
                self.release_kept()
                address = self._fresh(size, is_sparse)
            if not address:
                raise DeviceError(self._out_of_memory(nbytes, label))
        self._live[address] = (nbytes, label)
        self.used += nbytes
        GlobalCounters.mem_used += nbytes
        return address

    def free(self, address: int, nbytes: int) -> None:
        """Take a block back."""
        if self._live.pop(address, None) is None:
            return
        self.used -= nbytes
        GlobalCounters.mem_used -= nbytes
        size = size_class(nbytes)
        if self.kept + size > self.keep_bytes:
            self._libc_free(address)
            return
        self.kept += size
        self._free.setdefault(size, []).append(address)

    def release_kept(self) -> None:
        """Give all waiting blocks back to the system."""
        for size, waiting in list(self._free.items()):
            while waiting:
                self._libc_free(waiting.pop())
                self.kept -= size

    def view(self, address: int, nbytes: int, owner: object) -> memoryview:
        """The memory itself; the view keeps `owner` alive."""
        block = (ctypes.c_char * nbytes).from_address(address)
        block._owner = owner  # type: ignore[attr-defined]
        return memoryview(block).cast("B")

    def write(self, address: int, source: memoryview) -> None:
        """Copy host bytes in."""
        self.view(address, source.nbytes, None)[:] = source

    def read(self, address: int, target: memoryview) -> None:
        """Copy the bytes out."""
        target[:] = self.view(address, target.nbytes, None)

    def _fresh(self, size: int, is_sparse: bool) -> int:
        # Without this check the system would promise memory it does not have, and kill the process when it is touched.
        if self.used + self.kept + size > self.limit:
            return 0
        out = ctypes.c_void_p()
        advise = self._madvise if size >= HUGE_PAGE and not is_sparse else None
        if self._memalign(ctypes.byref(out), HUGE_PAGE if advise else ALIGNMENT, size) != 0:
            return 0
        address = int(out.value or 0)
        if advise and address:
            # Whole pages only, so that no memory is held that nobody asked for. A system without them says no, which
            # changes nothing.
            advise(address, size // HUGE_PAGE * HUGE_PAGE, HUGE_ADVICE)
        return address

    def _out_of_memory(self, nbytes: int, label: str) -> str:
        largest = sorted(self._live.values(), reverse=True)[:5]
        holders = ", ".join(f"{what} ({human_bytes(n)})" for n, what in largest) or "none"
        return (
            f"out of memory on {self.name}: {label} needs {human_bytes(nbytes)} ({nbytes} bytes), and "
            f"{human_bytes(self.used)} of {human_bytes(self.limit)} are held. Largest holders: {holders}. "
            "Drop tensors or use smaller batches"
        )


@lru_cache(4096)
def size_class(nbytes: int) -> int:
    """Bytes of the block for a request: steps of 64 bytes, above 1 KiB eight steps for each doubling."""
    size = nbytes + SLACK
    step = max(ALIGNMENT, 1 << max(0, size.bit_length() - 4))
    return (size + step - 1) // step * step


def physical_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's limit where that is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
