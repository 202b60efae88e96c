// Which of several blocks, or warps of them, comes last: without any of them waiting for another.
#pragma once

#include "counters.hpp"
#include "kernel.cuh"

namespace {

using riverrun::kCounters;

[[maybe_unused]] inline unsigned* counters(const rr_exec* exec) {
  return static_cast<const riverrun::CountingExec*>(static_cast<riverrun::CudaExec*>(exec->impl))
      ->counters;
}

// Orders what the calling thread, and threads that it met at a barrier, read and wrote before.
__device__ inline void order_memory() {
#ifdef RR_EMULATE
  __threadfence();
#else
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// Counts the calling thread, as `own` of `all`. True for the last, which sees what the others wrote
// before they were counted, and may overwrite what they read before; it leaves the counter as it
// was.
__device__ inline bool arrives_last(unsigned* counter, unsigned all, unsigned own = 1) {
  order_memory();
  const bool last = atomicAdd(counter, own) + own == all;
  if (last) *counter = 0;
  order_memory();
  return last;
}

// Counts the calling thread among those that have read what the last of them overwrites; returns
// how many were before it. What was read has been used: loads that are over need no fence, and the
// number need not be waited for before it is asked for.
__device__ inline unsigned count_reader(unsigned* counter) {
#ifdef RR_EMULATE
  return atomicAdd(counter, 1u);
#else
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
#endif
}

}  // namespace
