// Blocks of iq2 and iq3 taken apart: every value as the place of its magnitude and a sign, every
// sub-block's scale s. y = d * factor * (2 * s_j + 1) * magnitude * sign.
#pragma once

#include <string.h>

#include "iq_grids.hpp"

namespace {

// Codes of a block's 256 values: the magnitude's place, plus 8 where the value is negative. scale:
// of each 32 values, or of each 16 where the format has as many.
struct GridCodes {
  uint8_t code[256];
  uint8_t scale[16];
};

// Signs in 7 bits: the eighth makes their number even.
inline unsigned signs_of_7(uint32_t word) {
  const unsigned seven = word & 127;
  return seven | static_cast<unsigned>(__builtin_parity(seven)) << 7;
}

// Eight values of a grid of eight places.
inline void put_eight(unsigned places, unsigned signs, uint8_t* to) {
  for (int i = 0; i < 8; ++i)
    to[i] = static_cast<uint8_t>((places >> 2 * i & 3) | (signs >> i & 1) << 3);
}

// Eight values of a grid of four.
inline void put_fours(unsigned first, unsigned second, unsigned signs, uint8_t* to) {
  for (int i = 0; i < 4; ++i) {
    to[i] = static_cast<uint8_t>((first >> 4 * i & 7) | (signs >> i & 1) << 3);
    to[i + 4] = static_cast<uint8_t>((second >> 4 * i & 7) | (signs >> (i + 4) & 1) << 3);
  }
}

inline uint32_t word_at(const uint8_t* p) {
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

// Two scales a byte.
inline void put_scales(const uint8_t* packed, int bytes, uint8_t* to) {
  for (int i = 0; i < bytes; ++i) {
    to[2 * i] = packed[i] & 15;
    to[2 * i + 1] = packed[i] >> 4;
  }
}

// d f16, then for each 32 values four codes of 8 bits, and four signs of 7 bits below the scale.
inline void grid_iq2_xxs(const uint8_t* b, GridCodes* out) {
  for (int j = 0; j < 8; ++j) {
    const uint8_t* codes = b + 2 + 8 * j;
    const uint32_t high = word_at(codes + 4);
    out->scale[j] = static_cast<uint8_t>(high >> 28);
    for (int l = 0; l < 4; ++l)
      put_eight(kGridIq2Xxs[codes[l]], signs_of_7(high >> 7 * l), out->code + 32 * j + 8 * l);
  }
}

// d f16, for each 8 values a code of 9 bits and 7 bits of signs, then two scales a byte, of 16
// each.
inline void grid_iq2_xs(const uint8_t* b, GridCodes* out) {
  for (int i = 0; i < 32; ++i) {
    const unsigned word = b[2 + 2 * i] | static_cast<unsigned>(b[3 + 2 * i]) << 8;
    put_eight(kGridIq2Xs[word & 511], signs_of_7(word >> 9), out->code + 8 * i);
  }
  put_scales(b + 66, 8, out->scale);
}

// d f16, for each 8 values the low byte of a code, then a byte of signs, upper bit pairs of the
// codes, two scales a byte, of 16 each.
inline void grid_iq2_s(const uint8_t* b, GridCodes* out) {
  for (int i = 0; i < 32; ++i) {
    const unsigned upper = b[66 + i / 4] >> i % 4 * 2 & 3;
    put_eight(kGridIq2S[b[2 + i] | upper << 8], b[34 + i], out->code + 8 * i);
  }
  put_scales(b + 74, 8, out->scale);
}

// d f16, for each 4 values a code of 8 bits, then for each 32 four signs of 7 bits below the scale.
inline void grid_iq3_xxs(const uint8_t* b, GridCodes* out) {
  for (int j = 0; j < 8; ++j) {
    const uint32_t high = word_at(b + 66 + 4 * j);
    const uint8_t* codes = b + 2 + 8 * j;
    out->scale[j] = static_cast<uint8_t>(high >> 28);
    for (int l = 0; l < 4; ++l)
      put_fours(kGridIq3Xxs[codes[2 * l]], kGridIq3Xxs[codes[2 * l + 1]], signs_of_7(high >> 7 * l),
                out->code + 32 * j + 8 * l);
  }
}

// d f16, for each 4 values the low byte of a code, upper bits of the codes, for each 8 a byte of
// signs, two scales a byte, of 32 values each.
inline void grid_iq3_s(const uint8_t* b, GridCodes* out) {
  for (int i = 0; i < 32; ++i) {
    const unsigned upper = b[66 + i / 4] >> i % 4 * 2 & 3;
    put_fours(kGridIq3S[b[2 + 2 * i] | (upper & 1) << 8],
              kGridIq3S[b[3 + 2 * i] | (upper >> 1) << 8], b[74 + i], out->code + 8 * i);
  }
  put_scales(b + 106, 4, out->scale);
}

}  // namespace
