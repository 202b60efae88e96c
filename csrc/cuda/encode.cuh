// Values as blocks of 32, one value a lane, bit for bit as the codecs encode. All lanes of a warp
// take part in every call.
#pragma once

#include "block_types.hpp"
#include "kernel.cuh"

namespace {

constexpr float kMost = 1e9f;  // magnitudes from here on are refused

// The first of the lanes' values with the largest magnitude; NaN if there is one, for NaN has the
// largest bits. The same in every lane.
__device__ inline float extreme(float x) {
  const int lane = threadIdx.x % kWarp;
  // Steps go up, so that each side of a comparison is a run of neighbours and "first" is known.
  for (int step = 1; step < kWarp; step *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, step);
    const int own_bits = __float_as_int(x) & 0x7fffffff;
    const int other_bits = __float_as_int(other) & 0x7fffffff;
    if (other_bits > own_bits || (other_bits == own_bits && (lane & step))) x = other;
  }
  return x;
}

// The extreme of the lanes' values, or for blocks that do not ask for its sign its magnitude.
template <uint32_t dtype>
__device__ inline float extreme_of(float x) {
  if (dtype != RR_Q8_0) return extreme(x);
  const unsigned bits = static_cast<unsigned>(__float_as_int(x)) & 0x7fffffffu;
  return __int_as_float(static_cast<int>(__reduce_max_sync(kAllLanes, bits)));
}

// Whether values of this largest magnitude are numbers, and their scale one of f16.
template <uint32_t dtype>
__device__ inline bool encodes(float most) {
  const float scale = most / static_cast<float>(Block<dtype>::kLevels);
  return most < kMost && (float_to_half(scale) & 0x7c00) != 0x7c00;
}

// 1 / d, and 0 where d or what it gives is out of range.
__device__ inline float inverse(float d) {
  const float out = 1.0f / d;
  return fabsf(out) < INFINITY ? out : 0.0f;
}

// d f16, int8 q; halves round away from zero.
__device__ inline void encode_q8_0(float x, float end, uint8_t* block) {
  const int lane = threadIdx.x % kWarp;
  const float d = fabsf(end) / 127.0f, scaled = x * inverse(d);
  const int whole = static_cast<int>(scaled);
  const float rest = scaled - static_cast<float>(whole);
  block[Block<RR_Q8_0>::kCodes + lane] =
      static_cast<uint8_t>(whole + static_cast<int>(2.0f * rest));
  if (lane == 0) *reinterpret_cast<uint16_t*>(block) = float_to_half(d);
}

// d f16, the fifth bits where there are any, nibbles in halves. The end of the range gets code 0.
template <uint32_t dtype>
__device__ inline void encode_signed(float x, float end, uint8_t* block) {
  constexpr int levels = Block<dtype>::kLevels;
  const int lane = threadIdx.x % kWarp;
  const float d = end / static_cast<float>(-levels), factor = inverse(d);
  const int code = static_cast<int>(x * factor + (static_cast<float>(levels) + 0.5f));
  const int q = min(max(code, 0), 2 * levels - 1);
  const int upper = __shfl_xor_sync(kAllLanes, q, 16);
  const unsigned fifth = __ballot_sync(kAllLanes, (q & 16) != 0);
  if constexpr (dtype == RR_Q5_0)
    if (lane < 4) block[Block<dtype>::kHigh + lane] = static_cast<uint8_t>(fifth >> (8 * lane));
  if (lane < 16)
    block[Block<dtype>::kCodes + lane] = static_cast<uint8_t>((q & 15) | (upper & 15) << 4);
  if (lane == 0) *reinterpret_cast<uint16_t*>(block) = float_to_half(d);
}

// Writes one block of Block<dtype>::kBytes, 2-byte aligned: x is this lane's value, end the
// extreme_of all, for which encodes<dtype>(fabsf(end)) holds.
template <uint32_t dtype>
__device__ inline void encode(float x, float end, uint8_t* block) {
  if constexpr (dtype == RR_Q8_0)
    encode_q8_0(x, end, block);
  else
    encode_signed<dtype>(x, end, block);
}

}  // namespace
