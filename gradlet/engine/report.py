"""What DEBUG shows: kernels as they run, and each step of lowering; the same facts go to listeners as events."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from gradlet.base import events, settings
from gradlet.base.report import human_seconds, kernel_line, totals_line
from gradlet.graph.node import UOp, toposort
from gradlet.graph.program import AnyProgram, LaunchProgram, LinearProgram
from gradlet.ops.op import Op
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.counters import GlobalCounters
from gradlet.runtime.device import Device
from gradlet.schedule.create import statistics
from gradlet.target.target import Target

if TYPE_CHECKING:
    from gradlet.engine.compile import Kernel
    from gradlet.graph.passes import Observer, Pass
    from gradlet.schedule.explain import Explanation


PROGRESS_SECONDS: Final = 2.0  # who waits longer wants to know for what
SHOWS_LOWERING: Final = 3  # the least DEBUG that prints something of how a kernel is lowered

_explained: Callable[[Explanation], None] | None = None


def explanations() -> Callable[[Explanation], None] | None:
    """Who wants an explanation of every schedule that is made: a listener, the screen with DEBUG=3, or nobody."""
    if _explained is not None:
        return _explained
    return show_explanation if settings.DEBUG >= 3 else None


def show_explanation(explanation: Explanation) -> None:
    """DEBUG=3: launches with prices and bytes, and why neighbours were not merged."""
    print(explanation.text())


@contextmanager
def explained(listener: Callable[[Explanation], None]) -> Iterator[None]:
    """Hand the explanation of every schedule that is made in a block to `listener`; nested blocks replace it."""
    global _explained
    before = _explained
    _explained = listener
    try:
        yield
    finally:
        _explained = before


def show_lowering(ast: UOp, linear: AnyProgram, backend: Any) -> None:
    """DEBUG=3 opts and ranges, 4 code, 5 the kernel's graph and the linear program (6, passes, prints as it lowers)."""
    if settings.DEBUG < SHOWS_LOWERING:
        return
    from gradlet.graph import text

    if isinstance(linear, LinearProgram):
        _show_kernel(ast, linear, backend.target)
    else:
        print(f"--- {linear.name}: {stages_line(linear)}")
        for number, (body, program) in enumerate(zip(ast.src, linear.programs, strict=True)):
            print(f"body {number}")
            _show_kernel(body, program, backend.target)
        if settings.DEBUG >= 5:
            print(f"    {text.arg_text(ast.arg)}")
    if settings.DEBUG >= 4:
        print(backend.render(linear))


def _show_kernel(ast: UOp, linear: LinearProgram, target: Target) -> None:
    from gradlet.codegen.pipeline import schedulable  # the compiler is there: it just ran
    from gradlet.graph import text

    print(f"--- {linear.name}: {ranges_line(schedulable(ast, target))}")
    print(f"    opts: {opts_line(linear)}")
    if settings.DEBUG >= 5:
        print(text.to_text(ast))
        print(text.program_text(linear))


def stages_line(launch: LaunchProgram) -> str:
    """What each stage of a launch runs: its kernels, and its regions with their blocks.

    A region is its bodies joined by `>`; segments of the same bodies are counted.
    """
    stages: list[str] = []
    for stage, works in zip(launch.stages, launch.work, strict=True):
        counted: dict[str, int] = {}
        for segment, work in zip(stage, works, strict=True):
            names = " > ".join(launch.programs[use.body].name for use in segment)
            shown = names if len(segment) == 1 else f"({names}) x {work.blocks} blocks"
            counted[shown] = counted.get(shown, 0) + 1
        stages.append(", ".join(name if times == 1 else f"{times} {name}" for name, times in counted.items()))
    return "; then ".join(stages)


def pass_observers() -> tuple[Observer, ...]:
    """DEBUG=6: every pass with its time, and the graph after it where it changed something."""
    return (show_pass,) if settings.DEBUG >= 6 else ()


def show_pass(row: Pass, before: UOp, after: UOp, seconds: float) -> None:
    """One pass that ran."""
    from gradlet.graph import text

    changed = "nothing" if before is after else f"{len(toposort((before,)))} -> {len(toposort((after,)))} nodes"
    print(f"pass {row.name}: {changed} in {seconds * 1e3:.2f} ms")
    if before is not after:
        print(text.to_text(after))


