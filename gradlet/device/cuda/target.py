"""What a GPU is like: its `Target`, from what the driver says about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradlet.device.cuda.driver import Gpu
from gradlet.target.matrixcore import MMA_80, MMA_89, WGMMA, MatrixUnits
from gradlet.target.target import SM_90, Target

# float32 multiply-adds of a multiprocessor a clock; others have half as many.
LANES: Final = {8: 128, 9: 128, 10: 128, 12: 128}
EFFICIENCY: Final = (9, 10)  # of a memory's peak is what copies reach


def capability(gpu: Gpu) -> tuple[int, int]:
    """The compute capability."""
    return gpu.attribute("COMPUTE_CAPABILITY_MAJOR"), gpu.attribute("COMPUTE_CAPABILITY_MINOR")


def units_of(major: int, minor: int) -> MatrixUnits | None:
    """The matrix units of a compute capability."""
    if major == 9:
        return WGMMA
    if (major, minor) >= (8, 9):
        return MMA_89
    return MMA_80 if major == 8 else None


def gpu_target(gpu: Gpu) -> Target:
    """The facts about one GPU."""
    major, minor = capability(gpu)
    cores = gpu.attribute("MULTIPROCESSOR_COUNT")
    lanes = 64 if (major, minor) == (8, 0) else LANES.get(major, 64)
    clock = gpu.attribute("CLOCK_RATE") * 1000
    # Two transfers a clock, `bits` wide.
    wires = gpu.attribute("MEMORY_CLOCK_RATE") * 1000 * 2 * gpu.attribute("GLOBAL_MEMORY_BUS_WIDTH") // 8
    memory = wires * EFFICIENCY[0] // EFFICIENCY[1] or SM_90.bytes_per_second
    l2 = gpu.attribute("L2_CACHE_SIZE")
    return replace(
        SM_90, name=f"sm_{major}{minor}", cpu=f"sm_{major}{minor}", cores=cores, l2_bytes=l2, llc_bytes=l2,
        flops_per_second=(2 * lanes * cores * clock) or SM_90.flops_per_second, bytes_per_second=memory,
        core_bytes_per_second=memory // max(1, cores // 2), l2_bytes_per_second=2 * memory,
        shared_bytes=gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        matrix_units=units_of(major, minor), copy_engine=major == 9,
        max_threads=gpu.attribute("MAX_THREADS_PER_BLOCK"),
    )  # fmt: skip
