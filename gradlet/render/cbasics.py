"""Functions that kernels in C call, in C11: conversions and arithmetic that give the bits of the CPU's own code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.render import carith
from gradlet.render.cudafloats import format_functions
from gradlet.target.target import Target

HEAD: Final = """\
typedef unsigned int u32;
typedef unsigned long long u64;
#define inline_ static inline"""

_PLAIN: Final = r"""
inline_ float float_of_bits(u32 x) { float y; memcpy(&y, &x, 4); return y; }
inline_ u32 bits_of_float(float x) { u32 y; memcpy(&y, &x, 4); return y; }
inline_ double double_of_bits(u64 x) { double y; memcpy(&y, &x, 8); return y; }
inline_ u64 bits_of_double(double x) { u64 y; memcpy(&y, &x, 8); return y; }
inline_ float max_float(float x, float y) { const float z = x > y ? x : y; return x != x ? x : z; }
inline_ float min_float(float x, float y) { const float z = x < y ? x : y; return x != x ? x : z; }
inline_ double max_double(double x, double y) { const double z = x > y ? x : y; return x != x ? x : z; }
inline_ double min_double(double x, double y) { const double z = x < y ? x : y; return x != x ? x : z; }
inline_ int integer32_of_double(double x) {
  return x != x ? 0 : x <= -0x1p31 ? -2147483647 - 1 : x >= 0x1p31 ? 2147483647 : (int)x;
}
inline_ u32 unsigned32_of_double(double x) { return !(x > 0) ? 0u : x >= 0x1p32 ? 4294967295u : (u32)x; }
inline_ long long integer64_of_double(double x) {
  if (x != x) return 0;
  return x <= -0x1p63 ? -9223372036854775807ll - 1 : x >= 0x1p63 ? 9223372036854775807ll : (long long)x;
}
inline_ u64 unsigned64_of_double(double x) { return !(x > 0) ? 0u : x >= 0x1p64 ? 18446744073709551615ull : (u64)x; }
inline_ int integer32_of_float(float x) { return integer32_of_double(x); }
inline_ u32 unsigned32_of_float(float x) { return unsigned32_of_double(x); }
inline_ long long integer64_of_float(float x) { return integer64_of_double(x); }
inline_ u64 unsigned64_of_float(float x) { return unsigned64_of_double(x); }
inline_ int clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
inline_ float odd_float_of_double(double x) {
  const float y = (float)x;
  if ((double)y == x || x != x) return y;
  return float_of_bits((bits_of_float(y) - (u32)(fabs((double)y) > fabs(x))) | 1u);
}
inline_ float odd_float_of_unsigned(u64 x) {
  int shift = 0;
  while ((x >> shift) >> 24) ++shift;
  const u64 high = x >> shift;
  return ldexpf((float)(high << shift == x ? high : high | 1u), shift);
}
inline_ float odd_float_of_integer(long long x) {
  return x < 0 ? -odd_float_of_unsigned(0u - (u64)x) : odd_float_of_unsigned((u64)x);
}
inline_ unsigned short bfloat16_of_float(float x) {
  const u32 bits = bits_of_float(x);
  return (unsigned short)(x != x ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline_ long long floor_div(long long x, long long y) {
  if (y == 0) return 0;
  if (y == -1) return (long long)(0u - (u64)x);
  return x / y - (x % y != 0 && (x ^ y) < 0);
}
inline_ long long floor_mod(long long x, long long y) {
  if (y == 0 || y == -1) return 0;
  return x % y + (x % y != 0 && (x ^ y) < 0 ? y : 0);
}
inline_ int dot_bytes(int x, int y, int z) {
  u32 sum = (u32)z;
  for (int i = 0; i < 32; i += 8) sum += (u32)((int)(((u32)x >> i) & 0xffu) * (int)(signed char)((u32)y >> i));
  return (int)sum;
}
inline_ int dot_halves(int x, int y, int z) {
  return (int)((u32)z + (u32)((int)(short)x * (int)(short)y) + (u32)((x >> 16) * (y >> 16)));
}
inline_ float float_of_half(unsigned short x) {
  const u32 magnitude = x & 0x7fffu, sign = (u32)(x & 0x8000u) << 16;
  u32 word = (magnitude << 13) + (112u << 23);
  if (magnitude < 0x400u) word = bits_of_float((float)(int)magnitude * 0x1p-24f);
  if (magnitude >= 0x7c00u) word = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x400000u : 0u);
  return float_of_bits(word | sign);
}
"""
# With an instruction for it a NaN keeps its upper bits, without it is the one NaN.
_HALF: Final = """inline_ unsigned short half_of_float(float x) {{
  const u32 bits = bits_of_float(x), magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  u32 word = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  if (magnitude < 0x38800000u) word = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  if (magnitude >= 0x477ff000u) word = 0x7c00u;
  if (magnitude > 0x7f800000u) word = 0x7e00u{payload};
  return (unsigned short)(word | sign);
}}"""
_FUSED: Final = """inline_ {kind} fused_{kind}({kind} x, {kind} y, {kind} z) {{ return {text}; }}"""
_NAME: Final = re.compile(r"\w+")


def _table(target: Target, formats: Iterable[DType]) -> dict[str, str]:
    """All functions by name, those before that others call."""
    texts = list(re.split(r"\n(?=inline_ )", _PLAIN.strip()))
    texts.append(_HALF.format(payload=" | ((magnitude >> 13) & 0x1ffu)" if target.converts_half else ""))
    for kind, function in (("float", "fmaf"), ("double", "fma")):
        # Without the instruction the CPU's own code rounds twice, and so does this.
        texts.append(_FUSED.format(kind=kind, text=f"{function}(x, y, z)" if target.fma else "x * y + z"))
    for dtype in formats:
        texts += re.split(r"\n(?=inline_ )", format_functions(dtype).strip())
    for name, dtype in _stored().items():
        size, kind = dtype.itemsize, carith.storage_type(dtype)
        texts.append(
            f"inline_ {kind} load_{name}(const unsigned char *p, long long i) "
            f"{{ {kind} x; memcpy(&x, p + {size} * i, {size}); return x; }}"
        )
        texts.append(
            f"inline_ void store_{name}(unsigned char *p, long long i, {kind} x) "
            f"{{ memcpy(p + {size} * i, &x, {size}); }}"
        )
    found = {}
    for text in texts:
        head = re.match(r"inline_ [\w ]*?(\w+)\(", text)
        assert head is not None
        found[head[1]] = text
    return found


def _stored() -> dict[str, DType]:
    """One type for each way in which an element lies in memory."""
    return {carith.storage_type(d).replace(" ", "_"): d for d in dtypes.all() if d.count == 1}


def accessor(dtype: DType) -> str:
    """What the names of the functions end with that load and store an element."""
    return carith.storage_type(dtype).replace(" ", "_")


def functions(body: str, target: Target, formats: Iterable[DType]) -> list[str]:
    """The functions that some code calls, and those that they call, in order."""
    table = _table(target, formats)
    used: set[str] = set()
    pending = [body]
    while pending:
        for name in _NAME.findall(pending.pop()):
            if name in table and name not in used:
                used.add(name)
                pending.append(table[name].partition("{")[2])
    return [text for name, text in table.items() if name in used]
