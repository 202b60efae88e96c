// Blocks of iq2 and iq3: 256 values whose codes name groups of kPlaces magnitudes of a grid.
// y = d * kFactor * (2 * s + 1) * magnitude * sign, with a scale s for each kWidth values.
//
// Of a block, code(b, i) is number i, for values kPlaces * i and on, signs(b, i) has a bit for each
// of values 8i to 8i + 7, and scale(b, i) is that of values kWidth * i and on.
#pragma once

#include <string.h>

#include "block.hpp"
#include "iq_grids.hpp"

namespace {

// kSizes: how many magnitudes there are. kD is 0, and codes begin behind it.
template <uint32_t dtype, int bytes, int places, int sizes>
struct GridBlock : BlockOf<dtype, 256, bytes> {
  static constexpr int kPlaces = places, kSizes = sizes, kD = 0, kCodes = 2;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int j, float* out) {
    Read::template grid<dtype>(b, j, out);
  }

  // Signs in 7 bits: the eighth makes their number even.
  static unsigned signs_of_7(unsigned word) {
    const unsigned seven = word & 127;
    return seven | static_cast<unsigned>(__builtin_parity(seven)) << 7;
  }

  static unsigned word_at(const uint8_t* p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
  }

  static unsigned nibble(const uint8_t* p, int i) { return p[i / 2] >> i % 2 * 4 & 15; }
};

template <uint32_t dtype, int bytes>
struct Iq2Block : GridBlock<dtype, bytes, 8, 3> {
  static constexpr const int (&kMagnitudes)[16] = kIq2Values;
  static constexpr float kFactor = 0.125f;
};

// For each 32 values four codes of 8 bits, and four signs of 7 bits below the scale.
template <>
struct Block<RR_IQ2_XXS> : Iq2Block<RR_IQ2_XXS, 66> {
  static constexpr const uint16_t (&kGrid)[256] = kGridIq2Xxs;
  static constexpr int kWidth = 32, kSigns = kCodes + 4;  // of the first 32
  static constexpr bool kEven = true;                     // the number of signs of eight values

  static unsigned code(const uint8_t* b, int i) { return b[kCodes + 8 * (i / 4) + i % 4]; }
  static unsigned signs(const uint8_t* b, int i) {
    return signs_of_7(word_at(b + kSigns + 8 * (i / 4)) >> 7 * (i % 4));
  }
  static unsigned scale(const uint8_t* b, int i) { return word_at(b + kSigns + 8 * i) >> 28; }
};

// For each 8 values a code of 9 bits and 7 bits of signs, two scales a byte.
template <>
struct Block<RR_IQ2_XS> : Iq2Block<RR_IQ2_XS, 74> {
  static constexpr const uint16_t (&kGrid)[512] = kGridIq2Xs;
  static constexpr int kWidth = 16, kScales = 66;
  static constexpr bool kEven = true;

  static unsigned both(const uint8_t* b, int i) {
    return b[kCodes + 2 * i] | static_cast<unsigned>(b[kCodes + 2 * i + 1]) << 8;
  }
  static unsigned code(const uint8_t* b, int i) { return both(b, i) & 511; }
  static unsigned signs(const uint8_t* b, int i) { return signs_of_7(both(b, i) >> 9); }
  static unsigned scale(const uint8_t* b, int i) { return nibble(b + kScales, i); }
};

// For each 8 values the lower byte of a code of 10 bits, then a byte of signs; upper bit pairs, two
// scales a byte.
template <>
struct Block<RR_IQ2_S> : Iq2Block<RR_IQ2_S, 82> {
  static constexpr const uint16_t (&kGrid)[1024] = kGridIq2S;
  static constexpr int kWidth = 16, kSigns = 34, kHigh = 66, kScales = 74;
  static constexpr bool kEven = false;

  static unsigned code(const uint8_t* b, int i) {
    return b[kCodes + i] | (b[kHigh + i / 4] >> i % 4 * 2 & 3u) << 8;
  }
  static unsigned signs(const uint8_t* b, int i) { return b[kSigns + i]; }
  static unsigned scale(const uint8_t* b, int i) { return nibble(b + kScales, i); }
};

// For each 4 values a code of 8 bits, then for each 32 four signs of 7 bits below the scale.
template <>
struct Block<RR_IQ3_XXS> : GridBlock<RR_IQ3_XXS, 98, 4, 8> {
  static constexpr const uint16_t (&kGrid)[256] = kGridIq3Xxs;
  static constexpr const int (&kMagnitudes)[16] = kIq3XxsValues;
  static constexpr int kWidth = 32, kSigns = 66;
  static constexpr float kFactor = 0.25f;
  static constexpr bool kEven = true;

  static unsigned code(const uint8_t* b, int i) { return b[kCodes + i]; }
  static unsigned signs(const uint8_t* b, int i) {
    return signs_of_7(word_at(b + kSigns + i / 4 * 4) >> 7 * (i % 4));
  }
  static unsigned scale(const uint8_t* b, int i) { return word_at(b + kSigns + 4 * i) >> 28; }
};

// For each 4 values the lower byte of a code of 9 bits; upper bits, for each 8 a byte of signs, two
// scales a byte.
template <>
struct Block<RR_IQ3_S> : GridBlock<RR_IQ3_S, 110, 4, 8> {
  static constexpr const uint16_t (&kGrid)[512] = kGridIq3S;
  static constexpr const int (&kMagnitudes)[16] = kIq3SValues;
  static constexpr int kWidth = 32, kHigh = 66, kSigns = 74, kScales = 106;
  static constexpr float kFactor = 1.0f;
  static constexpr bool kEven = false;

  static unsigned code(const uint8_t* b, int i) {
    return b[kCodes + i] | (b[kHigh + i / 8] >> i % 8 & 1u) << 8;
  }
  static unsigned signs(const uint8_t* b, int i) { return b[kSigns + i]; }
  static unsigned scale(const uint8_t* b, int i) { return nibble(b + kScales, i); }
};

template <uint32_t dtype>
constexpr int kGridEntries = sizeof Block<dtype>::kGrid / sizeof(uint16_t);

// Values 32j to 32j + 31 as codes: the magnitude's place, plus 8 where the value is negative.
template <uint32_t dtype>
inline void grid_codes(const uint8_t* b, int j, uint8_t* to) {
  using B = Block<dtype>;
  constexpr int kBits = 16 / B::kPlaces;
  for (int eight = 4 * j; eight < 4 * j + 4; ++eight, to += 8) {
    const unsigned signs = B::signs(b, eight);
    for (int i = 0; i < 8; i += B::kPlaces) {
      const unsigned entry = B::kGrid[B::code(b, (8 * eight + i) / B::kPlaces)];
      for (int k = 0; k < B::kPlaces; ++k)
        to[i + k] = static_cast<uint8_t>((entry >> kBits * k & (B::kPlaces == 8 ? 3 : 7)) |
                                         (signs >> (i + k) & 1) << 3);
    }
  }
}

}  // namespace
