"""Exported C builds without warnings, gives the bits of the live function call after call, and refuses bad input."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, Variable, dtypes, jit
from gradlet.base import settings
from gradlet.base.errors import ArgumentError
from gradlet.cli.main import EXIT_OK, main
from gradlet.engine.execute import base_buffer
from gradlet.io import program
from gradlet.runtime.buffer import buffer_of
from tests.export.driver import WARNINGS, build_and_run
from tests.export.models import MODELS

COMPILERS = ("gcc", "clang-19")
OK, BAD_FILE, BAD_SIZE, BAD_POINTER = 0, 2, 3, 4


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def library(folder: Path, name: str) -> Any:
    """The program as a library of this process."""
    command = [compiler("gcc"), *WARNINGS, "-shared", "-fPIC", f"{name}.c", "-lm", "-o", "lib.so"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[:3000]
    return ctypes.CDLL(str(folder / "lib.so"))


def running_sum() -> Any:
    total, weight = Tensor.zeros(3).contiguous().realize(), Tensor([1.0, 0.5, 0.25]).realize()
    values = Tensor(np.arange(8, dtype=np.float32)).realize()

    @jit
    def add(x: Tensor, at: Any) -> tuple[Tensor, Tensor]:
        total.assign(total * weight + x.sum(0))
        return total + values[at : at + 1], x * 2 + Tensor.rand(3)

    return add


def test_state_sizes_and_random_numbers(tmp_path: Path) -> None:
    n, p = Variable("n", 1, 5), Variable("p", 0, 7)
    whole = Tensor(np.arange(15, dtype=np.float32).reshape(5, 3) / 7)
    step = running_sum()
    files = step.export_c(tmp_path, whole[: n.bind(2)], p.bind(3), name="sum", embed=False)
    assert [file.name for file in files] == ["sum.c", "sum.h", "sum.bin"]
    native = library(tmp_path, "sum")
    memory, y, z = (ctypes.c_uint64 * 8)(), np.zeros(3, np.float32), np.zeros((5, 3), np.float32)
    x = whole.numpy()

    def run(size: int, at: int, x: Any = x, y: Any = y) -> int:
        places = [None if a is None else a.ctypes.data_as(ctypes.c_void_p) for a in (x, y, z)]
        return int(native.sum_run(ctypes.byref(memory), *places, ctypes.c_int64(size), ctypes.c_int64(at)))

    assert run(1, 0) == BAD_POINTER  # before init
    path = str(tmp_path / "sum.bin").encode()
    assert native.sum_init(ctypes.byref(memory), path) == OK
    for size, at in ((2, 3), (5, 0), (1, 7)):
        live = step(whole[: n.bind(size)], p.bind(at))
        assert run(size, at) == OK
        assert y.tobytes() == live[0].numpy().tobytes() and z[:size].tobytes() == live[1].numpy().tobytes()
    for size, at in ((0, 0), (6, 0), (1, -1), (1, 8), (2**40, 0)):
        assert run(size, at) == BAD_SIZE
    assert run(1, 0, x=None) == run(1, 0, y=None) == BAD_POINTER
    native.sum_state.restype, size_of = ctypes.POINTER(ctypes.c_float), ctypes.c_size_t()
    total = native.sum_state(ctypes.byref(memory), b"total", ctypes.byref(size_of))
    assert size_of.value == 12 and y[0] == np.float32(total[0] + np.float32(7))
    assert not native.sum_state(ctypes.byref(memory), b"other", ctypes.byref(size_of)) and size_of.value == 0
    assert native.sum_reset(ctypes.byref(memory)) == OK and total[0] == 0
    native.sum_free(ctypes.byref(memory))
    assert native.sum_reset(ctypes.byref(memory)) == BAD_POINTER


def test_files_of_weights_that_are_wrong(tmp_path: Path) -> None:
    weight = Tensor(np.arange(40, dtype=np.float32)).realize()
    jit(lambda x: x * weight).export_c(tmp_path, Tensor(np.ones(40, np.float32)), name="w", embed=False)
    native, memory = library(tmp_path, "w"), (ctypes.c_uint64 * 8)()
    good = (tmp_path / "w.bin").read_bytes()
    flipped = bytearray(good)
    flipped[-20] ^= 1
    for bad in (b"", good[:-1], good + b"x", b"x" + good[1:], bytes(flipped), good[:20]):
        (tmp_path / "bad").write_bytes(bad)
        assert native.w_init(ctypes.byref(memory), str(tmp_path / "bad").encode()) == BAD_FILE
    assert native.w_init(ctypes.byref(memory), b"no such file") == BAD_FILE
    assert native.w_init(ctypes.byref(memory), None) == BAD_POINTER
    assert native.w_init(None, None) == BAD_POINTER
    assert native.w_init(ctypes.byref(memory), str(tmp_path / "w.bin").encode()) == OK


def test_names(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    step = jit(lambda x, double: {"int": x + double["a b"], "x": x * 2})
    x = Tensor([1.0]).realize()
    for bad in ("1x", "int", "a b", ""):
        with pytest.raises(ArgumentError, match="is no C identifier"):
            step.export_c(tmp_path, x, {"a b": x}, name=bad)
    step.export_c(tmp_path, x, {"a b": x})
    header = (tmp_path / "lambda.h").read_text()
    assert "const float *x,\n    const float *double_a_b,\n    float *int_2,\n    float *x_2);" in header
    assert not (tmp_path / "lambda.bin").exists()
    monkeypatch.chdir(tmp_path)
    Path("exported_to_c.py").write_text("from gradlet import jit\n@jit\ndef step(x):\n    return x * 2\n")
    command = ["export", "exported_to_c:step", "--c", "out", "--arg", "float32[3]"]
    assert main(command) == EXIT_OK and sorted(p.name for p in Path("out").iterdir()) == ["step.c", "step.h"]
    assert "int step_run(step_program *self" in capsys.readouterr().out
    assert main(command[:2]) != EXIT_OK


def test_the_example_of_the_page(tmp_path: Path) -> None:
    total, count = [Tensor.zeros(size).contiguous().realize() for size in (2, 1)]

    @jit
    def mean(x: Tensor) -> Tensor:
        total.assign(total + x)
        count.assign(count + 1)
        return total / count

    mean.export_c(tmp_path, Tensor([1.0, 2.0]))
    page = (Path(__file__).resolve().parents[2] / "docs" / "export.md").read_text()
    (tmp_path / "main.c").write_text(page.split("```c\n")[1].split("```")[0])
    command = [compiler("gcc"), *WARNINGS, "main.c", "mean.c", "-lm", "-o", "main"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    run = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["0", "1", "0.5", "1", "1", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    model.export(tmp_path / "a.gradlet", **model.arguments(0))
    model.export_c(tmp_path, name="model", embed=False, **model.arguments(0))
    calls = [model.arguments(call) for call in range(5)]
    loaded = program.load(tmp_path / "a.gradlet")
    found = {c: build_and_run(tmp_path, "model", loaded, calls, compiler=c) for c in filter(shutil.which, COMPILERS)}
    if not found:
        pytest.skip("no C compiler is installed")
    live = [bytes(model.step(**call).numpy().tobytes()) for call in calls]
    for outputs in found.values():
        assert outputs == live


FLOATS = [
    0.0, -0.0, 1.5, -2.5, float("inf"), float("-inf"), float("nan"), 3e38, 1e-42, -1e-3, 65504.0, 65520.0, 448.0, 1e10,
    -1e10, 255.7, -128.5, 2.0**31, 2.0**63,
]  # fmt: skip
INTEGERS = [0, 1, -1, 2**31 - 1, -(2**31), 255, 256, -129]
KINDS = [d for d in dtypes.all() if d.count == 1]


def conversions(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    out = {}
    for d in KINDS:
        out[f"x {d.name}"], out[f"y {d.name}"] = x.cast(d), y.cast(d)
        out |= {f"{d.name} {e.name}": x.cast(d).cast(e) for e in KINDS}
    return out


def arithmetic(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    out = {}
    for d in [d for d in KINDS if not d.is_bool]:
        a, b = x.cast(d), y.cast(d)
        found = {"add": a + b, "mul": a * b, "max": a.maximum(b), "min": a.minimum(b), "less": a < b, "all": a.max()}
        found |= {"where": (a < b).where(a, b), "sum": a[7:].sum()}
        if d.is_int:
            found |= {"div": a // b, "mod": a % b, "bits": (a & b) ^ (a | b), "shl": a << 3, "shr": a >> 2}
        else:
            found |= {"fdiv": a / b, "sqrt": a.sqrt(), "trunc": a.trunc()}
        out |= {f"{d.name} {name}": value for name, value in found.items()}
    return out


def functions(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    out = {}
    for d in (dtypes.float32, dtypes.bfloat16):
        a = x.cast(d)
        for name in ("exp", "log", "sin", "cos", "tanh", "erf", "exp2", "log2", "gelu"):
            out[f"{d.name} {name}"] = getattr(a, name)()
        finite = a.isfinite().where(a, 0) * 1e-3
        out |= {
            f"{d.name} softmax": finite.softmax(0),
            f"{d.name} cumsum": finite.cumsum(0),
            f"{d.name} sort": a.sort(0)[0],
        }
    m = (x.isfinite().where(x, 0) * 1e-3)[:48].reshape(6, 8)
    k = y[:48].reshape(8, 6).cast(dtypes.int8)
    return {
        **out,
        "product": m @ m.transpose(0, 1),
        "bytes": k @ k.transpose(0, 1),
        "argmax": m.argmax(1),
        "flip": m.flip(1),
    }


@pytest.mark.slow
@pytest.mark.parametrize("features", ["", "sse"])
@pytest.mark.parametrize("compute", [conversions, arithmetic, functions])
def test_every_type_and_many_operations(tmp_path: Path, compute: Callable[..., Any], features: str) -> None:
    """The bits are the same, only which of the NaNs it is may differ: processors and compilers choose one of two."""
    rng = np.random.default_rng(0)
    x = Tensor(np.array(FLOATS + list(rng.standard_normal(33) * 100), np.float32))
    y = Tensor(np.array(INTEGERS + list(rng.integers(-(2**31), 2**31, 44)), np.int32))
    with settings.scope(CPU_FEATURES=features):
        step = jit(compute)
        step.export_c(tmp_path, x, y, name="many")
        step.export(tmp_path / "a.gradlet", x, y)
        loaded = program.load(tmp_path / "a.gradlet")
        live = loaded.run({"x": x, "y": y})
    (found,) = build_and_run(tmp_path, "many", loaded, [{"x": x, "y": y}], compiler=compiler("gcc"))
    begin = 0
    for row in loaded.manifest.outputs:
        memory = bytes(buffer_of(base_buffer(live[row.name].uop)).memory())
        ours, begin = found[begin : begin + len(memory)], begin + len(memory)
        if ours != memory:
            words = [np.frombuffer(data, f"u{row.dtype.itemsize}") for data in (memory, ours)]
            assert row.dtype.is_float, row.name
            values = [[row.dtype.format.decode(int(w)) for w in some[words[0] != words[1]]] for some in words]
            assert all(v != v for some in values for v in some), (row.name, values)
