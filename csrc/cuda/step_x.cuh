// Rows of x as the step products take them: integers of 14 bits with one power of two for each 256
// values, as an upper and a lower byte each, in the order of operands of tensor cores.
//
// Four rows make a group, fewer rows in all a group of as many; 256 values of it are a record:
// columns 2i and 2i + 1 of a product are the lower and the upper bytes of row i. For each 64 values
// and each column, lane t of four has 16 bytes: values 16s + 4t to 16s + 4t + 3 for s = 0 to 3.
// Behind all of them lie, for each row, the sums over sub-blocks of 32 as two halves each, and the
// rows' powers of two. Rows that the last group lacks hold anything.
#pragma once

#include "rows.cuh"
#include "step_wide_x.cuh"

namespace {

constexpr int kStepRows = 4;
constexpr int64_t kMostStepX = UINT32_MAX;  // bytes of rows: places in them are 32 bits
constexpr float kStepSumUnit = 16.0f;       // of sums as halves

// A record of groups of so many rows: bytes of 64 values, and where what is behind them lies.
struct StepRecord {
  int quarter, sums, scales, bytes;

  // n: rows in all.
  __host__ __device__ static constexpr StepRecord of(int64_t n) {
    const int rows = static_cast<int>(n < kStepRows ? n : kStepRows);
    return {128 * rows, 512 * rows, 544 * rows, 544 * rows + 16};
  }
};

// Bytes of n rows of k values, a multiple of 256, as records of four.
[[maybe_unused]] __host__ __device__ constexpr int64_t step_records_bytes(int64_t n, int64_t k) {
  return (n + kStepRows - 1) / kStepRows * (k / kStepBlock) * StepRecord::of(n).bytes;
}

// Where rows lie a second time as warpgroups take them, if they are more than 16.
[[maybe_unused]] __host__ __device__ constexpr int64_t wide_step_x(int64_t n, int64_t k) {
  return (step_records_bytes(n, k) + 127) / 128 * 128;
}

// Bytes of n rows of k values, a multiple of 256.
[[maybe_unused]] __host__ __device__ constexpr int64_t step_x_bytes(int64_t n, int64_t k) {
  if (!WideRecord::serves(n)) return step_records_bytes(n, k);
  return wide_step_x(n, k) + WideRecord::all_bytes(n, k / kStepBlock);
}

// Of sums of squares of each row's blocks, doubles: they lie behind rows that are to be normalised.
// A multiple of 16, as bulk copies have it.
[[maybe_unused]] constexpr int64_t step_squares_bytes(int64_t n, int64_t k) {
  return (n * (k / kStepBlock) + 1) / 2 * 16;
}

// Rows of k / 256 = `blocks`, and where they go.
struct StepRows {
  unsigned char* x;
  int64_t rows, blocks;

  __device__ double* squares(int64_t row) const {
    return reinterpret_cast<double*>(x + step_x_bytes(rows, blocks * kStepBlock)) + row * blocks;
  }
};

// Row `row`, values 256 `block` to 256 block + 255, of which lane l of a warp has eight from 8l on.
// All lanes of the warp come here. A NaN or an infinity makes the scale NaN, and with it every
// product of the row.
__device__ inline void write_step_x(const StepRows& to, int64_t row, int64_t block,
                                    const float (&v)[8]) {
  const int lane = threadIdx.x % kWarp, i = static_cast<int>(row % kStepRows);
  int most = 0;
#pragma unroll
  for (float value : v) most = max(most, __float_as_int(value) & 0x7fffffff);
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2)
    most = max(most, __shfl_xor_sync(kAllLanes, most, step));
  const bool finite = most < 0x7f800000;
  const int exponent = finite ? max(most >> 23, 20) - 127 - 12 : 0;
  const float scale = __int_as_float((127 + exponent) << 23);
  const float inverse = __int_as_float((127 - exponent) << 23);
  TwoBytes words[2];
  int sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int value = finite ? __float2int_rn(v[k] * inverse) : 0;
    words[k / 4].set(k % 4, value);
    sum += value;
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);

  const StepRecord of = StepRecord::of(to.rows);
  unsigned char* record = to.x + (row / kStepRows * to.blocks + block) * of.bytes;
  unsigned char* at =
      record + lane / 8 * of.quarter + 2 * i * 64 + lane % 2 * 32 + lane % 8 / 2 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<unsigned*>(at + 16 * half) = words[half].low;
    *reinterpret_cast<unsigned*>(at + 16 * half + 64) = words[half].high;
  }
  // Both halves together are exact: 18 bits.
  const float units = static_cast<float>(sum) / kStepSumUnit;
  const uint16_t upper = float_to_half(units);
  if (WideRecord::serves(to.rows))
    write_wide_step_x(to.x + wide_step_x(to.rows, to.blocks * kStepBlock), to.blocks, row, block,
                      words, {upper, float_to_half(units - half_to_float(upper))},
                      finite ? scale : NAN);
  if (lane % 4 == 0) {
    auto* sums = reinterpret_cast<uint16_t*>(record + of.sums + i * 32 + lane / 8 * 8);
    sums[lane / 4 % 2] = upper;
    sums[2 + lane / 4 % 2] = float_to_half(units - half_to_float(upper));
  }
  if (lane == 0) *reinterpret_cast<float*>(record + of.scales + i * 4) = finite ? scale : NAN;
}

constexpr int kStepXThreads = 256;

// Grid: a warp for each 256 values of each row.
__global__ void __launch_bounds__(kStepXThreads) prepare_step_x(Rows x, StepRows to) {
  enter_grid();
  const int64_t at = int64_t{blockIdx.x} * (kStepXThreads / kWarp) + threadIdx.x / kWarp;
  if (at >= to.rows * to.blocks) return;
  const int64_t row = at / to.blocks, block = at - row * to.blocks;
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
  write_step_x(to, row, block, v);
}

}  // namespace
