"""From a kernel's graph to something that runs: lowering, compilation, and the cache of both in this process."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from gradlet.base import events, settings
from gradlet.engine import programs, report
from gradlet.graph.launch import is_launch
from gradlet.graph.node import UOp, no_gc
from gradlet.graph.program import AnyProgram
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.device import Device

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from gradlet.codegen.launch import SharedBodies


class Kernel(Protocol):
    """A kernel ready to run on one device: its name, and the work of one launch."""

    @property
    def name(self) -> str: ...

    @property
    def flops(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def ast(self) -> UOp: ...

    def run(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool) -> float | None:
        """Launch; with `wait` return the seconds it took."""


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code behind the `Kernel` protocol."""

    name: str
    flops: int
    bytes: int
    ast: UOp
    device: str
    program: Any

    def run(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool) -> float | None:
        return self.program(buffers, values, wait)  # type: ignore[no-any-return]

    def lowered(self) -> AnyProgram:
        """The instructions behind the machine code, to look at: code generation does the same again."""
        return lower_kernel(self.ast, self.device)


@dataclass(frozen=True)
class InterpretedKernel:
    """A kernel's graph run by the reference evaluator (device PYTHON)."""

    name: str
    flops: int
    bytes: int
    ast: UOp
    backend: Any

    def run(self, buffers: Sequence[Buffer], values: Sequence[int], wait: bool) -> float | None:
        start = time.perf_counter()
        self.backend.run(self.ast, buffers, values)
        return time.perf_counter() - start if wait else None


# Kernels by (graph, device, settings that change code). Equal kernels are the same node, so the look-up is by identity.
_kernels: dict[tuple[Any, ...], Kernel] = {}
KERNELS_KEPT = 8192
# Of rendered text, which are one module for LLVM: a module costs it half a millisecond, and warm caches gain as much.
TOGETHER: Final = 200_000  # characters; five thousand lines, about ten kernels
# How often a thread that computes in Python lets others go on: one that waits for LLVM needs Python for moments only.
SWITCH_SECONDS = 0.5e-3


class _Together(threading.local):
    """The launches that this thread is compiling one after another, and the bodies that several of them have."""

    launches: Sequence[UOp] = ()
    shared: SharedBodies | None = None


_together: Final = _Together()


def get_kernel(ast: UOp, device: str) -> Kernel:
    """The kernel for this graph on this device: from the cache of this process, else compiled now."""
    key = (ast, device, settings.codegen_key())
    found = _kernels.get(key)
    if found is None:
        found = build_kernel(ast, device)
        _keep(key, found)
    return found


def _keep(key: tuple[Any, ...], kernel: Kernel) -> None:
    while len(_kernels) >= KERNELS_KEPT:
        del _kernels[next(iter(_kernels))]
    _kernels[key] = kernel


def prepare_kernels(wanted: Iterable[tuple[UOp, str]]) -> None:
    """Have the kernels for these graphs on these devices: LLVM works on some in a thread while others are lowered.

    One thread is as many as help where llvmlite lets one at a time into LLVM, which gets several kernels at once; other
    compilers work on several side by side (`compilers` of the backend). Bodies that several launches have are lowered
    once. A single kernel is left to be compiled when it runs, and so are searches, which have processes of their own,
    and on a single core all kernels if few of them are launches of several.
    """
    settings_key = settings.codegen_key()
    missing = [(ast, device) for ast, device in dict.fromkeys(wanted) if (ast, device, settings_key) not in _kernels]
    if len(missing) < 2 or settings.BEAM or any(getattr(Device[device], "interprets", False) for _, device in missing):
        return
    launches = [ast for ast, _ in missing if is_launch(ast.arg)]
    before, _together.launches = _together.launches, launches
    try:
        with no_gc():  # it would go over all graphs again and again
            if all(Device[device].target.cores > 1 for _, device in missing):
                _prepare_beside(missing, settings_key)
            elif len(launches) > 1:
                _prepare_all(missing, settings_key, _Assembler(None), lambda ready: None)
    finally:
        _together.launches, _together.shared = before, None


def _prepare_beside(missing: Sequence[tuple[UOp, str]], settings_key: tuple[tuple[str, Any], ...]) -> None:
    """Have these kernels, with the compiler in threads of its own."""
    from concurrent.futures import ThreadPoolExecutor

    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    most = max(getattr(Device[device], "compilers", 1) for _, device in missing)
    threads = ThreadPoolExecutor(min(most, len(missing)), "gradlet-compiler")
    try:
        with report.compiling(len(missing)) as show:
            _prepare_all(missing, settings_key, _Assembler(threads), show)
    finally:
        threads.shutdown(cancel_futures=True)
        sys.setswitchinterval(interval)


def _prepare_all(
    missing: Sequence[tuple[UOp, str]],
    settings_key: tuple[tuple[str, Any], ...],
    assembler: _Assembler,
    show: Callable[[int], None],
) -> None:
    """Lower these kernels one after another, and keep each when its machine code is there."""
    waiting: deque[tuple[tuple[Any, ...], _Begun]] = deque()
    for number, (ast, device) in enumerate(missing, 1):
        waiting.append(((ast, device, settings_key), _begin_kernel(ast, device, assembler)))
        if number == len(missing):
            assembler.begin()
        while waiting and (number == len(missing) or waiting[0][1].is_ready()):
            key, begun = waiting.popleft()
            _keep(key, begun.finish())
            show(number - len(waiting))


