"""The CUDA driver API: opening a GPU, and calls that raise instead of returning codes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from gradlet.base.errors import DeviceError

INSTALL: Final = "pip install 'gradlet[cuda]'"


def bindings(name: str) -> ModuleType:
    """A module of the package cuda-bindings: `driver` or `nvrtc`.

    Raises:
        DeviceError: the package is not there.
    """
    import importlib

    try:
        return importlib.import_module(f"cuda.bindings.{name}")
    except ImportError as error:
        raise DeviceError(f"device CUDA needs the package cuda-bindings ({error}): {INSTALL}") from None


class Gpu:
    """One GPU with its primary context and the stream that everything runs on, in order.

    The context is made on first use: who only compiles for a GPU needs none.

    Attributes:
        number: which GPU, from 0 on.
        api: the module of the driver's functions.
        stream: the stream.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.api: Any = bindings("driver")
        try:
            code = self.api.cuInit(0)[0]
        except Exception as error:  # cuda-bindings raises different types where there is no libcuda
            raise DeviceError(
                f"device CUDA needs the NVIDIA driver (libcuda.so.1), which this machine does not have: {error}"
            ) from None
        if int(code) != 0:
            raise DeviceError(f"device CUDA cannot be used: {self._describe(code)}; is there an NVIDIA GPU?")
        count = int(self.call("cuDeviceGetCount"))
        if number >= count:
            names = ", ".join("CUDA" if i == 0 else f"CUDA:{i}" for i in range(count)) or "none"
            raise DeviceError(f"there is no GPU number {number}; this machine has: {names}")
        self.device = self.call("cuDeviceGet", number)
        self._making = threading.RLock()
        self._near: set[int] = set()  # the GPUs whose memory this one was let reach

    def __getattr__(self, name: str) -> Any:
        if name not in ("context", "stream", "_mark"):
            raise AttributeError(name)
        with self._making:
            if name not in self.__dict__:
                self._open()
        return self.__dict__[name]

    def _open(self) -> None:
        """Make what runs kernels."""
        self.context = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.activate()
        self._mark = self.call("cuEventCreate", 2)  # without times
        self.stream = self.call("cuStreamCreate", 1)  # not ordered with the stream that other libraries use

    def activate(self) -> None:
        """Let calls of this thread be about this GPU."""
        if getattr(_thread, "gpu", None) is not self:
            code = self.api.cuCtxSetCurrent(self.context)[0]
            if int(code) != 0:
                raise DeviceError(f"GPU {self.number} cannot be used: {self._describe(code)}")
            _thread.gpu = self

    def call(self, name: str, *args: Any) -> Any:
        """A function of the driver: its result, or a tuple of its results.

        Raises:
            DeviceError: with the driver's own words.
        """
        code, *results = getattr(self.api, name)(*args)
        if int(code) != 0:
            raise DeviceError(f"GPU {self.number}: {name} failed: {self._describe(code)}")
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def _describe(self, code: Any) -> str:
        _, text = self.api.cuGetErrorString(code)
        words = text.decode() if isinstance(text, bytes) else str(text)
        return f"{words} ({getattr(code, 'name', code)})"

    def follow(self, other: Gpu) -> None:
        """Let what this GPU begins from now on run after all that another one has begun."""
        other.activate()
        other.call("cuEventRecord", other._mark, other.stream)
        self.activate()
        self.call("cuStreamWaitEvent", self.stream, other._mark, 0)

    def reach(self, other: Gpu) -> None:
        """Let this GPU read the memory of another one without the host, where the wires between them allow it."""
        if other.number in self._near:
            return
        self._near.add(other.number)
        if int(self.call("cuDeviceCanAccessPeer", self.device, other.device)):
            self.activate()
            self.api.cuCtxEnablePeerAccess(other.context, 0)  # says no where another library has asked before

    def attribute(self, name: str) -> int:
        """A fact about the GPU, as `MULTIPROCESSOR_COUNT`."""
        kind = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", kind, self.device))

    def name(self) -> str:
        """The name that the driver has for it."""
        text = self.call("cuDeviceGetName", 256, self.device)
        return bytes(text).split(b"\0")[0].decode()

    def seconds(self, launch: Callable[[], None]) -> float:
        """What the GPU takes for all that a function begins."""
        self.activate()
        begin, end = self.call("cuEventCreate", 0), self.call("cuEventCreate", 0)
        try:
            self.call("cuEventRecord", begin, self.stream)
            launch()
            self.call("cuEventRecord", end, self.stream)
            self.call("cuEventSynchronize", end)
            return float(self.call("cuEventElapsedTime", begin, end)) / 1e3
        finally:
            for event in (begin, end):
                self.api.cuEventDestroy(event)  # what it says is said already

    def synchronize(self) -> None:
        """Wait for all that was begun.

        Raises:
            DeviceError: some kernel failed.
        """
        self.activate()
        self.call("cuStreamSynchronize", self.stream)


_thread: Final = threading.local()
