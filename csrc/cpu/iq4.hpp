// The code book of iq4_nl and iq4_xs, and dot products with its values.
#pragma once

#include "mul_mat_block32.hpp"

namespace {

constexpr int kIq4Offset = 127;

// The values plus kIq4Offset, and their nibbles apart.
struct Iq4Codes {
  uint8_t whole[16] = {0,   23,  44,  62,  78,  92,  105, 117,
                       128, 140, 152, 165, 180, 196, 216, 240};
  uint8_t low[16] = {}, high[16] = {};
  constexpr Iq4Codes() {
    for (int i = 0; i < 16; ++i) {
      low[i] = whole[i] & 15;
      high[i] = whole[i] >> 4;
    }
  }
};
constexpr Iq4Codes kIq4Codes;

template <int C>
RR_INLINE void dots_iq4(const uint8_t* nibbles, const int8_t* x, Ints (&sums)[C]) {
  const Nibbles w = {nibbles};
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  // Products of whole bytes would saturate.
  const Bytes low = b_table(kIq4Codes.low), high = b_table(kIq4Codes.high);
  dots_small<8, 8, C>([&](int i) { return b_lookup(low, w(i)); }, x, 1, sums);
  dots_small<8, 8, C>([&](int i) { return b_lookup(high, w(i)); }, x, 16, sums);
#else
  const Bytes whole = b_table(kIq4Codes.whole);
  dots<8, 8>([&](int i) { return b_lookup(whole, w(i)); }, x, sums);
#endif
}

}  // namespace