class _Rendered:
    """A kernel that waits for LLVM, and its machine code when that is there."""

    def __init__(self, backend: Any, source: str, name: str) -> None:
        self.backend, self.source, self.name = backend, source, name
        self.is_ready = threading.Event()
        self._code: bytes | Exception = b""

    def code(self) -> bytes:
        """The machine code, once it is there."""
        self.is_ready.wait()
        if isinstance(self._code, Exception):
            raise self._code
        return self._code

    def give(self, code: bytes | Exception) -> None:
        """This is the code, or why there is none."""
        self._code = code
        self.is_ready.set()

    def assemble(self) -> None:
        """Make the machine code."""
        try:
            self.give(self.backend.assemble(self.source, self.name))
        except Exception as error:
            self.give(error)


class _Assembler:
    """Has rendered kernels compiled several at a time, in threads or here."""

    def __init__(self, threads: ThreadPoolExecutor | None) -> None:
        self._threads = threads
        self._waiting: list[_Rendered] = []
        self._at_work: Future[None] | None = None

    def add(self, one: _Rendered) -> None:
        """Have it compiled once there are enough others, or when the threads have nothing to do."""
        self._waiting.append(one)
        idle = self._threads is not None and (self._at_work is None or self._at_work.done())
        is_enough = sum([len(other.source) for other in self._waiting]) >= TOGETHER
        if idle or is_enough or not hasattr(one.backend, "assemble_together"):
            self.begin()

    def begin(self) -> None:
        """Wait for no others."""
        work, self._waiting = self._waiting, []
        if self._threads is not None:
            self._at_work = self._threads.submit(_assemble, work)
        else:
            _assemble(work)


def _assemble(work: Sequence[_Rendered]) -> None:
    """Make the machine code of these kernels."""
    for backend in dict.fromkeys([one.backend for one in work]):
        ours = [one for one in work if one.backend is backend]
        try:
            codes = backend.assemble_together([(one.source, one.name) for one in ours]) if len(ours) > 1 else None
        except Exception:  # one of them is at fault, and gets it when it is alone
            codes = None
        for number, one in enumerate(ours):
            if codes is None:
                one.assemble()
            else:
                one.give(codes[number])


class _Begun(NamedTuple):
    """A kernel that is lowered; its machine code may be in the works elsewhere."""

    is_ready: Callable[[], bool]
    finish: Callable[[], Kernel]


def build_kernel(ast: UOp, device: str) -> Kernel:
    """A kernel, or a launch of several: recalled from disk, else compiled, showing what DEBUG asks for."""
    return _begin_kernel(ast, device, None).finish()


def _begin_kernel(ast: UOp, device: str, assembler: _Assembler | None) -> _Begun:
    """Do what takes Python's attention. An `assembler` does the rest when it has enough, else `finish` does it."""
    backend: Any = Device[device]
    if settings.BEAM:
        from gradlet.engine import beam  # only a search pays for it

        ast = beam.scheduled(ast, device)
    if getattr(backend, "interprets", False):
        interpreted = InterpretedKernel(ast.arg.name, 0, 0, ast, backend)
        return _Begun(lambda: True, lambda: interpreted)
    recalls = bool(settings.CACHE) and getattr(backend, "recalls", False)
    entry = programs.entry_name(ast, backend.target) if recalls else ""
    recalled = _recall(entry, ast, device) if recalls and settings.DEBUG < report.SHOWS_LOWERING else None
    if recalled is not None:
        return _Begun(lambda: True, lambda: recalled)
    linear = lower_kernel(ast, device)
    report.show_lowering(ast, linear, backend)
    rendered = _Rendered(backend, backend.render(linear), linear.name)
    if assembler is not None:
        assembler.add(rendered)

    def finish() -> Kernel:
        if assembler is None:
            rendered.assemble()
        program = backend.load(linear.name, rendered.code(), linear)
        if entry:
            described = backend.describe(rendered.source, linear)
            programs.remember(entry, programs.Record(linear.name, linear.flops, linear.bytes, described))
        return CompiledKernel(linear.name, linear.flops, linear.bytes, ast, device, program)

    return _Begun(rendered.is_ready.is_set, finish)


def _recall(entry: str, ast: UOp, device: str) -> Kernel | None:
    """The kernel that some process compiled, None where the disk does not have all of it."""
    backend: Any = Device[device]
    record = programs.recall(entry)
    program = backend.recall(record.described) if record is not None else None
    if record is None or program is None:
        return None
    if events.active():
        events.emit(events.CacheHit("disk", record.name))
    return CompiledKernel(record.name, record.flops, record.bytes, ast, device, program)


def lower_kernel(ast: UOp, device: str) -> AnyProgram:
    """The instructions of one kernel, or of one launch of several."""
    from gradlet.codegen import launch, pipeline  # who recalls all kernels from disk never needs them

    target, observers = Device[device].target, report.pass_observers()
    if not is_launch(ast.arg):
        return pipeline.lower(ast, target, observers)
    if _together.shared is None and _together.launches:
        _together.shared = launch.SharedBodies(_together.launches)
    return launch.lower_launch(ast, target, observers, _together.shared)
