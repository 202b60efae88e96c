// 16-bit floating point and byte products.
#pragma once

#include <stdint.h>

#include "intrinsics.hpp"

namespace emulate {

inline float half_to_float(uint16_t x) {
  const unsigned sign = static_cast<unsigned>(x & 0x8000u) << 16;
  const unsigned exponent = x >> 10 & 31u, fraction = x & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return same_bits<float>(same_bits<unsigned>(magnitude) | sign);
  }
  if (exponent == 31) {
    const unsigned quiet = fraction ? 0x400000u : 0u;
    return same_bits<float>(sign | 0x7f800000u | quiet | fraction << 13);
  }
  return same_bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

// To nearest, ties to even; NaN gives the device's one NaN.
inline uint16_t float_to_half(float x) {
  const unsigned bits = same_bits<unsigned>(x), magnitude = bits & 0x7fffffffu;
  const unsigned sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return 0x7fff;
  // From halfway between the greatest half and the next power of two.
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // The unit of a float at 0.5 is that of the smallest halves: the addition rounds.
    const float shifted = same_bits<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (same_bits<unsigned>(shifted) - 0x3f000000u));
  }
  const unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

inline float bf16_to_float(uint16_t x) {
  return same_bits<float>(static_cast<unsigned>(x) << 16);
}

inline uint16_t float_to_bf16(float x) {
  const unsigned bits = same_bits<unsigned>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// c + the dot product of four signed bytes each; wraps around.
inline int dot4(int a, int b, int c) {
  int sum = 0;
  for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return static_cast<int>(static_cast<unsigned>(c) + static_cast<unsigned>(sum));
}

}  // namespace emulate

inline int __dp4a(int a, int b, int c) {
  return emulate::dot4(a, b, c);
}
