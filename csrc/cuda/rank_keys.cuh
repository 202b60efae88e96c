// Elements as integers that compare as argmax, top_k and argsort want it: by value, and of equals
// the first. All keys of a row differ, so that no order of work can change a result. For argmax and
// argsort NaN counts as minus infinity; top_k takes it first.
#pragma once

#include "rows.cuh"

namespace {

constexpr uint32_t kNanLast = 0x007fffffu, kNanFirst = 0xffffffffu;  // the first is minus infinity

// Floats in the order of these integers; both zeros are equal. nan: what stands for NaN.
__device__ inline uint32_t ordered_bits(float value, uint32_t nan) {
  if (!(value == value)) return nan;
  if (value == 0.0f) value = 0.0f;
  const uint32_t bits = __float_as_uint(value);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// Larger means earlier: larger values, or smaller ones with all bits in `flip`; then the lower
// index. Never 0.
__device__ inline uint64_t rank_key(float value, int64_t index, uint32_t flip,
                                    uint32_t nan = kNanLast) {
  const uint64_t bits = ordered_bits(value, nan) ^ flip;
  return bits << 32 | static_cast<uint32_t>(~index);
}

__device__ inline int32_t key_index(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

__device__ inline uint64_t warp_most(uint64_t key) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    key = max(key, __shfl_xor_sync(kAllLanes, key, step));
  return key;
}

// The largest key of a group, in each of its threads.
template <int group>
__device__ inline uint64_t group_most(uint64_t key) {
  __shared__ uint64_t scratch[group / kWarp];
  key = warp_most(key);
  if (group == kWarp) return key;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = key;
  __syncthreads();
  for (int i = 0; i < group / kWarp; ++i) key = max(key, scratch[i]);
  __syncthreads();
  return key;
}

}  // namespace
