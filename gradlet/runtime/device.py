"""The registry of devices: `Device["CPU"]` opens a backend, `Device.DEFAULT` names the one used when none is given."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gradlet.base import settings
from gradlet.base.errors import DeviceError
from gradlet.graph.program import AnyProgram
from gradlet.target.target import Target

if TYPE_CHECKING:
    from gradlet.runtime.buffer import Buffer


class Allocator(Protocol):
    """Memory of one device. Addresses are integers with a meaning to the device only; the next byte is one more."""

    def allocate(self, nbytes: int, label: str) -> int:
        """Memory of at least `nbytes` bytes; `label` says what for in out-of-memory errors.

        Raises:
            DeviceError: out of memory.
        """

    def free(self, address: int, nbytes: int) -> None:
        """Take back what `allocate(nbytes)` gave. Never raises: it runs in destructors."""

    def view(self, address: int, nbytes: int, owner: object) -> memoryview:
        """The bytes as host memory. It keeps `owner` alive.

        Raises:
            DeviceError: the device holds no memory.
        """

    def write(self, address: int, source: memoryview) -> None:
        """Copy host bytes to the device."""

    def read(self, address: int, target: memoryview) -> None:
        """Copy device bytes to the host."""


class Program(Protocol):
    """One compiled kernel or launch, loaded and ready to run."""

    def __call__(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool = False) -> float | None:
        """Launch on these buffers (by slot) and variable values; with `wait`, return the seconds it took."""


class GraphLaunch(NamedTuple):
    """One launch of a graph.

    Attributes:
        program: what is launched; a program of the backend that makes the graph.
        words: for each address and then each value that it takes, which of the graph's words that is.
    """

    program: Any
    words: tuple[int, ...]


class LaunchGraph(Protocol):
    """Launches of one device in a fixed order, run as one. One thread at a time may write its words and run it.

    Attributes:
        words: addresses of buffers and values of variables, 64-bit integers; a run uses what they are when it begins.
    """

    words: memoryview

    @property
    def runs(self) -> int:
        """How often all was launched: an interrupt may come just before or just after."""

    def run(self) -> None:
        """Launch everything."""


class Backend(Protocol):
    """One device, opened. A backend with `interprets = True` has `run(ast, buffers, values)` in place of `compile`.

    A backend with `recalls = True` keeps code on disk, and can run it again without the program it was made of: it has
    `describe(source, program)`, what belongs to the code as plain data, and `recall(described)`, a `Program` or None.

    `compilers` says how many threads at once its `assemble` makes use of; one, if it is not there.
    A backend with `graphs = True` has `graph(launches, words)`, a `LaunchGraph` of `GraphLaunch`es over so many words.
    Launches on other devices are replayed one by one.
    """

    name: str
    interprets: bool
    measurable: bool  # whether the time of a launch says something

    @property
    def target(self) -> Target:
        """What code is generated for."""

    @property
    def allocator(self) -> Allocator:
        """The device's memory."""

    def render(self, program: AnyProgram) -> str:
        """Source text of a kernel or a launch."""

    def assemble(self, source: str, name: str) -> bytes:
        """Machine code of source text, from the disk cache where it has it. Any thread may ask."""

    def compile(self, program: AnyProgram) -> bytes:
        """Machine code of a kernel or a launch: what `render` and `assemble` do."""

    def load(self, name: str, code: bytes, program: AnyProgram) -> Program:
        """Make machine code callable."""


# Device name -> module with `open_backend(name)`. Imported on first use: a backend may load heavy libraries.
BACKENDS: Final[dict[str, str]] = {
    "CPU": "gradlet.device.cpu.runtime",
    "PYTHON": "gradlet.device.python.runtime",
    "NULL": "gradlet.device.null.runtime",
    "CUDA": "gradlet.device.cuda.runtime",
}
FALLBACK: Final = "CPU"


class DeviceRegistry:
    """`Device[name]` is the opened backend of that name; each is opened once.

    >>> Device.canonicalize("cpu:0"), "CPU" in Device, Device["CPU"].name
    ('CPU', True, 'CPU')
    """

    def __init__(self) -> None:
        self._opened: dict[str, Backend] = {}
        self._default: str | None = None

    @property
    def DEFAULT(self) -> str:
        """The device used when none is named: what was assigned here, else the setting DEV, else the CPU."""
        if self._default is not None:
            return self._default
        chosen = settings.DEV.value
        if not chosen:
            return FALLBACK
        try:
            return self.canonicalize(chosen)
        except DeviceError as error:
            raise DeviceError(f"setting DEV: {error}") from None

    @DEFAULT.setter
    def DEFAULT(self, name: str | None) -> None:
        self._default = None if name is None else self.canonicalize(name)

    def canonicalize(self, name: str | None = None) -> str:
        """The one spelling of a device name; None gives the default device.

        `cpu`, `CPU:0` and `CPU` are the same; what follows a colon otherwise (`CUDA:1`, `NULL:nvptx`) is kept.

        Raises:
            DeviceError: no such device.
        """
        if name is None:
            return self.DEFAULT
        base, _, rest = str(name).partition(":")
        base = base.upper()
        if base not in BACKENDS:
            raise DeviceError(f"unknown device {name!r}; use one of: {', '.join(BACKENDS)}")
        if rest in ("", "0"):
            return base
        if base == "CUDA" and rest.isdecimal():
            return f"{base}:{int(rest)}"
        if base == "CUDA":
            raise DeviceError(f"device {name!r}: GPUs are numbered; use CUDA, CUDA:1, ...")
        if base != "NULL":
            raise DeviceError(f"device {name!r}: {base} has only one device; use {base!r}")
        return f"{base}:{rest.lower()}"

    def __getitem__(self, name: str) -> Backend:
        found = self._opened.get(name)
        if found is None:
            canonical = self.canonicalize(name)
            found = self._opened.get(canonical)
            if found is None:
                found = self._open(canonical)
                self._opened[canonical] = found
        return found

    def _open(self, name: str) -> Backend:
        module = importlib.import_module(BACKENDS[name.partition(":")[0]])
        backend: Backend = module.open_backend(name)
        return backend

    def names(self) -> tuple[str, ...]:
        """All device names."""
        return tuple(BACKENDS)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.partition(":")[0].upper() in BACKENDS


Device: Final = DeviceRegistry()
