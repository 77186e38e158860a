"""The `gradlet` command as a user meets it: a process, its output and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradlet.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def gradlet(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("DEBUG", "DEV", "NOOPT")}
    return subprocess.run(
        [sys.executable, "-m", "gradlet", *arguments],
        cwd=ROOT, env=kept | environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_without_arguments_it_lists_its_commands() -> None:
    done = gradlet()
    assert done.returncode == 0
    assert [name for name in COMMANDS if name not in done.stdout] == []


def test_version() -> None:
    done = gradlet("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("gradlet ")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_of_each_command_says_what_it_does(name: str) -> None:
    done = gradlet(name, "--help")
    assert done.returncode == 0, done.stderr
    assert COMMANDS[name].help[1:20] in " ".join(done.stdout.split())


def test_unknown_command_is_refused_with_the_list_of_known_ones() -> None:
    done = gradlet("dmeo")
    assert done.returncode == 2
    assert "dmeo" in done.stderr and "demo" in done.stderr and "doctor" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_option_is_refused() -> None:
    done = gradlet("doctor", "--fast")
    assert done.returncode == 2
    assert "--fast" in done.stderr


@pytest.mark.parametrize("command", ["bench", "passes", "cache"])
def test_bad_setting_is_one_line_and_exit_code_2(command: str) -> None:
    done = gradlet(command, DEBUG="9")
    assert done.returncode == 2
    assert done.stderr == "gradlet: DEBUG=9: expected an integer from 0 to 6\n"


def test_only_the_chosen_command_is_imported() -> None:
    code = "import sys; from gradlet.cli.main import main; main(['bench']); print(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "gradlet.cli.bench" in loaded
    assert {"gradlet.cli.demo", "gradlet.cli.doctor", "numpy", "llvmlite", "rich"} & set(loaded) == set()


def test_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m gradlet passes --rules | head -n 1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_bench_prints_commands_that_exist() -> None:
    done = gradlet("bench")
    scripts = {word for word in done.stdout.split() if word.startswith("benchmarks/") and word.endswith(".py")}
    assert scripts
    assert [s for s in sorted(scripts) if not (ROOT / s).exists()] == []
