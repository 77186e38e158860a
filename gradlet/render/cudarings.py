"""Functions in CUDA C that move boxes of memory through rings of buffers, and the names of a ring's variables."""

from __future__ import annotations

from typing import Final

from gradlet.graph.node import UOp

# Boxes of memory, brought by the copy engine into the buffers of a ring. `ring` is two words a buffer: the first counts
# what arrives, the second the warps that are done with it. A phase is 0 and 1 in turns.
RING_BASICS: Final = """
struct alignas(64) Map { u64 words[16]; };
inline_ u32 near_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
inline_ void ring_begins(u64* ring, int buffers, int warps) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < buffers; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(near_address(ring + 2 * i)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                   ::"r"(near_address(ring + 2 * i + 1)), "r"(warps) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
}
inline_ void wait_for_phase(u64* word, u32 phase) {
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(near_address(word)), "r"(phase) : "memory");
  } while (!done);
}
inline_ void buffer_expects(u64* word, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               ::"r"(near_address(word)), "r"(bytes) : "memory");
}
inline_ void buffer_is_free(u64* word) {
  if (threadIdx.x % 32 == 0)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(near_address(word)) : "memory");
}
inline_ void room_for_boxes_0() {
  if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  __syncwarp();
}
inline_ void room_for_boxes_1() {
  if (threadIdx.x % 32 == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
  __syncwarp();
}
inline_ void warp_has_gathered() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
}
// What is written before stays before what is written behind, where a wait for matrix units would be moved ahead of it:
// a branch that is never taken, as a power of two is not negative, but nobody knows.
inline_ void computed_until_here(float power) {
  if (power < 0.0f) asm volatile("nanosleep.u32 1;");
}
"""

# Blocks are taken one after another by all workgroups. Launches of a kernel run one after another: the last to ask,
# once all know that none is left, leaves the counter as it was.
QUEUE: Final = """
static __device__ u32 blocks_taken;
inline_ int next_block(int blocks, int workgroups) {
  const u32 taken = atomicAdd(&blocks_taken, 1u);
  if (taken == (u32)(blocks + workgroups) - 1) blocks_taken = 0;
  return (int)min(taken, (u32)blocks);
}
inline_ void buffer_is_full(u64* word) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(near_address(word)) : "memory");
}
"""


def box_functions(axes: int) -> str:
    """What moves boxes with so many axes, in CUDA."""
    parameters = ", ".join(f"int c{i}" for i in range(axes))
    at = ", ".join(f"%{i + 2}" for i in range(axes))
    given = ", ".join(f'"r"(c{i})' for i in range(axes))
    return f"""inline_ void copy_box(void* to, const Map& map, u64* word, {parameters}) {{
  asm volatile("cp.async.bulk.tensor.{axes}d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {{{at}}}], "
    "[%{axes + 2}];" ::"r"(near_address(to)), "l"(&map), {given}, "r"(near_address(word)) : "memory");
}}
inline_ void store_box(const void* from, const Map& map, {parameters}) {{
  warp_has_gathered();
  if (threadIdx.x % 32 == 0) {{
    asm volatile("cp.async.bulk.tensor.{axes}d.global.shared::cta.bulk_group [%1, {{{at}}}], [%0];"
      ::"r"(near_address(from)), "l"(&map), {given} : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }}
}}"""


def ring_name(ring: UOp) -> str:
    """The variable with the words of a ring."""
    return f"ring{ring.arg.number or ''}"


def ring_position(ring: UOp) -> tuple[str, str]:
    """The variables of a role: the next buffer of a ring, and its phase."""
    number = ring.arg.number or ""
    return f"slot{number}", f"phase{number}"
