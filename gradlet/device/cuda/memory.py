"""Memory of a GPU: freed blocks wait for the next request of their size; copies go through pinned host memory."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Final

from gradlet.base.errors import DeviceError
from gradlet.base.report import human_bytes
from gradlet.device.cuda.driver import Gpu
from gradlet.runtime.buffer import address_of
from gradlet.runtime.counters import GlobalCounters

GRAIN: Final = 512
CHUNK: Final = 8 << 20  # bytes of a pinned buffer; two of them alternate
SMALL: Final = 64 << 10  # the driver itself stages copies up to this size well


class CudaAllocator:
    """Blocks of GPU memory.

    A block that is freed may still be read by kernels that were launched before: whoever gets it next uses it on the
    same stream, after them.
    """

    def __init__(self, name: str, gpu: Gpu) -> None:
        self.name, self.gpu = name, gpu
        self.used = self.kept = 0
        self._free: dict[int, list[int]] = {}
        self._live: dict[int, tuple[int, str]] = {}
        self._lock = threading.RLock()  # a destructor may run in the middle of anything
        self._staging: list[tuple[int, Any]] = []

    def allocate(self, nbytes: int, label: str) -> int:
        """A block of at least `nbytes` bytes, aligned to 512, not cleared.

        Raises:
            DeviceError: no memory; names what was asked for and the largest holders.
        """
        size = size_class(nbytes)
        with self._lock:
            waiting = self._free.get(size)
            if waiting:
                address = waiting.pop()
                self.kept -= size
            else:
                address = self._fresh(size)
                if not address:
                    self.release_kept()
                    address = self._fresh(size)
                if not address:
                    raise DeviceError(self._out_of_memory(nbytes, label))
            self._live[address] = (nbytes, label)
            self.used += nbytes
        GlobalCounters.mem_used += nbytes
        return address

    def free(self, address: int, nbytes: int) -> None:
        """Take a block back."""
        with self._lock:
            if self._live.pop(address, None) is None:
                return
            self.used -= nbytes
            size = size_class(nbytes)
            self.kept += size
            self._free.setdefault(size, []).append(address)
        GlobalCounters.mem_used -= nbytes

    def release_kept(self) -> None:
        """Give all waiting blocks back to the driver, which waits for the kernels that use them."""
        with self._lock:
            self.gpu.synchronize()
            for size, waiting in self._free.items():
                while waiting:
                    self.gpu.call("cuMemFree", waiting.pop())
                    self.kept -= size

    def view(self, address: int, nbytes: int, owner: object) -> memoryview:
        """The bytes as they are now: a copy in host memory."""
        content = bytearray(nbytes)
        self.read(address, memoryview(content))
        return memoryview(content)

    def write(self, address: int, source: memoryview) -> None:
        """Copy host bytes in; they may change when this returns."""
        gpu, size = self.gpu, source.nbytes
        gpu.activate()
        start = address_of(source)
        if size <= SMALL:
            gpu.call("cuMemcpyHtoDAsync", address, start, size, gpu.stream)
            gpu.call("cuStreamSynchronize", gpu.stream)
            return
        with self._lock:
            for number, begin in enumerate(range(0, size, CHUNK)):
                pinned, event = self._pinned(number % 2)
                count = min(CHUNK, size - begin)
                gpu.call("cuEventSynchronize", event)
                ctypes.memmove(pinned, start + begin, count)
                gpu.call("cuMemcpyHtoDAsync", address + begin, pinned, count, gpu.stream)
                gpu.call("cuEventRecord", event, gpu.stream)

    def read(self, address: int, target: memoryview) -> None:
        """Copy the bytes out, once all that was begun has run."""
        gpu, size = self.gpu, target.nbytes
        gpu.activate()
        start = address_of(target)
        if size <= SMALL:
            gpu.call("cuMemcpyDtoHAsync", start, address, size, gpu.stream)
            gpu.call("cuStreamSynchronize", gpu.stream)
            return
        with self._lock:
            chunks = [(begin, min(CHUNK, size - begin)) for begin in range(0, size, CHUNK)]
            for number in range(len(chunks) + 1):
                if number < len(chunks):
                    begin, count = chunks[number]
                    pinned, event = self._pinned(number % 2)
                    gpu.call("cuMemcpyDtoHAsync", pinned, address + begin, count, gpu.stream)
                    gpu.call("cuEventRecord", event, gpu.stream)
                if number > 0:  # the one before, while this one is on its way
                    begin, count = chunks[number - 1]
                    pinned, event = self._pinned((number - 1) % 2)
                    gpu.call("cuEventSynchronize", event)
                    ctypes.memmove(start + begin, pinned, count)

    def copy_from(self, address: int, source: object, start: int, nbytes: int) -> bool:
        """Copy bytes of another memory in without the host, once all that was begun there has run; False: it cannot."""
        if not isinstance(source, CudaAllocator):
            return False
        gpu, other = self.gpu, source.gpu
        if gpu is other:
            gpu.activate()
            gpu.call("cuMemcpyDtoDAsync", address, start, nbytes, gpu.stream)
            return True
        gpu.reach(other)
        gpu.follow(other)
        gpu.call("cuMemcpyPeerAsync", address, gpu.context, start, other.context, nbytes, gpu.stream)
        other.follow(gpu)  # who writes there next does so after the copy
        return True

    def _pinned(self, number: int) -> tuple[int, Any]:
        """A pinned buffer, and the event that says that the GPU is done with it."""
        while len(self._staging) <= number:
            place = int(self.gpu.call("cuMemHostAlloc", CHUNK, 0))
            self._staging.append((place, self.gpu.call("cuEventCreate", 2)))  # without times
        return self._staging[number]

    def _fresh(self, size: int) -> int:
        self.gpu.activate()
        code, address = self.gpu.api.cuMemAlloc(size)
        return int(address) if int(code) == 0 else 0

    def _out_of_memory(self, nbytes: int, label: str) -> str:
        largest = sorted(self._live.values(), reverse=True)[:5]
        holders = ", ".join(f"{what} ({human_bytes(n)})" for n, what in largest) or "none"
        free, total = (int(n) for n in self.gpu.call("cuMemGetInfo"))
        return (
            f"out of memory on {self.name}: {label} needs {human_bytes(nbytes)} ({nbytes} bytes); this process holds "
            f"{human_bytes(self.used)}, {human_bytes(free)} of {human_bytes(total)} are free. Largest holders: "
            f"{holders}. Drop tensors or use smaller batches"
        )


def size_class(nbytes: int) -> int:
    """Bytes of the block for a request: steps of 512 bytes, above 4 KiB eight steps for each doubling."""
    size = max(nbytes, 1)
    step = max(GRAIN, 1 << max(0, size.bit_length() - 4))
    return (size + step - 1) // step * step
