// Codes of the types whose blocks of 32 values have scales of their own, and of iq4_xs.
#pragma once

#include "step_codes.cuh"

namespace {

// A word at an even address, `odd` bytes (0 or 2) behind a multiple of 4.
__device__ inline unsigned even_word(const unsigned char* at, unsigned odd) {
  const unsigned* word = reinterpret_cast<const unsigned*>(at - odd);
  return __funnelshift_r(word[0], word[1], 8 * odd);
}

// Steps are the scales that blocks begin with, by a power of two.
template <uint32_t dtype, int part = 1>
struct OwnSteps : Block<dtype> {
  static constexpr int kValues = 32;
  static constexpr bool kSigned = true, kWhole = false, kMinima = false, kMatrix = false;
  const unsigned char* row[2];
  int lane;

  __device__ void load(int r, const unsigned char* from, int t) {
    row[r] = from;
    lane = t;
  }
  __device__ float step(int r, int i) const {
    return load_half(row[r] + i * Block<dtype>::kBytes) * (1.0f / part);
  }
};

// The same with minima behind the scales, which are added. Codes have no sign.
template <uint32_t dtype>
struct OwnAffine : OwnSteps<dtype> {
  static constexpr bool kSigned = false, kMinima = true;
  unsigned minima[2];
  float dmin[2];

  __device__ void load(int r, const unsigned char* from, int t) {
    OwnSteps<dtype>::load(r, from, t);
    using Of = Block<dtype>;
    minima[r] = load16(from + 2 * t * Of::kBytes + Of::kMin) |
                load16(from + (2 * t + 1) * Of::kBytes + Of::kMin) << 16;
    dmin[r] = -1.0f;
  }
};

template <>
struct StepCodes<RR_Q8_0> {
  using Rows = Rows8<RR_Q8_0>;
  static constexpr int kValues = 32;
  static constexpr bool kSigned = true, kWhole = false, kMinima = false, kMatrix = true;
  const unsigned char* matrix;
  unsigned steps[2][4];  // two halves each

  __device__ void load(int r, const unsigned char* eight, int row) {
    const uint4 all =
        *reinterpret_cast<const uint4*>(eight + Rows::kSteps * Rows::kPiece + row * Rows::kRow);
    steps[r][0] = all.x, steps[r][1] = all.y, steps[r][2] = all.z, steps[r][3] = all.w;
  }

  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned both[4];
      load_matrix4(both, matrix + (4 * quarter + 2 * i) * Rows::kPiece);
#pragma unroll
      for (int j = 0; j < 4; ++j) words[2 * i + j / 2][j % 2] = both[j];
    }
  }

  __device__ float step(int r, int i) const {
    return i % 2 ? high_half(steps[r][i / 2]) : low_half(steps[r][i / 2]);
  }
};

// Codes less 8, times 16.
template <>
struct StepCodes<RR_Q4_0> : OwnSteps<RR_Q4_0, 16> {
  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned word =
            even_word(row[r] + kCodes + 4 * lane + kBytes * (2 * quarter + h), h ? 0 : 2);
        words[2 * h][r] = (word << 4 & ~kNibbles) ^ 0x80808080u;
        words[2 * h + 1][r] = (word & ~kNibbles) ^ 0x80808080u;
      }
  }
};

template <>
struct StepCodes<RR_Q4_1> : OwnAffine<RR_Q4_1> {
  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned word = aligned32(row[r] + kCodes + 4 * lane + kBytes * (2 * quarter + h));
        words[2 * h][r] = word & kNibbles;
        words[2 * h + 1][r] = word >> 4 & kNibbles;
      }
  }
};

// Codes of five bits of a block from its word of nibbles and from the fifth bits of all.
__device__ inline void five_bits(unsigned nibbles, unsigned fifth, int t, unsigned& first,
                                 unsigned& second) {
  first = (nibbles & kNibbles) | spread_fifth(fifth >> 4 * t);
  second = (nibbles >> 4 & kNibbles) | spread_fifth(fifth >> (16 + 4 * t));
}

// Codes less 16, times 8.
template <>
struct StepCodes<RR_Q5_0> : OwnSteps<RR_Q5_0, 8> {
  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned char* at = row[r] + kBytes * (2 * quarter + h);
        unsigned both[2];
        five_bits(even_word(at + kCodes + 4 * lane, h ? 0 : 2), even_word(at + kHigh, h ? 0 : 2),
                  lane, both[0], both[1]);
#pragma unroll
        for (int i = 0; i < 2; ++i) words[2 * h + i][r] = both[i] << 3 ^ 0x80808080u;
      }
  }
};

template <>
struct StepCodes<RR_Q5_1> : OwnAffine<RR_Q5_1> {
  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned char* at = row[r] + kBytes * (2 * quarter + h);
        five_bits(aligned32(at + kCodes + 4 * lane), aligned32(at + kHigh), lane, words[2 * h][r],
                  words[2 * h + 1][r]);
      }
  }
};

// Signed entries of a table of sixteen bytes that are kept without sign.
__device__ inline void look_up_signed(const uint4& table, unsigned zero, unsigned word,
                                      unsigned& low, unsigned& high) {
  look_up(table, word, &low, &high);
  low ^= zero, high ^= zero;
}

template <>
struct StepCodes<RR_IQ4_NL> : OwnSteps<RR_IQ4_NL> {
  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        look_up_signed(
            iq4_table(), 0x80808080u,
            even_word(row[r] + kCodes + 4 * lane + kBytes * (2 * quarter + h), h ? 0 : 2),
            words[2 * h][r], words[2 * h + 1][r]);
  }
};

// The table's entries are doubled floats of E2M1, signed bytes.
template <>
struct StepCodes<RR_MXFP4> : OwnSteps<RR_MXFP4> {
  __device__ float step(int r, int i) const { return mxfp4_scale(row[r][kBytes * i + kE]); }

  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
    const uint4 table = table_of<kE2m1Values, 0>();
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned char* at = row[r] + kCodes + 4 * lane + kBytes * (2 * quarter + h);
        const unsigned beyond = reinterpret_cast<uintptr_t>(at) & 3;
        const auto* word = reinterpret_cast<const unsigned*>(at - beyond);
        look_up(table, __funnelshift_r(word[0], word[1], 8 * beyond), &words[2 * h][r],
                &words[2 * h + 1][r]);
      }
  }
};

template <>
struct StepCodes<RR_IQ4_XS> : Block<RR_IQ4_XS> {
  static constexpr int kValues = 32;
  static constexpr bool kSigned = true, kWhole = true, kMinima = false, kMatrix = false;
  const unsigned char* nibbles[2];
  unsigned low[2], high[2];  // of the steps
  float d[2];

  __device__ void load(int r, const unsigned char* block, int t) {
    const unsigned head = aligned32(block);
    d[r] = low_half(head);
    high[r] = head >> 8 * kHigh;
    low[r] = aligned32(block + kScales);
    nibbles[r] = block + kCodes + 4 * t;
  }

  __device__ void codes(int quarter, unsigned (&words)[4][2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        look_up_signed(iq4_table(), 0x80808080u, aligned32(nibbles[r] + 32 * quarter + 16 * h),
                       words[2 * h][r], words[2 * h + 1][r]);
  }

  __device__ int step(int r, int i) const {
    return static_cast<int>((low[r] >> 4 * i & 15) | (high[r] >> 2 * i & 3) << 4) - 32;
  }
};

}  // namespace
