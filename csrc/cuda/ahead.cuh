// What kernels do before the ones ahead of them have ended.
#pragma once

#include "device.cuh"

namespace {

// Lets the next kernel on the stream start as soon as all blocks of this one have started: for
// grids whose blocks all run at once, which release_grid() does not know of.
__device__ inline void release_all() {
#if !defined(RR_EMULATE) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

constexpr int kLine = 128;  // bytes that a card's memory is fetched by

// Brings memory closer, by the threads of a block. It is a hint: what others write is seen all the
// same, and an address may be any.
__device__ inline void fetch_ahead(const void* data, int64_t bytes) {
#ifndef RR_EMULATE
  const char* at = static_cast<const char*>(data);
  for (int64_t i = int64_t{threadIdx.x} * kLine; i < bytes; i += int64_t{blockDim.x} * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at + i));
#else
  (void)data;
  (void)bytes;
#endif
}

}  // namespace
