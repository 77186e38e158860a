"""CUDA C to machine code by NVRTC, which needs no GPU and no driver.

For a GPU that is newer than this NVRTC, to PTX, of which the driver makes machine code when it loads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from gradlet.base.errors import CompilerError, DeviceError
from gradlet.device.cuda.driver import INSTALL, bindings


def architecture(major: int, minor: int) -> str:
    """The name of machine code for GPUs of a compute capability; from 9.0 on with what only these have."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def version() -> str:
    """The version of NVRTC.

    Raises:
        DeviceError: it is not there.
    """
    return _found()[1]


def asked_for(arch: str, known: Iterable[int]) -> str:
    """What NVRTC is asked for: machine code of a GPU that it knows, else PTX of the newest before it.

    Args:
        arch: the name of the machine code that is wanted.
        known: the compute capabilities that NVRTC knows, as 90.
    """
    number = int(arch.removeprefix("sm_").rstrip("a"))
    older = [k for k in known if k <= number]
    return arch if number in older or not older else f"compute_{max(older)}"


@cache
def _known() -> tuple[int, ...]:
    """The compute capabilities that NVRTC knows."""
    nvrtc, _ = _found()
    return tuple([int(k) for k in nvrtc.nvrtcGetSupportedArchs()[1]])


@cache
def _found() -> tuple[Any, str]:
    """The module of NVRTC's functions, and its version."""
    nvrtc: Any = bindings("nvrtc")
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # cuda-bindings raises different types where there is no library
        raise DeviceError(f"device CUDA needs NVRTC (nvidia-cuda-nvrtc): {INSTALL}") from error
    return nvrtc, f"{major}.{minor}"


def compile_cuda(source: str, name: str, arch: str) -> bytes:
    """A cubin; PTX for a GPU that NVRTC does not know.

    Raises:
        CompilerError: the source is wrong; says where.
        DeviceError: NVRTC is not there.
    """
    nvrtc, _ = _found()
    wanted = asked_for(arch, _known())
    code, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], [])
    _check(nvrtc, code, name)
    # Multiply-adds are written as such where they are wanted.
    options = [f"--gpu-architecture={wanted}".encode(), b"--fmad=false", b"--std=c++17", b"-w"]
    try:
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(code) != 0:
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompilerError(f"NVRTC refuses kernel {name} for {arch}:\n{log.decode().strip(chr(0))}")
        kind = "CUBIN" if wanted == arch else "PTX"
        code, size = getattr(nvrtc, f"nvrtcGet{kind}Size")(program)
        _check(nvrtc, code, name)
        made = b" " * size
        _check(nvrtc, getattr(nvrtc, f"nvrtcGet{kind}")(program, made)[0], name)
        return made
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _check(nvrtc: Any, code: Any, name: str) -> None:
    if int(code) != 0:
        raise CompilerError(f"NVRTC failed at kernel {name}: {nvrtc.nvrtcGetErrorString(code)[1].decode()}")
