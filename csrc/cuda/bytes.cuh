// Words and halves of blocks whose bytes are only 2-byte aligned, and words of bytes.
#pragma once

#include "device.cuh"

namespace {

__device__ inline unsigned load16(const uint8_t* p) {
  return *reinterpret_cast<const uint16_t*>(p);
}

__device__ inline unsigned load32(const uint8_t* p) {
  return load16(p) | load16(p + 2) << 16;
}

__device__ inline float load_half(const uint8_t* p) {
  return half_to_float(*reinterpret_cast<const uint16_t*>(p));
}

__device__ inline int byte_of(unsigned word, int i) {
  return static_cast<int>(word >> 8 * i & 255);
}

// Four of a list's values plus an offset, as bytes.
__host__ __device__ constexpr unsigned four_values(const int (&values)[16], int first, int offset) {
  unsigned word = 0;
  for (int i = 0; i < 4; ++i) word |= ((values[first + i] + offset) & 255u) << 8 * i;
  return word;
}

}  // namespace
