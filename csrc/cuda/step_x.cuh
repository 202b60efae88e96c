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

// A block of threads makes 256 values of a row, a thread one: with little code, as that comes from
// memory, too, and every instruction of a launch this short waits for the one before.
constexpr int kRowOfThreads = kStepBlock, kSubBlocks = kStepBlock / kWarp;

// Shared memory of such a block, a place for each sub-block of 32 values, which a warp has.
struct __align__(16) RowScratch {
  unsigned most[kSubBlocks];
  float squares[kSubBlocks];
};

// Value threadIdx.x of those from 256 `block` on of row `row`. All threads of the block come here,
// and meet once. A NaN or an infinity makes the scale NaN, and with it every product of the row.
__device__ inline void write_step_x(const StepRows& to, int64_t row, int64_t block, float v,
                                    RowScratch& scratch) {
  const unsigned lane = threadIdx.x % kWarp, sub = threadIdx.x / kWarp;
  const unsigned i = static_cast<unsigned>(row) % kStepRows;
  unsigned most = __reduce_max_sync(kAllLanes, __float_as_uint(v) & 0x7fffffffu);
  if (lane == 0) scratch.most[sub] = most;
  __syncthreads();
#pragma unroll
  for (unsigned other : scratch.most) most = max(most, other);
  const bool finite = most < 0x7f800000u;
  const int exponent = finite ? static_cast<int>(max(most >> 23, 20u)) - 127 - 12 : 0;
  const float scale = finite ? __int_as_float((127 + exponent) << 23) : NAN;
  const int value = finite ? __float2int_rn(v * __int_as_float((127 - exponent) << 23)) : 0;
  const TwoBytes bytes(value);
  const StepRecord of = StepRecord::of(to.rows);
  unsigned char* record = to.x + (row / kStepRows * to.blocks + block) * of.bytes;
  unsigned char* at = record + sub / 2 * of.quarter + 2 * i * 64 + lane % 16 / 4 * 16 +
                      (sub % 2 * 2 + lane / 16) * 4 + lane % 4;
  at[0] = static_cast<unsigned char>(bytes.low);
  at[64] = static_cast<unsigned char>(bytes.high);
  // Both halves of a sum together are exact: 18 bits.
  const float units = static_cast<float>(__reduce_add_sync(kAllLanes, value)) / kStepSumUnit;
  const uint16_t upper = float_to_half(units);
  const ushort2 sum = {upper, float_to_half(units - half_to_float(upper))};
  if (lane == 0) {
    auto* sums = reinterpret_cast<uint16_t*>(record + of.sums + i * 32 + sub / 2 * 8);
    sums[sub % 2] = sum.x;
    sums[2 + sub % 2] = sum.y;
  }
  if (threadIdx.x == 0) *reinterpret_cast<float*>(record + of.scales + i * 4) = scale;
  if (WideRecord::serves(to.rows))
    write_wide_step_x(to.x + wide_step_x(to.rows, to.blocks * kStepBlock), to.blocks, row, block,
                      bytes, sum, scale);
}

// A block of threads for each 256 values of each row.
[[maybe_unused]] inline dim3 block_grid(const StepRows& of) {
  return dim3(static_cast<unsigned>(of.rows), static_cast<unsigned>(of.blocks));
}

// Grid: block_grid.
__global__ void __launch_bounds__(kRowOfThreads) prepare_step_x(Rows x, StepRows to) {
  __shared__ RowScratch scratch;
  const float* from = row_at<const float>(x, blockIdx.x) + blockIdx.y * kStepBlock;
  enter_grid();
  write_step_x(to, blockIdx.x, blockIdx.y, from[threadIdx.x], scratch);
}

}  // namespace
