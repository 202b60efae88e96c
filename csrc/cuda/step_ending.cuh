// The row that the next launch multiplies, made by whichever block of this one comes last with the
// products that 256 values of it are made of. No launch of its own stands between two products
// then, and no block waits for another.
#pragma once

#include "counters.cuh"
#include "fused_inputs.cuh"
#include "step_products.hpp"

namespace {

using riverrun::StepEnding;

// 256 values of the row, by a warp.
__device__ inline void make_step_block(const StepEnding& ending, int64_t block) {
  const StepRows out = {ending.x, 1, ending.blocks};
  if (ending.kind == StepEnding::kAddNorm)
    return write_norm_block({ending.first, ending.second, ending.sum, ending.weight}, out, 0,
                            block);
  const auto row = [](const float* values) {
    return HeadRow{reinterpret_cast<const char*>(values), 0, INT32_MAX};
  };
  float v[8];
  glu_block(static_cast<Act>(ending.act), row(ending.first), row(ending.second), block, v);
  write_step_x(out, 0, block, v);
}

// Counts the products of rows first to first + rows - 1 of a weight, which the block has stored and
// met at a barrier after, and makes what nothing is missing for any more. complete: shared. Static
// shared memory would move the dynamic one to addresses that bulk copies are slow at.
__device__ inline void end_step_products(const StepEnding& ending, int first, int rows,
                                         unsigned* complete) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int base = first / kStepBlock; base * kStepBlock < first + rows; base += kWarp) {
    if (warp == 0) {
      const int begin = (base + lane) * kStepBlock;
      const int own = min(first + rows, begin + kStepBlock) - max(first, begin);
      const bool last = own > 0 && arrives_last(ending.counters + base + lane, ending.arrivals,
                                                static_cast<unsigned>(own));
      const unsigned mask = __ballot_sync(kAllLanes, last);
      if (lane == 0) *complete = mask;
    }
    __syncthreads();
    const unsigned own = *complete;
    for (int block = warp; block < kWarp; block += static_cast<int>(blockDim.x / kWarp))
      if (own >> block & 1) make_step_block(ending, base + block);
    __syncthreads();
  }
}

}  // namespace
