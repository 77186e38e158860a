"""`gradlet doctor` finds what is there, names what is missing with its remedy, and survives a broken environment."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gradlet.cli import doctor

ROOT = Path(__file__).resolve().parents[2]


def run_doctor(**environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("DEBUG", "DEV", "CPU_FEATURES", "CACHE")}
    command = [sys.executable, "-m", "gradlet", "doctor"]
    return subprocess.run(command, cwd=ROOT, env=kept | environment, capture_output=True, text=True)


def test_healthy_machine(tmp_path: Path) -> None:
    done = run_doctor(CACHEDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [t for t in ("Versions", "Settings", "Devices", "Cache", "Extras") if t not in lines] == []
    assert any(line.strip().startswith("ok CPU") and "(default)" in line for line in lines)
    assert any(line.strip().startswith("ok PYTHON") for line in lines)
    assert any(line.strip().startswith("ok NULL") and "NULL:nvptx" in line for line in lines)
    assert f"{tmp_path}" in done.stdout and "0 entries" in done.stdout
    assert "All is well." in lines


def test_bad_settings_are_all_reported_with_their_good_values() -> None:
    done = run_doctor(DEBUG="9", CACHE="maybe", DEV="TOASTER")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "DEBUG=9: expected an integer from 0 to 6" in done.stdout
    assert "CACHE='maybe': expected an integer from 0 to 1" in done.stdout
    assert "TOASTER" in done.stdout
    assert "Extras" in done.stdout  # nothing after the bad settings is lost


def test_changed_settings_are_shown() -> None:
    done = run_doctor(NOOPT="1")
    assert any(line.split()[:3] == ["ok", "NOOPT", "1"] for line in done.stdout.splitlines())


def test_unwritable_cache_is_named(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    done = run_doctor(CACHEDIR=str(in_the_way))
    assert done.returncode == 0
    assert "cannot be written" in done.stdout


def test_cache_turned_off_is_named() -> None:
    assert "the cache is off (CACHE=0)" in run_doctor(CACHE="0").stdout


def test_missing_extra_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["numpy<3,>=1.26", 'torch==2.13.0; extra == "oracle"', 'pytest>=8; extra == "test"']
    monkeypatch.setattr(metadata, "requires", lambda name: requirements)
    monkeypatch.setattr(doctor, "is_installed", lambda package: package == "pytest")
    lines = {line.subject: line for line in doctor.extras()}
    assert lines["[test]"].mark == "ok"
    assert lines["[oracle]"].mark == "--"
    assert "missing torch: pip install 'gradlet[oracle]'" in lines["[oracle]"].text


def test_device_that_fails_is_a_finding_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> str:
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "describe_device", broken)
    lines = {line.subject: line for line in doctor.devices()}
    assert lines["CPU"].mark == "!!" and "no such thing" in lines["CPU"].text
    assert lines["NULL"].mark == "--"


def machine_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    lines = [line.strip() for line in done.stdout.splitlines()]
    return lines[lines.index("Machine") + 1 : lines.index("Cache")]


def test_the_machine_is_measured_when_asked_for(tmp_path: Path) -> None:
    (before,) = machine_lines(run_doctor(CACHEDIR=str(tmp_path)))
    assert before.startswith("-- measured") and "gradlet doctor --probe" in before
    kept = {k: v for k, v in os.environ.items() if k not in ("DEBUG", "DEV", "CPU_FEATURES", "CACHE", "PROBE")}
    command = [sys.executable, "-m", "gradlet", "doctor", "--probe"]
    environment = kept | {"CACHEDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = [line for line in machine_lines(done) if line.startswith("ok ")]
    assert [line.split()[1] for line in facts] == ["launch", "bandwidth", "arithmetic"]
    again = machine_lines(run_doctor(CACHEDIR=str(tmp_path), PROBE="1"))
    assert again == facts
    assert "not used (PROBE=0)" in machine_lines(run_doctor(CACHEDIR=str(tmp_path), PROBE="0"))[0]
