// The prologue of step products: a block makes the row of x that it multiplies, as the kernels of
// fused inputs do, with the same bits.
#pragma once

#include "fused_inputs.cuh"
#include "step_prologue.hpp"

namespace {

// Brings what no kernel writes closer: before await_grid().
template <int warps>
__device__ inline void begin_own_x(const riverrun::StepPrologue& p, int64_t blocks) {
#if !defined(RR_EMULATE) && __CUDA_ARCH__ >= 800
  if (p.makes != riverrun::StepMakes::kNorm) return;
  for (int64_t at = threadIdx.x * 32; at < blocks * kStepBlock; at += warps * kWarp * 32)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.weight + at));
#endif
}

// Row 0 of x, of so many blocks of 256 values, up to kMostOwnBlocks, by all threads of a block,
// which then have to meet. shared: sizeof(NormSums) bytes, 8-byte aligned.
template <int warps>
__device__ inline void make_own_x(const riverrun::StepPrologue& p, int64_t blocks, unsigned char* x,
                                  void* shared) {
  using riverrun::StepMakes;
  constexpr int kMost = (riverrun::kMostOwnBlocks + warps - 1) / warps;
  if (p.makes == StepMakes::kNorm) {
    float weight[kMost][8];
    load_blocks<warps, kMost>(p.weight, blocks, weight);
    const NormRow row = {
        p.first, p.second, blockIdx.x == 0 ? p.sum : nullptr, blocks, {blocks * kStepBlock, p.eps}};
    write_norm_row<warps, kMost>(row, weight, x, 0, *static_cast<NormSums*>(shared));
    return;
  }
  const HeadRow first = {reinterpret_cast<const char*>(p.first), p.first_pitch, p.first_width};
  const HeadRow second = {reinterpret_cast<const char*>(p.second), p.second_pitch, p.second_width};
  const Act act = p.makes == StepMakes::kSilu   ? Act::kSilu
                  : p.makes == StepMakes::kGelu ? Act::kGelu
                                                : Act::kSigmoid;
  float v[kMost][8];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int64_t block = threadIdx.x / kWarp + i * warps;
    if (block >= blocks) break;
    if (p.makes == StepMakes::kGatedNorm)
      gated_norm_block(first, second, p.weight, p.eps, block, v[i]);
    else
      glu_block(act, first, second, block, v[i]);
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int64_t block = threadIdx.x / kWarp + i * warps;
    if (block < blocks) write_step_x(x, blocks, 0, block, v[i]);
  }
}

}  // namespace
