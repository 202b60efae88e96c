// Blocks of iq2 and iq3 as f32, bit for bit what the codecs give.
#pragma once

#include "grid_codes.hpp"
#include "simd.hpp"

namespace {

// Sub-blocks of WIDE values; every product is exact.
template <void (*Take)(const uint8_t*, GridCodes*), int WIDE, const int (&Values)[16]>
inline void decode_grid(const uint8_t* __restrict b, float factor, float* __restrict out) {
  uint16_t half;
  memcpy(&half, b, sizeof half);
  GridCodes codes;
  Take(b, &codes);
  const float d = f16_to_f32(half) * factor;
  for (int i = 0; i < 256; ++i) {
    const float step = d * static_cast<float>(2 * codes.scale[i / WIDE] + 1);
    out[i] = step * static_cast<float>(Values[codes.code[i]]);
  }
}

inline void decode_iq2_xxs(const uint8_t* __restrict b, float* __restrict out) {
  decode_grid<grid_iq2_xxs, 32, kIq2Values>(b, 0.125f, out);
}

inline void decode_iq2_xs(const uint8_t* __restrict b, float* __restrict out) {
  decode_grid<grid_iq2_xs, 16, kIq2Values>(b, 0.125f, out);
}

inline void decode_iq2_s(const uint8_t* __restrict b, float* __restrict out) {
  decode_grid<grid_iq2_s, 16, kIq2Values>(b, 0.125f, out);
}

inline void decode_iq3_xxs(const uint8_t* __restrict b, float* __restrict out) {
  decode_grid<grid_iq3_xxs, 32, kIq3XxsValues>(b, 0.25f, out);
}

inline void decode_iq3_s(const uint8_t* __restrict b, float* __restrict out) {
  decode_grid<grid_iq3_s, 32, kIq3SValues>(b, 1.0f, out);
}

}  // namespace
