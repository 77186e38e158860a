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


GPU_CODE = ("__global__", "threadIdx", "wgmma.", "mma.sync", "cp.async", "asm volatile", "__syncthreads")
LIBRARIES = ("cublas", "cudnn", "cutlass", "cblas_", "libmkl", "onednn", "dnnl")
RENDERER = [f"gradlet/render/{name}.py" for name in ("cuda", "cudabasics", "cudaproducts", "cudarings", "cudaunits")]


def by_hand(texts: dict[str, str]) -> list[str]:
    """Modules in which somebody wrote a kernel as text, or calls a library's: renderers print code, from graphs."""
    found = [n for n, text in texts.items() if n not in RENDERER and any(word in text for word in GPU_CODE)]
    found += [n for n, text in texts.items() if text.count("__global__") > (n == RENDERER[0])]  # one header for all
    found += [n for n, text in texts.items() if any(word in text.lower() for word in LIBRARIES)]
    # Of sums and products as LLVM text there is one more: the loop that measures how fast the machine is.
    llvm = [n for n, text in texts.items() if "/render/" not in n and (" fmul " in text or " fadd " in text)]
    return [*dict.fromkeys(found + [n for n in llvm if n != "gradlet/device/cpu/probe.py"])]


def test_kernels_are_generated() -> None:
    texts = {n: p.read_text() for n, p in zip(RELATIVE, MODULES, strict=True)}
    assert by_hand(texts) == []
    assert all(any(word in texts[name] for word in GPU_CODE) for name in RENDERER)


@pytest.mark.parametrize("module", ["gradlet/ops/products.py", "gradlet/optimize/units.py", *RENDERER])
@pytest.mark.parametrize(
    "line",
    [
        'KERNEL = """extern "C" __global__ void matmul(float *a) { a[threadIdx.x] = 0; }"""',
        'library = ctypes.CDLL("libcuBLAS.so")',
        'TEXT = "%3 = fmul float %1, %2"',
        'TEXT = "wgmma.mma_async.sync.aligned.m64n256k16"',
    ],
)
def test_a_kernel_that_somebody_wrote_is_found(module: str, line: str) -> None:
    """In a renderer it is another header, or a library; what a renderer is made of looks like a kernel's body."""
    is_body = module in RENDERER and "__global__" not in line and "cuBLAS" not in line
    assert by_hand({module: (ROOT / module).read_text() + line}) == ([] if is_body else [module])
