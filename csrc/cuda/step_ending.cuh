// The row that the next launch multiplies, made by whichever block of this one comes last with the
// products that 256 values of it are made of. No launch of its own stands between two products
// then, and no block waits for another.
#pragma once

#include "counters.cuh"
#include "fused_inputs.cuh"
#include "step_products.hpp"

namespace {

using riverrun::StepEnding;

// Counts the products of rows first to first + rows - 1 of a weight, which the block has stored and
// met at a barrier after, and makes what nothing is missing for any more. complete, scratch:
// shared. Static shared memory would move the dynamic one to addresses that bulk copies are slow
// at.
__device__ inline void end_step_products(const StepEnding& ending, int first, int rows,
                                         unsigned* complete, RowScratch& scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int base = first / kStepBlock; base * kStepBlock < first + rows; base += kWarp) {
    if (warp == 0) {
      const int begin = (base + lane) * kStepBlock;
      const int own = min(first + rows, begin + kStepBlock) - max(first, begin);
      const bool last = own > 0 && arrives_last(ending.counters + base + lane, kStepBlock,
                                                static_cast<unsigned>(own));
      const unsigned mask = __ballot_sync(kAllLanes, last);
      if (lane == 0) *complete = mask;
    }
    __syncthreads();
    for (unsigned left = *complete; left != 0; left &= left - 1) {
      write_norm_block({ending.x_row, ending.delta, ending.sum, ending.weight},
                       {ending.x, 1, ending.blocks}, 0, base + __ffs(static_cast<int>(left)) - 1,
                       scratch);
      __syncthreads();
    }
    __syncthreads();
  }
}

}  // namespace
