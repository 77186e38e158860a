"""Functions in CUDA C that have matrix units add a product of two tiles in shared memory to the registers of lanes.

Tiles have rows of 128 bytes, whose pieces of 16 are exchanged by row. A lane has, of 16 rows of its warp and every
eight columns, two columns beside each other in two rows that are eight apart. An instruction multiplies 32 bytes along
the sum, four make a step.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.target.matrixcore import STEP, FactorType

PIECES: Final = 4  # instructions of a step


class UnitCall(NamedTuple):
    """What a function multiplies: columns of the product, types of both factors, whether the sum runs across them."""

    columns: int
    first: FactorType
    second: FactorType
    first_across: bool
    second_across: bool

    @property
    def register(self) -> str:
        """The type of a register."""
        return "int" if self.first.total is dtypes.int32 else "float"


def unit_name(call: UnitCall) -> str:
    """The name of the function."""
    ways = "".join("t" if across else "n" for across in (call.first_across, call.second_across))
    kinds = call.first.name if call.first is call.second else f"{call.first.name}_{call.second.name}"
    return f"multiply_{call.columns}_{kinds}_{ways}"


def unit_parameters(call: UnitCall) -> str:
    """The registers as parameters."""
    return ", ".join(f"{call.register}& d{i}" for i in range(call.columns // 2))


def wgmma(call: UnitCall) -> str:
    """The function that adds the product of 64 rows of one tile and all columns of another."""
    count = call.columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    whole = call.register == "int"
    outputs = ", ".join(f'"+{"r" if whole else "f"}"(d{i})' for i in range(count))
    ways = (call.first_across, call.second_across)
    steps = [2048 if across else STEP for across in ways]
    blocks = [8192 if across else 16 for across in ways]
    # Sums of integers have no signs to choose; only 16-bit types say which way factors lie.
    flags = "" if whole else ", 1, 1"
    if call.first.turns:
        flags += f", {int(call.first_across)}, {int(call.second_across)}"
    depth = STEP // call.first.itemsize
    kind = f"{'s32' if whole else 'f32'}.{call.first.name}.{call.second.name}"
    return f"""inline_ void {unit_name(call)}({unit_parameters(call)}, const void* a, const void* b) {{
  u64 x = tile_of(a, {blocks[0]}), y = tile_of(b, {blocks[1]});
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < {PIECES}; ++i) {{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{call.columns}k{depth}.{kind} {{{registers}}}, "
      "%{count}, %{count + 1}, 1{flags};"
      : {outputs} : "l"(x), "l"(y));
    x += {steps[0] // 16};
    y += {steps[1] // 16};
  }}
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}"""


WGMMA_BASICS: Final = """
inline_ u64 tile_of(const void* p, u32 block) {
  const u32 address = (u32)__cvta_generic_to_shared(p);
  return (u64)((address >> 4) & 0x3fffu) | ((u64)(block >> 4) << 16) | ((u64)(1024u >> 4) << 32) | (1ull << 62);
}
template <int pending> inline_ void wait_for_units() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
inline_ void settle(float& x) { asm volatile("" : "+f"(x)::"memory"); }
inline_ void settle(int& x) { asm volatile("" : "+r"(x)::"memory"); }
template <class... T> inline_ void settled(T&... x) { (settle(x), ...); }
inline_ void stores_seen_by_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
"""