def ranges_line(ast: UOp) -> str:
    """The loops of a kernel: kind, number and size of each range; opts name them by number."""
    ranges = sorted((n for n in ast.toposort() if n.op is Op.RANGE), key=lambda n: n.arg.number)
    return " ".join(f"{r.arg.kind.name.lower()}{r.arg.number}={_range_size(r)}" for r in ranges) or "no loops"


def _range_size(node: UOp) -> str:
    size = node.src[0]
    from gradlet.graph import text

    return str(size.arg) if size.op is Op.CONST else text.one_line(size)


def opts_line(linear: LinearProgram) -> str:
    """The schedule that was applied, in the form that the setting OPTS takes."""
    from gradlet.optimize.opttext import opts_text

    return opts_text(linear.opts) or "none"


def ran_kernel(device: str, kernel: Kernel, buffers: Sequence[Buffer], seconds: float | None) -> None:
    """Count a launch, tell listeners, and with DEBUG=2 print its line."""
    GlobalCounters.kernels += 1
    GlobalCounters.ops += kernel.flops
    GlobalCounters.bytes += kernel.bytes
    if seconds is not None:
        GlobalCounters.seconds += seconds
    if settings.DEBUG >= 2:
        memory = GlobalCounters.mem_used
        shapes = _shapes(buffers)
        print(
            kernel_line(
                device, kernel.name, shapes, seconds, kernel.flops, kernel.bytes, memory, GlobalCounters.kernels
            )
        )
    if events.active():
        memory = GlobalCounters.mem_used
        events.emit(
            events.KernelRan(kernel.name, device, _shapes(buffers), seconds, kernel.flops, kernel.bytes, memory)
        )


def _shapes(buffers: Sequence[Buffer]) -> str:
    """Elements of each buffer, the written one first, as short text."""
    shown = " ".join(str(b.size) for b in buffers[:4])
    return shown + (" .." if len(buffers) > 4 else "")


def ran_copy(destination: Buffer, source: Buffer) -> None:
    """Tell of a copy between devices."""
    if settings.DEBUG >= 2:
        print(f"copy {source.device} -> {destination.device} {source.nbytes} bytes")
    if events.active():
        events.emit(events.Copied(source.device, destination.device, source.nbytes, None))


def show_schedule(cached: bool, seconds: float) -> None:
    """DEBUG=2: whether a schedule was found again, and why not."""
    if cached:
        print(f"schedule hit in {human_seconds(seconds)}")
    elif statistics.misses:
        miss = statistics.misses[-1]
        how = "recalled from disk" if miss.recalled else "made"
        print(f"schedule miss, {how} in {human_seconds(seconds)}: {miss.text}")


@contextmanager
def compiling(count: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many kernels are compiled, from the moment when that takes long.

    Yields:
        What to tell how many there are.
    """
    begin = time.perf_counter()
    status: Any = None

    def show(done: int) -> None:
        nonlocal status
        if status is None and time.perf_counter() - begin < PROGRESS_SECONDS:
            return
        if status is None:
            if sys.stderr is None or not sys.stderr.isatty():
                return
            from rich.console import Console

            status = Console(stderr=True).status("")
            status.start()
        status.update(f"{done} of {count} kernels compiled")

    try:
        yield show
    finally:
        if status is not None:
            status.stop()


_device_shown = False


@contextmanager
def realize_totals() -> Iterator[None]:
    """What DEBUG=1 shows: once which device is used, and after a realize what it took in all."""
    global _device_shown
    if not _device_shown:
        _device_shown = True
        target = Device[Device.DEFAULT].target
        print(f"device {Device.DEFAULT}: {target.name}, {target.cores} cores")
    before = (GlobalCounters.kernels, GlobalCounters.ops, GlobalCounters.bytes)
    start = time.perf_counter()
    yield
    kernels = GlobalCounters.kernels - before[0]
    if kernels:
        flops, moved = GlobalCounters.ops - before[1], GlobalCounters.bytes - before[2]
        print(totals_line(kernels, flops, moved, time.perf_counter() - start, GlobalCounters.mem_used))
