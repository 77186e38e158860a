"""Runs CUDA C of the renderer on the CPU: the lanes of a block are fibers that take turns where they wait.

A C++ compiler sees the same source with other basics. All lanes of a block must wait at the same places in the same
order, which is checked: a barrier that only some lanes reach is an error here, as it is on a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.codegen.pipeline import lower
from gradlet.device.common.hostmemory import HostAllocator
from gradlet.graph import numeric
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import WgmmaArg
from gradlet.render import cuda
from gradlet.render.carith import storage_type
from gradlet.render.cudaproducts import place_of_register, tile_product_name
from gradlet.render.cudaunits import UnitCall, UnitText, mma_name, unit_name, unit_parameters
from gradlet.runtime.device import BACKENDS, Device
from gradlet.target.target import SM_90, Target

COMPILER = next((c for c in ("clang++", "clang++-19", "g++") if shutil.which(c)), None)

BASICS = r"""
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
using namespace std;
typedef unsigned int u32;
typedef unsigned long long u64;
#define inline_ static inline
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
inline_ uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline_ uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
#define __grid_constant__
alignas(1024) unsigned char shared[232448];
struct Number { u32 x; };
Number threadIdx, blockIdx;
static ucontext_t scheduler, fibers[1024];
static char stacks[1024][262144];
static u64 mailbox[1024][8];
static long long waited[1024];
static bool finished[1024];
static void pause_(int line) {
  const u32 me = threadIdx.x;
  waited[me] = waited[me] * 31 + line;
  swapcontext(&fibers[me], &scheduler);
  threadIdx.x = me;
}
#define __syncthreads() pause_(__LINE__)
static void yield_() {
  const u32 me = threadIdx.x;
  swapcontext(&fibers[me], &scheduler);
  threadIdx.x = me;
}
static int warp_count[32], warp_turn[32];
static void __syncwarp() {  // lanes of a warp may be a few turns apart here
  const u32 warp = threadIdx.x / 32;
  const int turn = warp_turn[warp];
  if (++warp_count[warp] == 32) {
    warp_count[warp] = 0;
    ++warp_turn[warp];
  } else {
    while (warp_turn[warp] == turn) yield_();
  }
}
static bool has_roles;  // warps with programs of their own wait for nobody else
inline_ void wait_for_warp(int line) {
  if (has_roles) __syncwarp();
  else pause_(line);
}
template <class A, class B> inline_ A as(B x) { A y; memcpy(&y, &x, sizeof(A)); return y; }
inline_ float float_of_bits(u32 x) { return as<float>(x); }
inline_ u32 bits_of_float(float x) { return as<u32>(x); }
inline_ double double_of_bits(u64 x) { return as<double>(x); }
inline_ u64 bits_of_double(double x) { return as<u64>(x); }
inline_ float fused_float(float x, float y, float z) { return fmaf(x, y, z); }
inline_ double fused_double(double x, double y, double z) { return fma(x, y, z); }
template <class T> inline_ T clamp_to(double x, double low, double high, T most, T least) {
  return x != x ? 0 : x >= high ? most : x <= low ? least : (T)x;
}
#define TO_INTEGERS(name, type) \
inline_ int integer32_of_##name(type x) { return clamp_to<int>(x, -0x1p31, 0x1p31, 2147483647, -2147483647 - 1); } \
inline_ u32 unsigned32_of_##name(type x) { return clamp_to<u32>(x, 0, 0x1p32, 4294967295u, 0); } \
inline_ long long integer64_of_##name(type x) { \
  return clamp_to<long long>(x, -0x1p63, 0x1p63, 9223372036854775807ll, -9223372036854775807ll - 1); } \
