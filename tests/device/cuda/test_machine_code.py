"""Kernels for Hopper as machine code, without a GPU: NVRTC compiles them, a disassembler says what became of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from gradlet import Tensor
from gradlet.base.errors import DeviceError
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import lower
from gradlet.device.cuda.compiler import compile_cuda
from gradlet.render import cuda
from gradlet.target.target import SM_90


def _disassembler() -> str | None:
    """`cuobjdump` with the `nvdisasm` that it calls: of a CUDA toolkit, or of the packages with these names."""
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    for folder in [*packages.glob("*/bin"), Path(shutil.which("cuobjdump") or "nowhere").parent]:
        if (folder / "cuobjdump").exists() and (folder / "nvdisasm").exists():
            return str(folder / "cuobjdump")
    return None


def empty(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor.empty(*shape, device="NULL:sm_90", dtype=dtype)


def product(dtype: str, total: str | None = None) -> Callable[[], Tensor]:
    return lambda: empty(4096, 4096, dtype=dtype).matmul(empty(4096, 4096, dtype=dtype).T, dtype=total)


def attention() -> Tensor:
    q, k, v = (empty(2, 1024, 128) for _ in range(3))
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def convolution() -> Tensor:
    x, w = empty(64, 56, 56, 256).permute(0, 3, 1, 2), empty(256, 3, 3, 256).permute(0, 3, 1, 2)
    return x.conv2d(w, padding=1).permute(0, 2, 3, 1).contiguous()


# A kernel, and the instructions that make it one for Hopper.
KERNELS: dict[str, tuple[Callable[[], Tensor], tuple[str, ...]]] = {
    "bfloat16": (product("bfloat16"), ("HGMMA", "UTMALDG", "UTMASTG")),
    "float16": (product("float16"), ("HGMMA", "UTMALDG", "UTMASTG")),
    "float8": (product("float8_e4m3fn", "bfloat16"), ("QGMMA", "UTMALDG")),
    "int8": (product("int8", "int32"), ("IGMMA", "UTMALDG")),
    "TF32": (product("float32"), ("HGMMA", "UTMALDG")),
    "attention": (attention, ("HGMMA", "UTMALDG", "MUFU")),
    "convolution": (convolution, ("HGMMA", "UTMALDG")),
    "softmax": (lambda: empty(1024, 8192).softmax(-1), ("LDG", "SHFL", "MUFU")),
    "float32": (lambda: empty(512, 512, dtype="float32") @ empty(512, 512, dtype="float32"), ("FFMA", "LDS")),
}  # fmt: skip


@pytest.mark.parametrize("name", [n if n == "bfloat16" else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS])
def test_it_has_the_instructions_and_spills_nothing(name: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    tool = _disassembler() or pytest.skip("no cuobjdump with nvdisasm (nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm)")
    function, wanted = KERNELS[name]
    with scope(ALLOW_TF32=int(name == "TF32")):
        program = lower(function().schedule().calls[-1].ast, SM_90)
    try:
        code = compile_cuda(cuda.render(program, SM_90), program.name, "sm_90a")
    except DeviceError as error:
        pytest.skip(str(error))
    file = tmp_path / "kernel.cubin"
    file.write_bytes(code)
    said = [
        subprocess.run([tool, option, str(file)], capture_output=True, text=True, check=True).stdout
        for option in ("--dump-resource-usage", "--dump-sass")
    ]
    assert re.search(r"REG:\d+ STACK:0 ", said[0]) and "LOCAL:0" in said[0], said[0]
    found = set(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", said[1], re.MULTILINE))
    assert found.issuperset(wanted) and not found & {"LDL", "STL"}, sorted(found)
