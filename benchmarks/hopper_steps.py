"""One matrix product, opt by opt, on a Hopper GPU: `python benchmarks/hopper_steps.py`.

bfloat16, `--size` 4096 by default. Every row is a whole schedule: the one before with a word more, or with another
amount. A time is that of one launch among several in a row, the median of `ROUNDS`; rows take turns, so that they share
what the card's power allows. Registers, spilled bytes and counts of machine instructions come from the compiled
kernel (`cuobjdump`, where there is one). Results are compared with float32 sums of numpy. `--compile` builds all rows
with `nvcc` where there is no GPU, and runs none.
"""

from __future__ import annotations

import argparse
import collections
import re
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gradlet import Tensor, dtypes
from gradlet.codegen.pipeline import lower
from gradlet.ops.op import KernelArg
from gradlet.optimize.opttext import parse_opts
from gradlet.render import cuda
from gradlet.runtime.buffer import Buffer, buffer_of
from gradlet.runtime.device import Device
from gradlet.target.target import SM_90

ROUNDS = 7
IN_A_ROW = 10
CHECKED_ROWS = 64
COUNTED = ("HGMMA", "FFMA", "LDG", "LDGSTS", "UTMALDG", "LDS", "STG", "UTMASTG", "BAR")

ROWS = "SPLIT(range 0, 128), PARALLEL(range 0)"
COLUMNS = "SPLIT(range 1, 128), PARALLEL(range 1)"
# Lanes and registers as matrix units have them: rows of a warp and of a lane, columns of a lane.
UNIT_ROWS = f"{ROWS}, SPLIT(range 3, 16), THREAD(range 3, 8), THREAD(range 4, 8), UNROLL(range 4, 2)"
UNIT_COLUMNS = (
    "SPLIT(range 1, 256), PARALLEL(range 1), SPLIT(range 6, 8), VECTORIZE(range 7, 2), THREAD(range 7, 4), "
    "UNROLL(range 6, 32), SPLIT(range 2, 64)"
)
UNIT = "TENSORIZE(range 9, warps=3, halves=4, groups=6, pair=8, pending={})"


def staged(buffers: int, engine: bool) -> str:
    """Copies of both factors."""
    how = f"swizzle=1, buffers={buffers}{', engine=1' * engine}"
    return f"STAGE(range 2, slot=1, {how}), STAGE(range 2, slot=2, {how})"


def schedules() -> dict[str, str]:
    """The steps: what is new, and the whole schedule."""
    lanes = "SPLIT(range 0, 16), PARALLEL(range 0), THREAD(range 3, 16), SPLIT(range 1, 16), PARALLEL(range 1), "
    near = (
        f"{ROWS}, SPLIT(range 3, 64), UNROLL(range 3, 2), UNROLL(range 4, 4), THREAD(range 4, 16), {COLUMNS}, "
        "SPLIT(range 6, 64), UNROLL(range 6, 2), VECTORIZE(range 7, 4), THREAD(range 7, 16), SPLIT(range 2, 16)"
    )
    copied = ", ".join(
        f"STAGE(range 2, slot={slot}, order=(9, {own}), pad=4, converted=1)"
        for slot, own in ((1, "3, 4, 5"), (2, "6, 7, 8"))
    )
    unit = f"{UNIT_ROWS}, {UNIT_COLUMNS}"
    ring = f"{unit}, {staged(4, True)}, {UNIT.format(1)}, SPECIALIZE(range 2)"
    walked = f"{ring}, PERSISTENT(range 0, 132)"
    ordered = f"{walked}, TILE_ORDER(range 0, 8, along=1)"
    return {
        "`PARALLEL`, `THREAD`: a lane for each result": f"{lanes}THREAD(range 4, 16)",
        "`UNROLL`, `VECTORIZE`: 8 x 8 results a lane": near,
        "`STAGE`: strips of both factors in shared memory": f"{near}, {copied}",
        "`TENSORIZE`: blocks of 128 x 256, one buffer": f"{unit}, {staged(1, False)}, {UNIT.format(0)}",
        "`buffers=3`: lanes copy two steps ahead": f"{unit}, {staged(3, False)}, {UNIT.format(0)}",
        "`buffers=4, pending=1`: units run on": f"{unit}, {staged(4, False)}, {UNIT.format(1)}",
        "`engine=1`, `SPECIALIZE`: boxes, two buffers": (
            f"{unit}, {staged(2, True)}, {UNIT.format(0)}, SPECIALIZE(range 2)"
        ),
        "`buffers=4, pending=1`": ring,
        "`PERSISTENT`: 132 workgroups walk all blocks": walked,
        "`TILE_ORDER`: eight rows of blocks together": ordered,
        "`EPILOGUE`: results leave as boxes": f"{ordered}, EPILOGUE(range 3)",
    }


