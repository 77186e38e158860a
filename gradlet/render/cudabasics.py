"""Functions in CUDA C that all kernels may call: bits, conversions, rounding, powers, what lanes tell one another."""

from __future__ import annotations

from typing import Final

# What expressions of `carith` call, in CUDA. Conversions saturate and round as the CPU's do.
BASICS: Final = r"""
typedef unsigned int u32;
typedef unsigned long long u64;
#define inline_ static __device__ __forceinline__
extern __shared__ __align__(1024) unsigned char shared[];
inline_ float float_of_bits(u32 x) { return __uint_as_float(x); }
inline_ u32 bits_of_float(float x) { return __float_as_uint(x); }
inline_ double double_of_bits(u64 x) { return __longlong_as_double((long long)x); }
inline_ u64 bits_of_double(double x) { return (u64)__double_as_longlong(x); }
inline_ float fused_float(float x, float y, float z) { return __fmaf_rn(x, y, z); }
inline_ double fused_double(double x, double y, double z) { return __fma_rn(x, y, z); }
inline_ int integer32_of_float(float x) { return __float2int_rz(x); }
inline_ u32 unsigned32_of_float(float x) { return __float2uint_rz(x); }
inline_ long long integer64_of_float(float x) { return x != x ? 0 : __float2ll_rz(x); }
inline_ u64 unsigned64_of_float(float x) { return x != x ? 0 : __float2ull_rz(x); }
inline_ int integer32_of_double(double x) { return x != x ? 0 : __double2int_rz(x); }
inline_ u32 unsigned32_of_double(double x) { return x != x ? 0 : __double2uint_rz(x); }
inline_ long long integer64_of_double(double x) { return x != x ? 0 : __double2ll_rz(x); }
inline_ u64 unsigned64_of_double(double x) { return x != x ? 0 : __double2ull_rz(x); }
inline_ int clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
inline_ float toward_zero_of_double(double x) { return __double2float_rz(x); }
inline_ float toward_zero_of_integer(long long x) { return __ll2float_rz(x); }
inline_ float toward_zero_of_unsigned(u64 x) { return __ull2float_rz(x); }
inline_ float float_of_half(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
// A single one is a pair with 0: its own instruction takes eight times as long.
inline_ u32 two_float16(float low, float high) {
  u32 x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
inline_ u32 two_bfloat16(float low, float high) {
  u32 x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
inline_ unsigned short half_of_float(float x) { return (unsigned short)two_float16(x, 0.0f); }
inline_ unsigned short bfloat16_of_float(float x) { return (unsigned short)two_bfloat16(x, 0.0f); }
inline_ float power_of_two(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline_ float power_of_two_or_zero(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline_ float near_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline_ float max_float(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
inline_ float min_float(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
inline_ u32 lanes_where(bool x) { return __ballot_sync(0xffffffffu, x); }
inline_ int lowest(u32 x) { return __ffs((int)x) - 1; }
inline_ void copy_ahead(void* to, const void* from, int count) {
  const u32 address = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(count) : "memory");
}
inline_ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> inline_ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
template <class T> inline_ T from_lane(T x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }
inline_ bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }
"""
# In terms of those.
DERIVED: Final = r"""
inline_ float odd(float x, bool exact) { return exact ? x : float_of_bits(bits_of_float(x) | 1u); }
inline_ float odd_float_of_double(double x) {
  const float y = toward_zero_of_double(x);
  return odd(y, (double)y == x || x != x);
}
inline_ float odd_float_of_integer(long long x) {
  const float y = toward_zero_of_integer(x);
  return odd(y, y != 0x1p63f && (long long)y == x);
}
inline_ float odd_float_of_unsigned(u64 x) {
  const float y = toward_zero_of_unsigned(x);
  return odd(y, y != 0x1p64f && (u64)y == x);
}
template <class T> inline_ T floor_div(T x, T y) {
  if (y == 0) return 0;
  if (y == -1) return (T)(0 - (u64)x);
  const T q = x / y;
  return q - ((x % y != 0) && ((x ^ y) < 0));
}
template <class T> inline_ T floor_mod(T x, T y) {
  if (y == 0 || y == -1) return 0;
  const T r = x % y;
  return r + (r != 0 && (r ^ y) < 0 ? y : 0);
}
inline_ int dot_bytes(int x, int y, int z) {
  for (int i = 0; i < 32; i += 8) z += (int)((x >> i) & 0xff) * (int)(signed char)(y >> i);
  return z;
}
inline_ int dot_halves(int x, int y, int z) {
  return z + (int)(short)x * (int)(short)y + (x >> 16) * (y >> 16);
}
"""
