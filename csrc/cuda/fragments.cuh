// Weights of block types as operands of tensor cores, straight from the file's bytes.
//
// A warp takes 16 rows of 256 values as A of m16n8k16, in 16 steps. Lane 4g + t has rows g and
// g + 8, and of each the sub-blocks of 32 values 2t and 2t + 1: step 2i + h is values 4i to 4i + 3
// of sub-block 2t + h, of which 0 and 2 are neighbours in the first half of K and 1 and 3 in the
// second. x lies in the same order (step_x.cuh), so that every type's words are used whole.
//
// An element is integer code times integer scale, exact in f16 up to 2048, and what is left of the
// scale is a float of the row's 256 values. Minima are the A of one more product, with the sums of
// x over sub-blocks: value = d * element - dmin * minimum.
#pragma once

#include "decode.cuh"
#include "half_pairs.cuh"

namespace {

// Two rows' parts of one lane. For each type: kBytes of 256 values, kGrain, the power of two up to
// 16 that their addresses divide by, kMinima, whether it has minima; load(r, block, t) reads row r
// (0: g, 1: g + 8) from shared memory, where 16 bytes beyond the block can be read; step(s, a)
// gives the operand of step s.
template <uint32_t dtype>
struct Fragment;

__device__ inline void read16(const unsigned char* at, unsigned* out) {
  const uint4 v = *reinterpret_cast<const uint4*>(at);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

// n words from an even address on, `odd` bytes (0 or 2) behind a multiple of 4, shifted right by
// `bits` more, below 16: bits come in from the word behind.
template <int n>
__device__ inline void read_words(const unsigned char* at, unsigned odd, unsigned bits,
                                  unsigned (&out)[n]) {
  const unsigned* word = reinterpret_cast<const unsigned*>(at - odd);
  unsigned low = word[0];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const unsigned high = word[i + 1];
    out[i] = __funnelshift_r(low, high, 8 * odd + bits);
    low = high;
  }
}

// Scales and minima of q4_k and q5_k: integers below 64.
struct AffineScales {
  unsigned scale[2][2];  // of row and sub-block, twice
  unsigned minima[2];    // of row, both sub-blocks
  float d[2], dmin[2];

  __device__ void load(int r, const unsigned char* block, int t) {
    unsigned head[4];
    read16(block, head);
    // From sub-block 4 on the lower four bits stand behind, the upper two where those before have
    // theirs.
    const bool upper = t >= 2;
    const unsigned at = t % 2 * 16, at_top = at + (upper ? 2 : 0), at_low = at + (upper ? 4 : 0);
    const unsigned s =
        ((upper ? head[3] : head[1]) >> at & 0x0f0fu) | (head[1] >> at_top & 0x3030u);
    const unsigned m =
        ((upper ? head[3] : head[2]) >> at_low & 0x0f0fu) | (head[2] >> at_top & 0x3030u);
    const unsigned both = add_pairs(__byte_perm(s, 0x64646464u, 0x4140), pair_of(kMinus1024));
    scale[r][0] = low_twice(both);
    scale[r][1] = high_twice(both);
    minima[r] = add_pairs(__byte_perm(m, 0x64646464u, 0x4140), pair_of(kMinus1024));
    d[r] = half_to_float(static_cast<uint16_t>(head[0]));
    dmin[r] = half_to_float(static_cast<uint16_t>(head[0] >> 16));
  }
};

template <>
struct Fragment<RR_Q4_K> : AffineScales {
  static constexpr int kBytes = 144, kGrain = 16;
  static constexpr bool kMinima = true;
  unsigned words[2][8], bias[2][2];

  __device__ void load(int r, const unsigned char* block, int t) {
    AffineScales::load(r, block, t);
    read16(block + 16 + 32 * t, words[r]);
    read16(block + 32 + 32 * t, words[r] + 4);
    bias[r][0] = multiply_pairs(scale[r][0], pair_of(kMinus1024));
    bias[r][1] = multiply_pairs(scale[r][1], pair_of(kMinus64));
    scale[r][1] = multiply_pairs(scale[r][1], pair_of(kSixteenth));
  }

  // Of bytes 0 and 2, in the mantissa of 1024 as they are: times 1, or 16.
  __device__ static unsigned nibbles(unsigned word, int upper) {
    return upper ? mask_into<0x00f000f0u, pair_of(kPlus1024)>(word)
                 : mask_into<0x000f000fu, pair_of(kPlus1024)>(word);
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
    const int h = s % 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned word = words[r][s / 2];
      a[r] = fma_pairs(nibbles(word, h), scale[r][h], bias[r][h]);
      a[2 + r] = fma_pairs(nibbles(word >> 8, h), scale[r][h], bias[r][h]);
    }
  }
};

template <>
struct Fragment<RR_Q5_K> : AffineScales {
  static constexpr int kBytes = 176, kGrain = 16;
  static constexpr bool kMinima = true;
  unsigned words[2][8], fifth[2][8], bias[2][2];

  __device__ void load(int r, const unsigned char* block, int t) {
    AffineScales::load(r, block, t);
    read16(block + 48 + 32 * t, words[r]);
    read16(block + 64 + 32 * t, words[r] + 4);
    read16(block + 16, fifth[r]);
    read16(block + 32, fifth[r] + 4);
    // Bits 2t and 2t + 1 of each byte become bits 4 and 5.
#pragma unroll
    for (int i = 0; i < 8; ++i)
      fifth[r][i] =
          __funnelshift_l(fifth[r][i], fifth[r][i], static_cast<unsigned>(4 - 2 * t) & 31);
#pragma unroll
    for (int h = 0; h < 2; ++h) bias[r][h] = multiply_pairs(scale[r][h], pair_of(kMinus1024));
  }

  __device__ void step(int s, unsigned (&a)[4]) const {
    const int h = s % 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned codes =
          (words[r][s / 2] >> 4 * h & 0x0f0f0f0fu) | (fifth[r][s / 2] >> h & 0x10101010u);
      a[r] = fma_pairs(even_bytes(codes), scale[r][h], bias[r][h]);
      a[2 + r] = fma_pairs(odd_bytes(codes), scale[r][h], bias[r][h]);
    }
  }
};

// (code - zero) * scale of four codes, of which minus_zero also takes the 1024.
__device__ inline void centred(unsigned codes, unsigned minus_zero, unsigned scale, unsigned& even,
                               unsigned& odd) {
  even = multiply_pairs(add_pairs(even_bytes(codes), minus_zero), scale);
  odd = multiply_pairs(add_pairs(odd_bytes(codes), minus_zero), scale);
}

}  // namespace
