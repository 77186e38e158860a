"""Functions in CUDA C for products of attention: of two tiles of shared memory, or of registers and a tile.

The rows of such a product are 64 of a group of warps. Elements of the sum lie along rows of 128 bytes, in several
blocks of those, or, beside registers, across them. Registers of a first factor are where those of the product of two
tiles are, so what was computed of one goes into the next as it is.
"""

from __future__ import annotations

from typing import Final

from gradlet.ops.op import WgmmaArg


def tile_product_name(arg: WgmmaArg, kind: str) -> tuple[str, str]:
    """Name and parameters of the function that makes a product in registers of its own, or adds one to an array."""
    if arg.registers:
        name = f"add_product_{arg.columns}_{kind}_{arg.depth}"
        return name, f"float (&d)[{2 * arg.columns}], u32 (&a)[{arg.depth}], const void* b"
    return f"product_{arg.columns}_{kind}_{arg.depth}_of_{arg.rows}", (
        f"float (&d)[{arg.columns // 2}], const void* a, const void* b"
    )


def place_of_register(register: int, columns: int) -> int:
    """Where a lane's array of two rows has what is a register of the unit; places of other lanes stay empty."""
    return register // 2 % 2 * columns + register // 4 * 8 + register % 2


def tile_product(arg: WgmmaArg, kind: str) -> str:
    """That function: 64 rows of the first factor, in shared memory or in the lanes' registers, by all columns.

    Elements of the sum lie along rows of 128 bytes, 64 in each of several blocks; or across them, in the second factor
    beside registers.
    """
    count, steps = arg.columns // 2, arg.depth // 16
    name, parameters = tile_product_name(arg, kind)
    registers = ", ".join(f"%{i}" for i in range(count))
    shape = f"wgmma.mma_async.sync.aligned.m64n{arg.columns}k16.f32.{kind}.{kind}"
    lines = [f"inline_ void {name}({parameters}) {{"]
    if arg.registers:
        # What the unit reads and adds to is in its registers before the fence.
        places = [place_of_register(i, arg.columns) for i in range(count)]
        pairs = [place_of_register(i, arg.depth) // 2 for i in range(0, arg.depth // 2, 2)]
        lines += [f"  const u64 y = tile_of(b, {arg.depth * 128});"]
        lines += [f"  settle(d[{place}]);" for place in places] + [f"  settle(a[{place}]);" for place in pairs]
        lines += ['  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");']
        outputs = ", ".join(f'"+f"(d[{place}])' for place in places)
        for i in range(steps):
            inputs = ", ".join(f'"r"(a[{place}])' for place in pairs[4 * i : 4 * i + 4])
            lines += [
                f'  asm volatile("{shape} {{{registers}}}, {{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, "',
                f'    "%{count + 4}, 1, 1, 1, 1;" : {outputs} : {inputs}, "l"(y + {i * 128}));',
            ]
    else:
        outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
        inputs = ", ".join(f'"l"({at} + i / 4 * {rows * 8} + i % 4 * 2)' for at, rows in
                           (("x", arg.rows), ("y", arg.columns)))  # fmt: skip
        lines += [
            "  const u64 x = tile_of(a, 16), y = tile_of(b, 16);",
            '  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
            "#pragma unroll",
            f"  for (int i = 0; i < {steps}; ++i)",
            f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + 2}, 0; {shape} {{{registers}}}, "',
            f'      "%{count}, %{count + 1}, p, 1, 1, 0, 0; }}" : {outputs} : {inputs}, "r"(i));',
        ]
    return "\n".join([*lines, '  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");', "}"])


PAIRS: Final = """
inline_ u32 pair_bf16(float low, float high) {
  u32 x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
inline_ u32 pair_f16(float low, float high) {
  u32 x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
template <int n> inline_ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n)); }
template <int n> inline_ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n)); }
inline_ void settle(u32& x) { asm volatile("" : "+r"(x)::"memory"); }
"""
