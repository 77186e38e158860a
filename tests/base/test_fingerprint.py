"""Whoever has other sources has another fingerprint, however alike the files look."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "gradlet"


def fingerprint_of(folder: Path) -> str:
    code = "from gradlet.base.fingerprint import fingerprint; print(fingerprint())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "gradlet", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_same_files_have_one_fingerprint(copy: Path) -> None:
    first = fingerprint_of(copy)
    (copy / "gradlet" / "notes.txt").write_text("no source")
    assert len(first) == 32 and fingerprint_of(copy) == first


def test_a_change_counts_though_size_and_time_stay(copy: Path) -> None:
    first = fingerprint_of(copy)
    path = copy / "gradlet" / "schedule" / "price.py"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"price", b"prise", 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert fingerprint_of(copy) != first


@pytest.mark.parametrize("change", ["new", "gone", "renamed"])
def test_files_that_come_and_go_count(copy: Path, change: str) -> None:
    first = fingerprint_of(copy)
    path = copy / "gradlet" / "ops" / "bessel.py"
    if change == "new":
        path.with_name("other.py").write_text("")
    elif change == "gone":
        path.unlink()
    else:
        path.rename(path.with_name("other.py"))
    assert fingerprint_of(copy) != first
