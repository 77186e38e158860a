"""Importing gradlet is cheap, brings exactly the public names, and needs nothing that is not declared."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "Context", "Device", "GlobalCounters", "Tensor", "TinyJit", "UOp", "Variable", "array_api", "checkpoint",
    "custom_gradient", "dtypes", "from_dlpack", "jit", "nn",
}  # fmt: skip
IMPORT_NAMES = {"pillow": "PIL", "z3-solver": "z3", "pytest-xdist": "xdist", "import-linter": "importlinter"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_no_heavy_library() -> None:
    loaded = run("import sys, gradlet; print(*sys.modules)").split()
    heavy = {"numpy", "llvmlite", "rich", "torch", "ml_dtypes", "z3", "asyncio", "multiprocessing", "sqlite3"}
    assert heavy & set(loaded) == set()


def test_import_loads_few_modules() -> None:
    """A count stands for the time: the same on every machine."""
    bare = len(run("import sys; print(*sys.modules)").split())
    assert len(run("import sys, gradlet; print(*sys.modules)").split()) - bare < 160


def test_what_was_compiled_before_runs_without_llvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEDIR", str(tmp_path))
    monkeypatch.setenv("NUM_THREADS", "1")  # other threads are started by code that LLVM links
    code = (
        "import sys; from gradlet import Tensor; x = Tensor([[1.0] * 300] * 300); "
        "print((x @ x).sum().item(), 'llvmlite.binding' in sys.modules)"
    )
    assert [run(code).split() for _ in range(2)] == [["27000000.0", "True"], ["27000000.0", "False"]]


def test_public_names() -> None:
    import gradlet

    assert set(gradlet.__all__) == PUBLIC
    assert [name for name in PUBLIC if not hasattr(gradlet, name)] == []
    assert gradlet.TinyJit is gradlet.jit


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_is_documented(name: str) -> None:
    import gradlet

    value = getattr(gradlet, name)
    assert (getattr(value, "__doc__", None) or type(value).__doc__ or "").strip()


def third_party_imports() -> set[str]:
    """Top-level names that modules of the package import from outside the standard library, functions included."""
    found = set()
    for path in (ROOT / "gradlet").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"gradlet"}


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *(r for rows in project["optional-dependencies"].values() for r in rows)]
    names = {re.split(r"[^A-Za-z0-9_.-]", r)[0] for r in requirements}
    assert third_party_imports() <= {IMPORT_NAMES.get(n, n.replace("-", "_")) for n in names}


def test_core_dependencies_are_used() -> None:
    assert {"numpy", "llvmlite", "rich"} <= third_party_imports()
