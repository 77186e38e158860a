"""Images of kernels run like what LLVM links, wherever they lie; what they cannot hold goes to LLVM's linker."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import RenderError
from gradlet.base.settings import scope
from gradlet.device.common import llvm
from gradlet.device.cpu import image, jit
from gradlet.device.cpu.image import MAGIC, image_of
from gradlet.device.cpu.runtime import CpuBackend
from gradlet.device.cpu.target import host_target
from gradlet.engine import compile as engine_compile
from gradlet.target.target import NEON, Target

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="images are for x86-64 under Linux"
)

# A constant in memory, a call, a table of addresses, a function that nobody calls from outside.
SOURCE = """
target triple = "{triple}"
@table = internal constant [2 x ptr] [ptr @scale, ptr @both]
@numbers = internal constant [4 x double] [double 1.5, double -2.0, double 3.25, double 1.0e300]
define internal double @inner(ptr %x, i64 %i) noinline {
  %at = getelementptr inbounds double, ptr @numbers, i64 %i
  %n = load double, ptr %at
  %v = load double, ptr %x
  %p = fmul double %n, %v
  %r = fadd double %p, 0x400921FB54442D18
  ret double %r
}
define double @scale(ptr %x, i64 %i) {
  %r = call double @inner(ptr %x, i64 %i)
  ret double %r
}
define double @both(ptr %x, i64 %i) {
  %at = getelementptr inbounds ptr, ptr @table, i64 0
  %f = load volatile ptr, ptr %at
  %a = call double %f(ptr %x, i64 %i)
  %b = call double @scale(ptr %x, i64 3)
  %r = fadd double %a, %b
  ret double %r
}
"""


def compiled(source: str, target: Target | None = None) -> bytes:
    """An object file."""
    target = target or host_target()
    return llvm.emit_object(source.replace("{triple}", target.triple), target)


def call(address: int, value: float, number: int) -> float:
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_int64)(address)
    memory = ctypes.c_double(value)
    return float(function(ctypes.addressof(memory), number))


def test_an_image_runs_like_the_object_file() -> None:
    code = compiled(SOURCE)
    linked = image_of(code)
    assert linked is not None and linked.startswith(MAGIC)
    names = ("scale", "both")
    one, two, other = jit.load(code, names), jit.load(linked, names), jit.load(linked, names, "table")
    assert len({loaded.addresses["scale"] for loaded in (one, two, other)}) == 3
    for number, constant in enumerate((1.5, -2.0, 3.25)):
        for loaded in (one, two, other):
            assert call(loaded.addresses["scale"], 0.5, number) == constant * 0.5 + np.pi
            assert call(loaded.addresses["both"], 0.5, number) == (constant * 0.5 + np.pi) + (1e300 * 0.5 + np.pi)


CALLER = """
target triple = "{triple}"
declare double @first(ptr %x, i64 %i)
declare double @second(ptr %x, i64 %i)
define double @both(ptr %x, i64 %i) {
  %a = call double @first(ptr %x, i64 %i)
  %b = call double @second(ptr %x, i64 0)
  %r = fadd double %a, %b
  ret double %r
}
"""
CALLED = """
target triple = "{triple}"
@numbers = internal constant [2 x double] [double 1.5, double 1.0e9]
define double @body(ptr %x, i64 %i) {
  %at = getelementptr inbounds double, ptr @numbers, i64 %i
  %n = load double, ptr %at
  %v = load double, ptr %x
  %r = fmul double %n, %v
  ret double %r
}
"""


def test_several_files_are_one_image() -> None:
    one, other = compiled(CALLED), compiled(CALLED.replace("1.5", "-4.0"))
    linked = image_of(compiled(CALLER), {"first": one, "second": other})
    assert linked is not None
    loaded = jit.load(linked, ("both",))
    assert call(loaded.addresses["both"], 0.5, 0) == 0.75 - 2.0
    assert call(loaded.addresses["both"], 0.5, 1) == 0.5e9 - 2.0
    assert image_of(compiled(CALLER), {"first": one}) is None
    assert image_of(compiled(CALLER), {"first": one, "second": compiled(CALLED, NEON)}) is None


def test_loading_an_image_asks_nothing_of_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    linked = image_of(compiled(SOURCE))
    assert linked is not None

    def fail() -> None:
        raise AssertionError("LLVM was asked")

    monkeypatch.setattr(jit, "_jit", fail)
    monkeypatch.setattr(jit, "binding", fail)
    loaded = jit.load(linked, ("scale",))
    assert call(loaded.addresses["scale"], 2.0, 0) == 3.0 + np.pi


def mappings() -> dict[int, str]:
    """Where memory of this process begins, and what may be done with it."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return {int(line[0].split("-")[0], 16): line[1] for line in lines}


