// Blocks of 32 values. Nibbles lie in halves: byte i has the codes of values i and i + 16.
#pragma once

#include "block.hpp"

namespace {

// The code book of iq4_nl and iq4_xs.
constexpr int kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

// The floats of E2M1, doubled; its negative zero is read as zero.
constexpr int kE2m1Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// kLevels, of types that casts make: a block's largest magnitude over its scale.

// y = d * q; int8 q.
template <>
struct Block<RR_Q8_0> : BlockOf<RR_Q8_0, 32, 34> {
  static constexpr int kD = 0, kCodes = 2, kLevels = 127;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int, float* out) {
    const float d = Read::half(b + kD);
    Read::bytes(b + kCodes, out, [=](int q, int) { return times(d, static_cast<int8_t>(q)); });
  }
};

// y = d * (q - 8); nibbles.
template <>
struct Block<RR_Q4_0> : BlockOf<RR_Q4_0, 32, 18> {
  static constexpr int kD = 0, kCodes = 2, kLevels = 8;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int, float* out) {
    const float d = Read::half(b + kD);
    Read::nibbles(b + kCodes, out, [=](int q, int) { return times(d, q - 8); });
  }
};

// y = d * q + m; nibbles.
template <>
struct Block<RR_Q4_1> : BlockOf<RR_Q4_1, 32, 20> {
  static constexpr int kD = 0, kMin = 2, kCodes = 4;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int, float* out) {
    const float d = Read::half(b + kD), m = Read::half(b + kMin);
    Read::nibbles(b + kCodes, out, [=](int q, int) { return times(d, q) + m; });
  }
};

RR_BOTH inline int fifth_bit(unsigned bits, int i) {
  return static_cast<int>(bits >> i & 1) << 4;
}

// y = d * (q - 16); 32 fifth bits, nibbles.
template <>
struct Block<RR_Q5_0> : BlockOf<RR_Q5_0, 32, 22> {
  static constexpr int kD = 0, kHigh = 2, kCodes = 6, kLevels = 16;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int, float* out) {
    const float d = Read::half(b + kD);
    const unsigned bits = Read::word(b + kHigh);
    Read::nibbles(b + kCodes, out,
                  [=](int q, int i) { return times(d, (q | fifth_bit(bits, i)) - 16); });
  }
};

// y = d * q + m; 32 fifth bits, nibbles.
template <>
struct Block<RR_Q5_1> : BlockOf<RR_Q5_1, 32, 24> {
  static constexpr int kD = 0, kMin = 2, kHigh = 4, kCodes = 8;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int, float* out) {
    const float d = Read::half(b + kD), m = Read::half(b + kMin);
    const unsigned bits = Read::word(b + kHigh);
    Read::nibbles(b + kCodes, out,
                  [=](int q, int i) { return times(d, q | fifth_bit(bits, i)) + m; });
  }
};

// y = d * value[q]; nibbles.
template <>
struct Block<RR_IQ4_NL> : BlockOf<RR_IQ4_NL, 32, 18> {
  static constexpr int kD = 0, kCodes = 2;

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int, float* out) {
    const float d = Read::half(b + kD);
    Read::nibbles(b + kCodes, out,
                  [=](int q, int) { return d * Read::template listed<kIq4Values>(q); });
  }
};

// y = 2^(e - 128) * value[q]; e one byte, nibbles.
template <>
struct Block<RR_MXFP4> : BlockOf<RR_MXFP4, 32, 17> {
  static constexpr int kE = 0, kCodes = 1;

  // 2^(e - 128), subnormal for e < 2, as a float's bits.
  RR_BOTH static constexpr unsigned scale(unsigned e) {
    return e < 2 ? 0x00200000u << e : (e - 1) << 23;
  }

  template <class Read>
  RR_BOTH static void decode32(const uint8_t* b, int, float* out) {
    const float d = Read::from_bits(scale(b[kE]));
    Read::nibbles(b + kCodes, out,
                  [=](int q, int) { return d * Read::template listed<kE2m1Values>(q); });
  }
};

}  // namespace