inline_ u64 unsigned64_of_##name(type x) { return clamp_to<u64>(x, 0, 0x1p64, 18446744073709551615ull, 0); }
TO_INTEGERS(float, float)
TO_INTEGERS(double, double)
inline_ int clamped(int x, int low, int high) { return x < low ? low : x > high ? high : x; }
template <class T> inline_ float toward_zero(T x) {
  float y = (float)x;
  if (x != x) return y;
  const bool large = y == 0x1p64f || y == 0x1p63f || std::isinf(y);
  if (!std::isinf((double)x) && (large || fabsl((long double)y) > fabsl((long double)x))) y = nextafterf(y, 0.0f);
  return y;
}
inline_ float toward_zero_of_double(double x) { return toward_zero(x); }
inline_ float toward_zero_of_integer(long long x) { return toward_zero(x); }
inline_ float toward_zero_of_unsigned(u64 x) { return toward_zero(x); }
inline_ float float_of_half(unsigned short x) { return (float)as<_Float16>(x); }
inline_ unsigned short half_of_float(float x) { return as<unsigned short>((_Float16)x); }
inline_ unsigned short bfloat16_of_float(float x) {
  const u32 bits = bits_of_float(x);
  if (x != x) return (unsigned short)((bits >> 16) | 0x40u);
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline_ u32 two_float16(float low, float high) { return half_of_float(low) | (u32)half_of_float(high) << 16; }
inline_ u32 two_bfloat16(float low, float high) { return bfloat16_of_float(low) | (u32)bfloat16_of_float(high) << 16; }
inline_ float power_of_two(float x) { return std::exp2(x); }
inline_ float power_of_two_or_zero(float x) { return x < -126 ? 0.0f : std::exp2(x); }
inline_ float near_reciprocal(float x) { return std::fabs(x) > 0x1p126f ? std::copysign(0.0f, x) : 1.0f / x; }
inline_ float max_float(float x, float y) { return x > y || x != x ? x : y; }
inline_ float min_float(float x, float y) { return x < y || x != x ? x : y; }
inline_ void copy_ahead(void* to, const void* from, int count) {
  if (count) memcpy(to, from, 16);
  else memset(to, 0, 16);
}
inline_ void end_of_copies() {}
template <int pending> inline_ void wait_for_copies() {}
template <class T> inline_ T from_lane(T x, int distance) {
  const u32 me = threadIdx.x;
  memcpy(mailbox[me], &x, sizeof x);
  wait_for_warp(-1);
  T y;
  memcpy(&y, mailbox[me ^ (u32)distance], sizeof y);
  wait_for_warp(-2);
  return y;
}
inline_ bool any_lane(bool x) {
  int all = x;
  for (int distance = 16; distance; distance /= 2) all |= from_lane(all, distance);
  return all;
}
inline_ u32 lanes_where(bool x) {
  const u32 me = threadIdx.x;
  memcpy(mailbox[me], &x, sizeof x);
  wait_for_warp(-1);
  u32 found = 0;
  for (u32 lane = 0; lane < 32; ++lane) found |= (u32)(*(const bool*)mailbox[me / 32 * 32 + lane]) << lane;
  wait_for_warp(-2);
  return found;
}
inline_ int lowest(u32 x) { return __builtin_ctz(x); }
"""

UNITS = r"""
inline_ void stores_seen_by_units() {}
template <class... T> inline_ void settled(T&...) {}
template <int pending> inline_ void wait_for_units() {}
inline_ float value_bf16(const void* p) { return float_of_bits((u32)*(const unsigned short*)p << 16); }
inline_ float value_f16(const void* p) { return float_of_half(*(const unsigned short*)p); }
inline_ float value_tf32(const void* p) { return *(const float*)p; }
inline_ float value_e5m2(const void* p) { return float_of_half((unsigned short)(*(const unsigned char*)p << 8)); }
inline_ float value_e4m3(const void* p) {
  const int x = *(const unsigned char*)p, exponent = x >> 3 & 15, fraction = x & 7;
  const float size = (x & 127) == 127 ? NAN : exponent ? ldexpf(8 + fraction, exponent - 10) : ldexpf(fraction, -9);
  return x & 128 ? -size : size;
}
inline_ int value_s8(const void* p) { return *(const signed char*)p; }
inline_ int value_u8(const void* p) { return *(const unsigned char*)p; }
template <int size> inline_ const char* element(const void* tile, long row, long column, long rows) {
  const long wide = 128 / size, piece = 16 / size;
  const long place = column / wide * (rows * wide) + row * wide;
  return (const char*)tile + (place + ((column % wide / piece) ^ (row % 8)) * piece + column % piece) * size;
}
"""


def multiply(call: UnitCall) -> str:
    """What a matrix unit does, lane by lane."""
    size = call.first.itemsize
    first = "k, m" if call.first_across else "m, k"
    second = "k, n" if call.second_across else "n, k"
    rows = (
        128 // size if across else count
        for across, count in ((call.first_across, 64), (call.second_across, call.columns))
    )
    places = [f"element<{size}>({side}, {at}, {many})" for side, at, many in zip("ab", (first, second), rows)]
    one = " * ".join(f"value_{f.name}({at})" for f, at in zip((call.first, call.second), places))
    registers = ", ".join(f"&d{i}" for i in range(call.columns // 2))
    return f"""inline_ void {unit_name(call)}({unit_parameters(call)}, const void* a, const void* b) {{
  {call.register}* d[] = {{{registers}}};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  for (int i = 0; i < {call.columns // 2}; ++i) {{
    const long m = 16 * warp + lane / 4 + 8 * (i / 2 % 2), n = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    for (long k = 0; k < {128 // size}; ++k) *d[i] += {one};
  }}
}}"""


WARPS = r"""
inline_ u32 rounded(u32 x) { return x; }
inline_ void load_matrices(u32* x, const char* row) {
  const u32 me = threadIdx.x, lane = me % 32, warp = me - lane;
  mailbox[me][0] = (u64)row;
  pause_(-3);
  for (int i = 0; i < 4; ++i) memcpy(&x[i], (const char*)mailbox[warp + 8 * i + lane / 4][0] + lane % 4 * 4, 4);
  pause_(-4);
}
inline_ void load_turned(u32* x, const char* row) {
  const u32 me = threadIdx.x, lane = me % 32, warp = me - lane;
  mailbox[me][0] = (u64)row;
  pause_(-5);
  for (int i = 0; i < 4; ++i)
    for (int n = 0; n < 2; ++n)
      memcpy((char*)&x[i] + 2 * n, (const char*)mailbox[warp + 8 * i + lane % 4 * 2 + n][0] + lane / 4 * 2, 2);
  pause_(-6);
}
"""


def mma(call: UnitCall) -> str:
    """What the lanes of a warp compute together."""
    size, registers = call.first.itemsize, ", ".join(f"{call.register}& d{i}" for i in range(4))
    return f"""inline_ void {mma_name(call)}({registers}, const u32* x, u32 y0, u32 y1) {{
  const u32 me = threadIdx.x, lane = me % 32, warp = me - lane;
  u32* own = (u32*)mailbox[me];
  for (int i = 0; i < 4; ++i) own[i] = x[i];
  own[4] = y0;
  own[5] = y1;
  pause_(-7);
  {call.register}* d[] = {{&d0, &d1, &d2, &d3}};
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < {32 // size}; ++k) {{
      const int byte = k * {size}, part = byte / 16, word = byte % 16 / 4, column = lane % 4 * 2 + i % 2;
      const char* a = (const char*)&((u32*)mailbox[warp + lane / 4 * 4 + word])[i / 2 + 2 * part] + byte % 4;
      const char* b = (const char*)&((u32*)mailbox[warp + column * 4 + word])[4 + part] + byte % 4;
      *d[i] += value_{call.first.name}(a) * value_{call.second.name}(b);
    }}
  pause_(-8);
}}"""


PAIRS = r"""
inline_ float half_of_pair(u32 pair, int which, bool bf16) {
  const unsigned short bits = (unsigned short)(pair >> 16 * which);
  return bf16 ? float_of_bits((u32)bits << 16) : float_of_half(bits);
}
inline_ float narrow_at(const void* tile, long place, bool bf16) {
  const unsigned short bits = ((const unsigned short*)tile)[place];
  return bf16 ? float_of_bits((u32)bits << 16) : float_of_half(bits);
}
inline_ long swizzled(long row, long column, long rows) {
  return column / 64 * (rows * 64) + row * 64 + ((column % 64 / 8) ^ (row % 8)) * 8 + column % 8;
}
template <int n> inline_ void more_registers() {}
template <int n> inline_ void fewer_registers() {}
inline_ u32 pair_bf16(float low, float high) { return bfloat16_of_float(low) | (u32)bfloat16_of_float(high) << 16; }
inline_ u32 pair_f16(float low, float high) { return half_of_float(low) | (u32)half_of_float(high) << 16; }
"""


def product(arg: WgmmaArg, kind: str) -> str:
    """A product in registers of its own, or one that is added to an array, lane by lane."""
    name, parameters = tile_product_name(arg, kind)
    flag = "true" if kind == "bf16" else "false"
    if arg.registers:
        # Of row m a lane has two columns of every eight: the others come from its neighbours.
        places = ", ".join(str(place_of_register(i, arg.columns)) for i in range(arg.columns // 2))
        return f"""static float weights_of_{arg.columns}_{arg.depth}[1024][{2 * arg.depth}];
inline_ void {name}({parameters}) {{
  const int me = threadIdx.x, lane = me % 32, places[] = {{{places}}};
  for (int i = 0; i < {2 * arg.depth}; ++i)
    weights_of_{arg.columns}_{arg.depth}[me][i] = i % 8 < 2 ? half_of_pair(a[i / 2], i % 2, {flag}) : 0.0f / 0.0f;
  __syncwarp();
  for (int i = 0; i < {arg.columns // 2}; ++i) {{
    const long half = i / 2 % 2, n = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    float sum = d[places[i]];
    for (long k = 0; k < {arg.depth}; ++k)
      sum += weights_of_{arg.columns}_{arg.depth}[me / 4 * 4 + k % 8 / 2][half * {arg.depth} + k / 8 * 8 + k % 2] *
             narrow_at(b, swizzled(k, n, {arg.depth}), {flag});
    d[places[i]] = sum;
  }}
  __syncwarp();
}}"""
    return f"""inline_ void {name}({parameters}) {{
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  for (int i = 0; i < {arg.columns // 2}; ++i) {{
    const long m = 16 * warp + lane / 4 + 8 * (i / 2 % 2), n = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    float sum = 0;
    for (long k = 0; k < {arg.depth}; ++k)
      sum += narrow_at(a, swizzled(m, k, {arg.rows}), {flag}) * narrow_at(b, swizzled(n, k, {arg.columns}), {flag});
    d[i] = sum;
  }}
}}"""


RING = r"""
inline_ void computed_until_here(float power) {}
struct Map { const char* memory; int itemsize, axes; long long sizes[5], strides[5], box[5], apart[5]; };
static long long ring_words[sizeof shared / 8][4];  // phase, arrivals and bytes that are left, all arrivals
inline_ long long* word_of(u64* word) { return ring_words[word - (u64*)shared]; }
inline_ void ring_begins(u64* ring, int buffers, int warps) {
  if (threadIdx.x) return;
  for (int i = 0; i < 2 * buffers; ++i) {
    const long long count = i % 2 ? 32 * warps : 1;  // here every lane says that it is done
    const long long fresh[4] = {0, count, 0, count};
    memcpy(word_of(ring + i), fresh, sizeof fresh);
  }
}
inline_ void step_of(long long* w) {
  if (w[1] || w[2]) return;
  w[0] ^= 1;
  w[1] = w[3];
}
inline_ void wait_for_phase(u64* word, u32 phase) {
  while (word_of(word)[0] == (long long)phase) yield_();
}
inline_ void buffer_expects(u64* word, u32 bytes) {
  long long* w = word_of(word);
  w[2] += bytes;
  --w[1];
  step_of(w);
}
inline_ void buffer_is_free(u64* word) {
  long long* w = word_of(word);
  --w[1];
  step_of(w);
}
inline_ void room_for_boxes_0() { __syncwarp(); }
inline_ void room_for_boxes_1() { __syncwarp(); }
inline_ void move_box(char* near, const Map& map, const long long* at, bool load) {
  long long total = 1, place[5] = {0};
  for (int i = 0; i < map.axes; ++i) total *= map.box[i];
  for (long long n = 0; n < total; ++n) {
    long long rest = n, offset = 0;
    bool inside = true;
    for (int i = 0; i < map.axes; ++i) {
      const long long c = at[i] + rest % map.box[i] * map.apart[i];
      rest /= map.box[i];
      inside = inside && c >= 0 && c < map.sizes[i];
      offset += c * map.strides[i];
    }
    const long long byte = n * map.itemsize, row = byte / 128;
    char* p = near + row * 128 + ((byte % 128 / 16) ^ (row % 8)) * 16 + byte % 16;
    char* q = (char*)map.memory + offset;
    if (load && inside) memcpy(p, q, map.itemsize);
    else if (load) memset(p, 0, map.itemsize);
    else if (inside) memcpy(q, p, map.itemsize);
  }
}
"""


QUEUE = """
static u32 blocks_taken;
inline_ int next_block(int blocks, int workgroups) {
  const u32 taken = blocks_taken++;
  if (taken == (u32)(blocks + workgroups) - 1) blocks_taken = 0;
  return (int)(taken < (u32)blocks ? taken : blocks);
}
inline_ void buffer_is_full(u64* word) {
  long long* w = word_of(word);
  --w[1];
  step_of(w);
}
"""


def boxes(axes: int) -> str:
    """What moves boxes with so many axes."""
    parameters = ", ".join(f"int c{i}" for i in range(axes))
    at = ", ".join(f"c{i}" for i in range(axes))
    return f"""inline_ void copy_box(void* to, const Map& map, u64* word, {parameters}) {{
  const long long at[] = {{{at}}};
  if ((u64)to % 1024) abort();
  move_box((char*)to, map, at, true);
  long long bytes = map.itemsize;
  for (int i = 0; i < map.axes; ++i) bytes *= map.box[i];
  word_of(word)[2] -= bytes;
  step_of(word_of(word));
}}
inline_ void store_box(const void* from, const Map& map, {parameters}) {{
  __syncwarp();
  const long long at[] = {{{at}}};
  if (threadIdx.x % 32 == 0) move_box((char*)from, map, at, false);
  __syncwarp();
}}"""


RUN = r"""
static void** arguments;
static long long* numbers;
static void lane() {
  KERNEL;
  finished[threadIdx.x] = true;
}
extern "C" int run(void** pointers, long long* words, u32 grid, u32 threads) {
  arguments = pointers;
  has_roles = ROLES;
  numbers = words;
  for (u32 block = 0; block < grid; ++block) {
    memset(shared, 0xff, sizeof shared);
    memset(warp_count, 0, sizeof warp_count);
    long long turns = 0;
    for (u32 i = 0; i < threads; ++i) {
      finished[i] = false;
      waited[i] = 0;
      getcontext(&fibers[i]);
      fibers[i].uc_stack.ss_sp = stacks[i];
      fibers[i].uc_stack.ss_size = sizeof stacks[i];
      fibers[i].uc_link = &scheduler;
      makecontext(&fibers[i], lane, 0);
    }
    for (bool going = true; going;) {
      for (u32 i = 0; i < threads; ++i) {
        if (finished[i]) continue;
        threadIdx.x = i;
        blockIdx.x = block;
        swapcontext(&scheduler, &fibers[i]);
      }
      going = false;
      for (u32 i = 0; i < threads; ++i) {
        // Lanes with a program of their own wait for no others, once they have begun.
        if (!ROLES && (finished[i] != finished[0] || waited[i] != waited[0])) return 1;
        going = going || !finished[i];
      }
      if (++turns > 1000000) return 2;
    }
  }
  return 0;
}
"""


def source(program: LinearProgram, target: Target = SM_90) -> str:
    """C++ of a kernel with what runs it."""
    pointers = [f"({storage_type(p.dtype)}*)arguments[{i}]" for i, p in enumerate(program.params)]
    numbers = [f"numbers[{i}]" for i in range(len(program.variables))]
    slots = [p.arg.slot for p in program.params]
    maps = [
        f"Map{{(const char*)arguments[{slots.index(b.slot)}], {b.dtype.itemsize}, {len(b.arg.sizes)}, "
        + ", ".join("{" + ", ".join(map(str, row)) + "}" for row in (
            b.arg.sizes, [s * b.dtype.itemsize for s in b.arg.strides], b.arg.box,
            b.arg.apart or (1,) * len(b.arg.box)))
        + "}"
        for b in cuda.boxes_of(program)
    ]  # fmt: skip
    call = f"{program.name}({', '.join(pointers + numbers + maps)})"
    run = RUN.replace("KERNEL", call).replace("ROLES", str(int(bool(maps))))
    return (
        cuda.render(
            program,
            target,
            cuda.Basics(BASICS, UnitText(UNITS, multiply, UNITS + WARPS, mma), RING, QUEUE, boxes, PAIRS, product),
        )
        + run
    )


@cache
def _library(text: str) -> Any:
    assert COMPILER is not None
    folder = Path(tempfile.gettempdir()) / f"gradlet-emulated-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    library = folder / "kernel.so"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        source, new = (folder / f"kernel-{os.getpid()}.{end}" for end in ("cc", "so"))  # others may compile it, too
        source.write_text(text)
        command = [COMPILER, "-O1", "-std=c++17", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run([*command, str(source), "-o", str(new)], check=True)
        new.replace(library)
    return ctypes.CDLL(str(library)).run


def run_program(
    program: LinearProgram, arrays: Sequence[np.ndarray], values: Sequence[int] = (), target: Target = SM_90
) -> None:
    """Run a kernel on arrays by slot; bfloat16 and floats of 8 bits as their bits."""
    pointers = (ctypes.c_void_p * max(1, len(arrays)))(*[a.ctypes.data for a in arrays])
    numbers = (ctypes.c_longlong * max(1, len(values)))(*values)
    wrong = _library(source(program, target))(pointers, numbers, program.grid, program.threads)
    assert wrong != 2, "lanes of a block wait forever"
    assert not wrong, "lanes of a block waited at different places"


def run(ast: UOp, arrays: Sequence[np.ndarray], values: Sequence[int] = ()) -> LinearProgram:
    """Compile a kernel for a GPU as the compiler does by default, and run it."""
    program = lower(ast, SM_90)
    run_program(program, arrays, values)
    return program


def memory(program: LinearProgram, slot: int) -> np.ndarray:
    """Memory for a slot, all bits set."""
    param = program.params[slot]
    kind = numeric.storage_type(param.dtype)
    return np.full(max(1, param.arg.size) * kind.itemsize, 0xFF, np.uint8).view(kind)


class EmulatedProgram:
    """A kernel of the device EMULATED."""

    def __init__(self, program: LinearProgram, target: Target) -> None:
        self.program, self.target = program, target

    def __call__(self, buffers: Sequence[Any], values: Sequence[int], wait: bool = False) -> float | None:
        arrays = [np.frombuffer(b.memory(), np.uint8) if b.nbytes else np.zeros(16, np.uint8) for b in buffers]
        run_program(self.program, arrays, values, self.target)
        return 0.0 if wait else None


class EmulatedBackend:
    """A GPU whose kernels run on the CPU, in host memory: the operator suite can run on it anywhere."""

    interprets = False
    measurable = False

    def __init__(self, name: str, target: Target) -> None:
        self.name, self.target = name, target
        self.allocator = HostAllocator(name)

    def render(self, program: Any) -> str:
        return cuda.render(program, self.target)

    def assemble(self, text: str, name: str) -> bytes:
        return text.encode()

    def compile(self, program: Any) -> bytes:
        return self.assemble(self.render(program), program.name)

    def load(self, name: str, code: bytes, program: Any) -> EmulatedProgram:
        return EmulatedProgram(program, self.target)


def register(target: Target = SM_90) -> str:
    """Have the device EMULATED, until `unregister`; its name. Targets beside the usual one are devices of their own."""
    name = "EMULATED" if target is SM_90 else f"EMULATED_{target.name.upper()}"
    BACKENDS.setdefault(name, "")
    Device._opened.setdefault(name, EmulatedBackend(name, target))
    return name


def unregister() -> None:
    """Be without the device again."""
    for name in [n for n in BACKENDS if n.startswith("EMULATED")]:
        BACKENDS.pop(name)
        Device._opened.pop(name, None)
