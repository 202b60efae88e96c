// The code book of iq4_nl and iq4_xs, and dot products with its values.
#pragma once

#include "mul_mat_block32.hpp"

namespace {

constexpr int kIq4Offset = 127;

// The values plus kIq4Offset, and their nibbles apart.
struct Iq4Codes {
  uint8_t whole[16] = {0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240};
  uint8_t low[16] = {}, high[16] = {};
  constexpr Iq4Codes() {
    for (int i = 0; i < 16; ++i) {
      low[i] = whole[i] & 15;
      high[i] = whole[i] >> 4;
    }
  }
};
constexpr Iq4Codes kIq4Codes;

#if defined(__AVX2__) && !defined(__AVX512VNNI__)

// Products of whole bytes would saturate: their nibbles apart.
template <int C>
RR_INLINE void dots_iq4_parts(const Nibbles& w, const int8_t* x, Ints* sums) {
  const Bytes low = b_table(kIq4Codes.low), high = b_table(kIq4Codes.high);
  Ints units[C], sixteens[C];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Bytes code = w(i), a = b_lookup(low, code), b = b_lookup(high, code);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const Ints four = i_splat(load_int(x + 32 * c + 4 * i));
      units[c] = i == 0 ? i_pairs(a, four) : i_add_pairs(units[c], i_pairs(a, four));
      sixteens[c] = i == 0 ? i_pairs(b, four) : i_add_pairs(sixteens[c], i_pairs(b, four));
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c)
    sums[c] = i_add(sums[c], i_add(i_widen(units[c], 1), i_widen(sixteens[c], 16)));
}

template <int C>
RR_INLINE void dots_iq4(const uint8_t* nibbles, const int8_t* x, Ints (&sums)[C]) {
  constexpr int kMost = kTile / 2, kRest = C % kMost;  // as many columns as registers hold
  const Nibbles w = {nibbles};
#pragma GCC unroll 4
  for (int c = 0; c + kMost <= C; c += kMost) dots_iq4_parts<kMost>(w, x + 32 * c, sums + c);
  if constexpr (kRest > 0) dots_iq4_parts<kRest>(w, x + 32 * (C - kRest), sums + C - kRest);
}

#else

template <int C>
RR_INLINE void dots_iq4(const uint8_t* nibbles, const int8_t* x, Ints (&sums)[C]) {
  const Nibbles w = {nibbles};
  const Bytes values = b_table(kIq4Codes.whole);
  dots<8, 8>([&](int i) { return b_lookup(values, w(i)); }, x, sums);
}

#endif

}  // namespace
