// Rows of x as the step products take them: f16 with one power of two for each 256 values, in the
// order of fragments.cuh.
//
// Eight rows make a group, 256 values of it a record of 16 bytes a lane for each two steps, lane
// 4g + t having row g. In the ninth place lane 4g + t has the sums over sub-blocks 2t and 2t + 1 of
// row g, upper and lower parts in f16, and the scales of rows 2t and 2t + 1. Rows that a group
// lacks hold anything.
#pragma once

#include "half_pairs.cuh"
#include "rows.cuh"

namespace {

constexpr int kStepBlock = 256, kStepRows = 8;
constexpr int kStepSums = kStepRows * kStepBlock * 2, kStepRecord = kStepSums + kWarp * 16;

// Bytes of n rows of k values, a multiple of 256.
[[maybe_unused]] constexpr int64_t step_x_bytes(int64_t n, int64_t k) {
  return (n + kStepRows - 1) / kStepRows * (k / kStepBlock) * kStepRecord;
}

// Row `row` of k / 256 = `blocks`, values 256 `block` to 256 block + 255, of which lane l of a warp
// has eight from 8l on. All lanes of the warp come here. A NaN or an infinity makes the scale NaN,
// and with it every product of the row.
__device__ inline void write_step_x(unsigned char* x, int64_t blocks, int64_t row, int64_t block,
                                    const float (&v)[8]) {
  const int lane = threadIdx.x % kWarp, t = lane / 8, h = lane / 4 % 2, g = row % kStepRows;
  int most = 0;
#pragma unroll
  for (float value : v) most = max(most, __float_as_int(value) & 0x7fffffff);
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2)
    most = max(most, __shfl_xor_sync(kAllLanes, most, step));
  // The largest comes to 512 or more, below 1024: 32 of them have a sum in f16.
  const bool finite = most < 0x7f800000;
  const int exponent = finite ? max(most >> 23, 20) - 127 - 9 : 0;
  const float scale = __int_as_float((127 + exponent) << 23);
  const float inverse = __int_as_float((127 - exponent) << 23);
  unsigned pairs[4];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float scaled[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint16_t half = float_to_half(finite ? v[i + k] * inverse : 0.0f);
      scaled[k] = half_to_float(half);
      sum += scaled[k];
    }
    pairs[i / 2] = pack_f16(scaled[0], scaled[2]);
    pairs[i / 2 + 1] = pack_f16(scaled[1], scaled[3]);
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);

  unsigned char* record = x + (row / kStepRows * blocks + block) * kStepRecord;
  unsigned char* at = record + lane % 4 * 1024 + g * 64 + t * 16 + h * 8;
  *reinterpret_cast<uint2*>(at) = make_uint2(pairs[0], pairs[1]);
  *reinterpret_cast<uint2*>(at + 512) = make_uint2(pairs[2], pairs[3]);
  if (lane % 4 == 0) {
    const uint16_t upper = float_to_half(sum);
    auto* sums = reinterpret_cast<uint16_t*>(record + kStepSums + g * 64 + t * 16);
    sums[h] = upper;
    sums[2 + h] = float_to_half(sum - half_to_float(upper));
  }
  if (lane < kStepRows)
    *reinterpret_cast<float*>(record + kStepSums + lane * 64 + g / 2 * 16 + 8 + g % 2 * 4) =
        finite ? scale : NAN;
}

constexpr int kStepXThreads = 256;

// Grid: a warp for each 256 values of each row.
__global__ void __launch_bounds__(kStepXThreads)
    prepare_step_x(Rows x, int64_t rows, int64_t blocks, unsigned char* out) {
  enter_grid();
  const int64_t at = int64_t{blockIdx.x} * (kStepXThreads / kWarp) + threadIdx.x / kWarp;
  if (at >= rows * blocks) return;
  const int64_t row = at / blocks, block = at - row * blocks;
  const float* from = row_at<const float>(x, row) + block * kStepBlock + threadIdx.x % kWarp * 8;
  float v[8];
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    const float4 a = *reinterpret_cast<const float4*>(from);
    const float4 b = *reinterpret_cast<const float4*>(from + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = from[i];
  }
  write_step_x(out, blocks, row, block, v);
}

}  // namespace
