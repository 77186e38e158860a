"""Functions in CUDA C for products of attention: two tiles of shared memory, or registers and a tile, added to nothing.

The rows of such a product are 64 of a group of warps. Elements of the sum lie along rows of 128 bytes, in several
blocks of those, or, beside registers, across them. Registers of a first factor are where those of the product of two
tiles are, so what was computed of one goes into the next as it is.
"""

from __future__ import annotations

from typing import Final

from gradlet.ops.op import WgmmaArg


def tile_product_name(arg: WgmmaArg, kind: str) -> tuple[str, str]:
    """Name and parameters of the function that makes a product which is added to nothing."""
    factor = f"const float (&a)[{2 * arg.depth}]" if arg.registers else "const void* a"
    name = f"product_{arg.columns}_{kind}_{arg.depth}" + ("_of_registers" if arg.registers else f"_of_{arg.rows}")
    return name, f"float (&d)[{arg.columns // 2}], {factor}, const void* b"


def tile_product(arg: WgmmaArg, kind: str) -> str:
    """That function: 64 rows of the first factor, in shared memory or in the lanes' registers, by all columns.

    Elements of the sum lie along rows of 128 bytes, 64 in each of several blocks; or across them, in the second factor
    beside registers.
    """
    count, steps = arg.columns // 2, arg.depth // 16
    name, parameters = tile_product_name(arg, kind)
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    shape = f"wgmma.mma_async.sync.aligned.m64n{arg.columns}k16.f32.{kind}.{kind}"
    if arg.registers:
        # All registers of the factor are written before the fence: the unit reads none that change behind it.
        packed = [f"    x[4 * i + {n}] = pair_{kind}(a[{at} + 16 * i], a[{at} + 16 * i + 1]);" for n, at in
                  enumerate((0, arg.depth, 8, arg.depth + 8))]  # fmt: skip
        begin = [f"  const u64 y = tile_of(b, {arg.depth * 128});", f"  u32 x[{4 * steps}];", "#pragma unroll",
                 f"  for (int i = 0; i < {steps}; ++i) {{", *packed, "  }"]  # fmt: skip
        operands, ways = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}", "1, 1, 1"
        inputs = ", ".join(f'"r"(x[4 * i + {n}])' for n in range(4)) + ', "l"(y + i * 128)'
    else:
        begin = ["  const u64 x = tile_of(a, 16), y = tile_of(b, 16);"]
        operands, ways = f"%{count}", "1, 1, 0, 0"
        inputs = ", ".join(f'"l"({at} + i / 4 * {rows * 8} + i % 4 * 2)' for at, rows in
                           (("x", arg.rows), ("y", arg.columns)))  # fmt: skip
    last = count + (4 if arg.registers else 1)
    lines = [
        f"inline_ void {name}({parameters}) {{", *begin,
        '  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
        "#pragma unroll",
        f"  for (int i = 0; i < {steps}; ++i)",
        f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{last + 1}, 0; {shape} {{{registers}}}, "',
        f'      "{operands}, %{last}, p, {ways}; }}"',
        f'      : {outputs} : {inputs}, "r"(i));',
        '  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");', "}",
    ]  # fmt: skip
    return "\n".join(lines)


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
template <int n> inline_ void all_settled(float (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) settle(x[i]);
}
template <int n> inline_ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n)); }
template <int n> inline_ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n)); }
inline_ void buffer_expects_more(u64* word, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
               ::"r"(near_address(word)), "r"(bytes) : "memory");
}
"""
