"""What DEBUG shows: kernels as they run, and each step of lowering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradlet.base import settings
from gradlet.graph import text
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import Op
from gradlet.runtime.buffer import Buffer
from gradlet.runtime.counters import GlobalCounters

if TYPE_CHECKING:
    from gradlet.engine.compile import Kernel


def show_lowering(ast: UOp, linear: LinearProgram, backend: Any) -> None:
    """DEBUG=3 opts and ranges, 4 code, 5 the linear program."""
    if settings.DEBUG < 3:
        return
    print(f"--- {linear.name}: {ranges_line(ast)}")
    print(f"    opts: {opts_line(ast, backend)}")
    if settings.DEBUG >= 5:
        print(text.to_text(ast))
        for node in linear.uops:
            print("    " + text.one_line(node))
    if settings.DEBUG >= 4:
        print(backend.render(linear))


def ranges_line(ast: UOp) -> str:
    """The loops of a kernel: number, kind and size of each range."""
    ranges = sorted((n for n in ast.toposort() if n.op is Op.RANGE), key=lambda n: n.arg.number)
    return " ".join(f"{r.arg.kind.name.lower()}{r.arg.number}={range_size(r)}" for r in ranges)


def range_size(node: UOp) -> str:
    """Size of a RANGE as text."""
    size = node.src[0]
    return str(size.arg) if size.op is Op.CONST else text.one_line(size)


def opts_line(ast: UOp, backend: Any) -> str:
    """The schedule that the kernel carries or that the heuristic chooses."""
    from gradlet.optimize import heuristic

    opts = ast.arg.opts
    if opts is None:
        opts = () if settings.NOOPT else heuristic.choose(ast, backend.target)
    return ", ".join(f"{o.kind.name}(axis={o.axis}, amount={o.amount}, {o.tail.name})" for o in opts) or "none"


def show_kernel(device: str, kernel: Kernel, buffers: Sequence[Buffer], seconds: float) -> None:
    """DEBUG=2: one line a kernel with its shapes, time, rates and the memory in use."""
    if settings.DEBUG < 2:
        return
    sizes = " ".join(f"{b.dtype.name}[{b.size}]" for b in buffers[:6]) + (" ..." if len(buffers) > 6 else "")
    gflops = kernel.flops / seconds / 1e9 if seconds > 0 else 0.0
    gbytes = kernel.bytes / seconds / 1e9 if seconds > 0 else 0.0
    print(
        f"{device:8s} {GlobalCounters.kernels:5d} {kernel.name:28s} {seconds * 1e6:10.1f} us "
        f"{gflops:8.1f} GFLOP/s {gbytes:7.1f} GB/s  mem {GlobalCounters.mem_used / 1e6:8.2f} MB  {sizes}"
    )


def show_copy(destination: Buffer, source: Buffer) -> None:
    """DEBUG=2: one line a copy between devices."""
    if settings.DEBUG >= 2:
        print(f"copy     {source.device} -> {destination.device} {source.nbytes} bytes")
