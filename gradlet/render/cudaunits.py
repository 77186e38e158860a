"""Functions in CUDA C that have matrix units add a product of two tiles in shared memory to the registers of lanes.

Tiles have rows of 128 bytes, whose pieces of 16 are exchanged by row. A lane has, of 16 rows of its warp and every
eight columns, two columns beside each other in two rows that are eight apart. An instruction multiplies 32 bytes along
the sum, four make a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gradlet.base.dtype import dtypes
from gradlet.target.matrixcore import STEP, FactorType, MatrixUnits

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


ROWS: Final = """
inline_ const char* row_of(const void* tile, u32 row, u32 piece) {
  return (const char*)tile + row * 128 + (piece ^ row % 8) * 16;
}
"""

# Every lane says where a row of 16 bytes lies: 8 rows of each of four matrices. It gets 4 bytes of a row of each, or of
# two rows with the matrices turned.
MMA_BASICS: Final = """
inline_ void load_matrices(u32* x, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
inline_ void load_turned(u32* x, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
inline_ u32 rounded(u32 x) {
  u32 y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
  return y;
}
"""


def mma(call: UnitCall) -> str:
    """An instruction of a warp: 16 rows by 32 bytes with eight columns."""
    whole = call.register == "int"
    depth = STEP // call.first.itemsize
    letter, total = ("r", "s32") if whole else ("f", "f32")
    given = ", ".join(f'"+{letter}"(d{i})' for i in range(4))
    registers = ", ".join(f"{call.register}& d{i}" for i in range(4))
    return f"""inline_ void {mma_name(call)}({registers}, const u32* x, u32 y0, u32 y1) {{
  asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.{total}.{call.first.name}.{call.second.name}.{total} "
    "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
    : {given} : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1));
}}"""


def mma_name(call: UnitCall) -> str:
    return f"mma_{call.first.name}_{call.second.name}"


def by_warps(call: UnitCall) -> str:
    """The function that adds the product of the 16 rows of a warp, of 64 of a tile, and all columns of another."""
    turned = "load_turned", "load_matrices"
    first, second = (turned[0] if across else turned[1] for across in (call.first_across, call.second_across))
    depth = STEP // call.first.itemsize
    # Rows of the array and pieces in them: along the sum two pieces a step, across it as many rows as elements.
    if call.first_across:
        rows, pieces = f"i * {depth} + low + lane / 16 * 8", "warp * 2 + lane / 8 % 2"
    else:
        rows, pieces = "warp * 16 + low + lane / 8 % 2 * 8", "i * 2 + lane / 16"
    lines = [f"    {first}(x, row_of(a, {rows}, {pieces}));"]
    if call.first.name == "tf32":
        lines.append("    for (int n = 0; n < 4; ++n) x[n] = rounded(x[n]);")
    for group in range(0, call.columns // 8, 2):
        if call.second_across:
            block = f" + {group // 8 * 8192}" if group >= 8 else ""
            at = f"i * {depth} + low + lane / 8 % 2 * 8, {group % 8} + lane / 16"
        else:
            block = ""
            at = f"{group * 8} + low + lane / 16 * 8, i * 2 + lane / 8 % 2"
        lines.append(f"    {second}(y, row_of((const char*)b{block}, {at}));")
        if call.second.name == "tf32":
            lines.append("    for (int n = 0; n < 4; ++n) y[n] = rounded(y[n]);")
        for half in range(2):
            sums = ", ".join(f"d{4 * (group + half) + n}" for n in range(4))
            lines.append(f"    {mma_name(call)}({sums}, x, y[{2 * half}], y[{2 * half + 1}]);")
    body = "\n".join(lines)
    return f"""inline_ void {unit_name(call)}({unit_parameters(call)}, const void* a, const void* b) {{
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, low = lane % 8;
#pragma unroll
  for (int i = 0; i < {PIECES}; ++i) {{
    u32 x[4], y[4];
{body}
  }}
}}"""


class UnitText(NamedTuple):
    """What functions of units stand on: for either instruction the basics, and what gives the functions of a call."""

    wgmma_basics: str = WGMMA_BASICS
    wgmma: Callable[[UnitCall], str] = wgmma
    mma_basics: str = MMA_BASICS
    mma: Callable[[UnitCall], str] = mma

    def functions(self, units: MatrixUnits, calls: Iterable[UnitCall]) -> list[str]:
        """All functions that calls of these units need."""
        if units.instruction == "wgmma":
            return [self.wgmma_basics.strip(), *[self.wgmma(call) for call in calls]]
        kinds = {(call.first, call.second): call for call in calls}
        each = [self.mma(call) for call in kinds.values()]
        return [self.mma_basics.strip(), ROWS.strip(), *each, *[by_warps(call) for call in calls]]
