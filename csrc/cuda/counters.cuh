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

// Counts the calling thread. True for the last of `all`, which sees what the others wrote before
// they were counted, and may overwrite what they read before; it leaves the counter as it was.
__device__ inline bool arrives_last(unsigned* counter, unsigned all) {
  __threadfence();
  const bool last = atomicAdd(counter, 1u) + 1 == all;
  if (last) atomicExch(counter, 0u);
  __threadfence();
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
