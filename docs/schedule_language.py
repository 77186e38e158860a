"""Measures the ladder in schedule-language.md: `python docs/schedule_language.py`, with `--write` into the page.

A matrix product as a plain kernel, then one opt after another until the core is near its peak. Every rung's opts are
those of the rung before and one more; amounts follow the processor's vectors, registers and caches, so that it runs on
any CPU. Every rung's result is compared with NumPy. `--write` replaces the table between the markers of the page and
draws schedule-language.svg.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from gradlet.base.dtype import dtypes
from gradlet.base.settings import scope
from gradlet.device.cpu.probe import Machine
from gradlet.device.cpu.target import available_cores, host_target
from gradlet.engine.compile import get_kernel
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import AxisKind, KernelArg, Op, ParamArg, RangeArg, ReduceArg
from gradlet.ops.opt import Opt
from gradlet.optimize.actions.language import apply
from gradlet.optimize.analysis import KernelFacts
from gradlet.optimize.opttext import parse_opts
from gradlet.runtime.buffer import Buffer
from gradlet.target.target import Target

PAGE = Path(__file__).with_name("schedule-language.md")
PLOT = Path(__file__).with_name("schedule-language.svg")
BEGIN, END = "<!-- begin of the ladder -->", "<!-- end of the ladder -->"
SIZE = 1024
VECTORS = 2  # of a row of the register tile
MAX_PANELS = 4  # of a block: more blocks can be shared between threads
SECONDS, RUNS = 0.8, 2  # a rung is run at least for so long, and so often
FIXED = {"BEAM": 0, "DEBUG": 0, "OPTS": "", "STRICT_FLOAT": 0}


class Rung(NamedTuple):
    """One step: the opt that it adds (none on the first), all opts so far, and why that helps."""

    title: str
    opts: tuple[Opt, ...]
    why: str


class Result(NamedTuple):
    """What a rung reached: its name, threads, floating-point operations a second, the peak of those threads."""

    title: str
    threads: int
    rate: float
    peak: float
    why: str


def product(m: int = SIZE, k: int = SIZE, n: int = SIZE) -> UOp:
    """The plain kernel: range 0 over rows, 1 over columns, 2 over the sum; slot 0 is the result, 1 and 2 factors."""
    bounds = [(m, AxisKind.LOOP), (n, AxisKind.LOOP), (k, AxisKind.REDUCE)]
    i, j, l = (
        mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, size),), RangeArg(number, kind))
        for number, (size, kind) in enumerate(bounds)
    )
    f32 = dtypes.float32
    out, x, y = (mk(Op.PARAM, f32, (), ParamArg(slot, size)) for slot, size in enumerate((m * n, m * k, k * n)))
    left = mk(Op.LOAD, f32, (mk(Op.INDEX, f32, (x, i * k + l)),))
    right = mk(Op.LOAD, f32, (mk(Op.INDEX, f32, (y, l * n + j)),))
    total = mk(Op.REDUCE, f32, (left * right, l), ReduceArg(Op.ADD))
    store = mk(Op.STORE, dtypes.void, (mk(Op.INDEX, f32, (out, i * n + j)), total))
    return mk(Op.SINK, dtypes.void, (store,), KernelArg("matmul", None))


def tile_rows(target: Target) -> int:
    """Rows of the register tile: sums fill the registers but for the vectors of B and a value of A."""
    return (target.vector_registers - VECTORS - 1) // VECTORS


def block_panels(target: Target, k: int) -> int:
    """Panels of B that a core has room for, as a power of two."""
    panel = k * VECTORS * target.vector_bits // 8
    panels = MAX_PANELS
    while panels > 2 and panels * panel > target.scratch_bytes:
        panels //= 2
    return panels


def ladder(target: Target, m: int = SIZE, k: int = SIZE, n: int = SIZE) -> list[Rung]:
    """The rungs for one kind of CPU.

    Raises:
        ArgumentError: the sizes are not multiples of what the target's vectors need.
    """
    plain = product(m, k, n)
    rungs = [Rung("the plain kernel", (), "each product waits for the sum before it and reads another row of B")]

    def climb(title: str, why: str) -> None:
        rungs.append(Rung(title, rungs[-1].opts + parse_opts(title), why))

    def fresh() -> int:
        """The number that the next new range gets."""
        return KernelFacts(apply(plain, rungs[-1].opts, target)).next_number()

    lanes = target.lanes(dtypes.float32)
    climb(
        "REORDER(range 1, 0)",
        "nothing yet: columns go outside, so that those of B that are in use can stay near while all rows pass",
    )
    climb(f"VECTORIZE(range 0, {lanes})", "a vector of B is read as one, and a vector of sums is added to at once")
    climb(f"UNROLL(range 0, {VECTORS})", "two independent sums, and a value of A serves both")
    climb(
        f"UNROLL(range 1, {tile_rows(target)}, BALANCE)",
        "the register tile: a vector of B serves every row, and enough sums hide how long a multiply-add takes",
    )
    panel = fresh()
    climb(
        f"SPLIT(range 0, {block_panels(target, k)})",
        "blocks of columns, small enough for a copy of theirs to stay in the core's second cache",
    )
    climb(f"REORDER(range {panel}, 1)", "panel after panel of a block, so that one panel at a time is in use")
    # Ranges are now: 0 blocks, 1 panels, 2 rows, 3 the sum, 4 lanes, 5 the two vectors.
    copy = fresh()
    climb(
        "STAGE(range 0, slot=2, order=(1, 3, 5, 4))",
        "B is copied once a block, in the order of use: no step along K jumps to another page",
    )
    climb(f"VECTORIZE(range {copy + 3}, {lanes})", "the copy, too, moves a vector at a time")
    climb(
        f"UNROLL(range {copy + 2}, {VECTORS})",
        "the copy writes whole rows of a panel; it is a small part of the time by now",
    )
    climb("PARALLEL(range 0)", "one thread has nothing to share, and loses nothing")
    return rungs


def measure() -> list[Result]:
    """Climb the ladder on this machine: each rung on one thread, the last also on all."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((SIZE, SIZE), np.float32) for _ in range(2))
    expected = a.astype(np.float64) @ b
    buffers = [Buffer("CPU", dtypes.float32, SIZE * SIZE) for _ in range(3)]
    buffers[1].copyin(a)
    buffers[2].copyin(b)
    with scope(**FIXED, NUM_THREADS=1):
        target = host_target()
        rungs = ladder(target)
        peak = Machine(target).multiply_adds()
        print(f"peak of a core: {peak / 1e9:.1f} GFLOP/s")
    cores = available_cores()
    results = []
    for rung, threads in [*((rung, 1) for rung in rungs), *([(rungs[-1], cores)] if cores > 1 else [])]:
        with scope(**FIXED, NUM_THREADS=threads):
            rate = 2 * SIZE**3 / fastest(rung, buffers, expected)
        why = rung.why if threads == 1 else "the blocks are shared between all cores"
        results.append(Result(rung.title, threads, rate, peak * threads, why))
        print(
            f"{rung.title:50s} {threads} threads {rate / 1e9:8.1f} GFLOP/s {rate / (peak * threads):6.0%}", flush=True
        )
    return results


