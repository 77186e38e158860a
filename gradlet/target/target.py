"""`Target`: the facts about a machine that scheduling, optimising, code generation and rendering ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final, Literal

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ArgumentError
from gradlet.ops.op import Op
from gradlet.target.matrixcore import MMA_80, MMA_89, WGMMA, MatrixUnits

_INTEGERS: Final = frozenset(d for d in dtypes.all() if d.is_int or d.is_bool) | {dtypes.index}
_CPU_DTYPES: Final = _INTEGERS | {dtypes.float32, dtypes.float64}
# More scratch than this saves no traffic worth having, whatever the cache.
MAX_SCRATCH: Final = 1024 * 1024
TRANSCENDENTAL: Final = frozenset({Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.POW})


@dataclass(frozen=True)
class Target:
    """One kind of machine. Rates and sizes are typical figures: they set prices, never correctness.

    Attributes:
        name: short name, e.g. `avx512`.
        triple: LLVM target triple.
        cpu: LLVM processor name.
        features: LLVM feature string added to the processor's own.
        kind: `cpu` (threads and vectors) or `gpu` (workgroups of lanes).
        vector_bits: widest vector register; 32 on a GPU, where lanes are threads.
        vector_registers: how many of them one thread has.
        cores: hardware threads (CPU) or compute units (GPU) that work in parallel.
        l1_bytes: nearest data cache of a core, or shared memory of a workgroup.
        l2_bytes: second cache, per core on a CPU.
        llc_bytes: last cache before memory, shared.
        flops_per_second: peak of float32 with all cores.
        bytes_per_second: memory bandwidth with all cores.
        core_bytes_per_second: memory bandwidth that one core reaches alone.
        l2_bytes_per_second: bandwidth of the second cache, of all cores together.
        launch_ps: cost of starting one kernel on all cores, in picoseconds.
        inline_ps: cost of starting one kernel that the calling thread runs alone.
        barrier_ps: cost of a stage's end inside one launch, where every core waits for all others.
        scratch_bytes: fast memory of one core that a region may keep values in between its bodies; 0 where there is
            none.
        fma: whether a multiply-add is one instruction.
        max_args: most buffers one kernel may take.
        max_threads: most lanes of a workgroup, 1 on a CPU.
        native_dtypes: scalar types with arithmetic; others are only loaded, stored, selected and cast.
        converts_half: whether float16 <-> float32 is an instruction.
        dot8: whether a vector instruction adds the products of four bytes to each word.
        library: whether transcendental functions of float64 can be called (libm).
        language: what kernels are rendered as: LLVM IR, or CUDA C.
        warp: lanes of a workgroup that exchange registers; 1 where none do (or rendering cannot say so).
        access_bytes: widest memory access of one lane of a GPU; 0 where lanes load element by element.
        shared_bytes: memory that the lanes of a workgroup share.
        matrix_units: what multiplies tiles in shared memory, None where nothing does.
        copy_engine: whether boxes of memory are moved to and from shared memory by one instruction.
        approximates: whether it has an instruction for powers of two that is off by a few units in the last place.
    """

    name: str
    triple: str
    cpu: str
    features: str
    kind: Literal["cpu", "gpu"]
    vector_bits: int
    vector_registers: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    llc_bytes: int
    flops_per_second: int
    bytes_per_second: int
    core_bytes_per_second: int
    l2_bytes_per_second: int
    launch_ps: int
    inline_ps: int
    barrier_ps: int
    scratch_bytes: int
    fma: bool
    max_args: int
    max_threads: int
    native_dtypes: frozenset[DType]
    converts_half: bool
    library: bool
    dot8: bool = False
    language: Literal["llvm", "cuda"] = "llvm"
    warp: int = 1
    access_bytes: int = 0
    shared_bytes: int = 0
    matrix_units: MatrixUnits | None = None
    copy_engine: bool = False
    approximates: bool = False

    def __hash__(self) -> int:
        return hash(self.text)  # a text knows its hash: targets are part of keys that every launch asks for

    @property
    def key(self) -> str:
        """Everything about the target that machine code depends on, given the kernel's source text."""
        return f"{self.triple}/{self.cpu}/{self.features}"

    @cached_property
    def text(self) -> str:
        """All facts, the same text for equal targets in every process."""
        values = {row.name: getattr(self, row.name) for row in fields(self)}
        values["native_dtypes"] = sorted(dtype.name for dtype in self.native_dtypes)
        return repr(values)

    def lanes(self, dtype: DType) -> int:
        """How many values of this type fill one vector register."""
        return max(1, self.vector_bits // (8 * dtype.scalar.itemsize))

    def check_workgroup(self, name: str, lanes: int, shared: int) -> None:
        """Whether a workgroup can be as large as all opts of a kernel together make it.

        Raises:
            ArgumentError: too many lanes, or bytes that they share.
        """
        if shared > self.shared_bytes:
            raise ArgumentError(
                f"the schedule of kernel {name} takes {shared} bytes of memory that lanes share, and a workgroup has "
                f"{self.shared_bytes}; choose smaller tiles, fewer buffers, or no EPILOGUE"
            )
        if lanes > self.max_threads:
            raise ArgumentError(
                f"the schedule of kernel {name} takes {lanes} lanes, and a workgroup has at most {self.max_threads}; "
                "choose fewer"
            )

    def supports(self, op: Op, dtype: DType) -> bool:
        """Whether the renderer has this element-wise op on this type; code generation decomposes the rest."""
        scalar = dtype.scalar
        if op in (Op.CAST, Op.BITCAST, Op.WHERE):
            return True
        if op in TRANSCENDENTAL:
            return self.library and scalar is dtypes.float64
        return scalar in self.native_dtypes


def scratch_of(l2_bytes: int) -> int:
    """Bytes of a core's second cache that a region may use: half of it, the rest holds what streams through."""
    return min(l2_bytes // 2, MAX_SCRATCH)


def _x86(name: str, cpu: str, features: str, vector_bits: int, vector_registers: int, fma: bool) -> Target:
    # Two vector units a core, each with a multiply and an add a clock; 2.5 GHz and four cores stand for any machine.
    flops = 4 * 2_500_000_000 * 2 * 2 * (vector_bits // 32)
    return Target(
        name=name, triple="x86_64-unknown-linux-gnu", cpu=cpu, features=features, kind="cpu", vector_bits=vector_bits,
        vector_registers=vector_registers, cores=4, l1_bytes=32 * 1024, l2_bytes=1024 * 1024,
        llc_bytes=16 * 1024 * 1024, flops_per_second=flops, bytes_per_second=30_000_000_000,
        core_bytes_per_second=10_000_000_000, l2_bytes_per_second=4 * 60_000_000_000, launch_ps=2_000_000,
        inline_ps=1_000_000, barrier_ps=1_000_000, scratch_bytes=scratch_of(1024 * 1024), fma=fma, max_args=4096,
        max_threads=1, native_dtypes=_CPU_DTYPES, converts_half=True, library=True,
    )  # fmt: skip


# The processor names are the published levels of x86-64, so code runs on every machine of the level.
AVX512: Final = _x86("avx512", "x86-64-v4", "-prefer-256-bit", 512, 32, fma=True)
AVX2: Final = _x86("avx2", "x86-64-v3", "", 256, 16, fma=True)
SSE: Final = replace(_x86("sse", "x86-64-v2", "", 128, 16, fma=False), converts_half=False)
NEON: Final = replace(
    AVX2, name="neon", triple="aarch64-unknown-linux-gnu", cpu="generic", features="+neon", vector_bits=128,
    vector_registers=32, flops_per_second=4 * 2_500_000_000 * 2 * 2 * 4,
)  # fmt: skip
# Two gigabytes of memory at most, one thread, and no library to call: pointers have 32 bits, table words keep 64.
WASM: Final = replace(
    SSE, name="wasm", triple="wasm32-unknown-unknown", cpu="generic", features="+simd128", cores=1, library=False,
    flops_per_second=2_500_000_000 * 2 * 4, bytes_per_second=10_000_000_000, l2_bytes_per_second=60_000_000_000,
)  # fmt: skip
NVPTX: Final = Target(
    name="nvptx", triple="nvptx64-nvidia-cuda", cpu="sm_90", features="", kind="gpu", vector_bits=32,
    vector_registers=255, cores=132, l1_bytes=228 * 1024, l2_bytes=50 * 1024 * 1024, llc_bytes=50 * 1024 * 1024,
    flops_per_second=60_000_000_000_000, bytes_per_second=3_000_000_000_000,
    core_bytes_per_second=50_000_000_000, l2_bytes_per_second=6_000_000_000_000, launch_ps=3_000_000,
    inline_ps=3_000_000, barrier_ps=1_000_000, scratch_bytes=0, fma=True, max_args=500, max_threads=1024,
    native_dtypes=_CPU_DTYPES | {dtypes.float16}, converts_half=True, library=False,
)  # fmt: skip
AMDGPU: Final = replace(
    NVPTX, name="amdgpu", triple="amdgcn-amd-amdhsa", cpu="gfx1100", vector_registers=256, cores=96,
    l1_bytes=64 * 1024, l2_bytes=6 * 1024 * 1024, llc_bytes=96 * 1024 * 1024, bytes_per_second=960_000_000_000,
    core_bytes_per_second=20_000_000_000, l2_bytes_per_second=3_000_000_000_000,
)  # fmt: skip

# The same machine programmed in CUDA C: an H100 or H200. A block of more than 48 KiB has to ask for it.
SM_90: Final = replace(
    NVPTX, name="sm_90", triple="cuda", native_dtypes=_CPU_DTYPES, library=True, language="cuda", warp=32,
    access_bytes=16, matrix_units=WGMMA, copy_engine=True, approximates=True, shared_bytes=227 * 1024,
    l1_bytes=256 * 1024, bytes_per_second=4_000_000_000_000,
)  # fmt: skip

# GPUs whose warps multiply on their own, and whose lanes copy: an A100, an RTX 3090, an RTX 4090.
SM_80: Final = replace(
    SM_90, name="sm_80", cpu="sm_80", cores=108, matrix_units=MMA_80, copy_engine=False, shared_bytes=163 * 1024,
    l1_bytes=192 * 1024, l2_bytes=40 * 1024 * 1024, llc_bytes=40 * 1024 * 1024, bytes_per_second=1_800_000_000_000,
    flops_per_second=19_000_000_000_000,
)  # fmt: skip
SM_86: Final = replace(
    SM_80, name="sm_86", cpu="sm_86", cores=82, shared_bytes=99 * 1024, l1_bytes=128 * 1024,
    l2_bytes=6 * 1024 * 1024, llc_bytes=6 * 1024 * 1024, bytes_per_second=850_000_000_000,
    flops_per_second=35_000_000_000_000,
)  # fmt: skip
SM_89: Final = replace(
    SM_86, name="sm_89", cpu="sm_89", cores=128, matrix_units=MMA_89, l2_bytes=72 * 1024 * 1024,
    llc_bytes=72 * 1024 * 1024, bytes_per_second=900_000_000_000, flops_per_second=80_000_000_000_000,
)  # fmt: skip

TARGETS: Final[dict[str, Target]] = {
    t.name: t for t in (AVX512, AVX2, SSE, NEON, WASM, NVPTX, AMDGPU, SM_80, SM_86, SM_89, SM_90)
}


def by_name(name: str) -> Target:
    """The target called `name`.

    Raises:
        ArgumentError: no such target.
    """
    found = TARGETS.get(name)
    if found is None:
        raise ArgumentError(f"unknown target {name!r}; use one of: {', '.join(TARGETS)}")
    return found
