// Values as blocks of 32, bit for bit as the codecs encode.
#pragma once

#include "block_types.hpp"
#include "node.hpp"
#include "simd.hpp"

namespace {

constexpr int64_t kBlock = 32;
constexpr float kMost = 1e9f;  // magnitudes from here on are refused

// The largest magnitude of n values; NaN if there is one, for NaN has the largest bits.
[[maybe_unused]] inline float peak(const float* x, int64_t n) {
  int32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    int32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  float value;
  memcpy(&value, &most, sizeof value);
  return value;
}

// 1 / d, and 0 where d or what it gives is out of range.
inline float inverse(float d) {
  const float out = 1.0f / d;
  return fabsf(out) < INFINITY ? out : 0.0f;
}

inline void store_scale(float d, uint8_t* block) {
  const uint16_t half = f32_to_f16(d);
  memcpy(block, &half, sizeof half);
}

// d f16, int8 q; halves round away from zero.
inline void encode_q8_0(const float* __restrict x, uint8_t* __restrict block) {
  const float d = peak(x, kBlock) / 127.0f, factor = inverse(d);
  for (int i = 0; i < kBlock; ++i) {
    const float scaled = x[i] * factor;
    const int32_t whole = static_cast<int32_t>(scaled);
    const float rest = scaled - static_cast<float>(whole);
    block[Block<RR_Q8_0>::kCodes + i] =
        static_cast<uint8_t>(whole + static_cast<int32_t>(2.0f * rest));
  }
  store_scale(d, block);
}

// Codes 0 .. 2 * levels - 1; the first value of largest magnitude gets code 0.
inline float encode_signed(const float* __restrict x, int levels, uint8_t* __restrict q) {
  const float most = peak(x, kBlock);
  float end = x[0];
  for (int i = kBlock - 1; i >= 0; --i) end = fabsf(x[i]) == most ? x[i] : end;
  const float d = end / static_cast<float>(-levels), factor = inverse(d);
  const float middle = static_cast<float>(levels) + 0.5f;
  for (int i = 0; i < kBlock; ++i) {
    const int32_t code = static_cast<int32_t>(x[i] * factor + middle), top = 2 * levels - 1;
    q[i] = static_cast<uint8_t>(code < 0 ? 0 : code > top ? top : code);
  }
  return d;
}

inline void pack_nibbles(const uint8_t* __restrict q, uint8_t* __restrict to) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
}

// d f16, nibbles in halves.
inline void encode_q4_0(const float* __restrict x, uint8_t* __restrict block) {
  uint8_t q[kBlock];
  store_scale(encode_signed(x, Block<RR_Q4_0>::kLevels, q), block);
  pack_nibbles(q, block + Block<RR_Q4_0>::kCodes);
}

// d f16, fifth bits, nibbles in halves.
inline void encode_q5_0(const float* __restrict x, uint8_t* __restrict block) {
  uint8_t q[kBlock];
  store_scale(encode_signed(x, Block<RR_Q5_0>::kLevels, q), block);
  uint32_t fifth = 0;
  for (int i = 0; i < kBlock; ++i) fifth |= static_cast<uint32_t>(q[i] >> 4) << i;
  memcpy(block + Block<RR_Q5_0>::kHigh, &fifth, sizeof fifth);
  pack_nibbles(q, block + Block<RR_Q5_0>::kCodes);
}

struct Encoder {
  uint32_t dtype;
  int64_t bytes;
  float levels;
  void (*encode)(const float* x, uint8_t* block);

  // Whether values of this largest magnitude are numbers, and their scale one of f16.
  bool takes(float most) const {
    return most < kMost && (f32_to_f16(most / levels) & 0x7c00) != 0x7c00;
  }
};

template <uint32_t dtype>
constexpr Encoder encoder(void (*encode)(const float* x, uint8_t* block)) {
  return {dtype, Block<dtype>::kBytes, Block<dtype>::kLevels, encode};
}

constexpr Encoder kEncoders[] = {encoder<RR_Q8_0>(encode_q8_0), encoder<RR_Q5_0>(encode_q5_0),
                                 encoder<RR_Q4_0>(encode_q4_0)};

// Null for a type that is not encoded.
[[maybe_unused]] inline const Encoder* encoder_of(uint32_t dtype) {
  for (const Encoder& e : kEncoders)
    if (e.dtype == dtype) return &e;
  return nullptr;
}

}  // namespace
