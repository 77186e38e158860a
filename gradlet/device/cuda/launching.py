"""A kernel on a GPU: its code, and the memory from which the driver reads what a launch passes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, Final

from gradlet.device.cuda import tensormap
from gradlet.device.cuda.driver import Gpu
from gradlet.runtime.buffer import Buffer

# More shared memory than this a kernel has to ask for, less what the compiler puts there.
USUAL_SHARED: Final = 40 * 1024


class Arguments:
    """What one launch passes: words, then tensor maps.

    Attributes:
        words: addresses and values.
        first_map: where the tensor maps begin.
        address: of the table of places that the driver reads.
    """

    def __init__(self, words: int, maps: int) -> None:
        self.words = (ctypes.c_int64 * max(1, words))()
        base = ctypes.addressof(self.words)
        self._room = ctypes.create_string_buffer(tensormap.SIZE * (maps + 1))
        self.first_map = -(-ctypes.addressof(self._room) // tensormap.SIZE) * tensormap.SIZE
        places = [base + 8 * i for i in range(words)]
        places += [self.first_map + tensormap.SIZE * i for i in range(maps)]
        self._places = (ctypes.c_void_p * max(1, len(places)))(*places)
        self.address = ctypes.addressof(self._places)


class CudaProgram:
    """A kernel on a GPU."""

    def __init__(
        self, gpu: Gpu, code: bytes, name: str, grid: int, threads: int, shared: int, words: int,
        maps: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self.gpu = gpu
        self.grid, self.threads, self.shared = grid, threads, shared
        gpu.activate()
        self._module = gpu.call("cuModuleLoadData", code)
        self.function = gpu.call("cuModuleGetFunction", self._module, name.encode())
        if shared > USUAL_SHARED:
            kind = gpu.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu.call("cuFuncSetAttribute", self.function, kind, shared)
        self.maps = [tensormap.Box(*map(tensormap.frozen, row)) for row in maps]
        self._word_count = words
        self._encoded: dict[tuple[int, int], bytes] = {}
        # The driver reads the arguments before a launch returns.
        self._arguments = self.new_arguments()
        self._lock = threading.Lock()

    def __call__(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool = False) -> float | None:
        words = [*[b.address for b in buffers], *values]
        if wait:
            return self.gpu.seconds(lambda: self._launch(words))
        self.gpu.activate()
        self._launch(words)
        return None

    def _launch(self, words: Sequence[int]) -> None:
        gpu = self.gpu
        with self._lock:
            self.put(self._arguments, words)
            gpu.call(
                "cuLaunchKernel", self.function, self.grid, 1, 1, self.threads, 1, 1, self.shared, gpu.stream,
                self._arguments.address, 0,
            )  # fmt: skip

    def new_arguments(self) -> Arguments:
        """Memory for what a launch passes."""
        return Arguments(self._word_count, len(self.maps))

    def put(self, arguments: Arguments, words: Sequence[int]) -> None:
        """Let a launch pass these addresses and values, and the tensor maps of what lies there."""
        table = arguments.words
        for place, word in enumerate(words):
            table[place] = word
        for number, box in enumerate(self.maps):
            encoded = self._map_of(number, box, words[box.argument])
            ctypes.memmove(arguments.first_map + tensormap.SIZE * number, encoded, tensormap.SIZE)

    def node_parameters(self, arguments: Arguments) -> Any:
        """A launch as the driver wants it for the node of a graph."""
        node = self.gpu.api.CUDA_KERNEL_NODE_PARAMS()
        node.func = self.function
        node.gridDimX, node.blockDimX = self.grid, self.threads
        node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1
        node.sharedMemBytes = self.shared
        node.kernelParams = arguments.address
        return node

    def _map_of(self, number: int, box: tensormap.Box, address: int) -> bytes:
        """The tensor map of what lies at an address."""
        key = (number, address)
        encoded = self._encoded.get(key)
        if encoded is None:
            if len(self._encoded) >= tensormap.KEPT:
                self._encoded.clear()
            encoded = self._encoded[key] = tensormap.encode(self.gpu, box, address)
        return encoded
