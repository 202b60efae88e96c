// Rows of x as int8 with one f32 scale per 32 values, arranged for products.
//
// Columns (rows of x) are cut into tiles of up to kTile. A tile of C columns holds, per block of
// 32 values: C times 32 int8, C scales, then the weight format's own words, C each. With kWords
// they are int16, of every four values the first, the third, the second and the fourth.
#pragma once

#include "int_dot.hpp"
#include "kernel.hpp"

namespace {

constexpr int64_t kBlock = 32;  // values of x that share a scale

typedef float v4 __attribute__((vector_size(16)));
typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i4x32 __attribute__((vector_size(16)));
typedef int32_t i8x32 __attribute__((vector_size(32)));
typedef uint32_t u4x32 __attribute__((vector_size(16)));
typedef uint32_t u8x32 __attribute__((vector_size(32)));

RR_INLINE v8 load8(const float* p) {
  v8 v;
  memcpy(&v, p, sizeof v);
  return v;
}

struct Largest {
  template <class V>
  V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

struct Sum {
  template <class V>
  V operator()(V a, V b) const {
    return a + b;
  }
};

// Eight lanes to four, by op.
template <class Op>
RR_INLINE u4x32 fold(u8x32 v, Op op) {
  union {
    u8x32 whole;
    u4x32 half[2];
  } a = {v};
  return op(a.half[0], a.half[1]);
}

// Each vector's lanes joined by op: one lane per vector.
template <class Op>
RR_INLINE u4x32 across(const u4x32 (&v)[4], Op op) {
  const u4x32 a =
      op(u4x32{v[0][0], v[1][0], v[0][1], v[1][1]}, u4x32{v[0][2], v[1][2], v[0][3], v[1][3]});
  const u4x32 b =
      op(u4x32{v[2][0], v[3][0], v[2][1], v[3][1]}, u4x32{v[2][2], v[3][2], v[2][3], v[3][3]});
  return op(u4x32{a[0], a[1], b[0], b[1]}, u4x32{a[2], a[3], b[2], b[3]});
}

// Sixteen integers in the range of int8, as bytes.
RR_INLINE void store_bytes(int8_t* p, i8x32 a, i8x32 b) {
#if defined(__AVX2__)
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)a, (__m256i)b), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  memcpy(p, &bytes, sizeof bytes);
#else
  for (int i = 0; i < 8; ++i) {
    p[i] = static_cast<int8_t>(a[i]);
    p[i + 8] = static_cast<int8_t>(b[i]);
  }
#endif
}

#if defined(__AVX2__)
// Sixteen integers as int16, even and odd ones of every four apart.
RR_INLINE void store_words(int8_t* p, i8x32 a, i8x32 b) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)a, (__m256i)b), 0xd8);
  const __m256i apart = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
  memcpy(p, &apart, sizeof apart);
}
#endif

// 16 values times inverse, rounded to nearest even, as integers at q; returns their sums.
template <int BITS>
RR_INLINE u8x32 quantise_half(const float* x, float inverse, int8_t* q) {
  const v8 rounder = v8{} + 12582912.0f;  // 1.5 * 2^23 rounds to an integer when added
  const i8x32 a = (i8x32)(load8(x) * inverse + rounder) - (i8x32)rounder;
  const i8x32 b = (i8x32)(load8(x + 8) * inverse + rounder) - (i8x32)rounder;
#if defined(__AVX2__)
  if constexpr (kWords<BITS>) store_words(q, a, b);
#endif
  if constexpr (!kWords<BITS>) store_bytes(q, a, b);
  return (u8x32)a + (u8x32)b;
}

// The largest magnitude's bits among 32 values, in any of four lanes.
RR_INLINE u4x32 peak_bits(const float* x) {
  u8x32 most = {};
#pragma GCC unroll 4
  for (int i = 0; i < 32; i += 8) most = Largest()(most, (u8x32)load8(x + i) & 0x7fffffff);
  return fold(most, Largest());
}

// Four blocks' scales and their inverses from the largest magnitude's bits. A NaN or an infinity in
// x makes the scale NaN, so that every product of that row is NaN; a block so small that the
// inverse would leave the range of f32 is zero.
struct Scales {
  v4 scale, inverse;
  RR_INLINE explicit Scales(u4x32 bits) {
    const v4 peak = (v4)bits, zero = {};
    const i4x32 bad = (i4x32)(bits >= 0x7f800000u), tiny = peak < 1e-36f;
    inverse = (bad | tiny) ? zero : 127.0f / peak;
    scale = tiny ? zero : peak * (1.0f / 127.0f);
    scale = bad ? zero + NAN : scale;
  }
};

