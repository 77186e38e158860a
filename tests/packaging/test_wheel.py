"""The wheel holds every file that the package needs, and every module of it imports outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPORT_ALL = """
import pkgutil, gradlet
names = [m.name for m in pkgutil.walk_packages(gradlet.__path__, "gradlet.") if not m.name.endswith("__main__")]
for name in names:
    __import__(name)
print(gradlet.__file__)
print(len(names))
"""


def setuptools_is_new_enough() -> bool:
    """Whether the wheel can be built with what is installed, without asking a package index."""
    try:
        return int(metadata.version("setuptools").split(".")[0]) >= 77
    except metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    # A copy: the build leaves files behind, and an earlier build's leftovers must not help.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for path in package_files():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes((ROOT / path).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    if setuptools_is_new_enough():
        command.append("--no-build-isolation")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and not setuptools_is_new_enough() and "No matching distribution" in done.stderr:
        pytest.skip("building a wheel needs setuptools >= 77 or a package index")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("gradlet-*.whl"))


def package_files() -> list[Path]:
    """Every file of the package, relative to the root."""
    files = (p for p in (ROOT / "gradlet").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(p.relative_to(ROOT) for p in files if p.suffix != ".pyc")


def test_wheel_holds_every_file(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert [str(p) for p in package_files() if str(p) not in inside] == []


def test_wheel_holds_nothing_else(wheel: Path) -> None:
    inside = zipfile.ZipFile(wheel).namelist()
    assert [n for n in inside if not n.startswith("gradlet/") and ".dist-info/" not in n] == []


def test_every_module_imports_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    location, count = done.stdout.split()
    assert Path(location).is_relative_to(target)
    modules = [p for p in package_files() if p.suffix == ".py" and p.name != "__main__.py"]
    assert int(count) == len(modules) - 1  # all but the root itself
