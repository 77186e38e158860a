"""`.gradlet` files: exported functions run as the live ones do, call after call, without tracing and compiling."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, Variable, dtypes, jit
from gradlet.base import settings
from gradlet.base.errors import ArgumentError, DTypeError, JitError, ShapeError
from gradlet.cli.main import EXIT_OK, EXIT_USER_ERROR, main
from gradlet.device.common import llvm
from gradlet.io import program
from gradlet.io.program import Program

ROOT = Path(__file__).resolve().parents[2]


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())


def exported(step: Any, path: Path, *args: Any, **kwargs: Any) -> Program:
    step.export(path, *args, **kwargs)
    return program.load(path)


def running_sum() -> tuple[Any, Tensor]:
    total = Tensor.zeros(3).contiguous().realize()

    @jit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x.sum(0))
        return total * 2

    return add, total


def test_state_goes_on_as_in_the_live_function(tmp_path: Path) -> None:
    add, total = running_sum()
    x = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3) / 7)
    add(x)
    loaded = exported(add, tmp_path / "a.gradlet", x)
    for _ in range(4):
        assert bits(add(x)) == bits(loaded(x))
    assert loaded.state()["total"].tolist() == total.tolist()


def test_exporting_changes_nothing(tmp_path: Path) -> None:
    add, total = running_sum()
    total.assign(total + 5).realize()
    noisy = jit(lambda x: add(x) + Tensor.rand(3))
    Tensor.manual_seed(7)
    before = total.tolist()
    noisy.export(tmp_path / "a.gradlet", Tensor.ones(4, 3))
    after = total.tolist(), Tensor.rand(2).tolist()
    Tensor.manual_seed(7)
    assert after == (before, Tensor.rand(2).tolist()) and noisy.calls == 0 and noisy.captures == {}


def test_state_is_saved_loaded_set_and_reset(tmp_path: Path) -> None:
    add, _ = running_sum()
    x = np.ones((2, 3), np.float32)
    loaded = exported(add, tmp_path / "a.gradlet", Tensor(x))
    assert loaded(x).tolist() == [4.0] * 3
    loaded.save_state(tmp_path / "state.safetensors")
    assert loaded(x).tolist() == [8.0] * 3
    loaded.load_state(tmp_path / "state.safetensors")
    assert loaded(x).tolist() == [8.0] * 3
    loaded.reset()
    assert loaded(x).tolist() == [4.0] * 3
    loaded.set_state({"total": [1.0, 2.0, 3.0]})
    assert loaded(x).tolist() == [6.0, 8.0, 10.0]
    with pytest.raises(ArgumentError, match="there is no 'sum'; it has total"):
        loaded.set_state({"sum": 0})
    with pytest.raises(ShapeError, match="total"):
        loaded.set_state({"total": [1.0]})


def test_random_numbers_go_on(tmp_path: Path) -> None:
    Tensor.manual_seed(3)
    draw = jit(lambda x: (x + Tensor.rand(5)) * Tensor.rand(5))
    x = Tensor.zeros(5).contiguous().realize()
    draw(x)
    loaded = exported(draw, tmp_path / "a.gradlet", x)
    found = [loaded(x).tolist() for _ in range(2)]
    loaded.save_state(tmp_path / "state.safetensors")
    found.append(loaded(x).tolist())
    assert found == [draw(x).tolist() for _ in range(3)]
    loaded.load_state(tmp_path / "state.safetensors")
    assert loaded(x).tolist() == found[2]
    loaded.reset()
    assert loaded(x).tolist() == found[0]


def test_sizes_and_positions_that_are_known_at_the_call(tmp_path: Path) -> None:
    n, p = Variable("n", 1, 8), Variable("p", 0, 7)
    memory = Tensor.arange(8).cast(dtypes.float32).contiguous().realize()

    @jit
    def rows(x: Tensor, at: Any) -> tuple[Tensor, Tensor]:
        return x * 2 + memory[at : at + 1], x.transpose(0, 1)

    whole = Tensor(np.arange(24, dtype=np.float32).reshape(8, 3))
    loaded = exported(rows, tmp_path / "a.gradlet", whole[: n.bind(5)], p.bind(2))
    assert loaded.inputs == ["x: float32[n, 3]"] and loaded.variables == {"n": (1, 8), "p": (0, 7)}
    for size, at in ((1, 7), (5, 0), (8, 3)):
        x = whole.numpy()[:size]
        live = rows(whole[: n.bind(size)], p.bind(at))
        for one, other in zip(live, loaded(x, p=at), strict=True):
            assert one.numpy().tolist() == other.tolist()
    assert loaded(whole[: n.bind(2)], p=1)[0].shape == (2, 3)
    with pytest.raises(ArgumentError, match="n = 9 is not from 1 to 8"):
        loaded(np.zeros((9, 3), np.float32), p=0)
    with pytest.raises(ArgumentError, match="value of 'p' is missing; rows"):
        loaded(x)
    with pytest.raises(ShapeError, match=r"x: shape \(2, 4\) is not \(2, 3\)"):
        loaded(np.zeros((2, 4), np.float32), p=0)


def test_the_result_keeps_its_structure(tmp_path: Path) -> None:
    step = jit(lambda a, b: {"sum": a + b["k"], "rest": [a.transpose(0, 1), (None, 3, "x", b["k"].sum())]})
    a, b = [Tensor(np.arange(6, dtype=np.float32).reshape(2, 3) / n) for n in (3, 7)]
    loaded = exported(step, tmp_path / "a.gradlet", a, {"k": b})
    assert loaded.inputs == ["a: float32[2, 3]", "b.k: float32[2, 3]"]
    live, found = step(a, {"k": b}), loaded(**{"a": a, "b.k": b})
    assert found["rest"][1][:3] == (None, 3, "x") and list(found) == ["sum", "rest"]
    pairs = [(live["sum"], found["sum"]), *zip(live["rest"][:1], found["rest"][:1], strict=True)]
    assert all(bits(one) == bits(other) for one, other in [*pairs, (live["rest"][1][3], found["rest"][1][3])])


def test_inputs_that_are_written(tmp_path: Path) -> None:
    @jit
    def push(memory: Tensor, x: Tensor) -> Tensor:
        memory.assign(memory * 0.5 + x)
        return memory.sum()

    x = Tensor([1.0, 2.0]).realize()
    loaded = exported(push, tmp_path / "a.gradlet", Tensor.zeros(2).contiguous(), x)
    memory, array = Tensor.zeros(2).contiguous().realize(), np.zeros(2, np.float32)
    assert [loaded(memory, x).item() for _ in range(2)] == [3.0, 4.5] and memory.tolist() == [1.5, 3.0]
    outputs = loaded.run({"memory": array, "x": x})
    assert outputs["memory"].tolist() == [1.0, 2.0] and array.tolist() == [0.0, 0.0]


def test_state_that_takes_the_value_of_other_state(tmp_path: Path) -> None:
    a, b = [Tensor([float(n), 1.0]).realize() for n in range(2)]

    @jit
    def swap(x: Tensor) -> Tensor:
        old = a + 0
        a.assign(b + 0)
        b.assign(old + x)
        return (a + b).sum()

    x = Tensor([1.0, 1.0]).realize()
    loaded = exported(swap, tmp_path / "a.gradlet", x)
    assert [loaded(x).item() for _ in range(5)] == [swap(x).item() for _ in range(5)]
    assert {name: t.tolist() for name, t in loaded.state().items()} == {"a": a.tolist(), "b": b.tolist()}


def test_state_that_is_put_into_places(tmp_path: Path) -> None:
    class Cell:
        def __init__(self) -> None:
            self.hidden = [Tensor.zeros(2).contiguous().realize(), Tensor.ones(2).contiguous().realize()]
            self.before = self.seen = Tensor.zeros(2).contiguous().realize()

        @jit
        def step(self, x: Tensor) -> Tensor:
            self.before = self.hidden[0]
            self.hidden = [self.hidden[1] * 0.5 + x, self.hidden[0] - x]
            self.seen = x + 1
            return self.hidden[1] * 2 + self.before

    cell, x = Cell(), Tensor([1.0, 2.0]).realize()
    cell.step(x)
    loaded = exported(cell.step, tmp_path / "a.gradlet", x)
    assert [loaded(x).tolist() for _ in range(4)] == [cell.step(x).tolist() for _ in range(4)]
    state = loaded.state()
    assert state["self.hidden[0]"].tolist() == cell.hidden[0].tolist()
    assert state["self.hidden[1]"].tolist() == cell.hidden[1].tolist()

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        @jit
        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            return x + self.count

    counter = Counter()
    with pytest.raises(JitError, match=r"puts new values into self\.count"):
        counter.step.export(tmp_path / "b.gradlet", x)
    assert counter.count == 0


def test_every_type_of_input_and_weight(tmp_path: Path) -> None:
    kinds = [d for d in dtypes.all() if d.count == 1]
    weights = {d.name: Tensor([1, 0, 1], dtype=d).realize() for d in kinds}
    step = jit(
        lambda x: {name: (w.cast(dtypes.float32) + x.cast(dtypes.float32)).cast(w.dtype) for name, w in weights.items()}
    )
    x = Tensor([1, 1, 0], dtype=dtypes.bfloat16).realize()
    loaded = exported(step, tmp_path / "a.gradlet", x)
    live, found = step(x), loaded(x)
    assert {n: t.tolist() for n, t in live.items()} == {n: t.tolist() for n, t in found.items()}
    assert all(found[d.name].dtype is d for d in kinds)


def test_odd_shapes_and_unused_inputs(tmp_path: Path) -> None:
    step = jit(lambda x, empty, unused: (x.sum(), empty * 2, Tensor.ones(2).contiguous()))
    args = Tensor(3.0).realize(), Tensor.zeros(0, 3).realize(), Tensor([1]).realize()
    loaded = exported(step, tmp_path / "a.gradlet", *args)
    one, empty, ones = loaded(*args)
    assert (one.item(), empty.shape, ones.tolist()) == (3.0, (0, 3), [1.0, 1.0])
    strided = np.arange(12, dtype=np.float32).reshape(3, 4)[::2, ::-1]
    twice = exported(jit(lambda x: x * 2), tmp_path / "b.gradlet", Tensor(np.zeros((2, 4), np.float32)))
    assert twice(strided).numpy().tolist() == (strided * 2).tolist()
    assert twice(Tensor(strided).flip(0)).numpy().tolist() == (strided[::-1] * 2).tolist()


def test_methods_and_instances(tmp_path: Path) -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.weight = (Tensor.ones(3) * scale).contiguous().realize()

        @jit
        def step(self, x: Tensor, scale: int = 1) -> Tensor:
            return x * self.weight * scale

    x = Tensor([1.0, 2.0, 3.0]).realize()
    one, two = Model(1.0), Model(2.0)
    first = exported(one.step, tmp_path / "1.gradlet", x, scale=3)
    second = exported(two.step, tmp_path / "2.gradlet", x)
    assert first.inputs == ["x: float32[3]"] and first(x=x).tolist() == [3.0, 6.0, 9.0]
    assert second(x).tolist() == [2.0, 4.0, 6.0]
    assert [v.name for v in first.manifest.weights] == ["self.weight"]


def test_the_same_kind_of_processor_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = Tensor(np.arange(24, dtype=np.float32).reshape(6, 4) / 5)
    step = jit(lambda x: (x @ weight).softmax())
    x = Tensor(np.arange(18, dtype=np.float32).reshape(3, 6) / 9)
    expected = bits(step(x))
    path = tmp_path / "a.gradlet"
    step.export(path, x)

    def refuse(*_: Any) -> Any:
        raise AssertionError("something is compiled")

    monkeypatch.setattr(llvm, "emit_object", refuse)
    loaded = program.load(path)
    before = GlobalCounters.kernels
    assert bits(loaded(x)) == expected and loaded.compiled == 0
    assert GlobalCounters.kernels == before + loaded.kernels > before


def test_another_processor_compiles_the_graphs(tmp_path: Path) -> None:
    weight = Tensor(np.arange(24, dtype=np.float32).reshape(6, 4) / 5)
    step = jit(lambda x: (x @ weight).softmax())
    x = Tensor(np.arange(18, dtype=np.float32).reshape(3, 6) / 9)
    path = tmp_path / "a.gradlet"
    step.export(path, x)
    with settings.scope(CPU_FEATURES="sse"):
        loaded = program.load(path)
        assert loaded.compiled == len(loaded.manifest.kernels) > 0 or loaded.manifest.target["name"] == "sse"
        np.testing.assert_allclose(loaded(x).numpy(), step(x).numpy(), rtol=1e-5)
        step.export(path, x)  # code for less than this machine has runs here too
    assert program.load(path).compiled == 0 and program.load(path).manifest.target["name"] == "sse"


def test_calls_that_are_wrong(tmp_path: Path) -> None:
    step = jit(lambda x, y: x + y)
    x = Tensor([1.0, 2.0]).realize()
    loaded = exported(step, tmp_path / "a.gradlet", x, x)
    for call, kind, message in (
        (lambda: loaded(x), ArgumentError, r"input 'y' is missing; .*\(x: float32\[2\], y: float32\[2\]\) -> output"),
        (lambda: loaded(x, x, x), ArgumentError, "takes 2 inputs in order, got 3"),
        (lambda: loaded(x, x=x), ArgumentError, "input 'x' is given twice"),
        (lambda: loaded(x, z=x), ArgumentError, "there is no input 'z'"),
        (lambda: loaded(x, [1.0]), ShapeError, r"y: shape \(1,\) is not \(2,\)"),
        (lambda: loaded(x, np.zeros(2)), DTypeError, "y: float64 is not float32"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert loaded(x, [1, 2]).tolist() == [2.0, 4.0]


def test_functions_that_cannot_be_exported(tmp_path: Path) -> None:
    path = tmp_path / "a.gradlet"
    x = Tensor([1.0, 2.0]).realize()
    with pytest.raises(JitError, match="export takes a jitted function, not function; write @jit"):
        program.export(lambda x: x, path, [x])
    with pytest.raises(JitError, match="on PYTHON; put all of it on the CPU"):
        there = Tensor([1.0], device="PYTHON").realize()
        jit(lambda: there * 2).export(path)
    with pytest.raises(JitError, match="would be frozen"):
        jit(lambda x: x * x.sum().item()).export(path, x)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        jit(lambda x: x * 2).export(tmp_path / "none" / "a.gradlet", x)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exported_model.py").write_text(
        "from gradlet import Tensor, jit\n"
        "total = Tensor.zeros(3).contiguous().realize()\n"
        "@jit\n"
        "def step(x, p, k=2):\n"
        "    total.assign(total + x.sum(0))\n"
        "    return x * k + p, total + 0\n"
    )
    np.save("x.npy", np.ones((2, 3), np.float32))
    command = ["export", "exported_model:step", "--out", "s.gradlet", "--arg", "float32[n:1..8,3]", "--arg", "p:0..9"]
    assert main([*command, "--arg", "k=3"]) == EXIT_OK
    signature = "step(x: float32[n, 3], n=1..8, p=0..9) -> output0: float32[n, 3], output1: float32[3]"
    assert capsys.readouterr().out.splitlines()[-1] == signature
    inputs = ["--input", "x=x.npy", "--input", "p=4"]
    for _ in range(2):
        assert main(["run", "s.gradlet", *inputs, "--state", "state", "--times", "2", "--output", "out"]) == EXIT_OK
    assert np.load("out/output0.npy").tolist() == [[7.0] * 3] * 2 and np.load("out/output1.npy").tolist() == [8.0] * 3
    assert main(["run", "s.gradlet", "--show"]) == EXIT_OK
    assert "state total: float32[3]" in capsys.readouterr().out
    for wrong, message in (
        (["run", "s.gradlet"], "input 'x' is missing"),
        (["run", "x.npy"], "no whole zip file"),
        (["run", "s.gradlet", "--input", "x"], "write NAME=FILE"),
        (["export", "exported_model", "--out", "t"], "write module:name"),
        (["export", "no_such_model:step", "--out", "t"], "No module named"),
        (["export", "exported_model:none", "--out", "t"], "no attribute 'none'"),
        (["export", "exported_model:step", "--out", "t", "--arg", "float3[2]"], "is no tensor"),
    ):
        assert main(wrong) == EXIT_USER_ERROR
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutions", "decoder", "training", "recurrent"])
def test_models_in_another_process(tmp_path: Path, name: str) -> None:
    from tests.export.models import MODELS

    model = MODELS[name]()
    path = tmp_path / "a.gradlet"
    model.export(path, **model.arguments(0))
    code = (
        "import sys, numpy as np\n"
        "from gradlet.io import program\n"
        "loaded = program.load(sys.argv[1])\n"
        "data = np.load(sys.argv[2])\n"
        "for call in range(5):\n"
        "    given = {k.split('.', 1)[1]: data[k] for k in data if k.startswith(f'{call}.')}\n"
        "    given = {k: int(v) if k in loaded.variables else v for k, v in given.items()}\n"
        "    print(loaded(**given).numpy().tobytes().hex())\n"
        "assert loaded.compiled == 0\n"
    )
    calls = [model.arguments(call) for call in range(5)]
    arrays = {f"{n}.{k}": _plain(v) for n, call in enumerate(calls) for k, v in call.items()}
    np.savez(tmp_path / "inputs.npz", **arrays)
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "inputs.npz")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [bits(model.step(**call)).hex() for call in calls]


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else np.array(int(value.src[1].arg))