def test_code_is_never_writable_and_goes_when_nobody_holds_it() -> None:
    linked = image_of(compiled(SOURCE))
    assert linked is not None
    mapped = image.Mapped(linked)
    start = max(begin for begin in mappings() if begin <= mapped.address)
    assert mappings()[start] == "r-xp"
    mapped.unmap()
    mapped.unmap()  # once only
    assert mappings().get(mapped.address) != "r-xp"


UNFIT = {
    "import": """
declare double @fmod(double, double)
define double @f(double %x) { %r = call double @fmod(double %x, double 2.0)
  ret double %r }""",
    "written": """
@n = global i64 1
define void @f() { store i64 2, ptr @n
  ret void }""",
    "zeros": """
@n = internal global [8 x i64] zeroinitializer
define i64 @f(i64 %i) { %p = getelementptr i64, ptr @n, i64 %i
  store i64 %i, ptr %p
  %v = load i64, ptr @n
  ret i64 %v }""",
    "thread": """
@n = thread_local constant i64 1
define i64 @f() { %v = load volatile i64, ptr @n
  ret i64 %v }""",
}


@pytest.mark.parametrize("source", UNFIT.values(), ids=UNFIT)
def test_what_images_cannot_hold_stays_an_object_file(source: str) -> None:
    code = compiled('target triple = "{triple}"\n' + source)
    assert image_of(code) is None


def test_other_machines_and_other_files_have_no_image() -> None:
    assert image_of(compiled(SOURCE, NEON)) is None
    assert image_of(b"") is None
    assert image_of(b"\xcf\xfa\xed\xfe" + bytes(100)) is None


def test_a_damaged_image_is_refused() -> None:
    linked = image_of(compiled(SOURCE))
    assert linked is not None
    for broken in (linked[:-1], linked + b"\0", linked[:20], linked[: len(MAGIC)], MAGIC + b"\xff" * 60):
        with pytest.raises(RenderError, match="damaged"):
            jit.load(broken, ("scale",))
    with pytest.raises(RenderError, match="lacks nothing_such"):
        jit.load(linked, ("scale", "nothing_such"))


def test_kernels_lie_in_the_cache_as_images(tmp_path: Path) -> None:
    x = Tensor.randn(37, 19).realize()
    with scope(CACHEDIR=str(tmp_path), CACHE=1):
        for _ in range(2):
            engine_compile._kernels.clear()
            y = ((x @ x.T).exp().sum(1) * 1e-9).numpy()
            assert np.allclose(y, np.exp(x.numpy() @ x.numpy().T).sum(1) * 1e-9, rtol=1e-4)
    entries = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(MAGIC in entry for entry in entries)
    assert not any(b"\x7fELF" in entry for entry in entries)


def test_the_code_of_every_body_of_a_launch_is_in_its_image() -> None:
    backend = CpuBackend("CPU")
    a, b = Tensor.randn(64, 64).realize(), Tensor.randn(7).realize()
    before = set(engine_compile._kernels)
    Tensor.realize(a.softmax(-1), b.exp())
    for key in set(engine_compile._kernels) - before:
        linear = engine_compile.lower_kernel(key[0], "CPU")
        assert backend.compile(linear).startswith(MAGIC)
