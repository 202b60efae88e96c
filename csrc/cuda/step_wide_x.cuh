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

// Four integers of up to 8192 as lower bytes from -64 to 63 and upper bytes of units of 128.
struct TwoBytes {
  unsigned low = 0, high = 0;

  __device__ void set(int i, int value) {
    const int lower = ((value + 64) & 127) - 64;
    low |= (static_cast<unsigned>(lower) & 255u) << 8 * i;
    high |= (static_cast<unsigned>((value - lower) >> 7) & 255u) << 8 * i;
  }
};

// Of row `row`, values 256 `block` on, lane l of a warp has the integers 8l on and both halves of
// the sum of its sub-block.
__device__ inline void write_wide_step_x(unsigned char* x, int64_t blocks, int64_t row,
                                         int64_t block, const TwoBytes (&words)[2], ushort2 sum,
                                         float scale) {
  using Record = WideRecord;
  const int lane = threadIdx.x % kWarp, i = static_cast<int>(row % Record::rows);
  unsigned char* record = x + (row / Record::rows * blocks + block) * Record::bytes;
  unsigned char* slab = record + lane / 16 * Record::slab + lane % 2 * 8;
  const int piece = lane % 16 / 2;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int column = 2 * i + part;
    *reinterpret_cast<uint2*>(slab + column * 128 + (piece ^ column % 8) * 16) =
        part == 0 ? make_uint2(words[0].low, words[1].low)
                  : make_uint2(words[0].high, words[1].high);
  }
  if (lane % 4 == 0) {
    auto* sums = reinterpret_cast<uint16_t*>(record + Record::sums + i * 32 + lane / 8 * 8);
    sums[lane / 4 % 2] = sum.x;
    sums[2 + lane / 4 % 2] = sum.y;
  }
  if (lane == 0)
    *reinterpret_cast<float*>(record + Record::scales + (i % 4 * (Record::rows / 4) + i / 4) * 4) =
        scale;
}

}  // namespace
