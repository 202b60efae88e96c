// Bulk copies from global to shared memory in the background, which complete on barriers there (PTX
// ISA: cp.async.bulk, mbarrier). Cards before compute capability 9.0 have neither and trap.
#pragma once

#include "device.cuh"

#ifdef RR_EMULATE
#include "warpgroup.hpp"
#endif

namespace {

#ifdef RR_EMULATE

using emulate::barrier_arrive;
using emulate::barrier_expect;
using emulate::barrier_init;
using emulate::barrier_wait;
using emulate::bulk_copy;

__device__ inline void barriers_made() {}

__device__ inline void bulk_copy_once(void* to, const void* from, unsigned bytes,
                                      uint64_t* barrier) {
  bulk_copy(to, from, bytes, barrier);
}

#else

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define RR_SINCE_90(...) asm volatile(__VA_ARGS__)
#else
#define RR_SINCE_90(...) __trap()
#endif

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// A barrier is 8 bytes of shared memory; a phase of it ends when `count` arrivals have come, and
// the bytes that were expected.
__device__ inline void barrier_init(uint64_t* barrier, unsigned count) {
  RR_SINCE_90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
              : "memory");
}

// By the thread that made them, before the block's next __syncthreads.
__device__ inline void barriers_made() {
  RR_SINCE_90("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint64_t* barrier) {
  RR_SINCE_90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and lets the phase wait for so many bytes.
__device__ inline void barrier_expect(uint64_t* barrier, unsigned bytes) {
  RR_SINCE_90(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Waits until the phase of this parity has ended: the first has parity 0, and the one before it
// counts as ended.
__device__ inline void barrier_wait(uint64_t* barrier, int parity) {
  RR_SINCE_90(
      "{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; "
      "bra AGAIN; DONE: }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Bytes, a multiple of 16 at addresses that are, from global to shared memory; the barrier counts
// them.
__device__ inline void bulk_copy(void* to, const void* from, unsigned bytes, uint64_t* barrier) {
  RR_SINCE_90(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The same of what is read once: in the L2 cache it gives way before anything else does.
__device__ inline void bulk_copy_once(void* to, const void* from, unsigned bytes,
                                      uint64_t* barrier) {
  RR_SINCE_90(
      "{\n\t.reg .b64 once;\n\t"
      "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n\t"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], once;\n\t}" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

#endif

}  // namespace
