"""House rules that a linter does not know."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "gradlet").rglob("*.py"))
RELATIVE = [str(p.relative_to(ROOT)) for p in MODULES]


def uses(path: Path, *names: str) -> list[str]:
    """Which of these dotted names a module mentions."""
    text = path.read_text()
    return [n for n in names if n in text]


@pytest.mark.parametrize("path", MODULES, ids=RELATIVE)
def test_module_states_its_charter(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":", ",", ";", "?")) or "\n" in docstring


@pytest.mark.parametrize("path", MODULES, ids=RELATIVE)
def test_module_has_a_readable_length(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 650


def test_only_settings_reads_the_environment() -> None:
    reading = [n for n, p in zip(RELATIVE, MODULES, strict=True) if uses(p, "os.environ", "getenv", "import environ")]
    assert reading == ["gradlet/base/settings.py"]


def test_nothing_changes_the_recursion_limit() -> None:
    assert [n for n, p in zip(RELATIVE, MODULES, strict=True) if uses(p, "setrecursionlimit")] == []


def test_every_folder_is_a_package_without_re_exports() -> None:
    # The root, `nn`, `io` and `array_api` are namespaces for users.
    package = ROOT / "gradlet"
    folders = {p.parent for p in MODULES} - {package, package / "nn", package / "io", package / "array_api"}
    bad = []
    for folder in sorted(folders):
        init = folder / "__init__.py"
        body = ast.parse(init.read_text()).body if init.exists() else []
        if len(body) != 1 or not isinstance(body[0], ast.Expr):
            bad.append(str(folder.relative_to(ROOT)))
    assert bad == []


def test_every_test_folder_mirrors_a_package_folder() -> None:
    own = {
        "benchmarks",
        "docs",
        "packaging",
        "operators",
        "jit",
        "export",
        "golden",
        "passes",
        "errors",
        "fuzz",
        "replay",
        "field",
        "suite",
        "parity",
    }
    package = {str(p.parent.relative_to(ROOT / "gradlet")) for p in MODULES}
    tests = {str(p.parent.relative_to(ROOT / "tests")) for p in (ROOT / "tests").rglob("test_*.py")}
    assert [t for t in sorted(tests) if t not in package and t.partition("/")[0] not in own] == []


def test_kernels_are_generated() -> None:
    """Nobody wrote one as text, or calls a library's: code of GPUs is printed by the renderer, from graphs."""
    gpu = ("__global__", "threadIdx", "wgmma.", "mma.sync", "cp.async", "asm volatile", "__syncthreads")
    renderer = [f"gradlet/render/{name}.py" for name in ("cuda", "cudaproducts", "cudaunits")]
    assert [n for n, p in zip(RELATIVE, MODULES, strict=True) if uses(p, *gpu)] == renderer
    assert not any("__global__" in (ROOT / name).read_text() for name in renderer[1:])
    printed = (ROOT / "gradlet/render/cuda.py").read_text()
    assert printed.count("__global__") == 1, "one header for all kernels"
    libraries = ("cublas", "cudnn", "cutlass", "cblas_", "libmkl", "onednn", "dnnl")
    assert not [n for n, p in zip(RELATIVE, MODULES, strict=True) if any(w in p.read_text().lower() for w in libraries)]
    # Of sums and products as LLVM text there is one more: the loop that measures how fast the machine is.
    arithmetic = [n for n, p in zip(RELATIVE, MODULES, strict=True) if uses(p, " fmul ", " fadd ")]
    assert [n for n in arithmetic if "/render/" not in n] == ["gradlet/device/cpu/probe.py"]
