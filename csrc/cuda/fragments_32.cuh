// Operands of tensor cores from types whose blocks of 32 values have scales of their own.
#pragma once

#include "fragments.cuh"
#include "mul_mat_mma_codes.cuh"

namespace {

// Two f16 scales of a lane by the power of two of the largest of the row's eight, so that no
// element leaves f16: exact, unless 2^14 times smaller. By all four lanes of a row together.
struct Relative {
  unsigned first, second;  // twice each
  float d;                 // the power of two

  __device__ Relative(unsigned a, unsigned b) {
    unsigned most = max(a & 0x7fffu, b & 0x7fffu);
    most = max(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = max(most, __shfl_xor_sync(kAllLanes, most, 2));
    const unsigned exponent = most >> 10;
    const float up = __uint_as_float((142 - exponent) << 23);
    d = __uint_as_float((112 + exponent) << 23);
    first = pair_of(float_to_half(half_to_float(static_cast<uint16_t>(a)) * up));
    second = pair_of(float_to_half(half_to_float(static_cast<uint16_t>(b)) * up));
  }
};

struct RelativeScales {
  static constexpr bool kMinima = false;
  unsigned scale[2][2];  // of row and sub-block, twice
  float d[2];

  __device__ void set_scales(int r, unsigned a, unsigned b) {
    const Relative scales(a, b);
    scale[r][0] = scales.first;
    scale[r][1] = scales.second;
    d[r] = scales.d;
  }
};

// The same with minima, which are added.
struct RelativeAffine : RelativeScales {
  static constexpr bool kMinima = true;
  unsigned bias[2][2];  // the scales times -1024
  unsigned minima[2];   // of row, both sub-blocks
  float dmin[2];

  // Scale and minimum of each sub-block in a word.
  __device__ void set(int r, unsigned a, unsigned b) {
    set_scales(r, a & 0xffffu, b & 0xffffu);
    const Relative low(a >> 16, b >> 16);
    minima[r] = __byte_perm(low.first, low.second, 0x5410);
    dmin[r] = -low.d;
#pragma unroll
    for (int h = 0; h < 2; ++h) bias[r][h] = multiply_pairs(scale[r][h], pair_of(kMinus1024));
  }
};

template <>
struct Fragment<RR_Q8_0> : RelativeScales {
  static constexpr int kBytes = 272, kGrain = 16;
  unsigned codes[2][2][8];

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned char* b = block + 68 * t;
    set_scales(r, load16(b), load16(b + 34));
#pragma unroll
    for (int h = 0; h < 2; ++h) read_words(b + 34 * h + 2, h ? 0 : 2, 0, codes[r][h]);
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
    const int h = s % 2;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      centred(codes[r][h][s / 2] ^ 0x80808080u, pair_of(kMinus1152), scale[r][h], a[r], a[2 + r]);
  }
};

// Blocks of 16 bytes of nibbles: word i % 4 holds values 4i to 4i + 3, i from 4 on above.
struct Nibbles {
  unsigned words[2][2][4];

  __device__ unsigned four(int r, int s) const {
    return words[r][s % 2][s / 2 % 4] >> s / 8 * 4 & kNibbles;
  }
};

template <>
struct Fragment<RR_Q4_0> : RelativeScales, Nibbles {
  static constexpr int kBytes = 144, kGrain = 16;

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned char* b = block + 36 * t;
    set_scales(r, load16(b), load16(b + 18));
#pragma unroll
    for (int h = 0; h < 2; ++h) read_words(b + 18 * h + 2, h ? 0 : 2, 0, words[r][h]);
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      centred(four(r, s), pair_of(kMinus1032), scale[r][s % 2], a[r], a[2 + r]);
  }
};

// code * scale of four codes; bias takes the 1024 away.
__device__ inline void scaled(unsigned codes, unsigned scale, unsigned bias, unsigned& even,
                              unsigned& odd) {
  even = fma_pairs(even_bytes(codes), scale, bias);
  odd = fma_pairs(odd_bytes(codes), scale, bias);
}

template <>
struct Fragment<RR_Q4_1> : RelativeAffine, Nibbles {
  static constexpr int kBytes = 160, kGrain = 16;

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned char* b = block + 40 * t;
    set(r, aligned32(b), aligned32(b + 20));
#pragma unroll
    for (int h = 0; h < 2; ++h) read_words(b + 20 * h + 4, 0, 0, words[r][h]);
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) scaled(four(r, s), scale[r][s % 2], bias[r][s % 2], a[r], a[2 + r]);
  }
};

// Nibbles and 32 fifth bits.
struct FiveBits : Nibbles {
  unsigned fifth[2][2];

