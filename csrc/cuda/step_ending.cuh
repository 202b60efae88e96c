// The rows that the next launch multiplies, made by whichever block of this one comes last with the
// products that 256 values of them are made of. No launch of its own stands between two products
// then, and no block waits for another.
#pragma once

#include "counters.cuh"
#include "fused_inputs.cuh"
#include "step_products.hpp"

namespace {

using riverrun::StepEnding;

// 256 values of a row, by a warp.
__device__ inline void make_step_block(const StepEnding& ending, const StepRows& out, int64_t row,
                                       int64_t block) {
  const char *first = ending.first + row * ending.first_row,
             *second = ending.second + row * ending.second_row;
  if (ending.kind == StepEnding::kAddNorm) {
    const int64_t width = out.blocks * kStepBlock;
    write_norm_block({reinterpret_cast<const float*>(first), reinterpret_cast<const float*>(second),
                      ending.sum + row * width, ending.weight},
                     out, row, block);
    return;
  }
  float v[8];
  glu_block(static_cast<Act>(ending.act), {first, 0, INT32_MAX}, {second, 0, INT32_MAX}, block, v);
  write_step_x(out, row, block, v);
}

// Counts the products of rows first to first + rows - 1 of a weight with n rows of x, which the
// block has stored and met at a barrier after, and makes what nothing is missing for any more.
// complete: shared. Static shared memory would move the dynamic one to addresses that bulk copies
// are slow at.
__device__ inline void end_step_products(const StepEnding& ending, int n, int first, int rows,
                                         unsigned* complete) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const StepRows out = {ending.x, n, ending.blocks};
  for (int base = first / kStepBlock; base * kStepBlock < first + rows; base += kWarp) {
    if (warp == 0) {
      const int begin = (base + lane) * kStepBlock;
      const int own = min(first + rows, begin + kStepBlock) - max(first, begin);
      const bool last =
          own > 0 && arrives_last(ending.counters + base + lane, ending.arrivals * gridDim.y,
                                  static_cast<unsigned>(own));
      const unsigned mask = __ballot_sync(kAllLanes, last);
      if (lane == 0) *complete = mask;
    }
    __syncthreads();
    int number = 0;
    for (unsigned left = *complete; left != 0; left &= left - 1)
      for (int row = 0; row < n; ++row)
        if (number++ % static_cast<int>(blockDim.x / kWarp) == warp)
          make_step_block(ending, out, row, base + __ffs(static_cast<int>(left)) - 1);
    __syncthreads();
  }
}

}  // namespace
