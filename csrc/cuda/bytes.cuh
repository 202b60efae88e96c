// Words and halves of blocks whose bytes are only 2-byte aligned.
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

}  // namespace
