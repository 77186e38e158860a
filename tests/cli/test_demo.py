"""`gradlet demo`, cut short: its output, its file, its mistakes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradlet import Tensor
from gradlet.cli.demo import Network, predict
from gradlet.cli.main import main
from gradlet.nn.datasets import digits
from gradlet.nn.state import get_state_dict, load_state_dict, safe_load, safe_load_metadata


def test_the_last_line_is_json_and_the_file_holds_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.safetensors"
    assert main(["demo", "--steps", "4", "--json", "--output", str(path)]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)  # nothing else is on stdout
    assert set(result) == {"accuracy", "seconds", "steps_per_s", "kernels_per_step"}
    assert 0 <= result["accuracy"] <= 1 and result["seconds"] > 0 and result["kernels_per_step"] > 0
    assert "test accuracy" in err and "same predictions" in err and "heaviest kernel" in err
    network = Network()
    load_state_dict(network, safe_load(path))
    _, _, images, labels = digits()
    correct = sum(p == t for p, t in zip(predict(network, images), labels.tolist(), strict=True))
    assert round(correct / 297, 4) == result["accuracy"] == float(safe_load_metadata(path)["accuracy"])
    assert network.norm1.num_batches_tracked.item() == 4


def test_the_seed_decides_the_first_weights() -> None:
    states = []
    for seed in (1, 1, 2):
        Tensor.manual_seed(seed)
        states.append(get_state_dict(Network())["head.weight"].tolist())
    assert states[0] == states[1] != states[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "at least one step"),
        (["--device", "NULL"], "computes nothing"),
        (["--device", "ABACUS"], "ABACUS"),
        (["--output", "/nowhere/x.safetensors"], "/nowhere/x.safetensors"),
        (["--output", "/tmp"], "/tmp: cannot be written"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gradlet.runtime.device import Device

    try:
        assert main(["demo", *arguments]) == 2
    finally:
        Device.DEFAULT = None  # type: ignore[assignment]
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_ctrl_c_saves_and_ends_cleanly(tmp_path: Path) -> None:
    path = tmp_path / "d.safetensors"
    command = [sys.executable, "-m", "gradlet", "demo", "--steps", "1000000", "--json", "--output", str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    try:
        assert process.stderr is not None
        head = process.stderr.readline()  # printed when Ctrl-C is already handled
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert head.startswith("gradlet demo") and process.returncode == 130, head + err
    assert "Traceback" not in err and json.loads(out)["seconds"] > 0
    assert safe_load(path)["head.weight"].shape == (10, 256)
