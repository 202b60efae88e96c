// Blocks of 256 values with scales of 8 sub-blocks of 32 values, or of 16 of 16.
#pragma once

#include "block_32.hpp"

namespace {

// y = d * s * q - dmin * m; 4-bit scales and minima of 16, bit pairs: byte i of 32 has those of
// value i of sub-blocks of 32 number 0 to 3; 32 more have the others'.
template <>
struct Block<RR_Q2_K> : BlockOf<RR_Q2_K, 256, 84> {
  static constexpr int kScales = 0, kCodes = 16, kD = 80, kMin = 82;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int j, float* out) {
    const int shift = j % 4 * 2;
    const float d = Read::half(b + kD), dmin = Read::half(b + kMin);
    const unsigned two = Read::pair(b + kScales + 2 * j);
    const float step[2] = {times(d, two & 15), times(d, two >> 8 & 15)};
    const float offset[2] = {times(dmin, two >> 4 & 15), times(dmin, two >> 12)};
    Read::halves(b + kCodes + 32 * (j / 4), out,
                 [&](int q, int, int h) { return times(step[h], q >> shift & 3) - offset[h]; });
  }
};

// y = d * (s - 32) * (q - 4); third bits: bit j of byte i is of value i of sub-block of 32 number
// j; bit pairs as in q2_k, 6-bit scales of 16.
template <>
struct Block<RR_Q3_K> : BlockOf<RR_Q3_K, 256, 110> {
  static constexpr int kHigh = 0, kCodes = 32, kScales = 96, kD = 108;

  // s of sub-block k of 16.
  RR_BOTH static int scale(const uint8_t* b, int k) {
    const uint8_t* s = b + kScales;
    return (s[k % 8] >> (k / 8 * 4) & 15) | (s[8 + k % 4] >> (k / 4 * 2) & 3) << 4;
  }

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int j, float* out) {
    const int shift = j % 4 * 2;
    const float d = Read::half(b + kD);
    const float step[2] = {times(d, scale(b, 2 * j) - 32), times(d, scale(b, 2 * j + 1) - 32)};
    Read::halves(b + kCodes + 32 * (j / 4), out, [&](int q, int i, int h) {
      const int third = static_cast<int>(Read::shifted(b + kHigh, i, j) & 1);
      return times(step[h], ((q >> shift & 3) | third << 2) - 4);
    });
  }
};

// What q4_k and q5_k share: y = d * s * q - dmin * m; 6-bit scales and minima of 32 in 12 bytes.
template <uint32_t dtype, int bytes>
struct AffineBlock : BlockOf<dtype, 256, bytes> {
  static constexpr int kD = 0, kMin = 2, kScales = 4;

  RR_BOTH static void scale_and_minimum(const uint8_t* block, int j, int* scale, int* minimum) {
    const uint8_t* s = block + kScales;
    const int at = j & 3, a = s[at], b = s[at + 4];
    if (j < 4) {
      *scale = a & 63;
      *minimum = b & 63;
    } else {
      const int c = s[at + 8];
      *scale = (c & 15) | (a >> 6) << 4;
      *minimum = c >> 4 | (b >> 6) << 4;
    }
  }

  // code(q, i, j), of value i of sub-block j, whose nibble is q.
  template <class Read, class Code>
  RR_BOTH static void decode_nibbles(const uint8_t* b, const uint8_t* nibbles, int j, float* out,
                                     Code code) {
    const int shift = j % 2 * 4;
    int scale, minimum;
    scale_and_minimum(b, j, &scale, &minimum);
    const float step = times(Read::half(b + kD), scale);
    const float offset = times(Read::half(b + kMin), minimum);
    Read::bytes(nibbles + 32 * (j / 2), out,
                [=](int q, int i) { return times(step, code(q >> shift & 15, i)) - offset; });
  }
};

// Sub-blocks 2j and 2j + 1 are the lower and the upper nibbles of 32 bytes.
template <>
struct Block<RR_Q4_K> : AffineBlock<RR_Q4_K, 144> {
  static constexpr int kCodes = 16;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int j, float* out) {
    decode_nibbles<Read>(b, b + kCodes, j, out, [](int q, int) { return q; });
  }
};

// The same with fifth bits: of sub-block j bit j of 32 bytes.
template <>
struct Block<RR_Q5_K> : AffineBlock<RR_Q5_K, 176> {
  static constexpr int kHigh = 16, kCodes = 48;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int j, float* out) {
    decode_nibbles<Read>(b, b + kCodes, j, out, [=](int q, int i) {
      return q | static_cast<int>(Read::shifted(b + kHigh, i, j) & 1) << 4;
    });
  }
};

// y = d * s * (q - 32); int8 scales of 16; lower nibbles and upper bit pairs.
template <>
struct Block<RR_Q6_K> : BlockOf<RR_Q6_K, 256, 210> {
  static constexpr int kCodes = 0, kHigh = 128, kScales = 192, kD = 208;

  // out[i] = f(q, i / 16) of sub-block j of 32.
  template <class Read, typename T, class F>
  RR_BOTH static void codes(const uint8_t* b, int j, T* out, F f) {
    const int half = j / 4, quarter = j % 4, low_shift = quarter / 2 * 4, high_shift = 2 * quarter;
    const uint8_t* high = b + kHigh + 32 * half;
    Read::halves(b + kCodes + 64 * half + 32 * (quarter % 2), out, [=](int q, int i, int h) {
      const int upper = static_cast<int>(Read::shifted(high, i, high_shift) & 3);
      return f((q >> low_shift & 15) | upper << 4, h);
    });
  }

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int j, float* out) {
    const float d = Read::half(b + kD);
    const unsigned two = Read::pair(b + kScales + 2 * j);
    const float step[2] = {times(d, static_cast<int8_t>(two & 255)),
                           times(d, static_cast<int8_t>(two >> 8))};
    codes<Read>(b, j, out, [&](int q, int h) { return times(step[h], q - 32); });
  }
};

// y = d * (s - 32) * value[q]; upper bit pairs and lower nibbles of scales of 32, nibbles of each
// 32 values in halves.
template <>
struct Block<RR_IQ4_XS> : BlockOf<RR_IQ4_XS, 256, 136> {
  static constexpr int kD = 0, kHigh = 2, kScales = 4, kCodes = 8;

  // s of sub-block j.
  RR_BOTH static int scale(const uint8_t* b, int j) {
    return (b[kScales + j / 2] >> (j % 2 * 4) & 15) | (b[kHigh + j / 4] >> (j % 4 * 2) & 3) << 4;
  }

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int j, float* out) {
    const float step = times(Read::half(b + kD), scale(b, j) - 32);
    Read::nibbles(b + kCodes + 16 * j, out,
                  [=](int q, int) { return step * Read::template listed<kIq4Values>(q); });
  }
};

}  // namespace
