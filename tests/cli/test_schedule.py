"""`gradlet schedule`: a script runs as it would alone, and its schedules are shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradlet.cli.main import EXIT_OK, EXIT_USER_ERROR, main

ROOT = Path(__file__).resolve().parents[2]
TWO_STEPS = """
import sys
from gradlet import Tensor
print("arguments", sys.argv[1:], __name__)
for step in range(3):
    x = Tensor([1.0, 2.0, 3.0]) + 1.0
    (x * 2.0).realize()
    print("sum", (x.exp() * 0.0 + 1.0).sum().item())
"""
TRAIN = """
from gradlet import Tensor, nn
layers = [nn.Linear(16, 32), nn.Linear(32, 4)]
optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=1e-3)
x, y = Tensor.rand(64, 16).realize(), Tensor([i % 4 for i in range(64)])
with Tensor.train():
    for _ in range(2):
        optimizer.zero_grad()
        loss = layers[1](layers[0](x).relu()).cross_entropy(y)
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(TWO_STEPS)
    return path


def test_schedules_are_printed_between_what_the_script_prints(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", str(script), "one", "--two"]) == EXIT_OK
    text = capsys.readouterr().out
    assert text.startswith("arguments ['one', '--two'] __main__\n[1] schedule: ")
    assert text.count("sum 3.0") == 3
    # The second and third round ask for schedules that were made in the first.
    assert "[2] schedule: " in text and "[3] schedule: " not in text
    assert text.splitlines()[-1].startswith("2 schedules made, 4 more from the cache; 2 launches, ")


def test_script_and_its_arguments_are_gone_afterwards(script: Path) -> None:
    argv, search = list(sys.argv), list(sys.path)
    assert main(["schedule", str(script)]) == EXIT_OK
    assert (sys.argv, sys.path) == (argv, search)


def test_a_script_finds_modules_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside_the_script.py").write_text("VALUE = 7\n")
    path = tmp_path / "program.py"
    path.write_text("from beside_the_script import VALUE\nprint(VALUE)\n")
    assert main(["schedule", str(path)]) == EXIT_OK
    assert capsys.readouterr().out.startswith("7\n0 schedules made, 0 more from the cache; 0 launches")


def test_json_is_all_there_is_on_stdout(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "--json", str(script)]) == EXIT_OK
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert len(data["schedules"]) == 2 and data["from_cache"] == 4
    for schedule in data["schedules"]:
        assert schedule["price_ps"] == sum(launch["price_ps"] for launch in schedule["launches"]) > 0
    assert err.count("sum 3.0") == 3


def test_the_same_under_every_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(TRAIN)
    found = set()
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-m", "gradlet", "schedule", "--no-run", str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    (text,) = found
    assert "illegal: two contractions in one kernel" in text and "on NULL" in text


def test_no_run_computes_nothing(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "--no-run", str(script)]) == 1
    out, err = capsys.readouterr()
    assert "on NULL" in out and "sum" not in out.replace("sum over", "")
    assert "DeviceError: device NULL computes nothing and holds no values" in err
    assert out.splitlines()[-1].startswith("2 schedules made, ")


def test_limit_and_sort(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "from gradlet import Tensor\n"
        "x = Tensor.ones(512, 64).contiguous() @ Tensor.ones(64, 128).contiguous()\n"
        "(x @ x.transpose(0, 1)).realize()\n"
    )
    assert main(["schedule", "--json", str(path)]) == EXIT_OK
    (schedule,) = json.loads(capsys.readouterr().out)["schedules"]
    sizes = {x["number"]: x["bytes_read"] + x["bytes_written"] for x in schedule["launches"]}
    assert len(sizes) > 1
    largest = max(sizes, key=lambda number: sizes[number])
    assert main(["schedule", "--limit", "1", "--sort", "bytes", str(path)]) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"{largest:3d} ")
    assert f"   ... and {len(sizes) - 1} more launch" in "\n".join(lines)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("def f():\n    return 1 / 0\nf()", 1, "ZeroDivisionError: division by zero\n"),
        ("x = = 1", 1, "SyntaxError: invalid syntax\n"),
        ("from gradlet import Tensor\nTensor([1, 2]) + Tensor([1, 2, 3])", 1, "ShapeError: "),
    ],
)
def test_errors_are_those_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, code: int, message: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"from gradlet import Tensor\n(Tensor([1.0]) + {code}.5).realize()\n{body}\n")
    assert main(["schedule", str(path)]) == code
    out, err = capsys.readouterr()
    assert message in err and "runpy" not in err
    frames = [line for line in err.splitlines() if line.startswith("  File ")]
    assert all(str(path) in line for line in frames)
    assert bool(frames) == ("Error" in message)
    if "Syntax" not in message:
        assert "1 schedule made, " in out


def test_mistakes_of_the_caller(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", str(tmp_path / "missing.py")]) == EXIT_USER_ERROR
    assert "there is no file" in capsys.readouterr().err
    assert main(["schedule", "--limit", "0", str(script)]) == EXIT_USER_ERROR
    assert "--limit 0 shows nothing" in capsys.readouterr().err