def fastest(rung: Rung, buffers: list[Buffer], expected: np.ndarray) -> float:
    """Seconds of a rung's best run; the result of the first is compared."""
    kernel = get_kernel(product().replace(arg=KernelArg("matmul", rung.opts)), "CPU")
    buffers[0].copyin(np.full(expected.shape, np.nan, np.float32))
    times = [kernel.run(buffers, [], True) or 0.0]
    result = np.frombuffer(buffers[0].memory(), np.float32).reshape(expected.shape)
    np.testing.assert_allclose(result, expected, atol=1e-3, err_msg=rung.title)
    while len(times) < RUNS or sum(times) < SECONDS:
        times.append(kernel.run(buffers, [], True) or 0.0)
    return min(times)


def table(results: list[Result]) -> str:
    """The part of the page between its markers."""
    with scope(NUM_THREADS=1):
        target = host_target()
    one = results[0].peak
    lines = [
        f"One core does {one / 1e9:.0f} GFLOP/s of multiply-adds at most (`{target.name}`, {target.vector_registers} "
        f"registers of {target.lanes(dtypes.float32)} floats,\n{target.l2_bytes // 1024} KB of second cache).",
        "",
        "| and then, one at a time | threads | GFLOP/s | of the peak | why |",
        "|---|---|---|---|---|",
    ]
    for row in results:
        name = f"`{row.title}`" if "(" in row.title else row.title
        lines.append(f"| {name} | {row.threads} | {row.rate / 1e9:.1f} | {row.rate / row.peak:.1%} | {row.why} |")
    return "\n".join(lines)


def plot(results: list[Result]) -> str:
    """The table as bars: SVG text."""
    left, right, height, top = 350, 60, 26, 44
    width = 460
    scale = width / max(row.peak for row in results)
    total = left + width + right
    bottom = top + height * len(results)
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{bottom + 16}" '
        f'viewBox="0 0 {total} {bottom + 16}" font-family="sans-serif" font-size="12">',
        f"<title>GFLOP/s of a {SIZE} x {SIZE} x {SIZE} matrix product after each opt</title>",
        f'<rect width="{total}" height="{bottom + 16}" fill="white"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">GFLOP/s of a {SIZE} x {SIZE} x {SIZE} product, '
        "one opt after another</text>",
    ]
    for number, row in enumerate(results):
        y, length = top + height * number, row.rate * scale
        color = "#3b6ea5" if row.threads == 1 else "#c26a1b"
        label = row.title if row.threads == 1 else f"on {row.threads} threads"
        text += [
            f'<text x="{left - 8}" y="{y + 16}" text-anchor="end" font-family="monospace">{escape(label)}</text>',
            f'<rect x="{left}" y="{y + 4}" width="{length:.1f}" height="{height - 8}" fill="{color}"/>',
            f'<text x="{left + length + 5:.1f}" y="{y + 16}">{row.rate / 1e9:.1f}</text>',
        ]
    for threads, peak in sorted({(row.threads, row.peak) for row in results}):
        x = left + peak * scale
        name = "peak of a core" if threads == 1 else f"peak of {threads}"
        text += [
            f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="#777" stroke-dasharray="4 3"/>',
            f'<text x="{x:.1f}" y="{top - 5}" text-anchor="middle" fill="#555">{name}: {peak / 1e9:.0f}</text>',
        ]
    return "\n".join([*text, "</svg>"]) + "\n"


def written(page: str, results: list[Result]) -> str:
    """The page with these results in it."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}"


if __name__ == "__main__":
    found = measure()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(PAGE.read_text(), found))
        PLOT.write_text(plot(found))