  // Words of a block from its fifth bits on.
  __device__ void set(int r, int h, const unsigned char* at, unsigned odd) {
    unsigned all[5];
    read_words(at, odd, 0, all);
    fifth[r][h] = all[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[r][h][i] = all[1 + i];
  }

  __device__ unsigned codes(int r, int s) const {
    return four(r, s) | spread_fifth(fifth[r][s % 2] >> s / 2 * 4);
  }
};

template <>
struct Fragment<RR_Q5_0> : RelativeScales, FiveBits {
  static constexpr int kBytes = 176, kGrain = 16;

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned char* b = block + 44 * t;
    set_scales(r, load16(b), load16(b + 22));
#pragma unroll
    for (int h = 0; h < 2; ++h) FiveBits::set(r, h, b + 22 * h + 2, h ? 0 : 2);
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      centred(codes(r, s), pair_of(kMinus1040), scale[r][s % 2], a[r], a[2 + r]);
  }
};

template <>
struct Fragment<RR_Q5_1> : RelativeAffine, FiveBits {
  static constexpr int kBytes = 192, kGrain = 16;

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned char* b = block + 48 * t;
    RelativeAffine::set(r, aligned32(b), aligned32(b + 24));
#pragma unroll
    for (int h = 0; h < 2; ++h) FiveBits::set(r, h, b + 24 * h + 4, 0);
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      scaled(codes(r, s), scale[r][s % 2], bias[r][s % 2], a[r], a[2 + r]);
  }
};

// Codes of a table of sixteen bytes, looked up when they are read: step pairs i and i + 4 of a
// sub-block come from one word.
struct Listed {
  unsigned codes[2][2][8];

  __device__ void set(int r, int h, const unsigned (&words)[4], const uint4& table) {
#pragma unroll
    for (int i = 0; i < 4; ++i) look_up(table, words[i], &codes[r][h][i], &codes[r][h][i + 4]);
  }
};

template <>
struct Fragment<RR_IQ4_NL> : RelativeScales, Listed {
  static constexpr int kBytes = 144, kGrain = 16;

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned char* b = block + 36 * t;
    set_scales(r, load16(b), load16(b + 18));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned words[4];
      read_words(b + 18 * h + 2, h ? 0 : 2, 0, words);
      Listed::set(r, h, words, iq4_table());
    }
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      centred(codes[r][s % 2][s / 2], pair_of(kMinus1152), scale[r][s % 2], a[r], a[2 + r]);
  }
};

// Products up to 4064 are rounded to a multiple of 2.
template <>
struct Fragment<RR_IQ4_XS> : Listed {
  static constexpr int kBytes = 136, kGrain = 8;
  static constexpr bool kMinima = false;
  unsigned scale[2][2];
  float d[2];

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned head = aligned32(block);
    const unsigned low = block[4 + t], high = head >> (16 + 4 * t);
    const unsigned both = (low & 15) | (high & 3) << 4 | (low >> 4) << 16 | (high >> 2 & 3) << 20;
    const unsigned scales = add_pairs(both | pair_of(kPlus1024), pair_of(kMinus1056));
    scale[r][0] = low_twice(scales);
    scale[r][1] = high_twice(scales);
    d[r] = low_half(head);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned words[4];
      read_words(block + 8 + 32 * t + 16 * h, 0, 0, words);
      Listed::set(r, h, words, iq4_table());
    }
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      centred(codes[r][s % 2][s / 2], pair_of(kMinus1152), scale[r][s % 2], a[r], a[2 + r]);
  }
};

// 2^-n as a half twice, 0 from 25 on.
__device__ inline unsigned inverse_power(int n) {
  return pair_of(n < 15 ? static_cast<unsigned>(15 - n) << 10 : n < 25 ? 1u << (24 - n) : 0u);
}

// The table is that of the doubled floats of E2M1 plus 16.
template <>
struct Fragment<RR_MXFP4> : Listed {
  static constexpr int kBytes = 136, kGrain = 8;
  static constexpr bool kMinima = false;
  unsigned scale[2][2];
  float d[2];

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned char* b = block + 34 * t;
    const int first = b[0], second = b[17];
    int most = max(first, second);
    most = max(most, __shfl_xor_sync(kAllLanes, most, 1));
    most = max(most, __shfl_xor_sync(kAllLanes, most, 2));
    scale[r][0] = inverse_power(most - first);
    scale[r][1] = inverse_power(most - second);
    d[r] = mxfp4_scale(static_cast<unsigned>(most));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned char* at = b + 17 * h + 1;
      const unsigned shift = 8 * (reinterpret_cast<uintptr_t>(at) & 3);
      const auto* word = reinterpret_cast<const unsigned*>(at - shift / 8);
      unsigned words[4], low = word[0];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned high = word[i + 1];
        words[i] = __funnelshift_r(low, high, shift);
        low = high;
      }
      Listed::set(r, h, words, make_uint4(0x13121110u, 0x1c181614u, 0x0d0e0f10u, 0x04080a0cu));
    }
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      centred(codes[r][s % 2][s / 2], pair_of(kMinus1040), scale[r][s % 2], a[r], a[2 + r]);
  }
};

}  // namespace