// Blocks at[0 .. 3] of one row to the places to[0 .. 3] of column c in a tile of `width` columns.
template <class W>
RR_INLINE void quantise_four(const float* const (&at)[4], uint8_t* const (&to)[4], int64_t width,
                             int64_t c) {
  constexpr int kBytes = kColumnBytes<W::kBits>;
  u4x32 part[4], low[4], high[4];
  for (int i = 0; i < 4; ++i) part[i] = peak_bits(at[i]);
  const Scales s(across(part, Largest()));
  for (int i = 0; i < 4; ++i) {
    int8_t* q = reinterpret_cast<int8_t*>(to[i]) + kBytes * c;
    const u8x32 a = quantise_half<W::kBits>(at[i], s.inverse[i], q);
    const u8x32 b = quantise_half<W::kBits>(at[i] + 16, s.inverse[i], q + kBytes / 2);
    low[i] = fold(W::kHalves ? a : a + b, Sum());
    if (W::kHalves) high[i] = fold(b, Sum());
  }
  // Where the scale is NaN the integers are any, and their sums could leave the range of int32.
  const u4x32 known = (u4x32)(s.scale == s.scale);
  const i4x32 low_sums = (i4x32)(across(low, Sum()) & known);
  const i4x32 high_sums = W::kHalves ? (i4x32)(across(high, Sum()) & known) : i4x32{};
  i4x32 words[W::kExtras];
  W::extras(s.scale, low_sums, high_sums, words);
  for (int i = 0; i < 4; ++i) {
    const float scale = s.scale[i];
    memcpy(to[i] + kBytes * width + 4 * c, &scale, sizeof scale);
    for (int e = 0; e < W::kExtras; ++e) {
      const int32_t word = words[e][i];
      memcpy(to[i] + (kBytes + 4 + 4 * e) * width + 4 * c, &word, sizeof word);
    }
  }
}

// Columns [first, first + n) of x, quantised into memory; with `order`, those are the columns that
// it lists there. W, the weight format, has kExtras words per block made by extras(scale, low,
// high): of sums over a block's halves if kHalves is set, else low is the sum over all of it.
template <class W>
struct Columns {
  static constexpr int64_t kRecord = kColumnBytes<W::kBits> + 4 + 4 * W::kExtras;
  uint8_t* memory;
  int64_t first, n, blocks;
  const int32_t* order = nullptr;

  RR_INLINE int64_t number(int64_t c) const { return order ? order[first + c] : first + c; }
  RR_INLINE int width(int64_t c) const {
    const int64_t left = n - c / kTile * kTile;
    return static_cast<int>(left < kTile ? left : kTile);
  }
  RR_INLINE uint8_t* tile(int64_t c) const { return memory + c / kTile * kTile * blocks * kRecord; }

  // Blocks [begin, end) of column c, whose values are given.
  void quantise(int64_t c, const float* values, int64_t begin, int64_t end) const {
    uint8_t* out = tile(c);
    for (int64_t b = begin; b < end; b += 4) {
      const float* at[4];
      uint8_t* to[4];
      for (int i = 0; i < 4; ++i) {
        const int64_t block = b + i < end ? b + i : end - 1;  // the last one again, for nothing
        at[i] = values + (block - begin) * kBlock;
        to[i] = out + block * width(c) * kRecord;
      }
      quantise_four<W>(at, to, width(c), c % kTile);
    }
  }

  // Unit u is block u % blocks of column u / blocks.
  void quantise(const rr_tensor& x, Range units) const {
    for (int64_t u = units.begin; u < units.end;) {
      const int64_t c = u / blocks, begin = u % blocks;
      const int64_t left = units.end - c * blocks, end = left < blocks ? left : blocks;
      const float* row = reinterpret_cast<const float*>(row_ptr(x, number(c)));
      quantise(c, row + begin * kBlock, begin, end);
      u += end - begin;
    }
  }
};

// A quantised block of C columns.
template <class W, int C>
struct XBlock {
  static constexpr int kBytes = kColumnBytes<W::kBits>;
  const uint8_t* at;

  RR_INLINE void next() { at += C * Columns<W>::kRecord; }
  // Integers of column c, of the block's first or second half on.
  RR_INLINE const int8_t* q(int c, int half = 0) const {
    return reinterpret_cast<const int8_t*>(at) + kBytes * c + kBytes / 2 * half;
  }
  RR_INLINE float scale(int c) const { return load_float(at + kBytes * C + 4 * c); }
  RR_INLINE int32_t word(int e, int c) const {
    return load_int(at + (kBytes + 4 + 4 * e) * C + 4 * c);
  }
  RR_INLINE float number(int e, int c) const {
    return load_float(at + (kBytes + 4 + 4 * e) * C + 4 * c);
  }
};

}  // namespace
