"""A program in C that calls an exported one several times: inputs from a file, results to standard output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from gradlet import Tensor

WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2"]


def build_and_run(
    folder: Path, name: str, program: Any, calls: list[dict[str, Any]], *options: str, compiler: str
) -> list[bytes]:
    """The bytes that each call writes. `program` is the loaded one: it says what the C function takes.

    Args:
        folder: where `name.c` lies.
        name: of the program.
        program: what its inputs, variables and outputs are.
        calls: inputs and variables of each call.
        options: more options of the compiler.
        compiler: a command.
    """
    manifest = program.manifest
    reads, names = [], []
    for row in manifest.inputs:
        size = int(np.prod([s if isinstance(s, int) else s.most for s in row.shape])) * row.dtype.itemsize
        reads.append((f"in{len(names)}", size))
        names.append(f"(void *)in{len(names)}")
    outputs = [
        int(np.prod([s if isinstance(s, int) else s.most for s in row.shape])) * row.dtype.itemsize
        for row in manifest.outputs
    ]
    names += [f"(void *)out{n}" for n in range(len(outputs))]
    lines = ["#include <stdio.h>", f'#include "{name}.h"', "int main(int count, char **arguments) {"]
    lines += ["  (void)count;", f"  static {name}_program p;", '  FILE *f = fopen(arguments[1], "rb");']
    lines += [f"  static unsigned char {n}[{max(1, size)}];" for n, size in reads]
    lines += [f"  static unsigned char out{n}[{max(1, size)}];" for n, size in enumerate(outputs)]
    lines += [f"  if (f == NULL || {name}_init(&p, arguments[2]) != 0) return 1;", "  for (;;) {", "    int64_t v[16];"]
    lines.append("    if (fread(v, 8, 16, f) != 16) break;")
    lines += [f"    if (fread({n}, 1, {size}, f) != {size}) return 2;" for n, size in reads]
    values = [f"v[{i}]" for i in range(len(program.variables))]
    lines.append(f"    if ({name}_run({', '.join(['&p', *names, *values])}) != 0) return 3;")
    lines += [f"    fwrite(out{n}, 1, {size}, stdout);" for n, size in enumerate(outputs)]
    lines += ["  }", f"  {name}_free(&p);", "  return 0;", "}", ""]
    (folder / "main.c").write_text("\n".join(lines))
    data = b""
    for call in calls:
        values = [int(call[v].src[1].arg) if hasattr(call[v], "src") else int(call[v]) for v in program.variables]
        data += np.array([*values, *[0] * (16 - len(values))], np.int64).tobytes()
        for row, (_, size) in zip(manifest.inputs, reads, strict=True):
            value = call[row.name]
            raw = (value.numpy() if isinstance(value, Tensor) else np.asarray(value)).tobytes()
            data += raw + bytes(size - len(raw))
    (folder / "inputs").write_bytes(data)
    binary = folder / f"main_{Path(compiler).name}"
    command = [compiler, *WARNINGS, *options, "main.c", f"{name}.c", "-lm", "-o", str(binary)]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[:4000]
    run = subprocess.run(
        [binary, "inputs", f"{name}.bin"], cwd=folder, capture_output=True, check=False, env={**os.environ}
    )
    assert run.returncode == 0, run.returncode
    each = sum(outputs)
    assert len(run.stdout) == each * len(calls)
    return [run.stdout[i * each : (i + 1) * each] for i in range(len(calls))]