@dataclass
class Step:
    """A row: what the kernel is, and its times."""

    name: str
    program: Any
    code: bytes
    run: Any = None
    times: list[float] = field(default_factory=list)
    error: float = 0.0


def instructions(code: bytes) -> dict[str, int]:
    """How often machine instructions occur in a cubin; nothing where no disassembler is."""
    if shutil.which("cuobjdump") is None:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(code)
        said = subprocess.run(["cuobjdump", "--dump-sass", file.name], capture_output=True, text=True).stdout
    return collections.Counter(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", said, re.MULTILINE))


def resources(code: bytes) -> tuple[int, int]:
    """Registers of a lane, and bytes of its local memory."""
    if shutil.which("cuobjdump") is None:
        return 0, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(code)
        said = subprocess.run(["cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def line(step: Step, size: int) -> str:
    """A row of the table."""
    registers, stack = resources(step.code)
    counts = instructions(step.code)
    seen = ", ".join(f"{counts[name]} {name}" for name in COUNTED if counts.get(name))
    if step.times:
        seconds = statistics.median(step.times)
        time = f"{seconds * 1e6:.0f} | {2 * size**3 / seconds / 1e12:.0f}"
    else:
        time = " | "
    if step.error > 0.01:
        time = f"wrong: {step.error:.1e} |"
    spilled = f" + {stack} bytes" if stack else ""
    shared = cuda.shared_bytes(step.program)
    grid = f"{step.program.grid} x {step.program.threads}"
    return f"| {step.name} | {time} | {grid} | {registers}{spilled} | {shared // 1024} | {seen} |"


def built(a: Tensor, b: Tensor, compile_only: bool) -> tuple[list[Step], list[Any]]:
    """All rows, compiled, and the memory that they take by slot."""
    backend: Any = Device[a.device]
    (call,) = (a @ b).schedule().calls
    steps = []
    for name, text in schedules().items():
        program = lower(call.ast.replace(arg=KernelArg(call.ast.arg.name, parse_opts(text))), backend.target)
        steps.append(Step(name, program, with_nvcc(program) if compile_only else backend.compile(program)))
    return steps, call.buffers


def with_nvcc(program: Any) -> bytes:
    """A cubin where there is no NVRTC."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.cu").write_text(cuda.render(program, SM_90))
        command = ["nvcc", "-cubin", "-arch=sm_90a", "--fmad=false", "-std=c++17", "-w", "k.cu", "-o", "k.cubin"]
        subprocess.run(command, cwd=folder, check=True)
        return (Path(folder) / "k.cubin").read_bytes()


def measure(steps: list[Step], buffers: list[Buffer], a: Tensor, b: Tensor) -> None:
    """Times and errors of all rows."""
    backend: Any = Device["CUDA"]
    wanted = a[:CHECKED_ROWS].cast(dtypes.float32).numpy() @ b.cast(dtypes.float32).numpy()
    result = buffers[0]
    for step in steps:
        program = backend.load(step.program.name, step.code, step.program)
        slots = [p.arg.slot for p in step.program.params]
        own = [buffers[slot] for slot in slots]
        result.copyin(np.zeros(result.size, np.uint16))
        once = program(own, [], True)
        found = np.frombuffer(result.memory(), np.uint16)[: wanted.size].astype(np.uint32) << 16
        step.error = float(np.abs(found.view(np.float32).reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())
        step.run = backend.timer(program, own, [], 1 if once > 2e-3 else IN_A_ROW)
    for _ in range(ROUNDS):
        for step in steps:
            step.times.append(step.run())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--compile", action="store_true", help="build all rows with nvcc and run none")
    options = parser.parse_args()
    size = options.size
    if options.compile:
        a, b = (Tensor.empty(size, size, device="NULL:sm_90", dtype=dtypes.bfloat16) for _ in range(2))
    else:
        rng = np.random.default_rng(0)
        values = [rng.standard_normal((size, size), np.float32) for _ in range(2)]
        a, b = (Tensor(v, device="CUDA").cast(dtypes.bfloat16).realize() for v in values)
    steps, memory = built(a, b, options.compile)
    if not options.compile:
        measure(steps, [buffer_of(node) for node in memory], a, b)
    print("| step | us | TFLOP/s | workgroups x lanes | registers | shared KiB | instructions |")
    print("|---|---|---|---|---|---|---|")
    for step in steps:
        print(line(step, size), flush=True)


if __name__ == "__main__":
    main()
