"""Runs kernels for other machines: our LLVM compiles them, a linker joins them with their memory, an emulator runs it.

AArch64 becomes a static program without any library, under qemu's user mode; WebAssembly a module, under node. All
cases of a call go into one program: it costs one link and one start. What lies between the arrays is checked as well.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.codegen import pipeline
from gradlet.codegen.launch import lower_launch
from gradlet.device.common.llvm import emit_object
from gradlet.device.cpu.plan import launch_plan
from gradlet.graph import numeric
from gradlet.graph.evaluate import run_kernel, run_launch
from gradlet.graph.launch import is_launch, variables_in_order
from gradlet.graph.node import UOp
from gradlet.graph.program import AnyProgram
from gradlet.ops.op import Op
from gradlet.render.llvmlaunch import render
from gradlet.runtime.buffer import buffer_of
from gradlet.schedule.calls import CopyCall
from gradlet.schedule.create import create_schedule
from gradlet.target.target import NEON, WASM, Target

Array = np.ndarray[Any, Any]
GAP = 192  # bytes between arrays, which nobody may write
FILL = 0xA5
TOOLS = {
    NEON.name: (("ld.lld-19", "ld.lld", "ld.lld-18", "ld.lld-17"), ("qemu-aarch64-static", "qemu-aarch64")),
    WASM.name: (("wasm-ld-19", "wasm-ld", "wasm-ld-18", "wasm-ld-17"), ("node", "nodejs")),
}
# write and exit: the number of a system call goes to x8, its arguments one register down. As data, since LLVM's wheel
# has no assembler for other machines.
_SYSTEM_CALL = (0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0)
_START = f"""
@system_call = constant [6 x i32] [{", ".join(f"i32 {word}" for word in _SYSTEM_CALL)}], section ".text.calls", align 4
define void @_start() {{
  call void @run()
  call i64 @system_call(i64 64, i64 1, ptr @memory, i64 SIZE)
  call i64 @system_call(i64 93, i64 0, ptr null, i64 0)
  unreachable
}}
"""
_NODE = """
const fs = require("fs");
WebAssembly.instantiate(fs.readFileSync(process.argv[2])).then(({instance}) => {
  instance.exports.run();
  const start = instance.exports.place();
  fs.writeSync(1, new Uint8Array(instance.exports.memory.buffer, start, Number(process.argv[3])));
});
"""


class Case(NamedTuple):
    """A kernel or launch for one target, its memory before and after by slot, and the values of its variables."""

    name: str
    program: AnyProgram
    arrays: list[Array]
    expected: list[Array]
    values: tuple[int, ...] = ()


def need_tools(target: Target) -> None:
    """Skip the test where the linker or the emulator of this target is missing."""
    for names in TOOLS[target.name]:
        if _tool(names) is None:
            pytest.skip(f"kernels for {target.name} need one of {', '.join(names)}")


@cache
def _tool(names: Sequence[str]) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


def run(cases: Sequence[Case], target: Target, folder: Path) -> list[list[Array]]:
    """The memory of every case after it ran.

    Raises:
        AssertionError: the linker or the emulator fails, or a kernel wrote beside its memory.
    """
    before, places = _layout(cases)
    objects = [_object(_main(cases, before, places, target), target, folder / "main.o")]
    for number, case in enumerate(cases):
        program = _named(case, number)
        objects.append(_object(render(program, target), target, folder / f"{number}.o"))
    linker, emulator = (_tool(names) for names in TOOLS[target.name])
    assert linker and emulator
    binary, script = folder / "program", folder / "run.js"
    if target is WASM:
        options = ["--no-entry", "--export=run", "--export=place", "--export-memory", "-z", "stack-size=4194304"]
        script.write_text(_NODE)
        command = [emulator, str(script), str(binary), str(len(before))]
    else:
        options = ["-static", "-e", "_start"]
        command = [emulator, str(binary)]
    linked = subprocess.run([linker, *options, "-o", str(binary), *map(str, objects)], capture_output=True, text=True)
    assert linked.returncode == 0, linked.stderr
    with open(folder / "memory", "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    after = (folder / "memory").read_bytes()
    assert len(after) == len(before)
    return _arrays(cases, places, before, after)


def check(cases: Sequence[Case], target: Target, folder: Path, tolerance: float = 2e-5) -> None:
    """Run all cases and compare what they wrote."""
    for case, arrays in zip(cases, run(cases, target, folder), strict=True):
        for slot, (got, expected) in enumerate(zip(arrays, case.expected, strict=True)):
            name = f"{case.name} on {target.name}, slot {slot}"
            if expected.dtype.kind == "f":
                loose = 2e-3 if expected.dtype == np.float16 else tolerance
                got, expected = got.astype(np.float64), expected.astype(np.float64)
                np.testing.assert_allclose(got, expected, rtol=loose, atol=loose, err_msg=name)
            else:
                np.testing.assert_array_equal(got, expected, err_msg=name)


def cases_of(name: str, compute: Callable[[], Tensor], target: Target) -> list[Case]:
    """The kernels that a tensor needs on a target, each with its inputs and what the evaluator makes of them."""
    root = compute().uop
    plan = create_schedule([root], lambda device: target, default_device="CPU")
    memory: dict[UOp, Array] = {}
    found: list[Case] = []
    for call in plan.calls:
        assert not isinstance(call, CopyCall)
        for node in call.buffers:
            if node not in memory:
                memory[node] = _bytes_of(node, plan.memory.places)
        arrays = [memory[node] for node in call.buffers]
        before = [a.copy() for a in arrays]
        values = tuple(plan.values[v] for v in call.variables)
        _evaluate(call.ast, arrays, values)
        lower = lower_launch if is_launch(call.ast.arg) else pipeline.lower
        types = [numeric.storage_type(node.dtype) for node in call.buffers]
        after = [a.view(t).copy() for a, t in zip(arrays, types, strict=True)]
        found.append(Case(f"{name}: {call.ast.arg.name}", lower(call.ast, target), before, after, values))
    return found


def _bytes_of(node: UOp, temporary: Any) -> Array:
    size = node.arg.size * node.dtype.itemsize
    if node in temporary or not buffer_of(node).is_allocated:
        return np.full(size, FILL, np.uint8)
    return np.frombuffer(buffer_of(node).memory(), np.uint8)[:size].copy()


def _evaluate(ast: UOp, arrays: Sequence[Array], values: Sequence[int]) -> None:
    if is_launch(ast.arg):
        run_launch(ast, arrays, values)
        return
    nodes = ast.toposort()
    typed = list(arrays)
    for param in (n for n in nodes if n.op is Op.PARAM):
        kind = numeric.storage_type(param.dtype)
        typed[param.arg.slot] = arrays[param.arg.slot][: param.arg.size * kind.itemsize].view(kind)
    run_kernel(ast, typed, dict(zip(variables_in_order(nodes), values, strict=True)))


# ---- the program --------------------------------------------------------------------------------------------------


def _named(case: Case, number: int) -> AnyProgram:
    """The program of a case under a name of its own."""
    return dataclasses.replace(case.program, name=f"kernel{number}")


def _layout(cases: Sequence[Case]) -> tuple[bytes, list[list[int]]]:
    """All arrays one after another with gaps, and where each begins."""
    memory = bytearray([FILL]) * GAP
    places: list[list[int]] = []
    for case in cases:
        places.append([])
        for array in case.arrays:
            memory += bytes([FILL]) * (-len(memory) % 64)
            places[-1].append(len(memory))
            memory += array.tobytes() + bytes([FILL]) * GAP
    return bytes(memory), places


def _arrays(cases: Sequence[Case], places: list[list[int]], before: bytes, after: bytes) -> list[list[Array]]:
    unchanged = bytearray(after)
    found: list[list[Array]] = []
    for case, starts in zip(cases, places, strict=True):
        found.append([])
        for start, array, expected in zip(starts, case.arrays, case.expected, strict=True):
            found[-1].append(np.frombuffer(after[start : start + array.nbytes], expected.dtype))
            unchanged[start : start + array.nbytes] = before[start : start + array.nbytes]
            found[-1][-1] = found[-1][-1].reshape(expected.shape)
    assert bytes(unchanged) == before, "a kernel wrote beside its memory"
    return found


def _main(cases: Sequence[Case], memory: bytes, places: list[list[int]], target: Target) -> str:
    """A module with the memory, and `run`, which fills the table of every case and calls it."""
    text = "".join(f"\\{byte:02x}" for byte in memory)
    head = [f'target triple = "{target.triple}"', f'@memory = global [{len(memory)} x i8] c"{text}", align 64']
    body = ["define void @run() {"]
    for number, (case, starts) in enumerate(zip(cases, places, strict=True)):
        plan = launch_plan(_named(case, number))
        head += [f"declare void @{stage}(ptr, i64, i64)" for stage in plan.stages]
        words = len(starts) + len(case.values)
        head.append(f"@table{number} = global [{max(1, words)} x i64] zeroinitializer, align 8")
        for slot, start in enumerate(starts):
            body.append(f"  %a{number}_{slot} = getelementptr i8, ptr @memory, i32 {start}")
            body.append(f"  %w{number}_{slot} = ptrtoint ptr %a{number}_{slot} to i64")
        listed = [f"%w{number}_{slot}" for slot in range(len(starts))] + [str(v) for v in case.values]
        for place, word in enumerate(listed):
            body.append(f"  %t{number}_{place} = getelementptr i64, ptr @table{number}, i32 {place}")
            body.append(f"  store i64 {word}, ptr %t{number}_{place}, align 8")
        for stage, segments in zip(plan.stages, plan.segments, strict=True):
            blocks = sum(segment.blocks for segment in segments)
            body.append(f"  call void @{stage}(ptr @table{number}, i64 0, i64 {blocks})")
    body += ["  ret void", "}"]
    if target is WASM:
        body += ["define ptr @place() {", "  ret ptr @memory", "}"]
    else:
        body.append(_START.replace("SIZE", str(len(memory))))
    return "\n".join([*head, *body]) + "\n"


def _object(source: str, target: Target, path: Path) -> Path:
    path.write_bytes(emit_object(source, target))
    return path
