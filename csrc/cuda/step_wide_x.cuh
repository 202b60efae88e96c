// More than 16 rows of x as warpgroups take them in the step products (step_wide.cuh).
//
// 32 rows make a group; 256 values of it are a record that one copy brings to shared memory. Of
// each 128 values, a slab, a column has 128 bytes: columns 2i and 2i + 1 are the lower and the
// upper bytes of row i (step_x.cuh). Pieces of 16 bytes are exchanged as wgmma.cuh has it. Behind
// them lie for each row the sums over sub-blocks of 32 as two halves each, and the rows' powers of
// two, every fourth row's together. Rows that the last group lacks hold anything.
#pragma once

#include "half_pairs.cuh"

namespace {

constexpr int kStepBlock = 256;

struct WideRecord {
  static constexpr int rows = 32, columns = 2 * rows;
  static constexpr int slab = 128 * columns, sums = 2 * slab, scales = sums + 32 * rows;
  static constexpr int bytes = scales + 4 * rows;

  // n: rows in all.
  __host__ __device__ static constexpr bool serves(int64_t n) { return n > 16; }
  __host__ __device__ static constexpr int64_t all_bytes(int64_t n, int64_t blocks) {
    return (n + rows - 1) / rows * blocks * bytes;
  }
};

// An integer of up to 8192 as a lower byte from -64 to 63 and an upper one of units of 128.
struct TwoBytes {
  int low, high;

  __device__ explicit TwoBytes(int value)
      : low(((value + 64) & 127) - 64), high((value - low) >> 7) {}
};

// Of row `row`, value threadIdx.x of those from 256 `block` on, and both halves of the sum of the
// warp's sub-block.
__device__ inline void write_wide_step_x(unsigned char* x, int64_t blocks, int64_t row,
                                         int64_t block, const TwoBytes& bytes, ushort2 sum,
                                         float scale) {
  using Record = WideRecord;
  const unsigned lane = threadIdx.x % kWarp, sub = threadIdx.x / kWarp;
  const unsigned i = static_cast<unsigned>(row) % Record::rows, piece = sub % 4 * 2 + lane / 16;
  unsigned char* record = x + (row / Record::rows * blocks + block) * Record::bytes;
  unsigned char* slab = record + sub / 4 * Record::slab + lane % 16;
  slab[2 * i * 128 + (piece ^ 2 * i % 8) * 16] = static_cast<unsigned char>(bytes.low);
  slab[(2 * i + 1) * 128 + (piece ^ (2 * i + 1) % 8) * 16] = static_cast<unsigned char>(bytes.high);
  if (lane == 0) {
    auto* sums = reinterpret_cast<uint16_t*>(record + Record::sums + i * 32 + sub / 2 * 8);
    sums[sub % 2] = sum.x;
    sums[2 + sub % 2] = sum.y;
  }
  if (threadIdx.x == 0)
    reinterpret_cast<float*>(record + Record::scales)[i % 4 * (Record::rows / 4) + i / 4] = scale;
}

}  // namespace
