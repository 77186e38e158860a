"""Device CUDA where there is no GPU: clear errors, memory over a made-up driver, what NVRTC makes of kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradlet import Tensor, dtypes
from gradlet.base.errors import CompilerError, DeviceError
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import lower
from gradlet.device.cuda import driver
from gradlet.device.cuda import memory as cuda_memory
from gradlet.device.cuda.compiler import architecture, asked_for, compile_cuda
from gradlet.device.cuda.memory import CudaAllocator, size_class
from gradlet.device.cuda.target import units_of
from gradlet.ops.op import Op
from gradlet.render import cuda
from gradlet.runtime.device import DeviceRegistry
from gradlet.target.matrixcore import FACTORS
from gradlet.target.target import SM_80, SM_86, SM_89, SM_90, Target


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"cuda", *[n for n in sys.modules if n.startswith("cuda.")]}:  # also where another test has loaded it
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DeviceError, match=r"needs the package cuda-bindings .*pip install 'gradlet\[cuda\]'"):
        DeviceRegistry()["CUDA"]


def _without_driver(*_: Any) -> Any:
    raise RuntimeError("no such library")


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "bindings", lambda name: SimpleNamespace(cuInit=_without_driver))
    with pytest.raises(DeviceError, match="needs the NVIDIA driver .*no such library"):
        driver.Gpu(0)


def test_a_driver_without_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(cuInit=lambda flags: (100,), cuGetErrorString=lambda code: (0, b"no device"))
    monkeypatch.setattr(driver, "bindings", lambda name: api)
    with pytest.raises(DeviceError, match="cannot be used: no device"):
        driver.Gpu(0)


def test_nothing_is_imported_unless_the_device_is_named() -> None:
    code = (
        "import sys\nfrom gradlet import Tensor\n(Tensor([1.0]) + 1).tolist()\n"
        "assert not [m for m in sys.modules if m.startswith(('cuda', 'gradlet.device.cuda', 'gradlet.render.c'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class MadeUpGpu:
    """A GPU of 1 MiB whose memory is the host's."""

    stream = 0

    def __init__(self) -> None:
        self.api = self
        self.blocks: dict[int, Any] = {}
        self.left = 1 << 20

    def activate(self) -> None: ...

    def synchronize(self) -> None: ...

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        if size > self.left:
            return 2, 0
        block = ctypes.create_string_buffer(size)
        self.left -= size
        self.blocks[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def call(self, name: str, *args: Any) -> Any:
        if name == "cuMemFree":
            self.left += len(self.blocks.pop(args[0]))
        elif name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
            ctypes.memmove(*args[:3])
        elif name == "cuMemGetInfo":
            return self.left, 1 << 20
        elif name == "cuMemHostAlloc":
            return self.cuMemAlloc(64)[1]
        return None


def test_memory_is_used_again_and_given_back_when_it_is_short() -> None:
    gpu = MadeUpGpu()
    memory = CudaAllocator("CUDA", gpu)  # type: ignore[arg-type]
    first = memory.allocate(1000, "a")
    memory.free(first, 1000)
    assert memory.allocate(900, "b") == first and memory.kept == 0
    large = memory.allocate(700_000, "c")
    memory.free(large, 700_000)
    assert memory.kept == size_class(700_000)
    assert memory.allocate(900_000, "d")  # only once what is kept is given back
    assert memory.kept == 0


def test_out_of_memory_lists_the_largest_holders() -> None:
    memory = CudaAllocator("CUDA", MadeUpGpu())  # type: ignore[arg-type]
    memory.allocate(600_000, "float32[150000]")
    memory.allocate(1000, "int8[1000]")
    with pytest.raises(
        DeviceError, match=r"out of memory on CUDA: x needs .* Largest holders: float32\[150000\] .*int8"
    ):
        memory.allocate(600_000, "x")


@pytest.mark.parametrize("size", [1, 1000, 70_000])
def test_bytes_come_back_as_they_were_written(size: int) -> None:
    memory = CudaAllocator("CUDA", MadeUpGpu())  # type: ignore[arg-type]
    address = memory.allocate(size, "x")
    content = bytes(i % 251 for i in range(size))
    if size > 65536:
        pytest.importorskip("numpy")
        memory._staging = [(memory.allocate(size, "staging"), None)] * 2
    memory.write(address, memoryview(content))
    assert bytes(memory.view(address, size, None)) == content


class LateGpu(MadeUpGpu):
    """Copies run when somebody waits for them, not when they are asked for: with whatever the memory holds by then."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Any] = []
        self.waited = 0

    def call(self, name: str, *args: Any) -> Any:
        if name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
            self.begun.append(args[:3])
        elif name == "cuEventCreate":
            return []  # how much was begun when it was recorded
        elif name == "cuEventRecord":
            args[0][:] = self.begun
        elif name in ("cuEventSynchronize", "cuStreamSynchronize"):
            self.waited += 1
            before = args[0] if name == "cuEventSynchronize" else list(self.begun)
            while self.begun and any(copy is self.begun[0] for copy in before):
                ctypes.memmove(*self.begun.pop(0))
        elif name == "cuMemHostAlloc":
            return self.cuMemAlloc(args[0])[1]
        else:
            return super().call(name, *args)
        return None


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_pinned_memory_is_used_again_when_its_copy_has_run(chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_memory, "CHUNK", 1000)
    monkeypatch.setattr(cuda_memory, "SMALL", 10)
    gpu = LateGpu()
    memory = CudaAllocator("CUDA", gpu)  # type: ignore[arg-type]
    size = 1000 * chunks - 17
    content = bytes(i * 7 % 251 for i in range(size))
    address = memory.allocate(size, "x")
    source = bytearray(content)
    memory.write(address, memoryview(source))
    assert len(gpu.begun) == min(chunks, 2)  # two are under way: the host did not wait for the last ones
    source[:] = bytes(size)  # and may change its own memory
    assert bytes(memory.view(address, size, None)) == content
    assert len(memory._staging) == min(chunks, 2) and not gpu.begun


class Pair(driver.Gpu):
    """One of two GPUs of a made-up driver, which notes calls with the number of the GPU."""

    def __init__(self, number: int, asked: list[tuple[int, str]], reaches: bool) -> None:
        self.number, self.asked, self.reaches = number, asked, reaches
        self.device, self.context, self.stream, self._mark = number, f"context {number}", f"stream {number}", number
        self._near = set()
        self.api = SimpleNamespace(cuCtxEnablePeerAccess=lambda context, flags: asked.append((number, "reach")))

    def activate(self) -> None: ...

    def call(self, name: str, *args: Any) -> Any:
        self.asked.append((self.number, name))
        if name == "cuMemcpyPeerAsync":
            to, context, start, other, nbytes, stream = args
            assert (context, other, stream) == ("context 1", "context 0", "stream 1")
            ctypes.memmove(to, start, nbytes)
        return int(self.reaches)


@pytest.mark.parametrize("reaches", [False, True])
def test_copies_between_gpus_wait_for_one_another_and_not_for_the_host(reaches: bool) -> None:
    asked: list[tuple[int, str]] = []
    first, second = (CudaAllocator(f"CUDA:{n}", Pair(n, asked, reaches)) for n in (0, 1))
    source, target = ctypes.create_string_buffer(b"content", 8), ctypes.create_string_buffer(8)
    for _ in range(2):
        assert second.copy_from(ctypes.addressof(target), first, ctypes.addressof(source), 8)
    assert target.raw == source.raw
    copy = [(0, "cuEventRecord"), (1, "cuStreamWaitEvent"), (1, "cuMemcpyPeerAsync"), (1, "cuEventRecord"),
            (0, "cuStreamWaitEvent")]  # fmt: skip
    assert asked == [(1, "cuDeviceCanAccessPeer"), *[(1, "reach")] * reaches, *copy, *copy]


def test_memory_of_other_devices_is_not_copied_by_the_gpu() -> None:
    assert not CudaAllocator("CUDA", Pair(0, [], True)).copy_from(0, object(), 0, 8)


def test_block_sizes_waste_at_most_an_eighth() -> None:
    for size in (1, 511, 512, 5000, 70_000, 10**6, 10**9):
        assert size <= size_class(size) <= max(512, size * 9 // 8 + 512)


def test_newer_gpus_get_code_for_them_alone() -> None:
    assert [architecture(8, 0), architecture(9, 0)] == ["sm_80", "sm_90a"]


def test_gpus_that_nvrtc_does_not_know_get_ptx() -> None:
    known = (75, 80, 86, 89, 90, 100)
    assert [asked_for(a, known) for a in ("sm_80", "sm_90a", "sm_100a")] == ["sm_80", "sm_90a", "sm_100a"]
    assert [asked_for(a, known) for a in ("sm_87", "sm_120a")] == ["compute_86", "compute_100"]
    assert asked_for("sm_70", known) == "sm_70"  # what was given up: NVRTC says so


def test_ptx_is_what_the_driver_reads() -> None:
    _nvrtc()
    text = compile_cuda('extern "C" __global__ void k(float *p) { p[threadIdx.x] = 1.0f; }', "k", "sm_999a")
    assert text.endswith(b"\0") and b".visible .entry k(" in text and b".target sm_" in text


def _nvrtc() -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    try:
        compile_cuda('extern "C" __global__ void k() {}', "k", "sm_90a")
    except DeviceError as error:
        pytest.skip(str(error))


def test_nvrtc_compiles_every_type() -> None:
    _nvrtc()
    x = Tensor.empty(64, 512, device="NULL:sm_90")
    for dtype in (dtypes.bfloat16, dtypes.float16, dtypes.float8_e4m3fn, dtypes.int64, dtypes.bool):
        for value in ((x.cast(dtype).cast(dtypes.float64)), x.cast(dtype).max(1)):
            program = lower(value.schedule().calls[-1].ast, SM_90)
            assert compile_cuda(cuda.render(program, SM_90), program.name, "sm_90a").startswith(b"\x7fELF")


def test_nvrtc_compiles_attention() -> None:
    _nvrtc()
    q, k, v = (Tensor.empty(2, 256, 64, dtype="bfloat16", device="NULL:sm_90") for _ in range(3))
    program = lower(q.scaled_dot_product_attention(k, v, is_causal=True).schedule().calls[-1].ast, SM_90)
    assert compile_cuda(cuda.render(program, SM_90), program.name, "sm_90a").startswith(b"\x7fELF")


def test_gpus_have_the_units_of_their_capability() -> None:
    for target in (SM_80, SM_86, SM_89, SM_90):
        assert units_of(int(target.name[3]), int(target.name[4])) == target.matrix_units
    assert units_of(7, 5) is None and units_of(12, 0) == SM_89.matrix_units


@pytest.mark.slow
@pytest.mark.parametrize("target", [SM_80, SM_86, SM_89, SM_90], ids=lambda t: t.name)
def test_products_by_matrix_units_are_machine_code(target: Target, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc") or pytest.skip("no nvcc")
    for dtype, factor in FACTORS.items():
        if target.matrix_units is None or factor.name not in target.matrix_units.factors:
            continue
        a, b = (Tensor.empty(4096, 4096, device=f"NULL:{target.name}", dtype=dtype) for _ in range(2))
        with scope(ALLOW_TF32=1):
            program = lower(a.matmul(b.T, dtype=factor.total).schedule().calls[-1].ast, target)
        assert any(n.op is Op.WGMMA for n in program.uops)
        source = tmp_path / f"{dtype.name}.cu"
        source.write_text(cuda.render(program, target))
        command = [nvcc, "-cubin", f"-arch={architecture(int(target.name[3]), int(target.name[4]))}", "-std=c++17"]
        done = subprocess.run(
            [*command, "-Xptxas", "-v", str(source), "-o", str(tmp_path / "k.cubin")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "0 bytes spill stores" in done.stderr and "C751" not in done.stderr, done.stderr


def test_nvrtc_says_where_a_source_is_wrong() -> None:
    _nvrtc()
    with pytest.raises(CompilerError, match=r"NVRTC refuses kernel k for sm_90a:\nk.cu\(1\): error"):
        compile_cuda("wrong", "k", "sm_90a")
