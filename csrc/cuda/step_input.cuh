// A single row of x that each block of the step products makes for itself, in shared memory.
#pragma once

#include "fused_inputs.cuh"
#include "step_products.hpp"

namespace {

using riverrun::StepInput;
using riverrun::StepMakes;

__device__ inline HeadRow head_row(const riverrun::StepRow& row) {
  return {row.data, row.pitch, row.width};
}

// All threads of a block of so many warps. Waits for the kernels before. Calls: what is done once
// stays out of the way of the instructions of products.
template <int warps>
__noinline__ __device__ void make_step_norm(const StepInput& in, int blocks, unsigned char* own) {
  constexpr int kMost = (6144 / kStepBlock + warps - 1) / warps;
  __shared__ NormSums sums;
  float weight[kMost][8];
  if (in.constant) load_blocks<warps, kMost>(in.weight, blocks, weight);
  await_grid();
  if (!in.constant) load_blocks<warps, kMost>(in.weight, blocks, weight);
  const StepLayout layout = StepLayout::of(1);
  const NormRow row = {reinterpret_cast<const float*>(in.first.data),
                       reinterpret_cast<const float*>(in.second.data),
                       blockIdx.x == 0 ? in.sum : nullptr,
                       blocks,
                       {int64_t{blocks} * kStepBlock, in.eps}};
  write_norm_row<warps, kMost>(row, weight, sums, [&](int64_t block, const float(&v)[8]) {
    write_step_record(own + block * layout.record, layout, 0, v);
  });
}

template <int warps>
__noinline__ __device__ void make_step_row(const StepInput& in, int blocks, unsigned char* own) {
  if (in.makes == StepMakes::kNorm) return make_step_norm<warps>(in, blocks, own);
  await_grid();
  const StepLayout layout = StepLayout::of(1);
  const HeadRow first = head_row(in.first), second = head_row(in.second);
  for (int block = threadIdx.x / kWarp; block < blocks; block += warps) {
    float v[8];
    if (in.makes == StepMakes::kGlu)
      glu_block(static_cast<Act>(in.act), first, second, block, v);
    else if (in.makes == StepMakes::kGatedNorm)
      gated_norm_block(first, second, in.weight, in.eps, block, v);
    else
      load_eight(first.at(block * kStepBlock + threadIdx.x % kWarp * 8), v);
    write_step_record(own + block * layout.record, layout, 0, v);
  }
}

}  // namespace
