// Integer dot products of sixteen weight rows with one activation column.
#pragma once

#include "lanes.hpp"

#if defined(__SSE2__) && !defined(__AVX2__)
#include <emmintrin.h>
#endif

namespace {

// Integer sums start at kIntBias, and i_scaled gives (sum - kIntBias) * scale, rounded once. With
// fused multiply-add the bias makes the sum's bits those of the float 1.5 * 2^23 + i, and one
// instruction scales that and takes the surplus off: exact, as long as |i| < 2^22 and 3 * scale is
// a float, which holds where scales are products of an f16 and an integer of up to 11 bits.
#if defined(__FMA__)
constexpr int32_t kIntBias = 0x4b400000;
RR_INLINE Floats surplus(Floats scale) {
  return f_mul(scale, f_splat(-12582912.0f));
}
RR_INLINE Floats i_scaled(Ints sum, Floats scale, Floats taken) {
  return f_fma(f_bits(sum), scale, taken);
}
#else
constexpr int32_t kIntBias = 0;
RR_INLINE Floats surplus(Floats scale) {
  return scale;
}
RR_INLINE Floats i_scaled(Ints sum, Floats scale, Floats) {
  return f_mul(f_from_ints(sum), scale);
}
#endif

// How many columns a tile has at most, and of how many registers hold the sums at a time: a wider
// tile goes through its columns in parts.
#if defined(__AVX512BW__)
constexpr int kTile = 8, kAtOnce = 8;
#elif defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
constexpr int kTile = 8, kAtOnce = 4;
#else
constexpr int kTile = 4, kAtOnce = 4;
#endif

// Whether there is AVX2 and nothing that multiplies and adds bytes at once.
#if defined(__AVX2__) && !defined(__AVX512BW__) && !defined(__AVXVNNI__)
constexpr bool kAvx2Alone = true;
#else
constexpr bool kAvx2Alone = false;
#endif

// Columns kFirst .. kFirst + kN - 1 of a tile.
template <int FIRST, int N>
struct Part {
  static constexpr int kFirst = FIRST, kN = N;
};

// Calls body(Part) until all C columns had their turn.
template <int C, int FIRST = 0, class Body>
RR_INLINE void each_part(const Body& body) {
  constexpr int kN = C - FIRST < kAtOnce ? C - FIRST : kAtOnce;
  body(Part<FIRST, kN>());
  if constexpr (FIRST + kN < C) each_part<C, FIRST + kN>(body);
}

// Whether weights and activations meet as 16 bits, even and odd ones apart: where pairs of products
// have to fit in 16 bits, weights of 8 bits are too large to meet as bytes.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
template <int BITS>
constexpr bool kWords = BITS == 8;
#else
template <int BITS>
constexpr bool kWords = false;
#endif

// Bytes of a column's 32 activations.
template <int BITS>
constexpr int kColumnBytes = kWords<BITS> ? 64 : 32;

// What dots takes off each weight of 8 bits: where both factors are signed, 128 makes it one.
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
template <int BITS>
constexpr int kTakenOff = BITS == 8 ? 128 : 0;
#else
template <int BITS>
constexpr int kTakenOff = 0;
#endif

// COUNT vectors of weights that were unpacked for all parts of a tile. They lie in memory, whence
// every part fetches them: the compiler would run out of registers for them.
template <int COUNT>
struct Unpacked {
  alignas(64) mutable uint8_t at[64 * COUNT];
  RR_INLINE void fetch() const { asm volatile("" : "+m"(at)); }
  RR_INLINE Bytes operator()(int i) const { return b_load(at + 64 * i); }
  RR_INLINE Bytes even(int i) const { return b_even(b_load(at + 64 * i)); }
  RR_INLINE Bytes odd(int i) const { return b_odd(b_load(at + 64 * i)); }
#if defined(__ARM_FEATURE_MATMUL_INT8)
  RR_INLINE Matrices matrices(int i) const { return b_matrices((*this)(i), (*this)(i + 1)); }
#endif
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Whether C columns of a tile or a part meet COUNT vectors of weights as matrices of two by eight.
// Fewer columns, or sums of fewer values, would not make up for arranging those.
template <int COUNT, int C>
constexpr bool kMatrices = COUNT == 8 && C % kAtOnce == 0;

// The same, as matrices.
template <int COUNT>
struct UnpackedMatrices {
  alignas(64) mutable uint8_t at[64 * COUNT];
  RR_INLINE void fetch() const { asm volatile("" : "+m"(at)); }
  RR_INLINE Matrices matrices(int i) const {
    return {b_load(at + 64 * i), b_load(at + 64 * i + 64)};
  }
};

template <int COUNT, class Weights>
RR_INLINE UnpackedMatrices<COUNT> unpack_matrices(const Weights& w) {
  UnpackedMatrices<COUNT> all;
#pragma GCC unroll 4
  for (int i = 0; i < COUNT; i += 2) {
    const Matrices both = b_matrices(w(i), w(i + 1));
    b_store(all.at + 64 * i, both.low);
    b_store(all.at + 64 * i + 64, both.high);
  }
  return all;
}
#endif

// Weights that lie in memory one byte each: nothing to unpack.
struct Plain {
  const uint8_t* at;
  RR_INLINE Bytes operator()(int i) const { return b_load(at + 64 * i); }
};

// Weights that each part takes from where they lie.
template <class Weights>
struct Fresh {
  Weights w;
  RR_INLINE void fetch() const {}
  RR_INLINE Bytes operator()(int i) const { return w(i); }
  RR_INLINE Bytes even(int i) const { return b_even(w(i)); }
  RR_INLINE Bytes odd(int i) const { return b_odd(w(i)); }
#if defined(__ARM_FEATURE_MATMUL_INT8)
  RR_INLINE Matrices matrices(int i) const { return b_matrices(w(i), w(i + 1)); }
#endif
};

// Up to how many columns weights are taken as they are needed: fewer where unpacking them needs
// many registers, all where there is nothing to unpack and so nothing to copy.
template <class Weights>
constexpr int kFreshColumns = kAtOnce;
template <>
constexpr int kFreshColumns<Plain> = kAvx2Alone ? kTile : kAtOnce;

// Weights w(0) .. w(COUNT - 1), as dots takes them for the parts of a tile of C columns.
template <int BITS, int COUNT, int C, class Weights>
RR_INLINE auto for_tile(const Weights& w) {
  if constexpr (C <= kFreshColumns<Weights>) {
    return Fresh<Weights>{w};
#if defined(__ARM_FEATURE_MATMUL_INT8)
  } else if constexpr (kMatrices<COUNT, C>) {
    return unpack_matrices<COUNT>(w);
#endif
  } else {
    Unpacked<COUNT> all;
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; ++i) b_store(all.at + 64 * i, w(i));
    return all;
  }
}

// sums[c] = first(c) + sum over i < COUNT, j < 4, in every lane, of w(i).lane[j] * x[4i + j] of
// column c, w less kTakenOff: columns of x lie kColumnBytes apart. Weights are unsigned and below
// 2^BITS, activations within -127 .. 127, so that the result is exact on every path. Columns take
// turns, because an instruction of one column would wait for the one before it.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

template <int BITS, int COUNT, int C, class Weights, class First>
RR_INLINE void dots(const Weights& w, const int8_t* x, const First& first, Ints (&sums)[C]) {
  w.fetch();
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) sums[c] = first(c);
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) {
    const Bytes wi = w(i);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) i_add_dots(sums[c], wi, x + 32 * c + 4 * i);
  }
}

#elif defined(__AVX2__)

// Products of RUN vectors at a time fit in 16 bits: RUN * 2 * (2^BITS - 1) * 127 < 2^15.
template <int RUN, int COUNT, int C, class Weights, class First>
RR_INLINE void dots_bytes(const Weights& w, const int8_t* x, const First& first, Ints (&sums)[C]) {
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; i += RUN) {
    Ints pairs[C];
#pragma GCC unroll 8
    for (int j = i; j < i + RUN; ++j) {
      const Bytes wj = w(j);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const Ints more = i_pairs(wj, i_splat(load_int(x + 32 * c + 4 * j)));
        pairs[c] = j == i ? more : i_add_pairs(pairs[c], more);
        i_done(pairs[c]);
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      sums[c] = i_add(i == 0 ? first(c) : sums[c], i_widen(pairs[c]));
      // Where registers are few, sums of two runs that are joined at the end wait on the stack.
      if constexpr (kAtOnce < kTile) i_done(sums[c]);
    }
  }
}

template <int COUNT, int C, class Weights, class First>
RR_INLINE void dots_words(const Weights& w, const int8_t* x, const First& first, Ints (&sums)[C]) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) sums[c] = first(c);
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) {
    const Bytes even = w.even(i), odd = w.odd(i);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const int8_t* four = x + 64 * c + 8 * i;
      sums[c] = i_add(sums[c], i_dot_words(even, i_splat(load_int(four))));
      i_done(sums[c]);
      sums[c] = i_add(sums[c], i_dot_words(odd, i_splat(load_int(four + 4))));
      i_done(sums[c]);
    }
  }
}

template <int BITS, int COUNT, int C, class Weights, class First>
RR_INLINE void dots(const Weights& w, const int8_t* x, const First& first, Ints (&sums)[C]) {
  constexpr int kRun = BITS == 5 ? 4 : BITS == 6 ? 2 : BITS == 7 ? 1 : 8;
  w.fetch();
  if constexpr (kWords<BITS>) {
    dots_words<COUNT>(w, x, first, sums);
  } else {
    dots_bytes<(kRun < COUNT ? kRun : COUNT), COUNT, C>(w, x, first, sums);
  }
}

#elif defined(__ARM_FEATURE_DOTPROD)

template <int BITS>
RR_INLINE Bytes less_taken(Bytes w) {
  return kTakenOff<BITS> == 0 ? w : b_xor(w, b_splat(kTakenOff<BITS>));
}

// Four vectors of weights meet the four fours of values of one register a column.
template <int BITS, int COUNT, int C, class Weights, class First>
RR_INLINE void dots_vectors(const Weights& w, const int8_t* x, const First& first,
                            Ints (&sums)[C]) {
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) sums[c] = first(c);
#pragma GCC unroll 2
  for (int i = 0; i < COUNT; i += 4) {
    int8x16_t column[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) column[c] = vld1q_s8(x + 32 * c + 4 * i);
    const auto add = [&](auto four) RR_INLINE_BODY {
      constexpr int kFour = decltype(four)::kFirst;
      const Bytes wi = less_taken<BITS>(w(i + kFour));
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) i_add_dots<kFour>(sums[c], wi, column[c]);
    };
    add(Part<0, 1>());
    add(Part<1, 1>());
    add(Part<2, 1>());
    add(Part<3, 1>());
  }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// The same by matrices: sums of two columns lie beside each other until they are complete.
template <int COUNT, int C, class Weights, class First>
RR_INLINE void dots_matrices(const Weights& w, const int8_t* x, const First& first,
                             Ints (&sums)[C]) {
  Ints low[C / 2], high[C / 2];  // of rows 0 .. 7 and 8 .. 15
#pragma GCC unroll 4
  for (int p = 0; p < C / 2; ++p) low[p] = high[p] = i_beside(first(2 * p), first(2 * p + 1));
#pragma GCC unroll 2
  for (int i = 0; i < COUNT; i += 4) {
    int8x16_t eights[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; c += 2)
      i_eights(x + 32 * c + 4 * i, x + 32 * c + 32 + 4 * i, eights + c);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Matrices both = w.matrices(i + 2 * j);
#pragma GCC unroll 4
      for (int p = 0; p < C / 2; ++p) {
        i_add_products(low[p], both.low, eights[2 * p + j]);
        i_add_products(high[p], both.high, eights[2 * p + j]);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < C / 2; ++p) i_apart(low[p], high[p], &sums[2 * p], &sums[2 * p + 1]);
}
#endif

template <int BITS, int COUNT, int C, class Weights, class First>
RR_INLINE void dots(const Weights& w, const int8_t* x, const First& first, Ints (&sums)[C]) {
  w.fetch();
#if defined(__ARM_FEATURE_MATMUL_INT8)
  if constexpr (kMatrices<COUNT, C>)
    return dots_matrices<COUNT>(w, x, first, sums);
  else
#endif
    dots_vectors<BITS, COUNT>(w, x, first, sums);
}

#elif defined(__SSE2__)

template <int BITS, int COUNT, int C, class Weights, class First>
RR_INLINE void dots(const Weights& w, const int8_t* x, const First& first, Ints (&sums)[C]) {
  for (int c = 0; c < C; ++c) sums[c] = first(c);
  for (int i = 0; i < COUNT; ++i) {
    const Bytes wi = w(i);
    __m128i bytes[4];
    memcpy(bytes, &wi, sizeof bytes);
    for (int c = 0; c < C; ++c) {
      const int8_t* v = x + 32 * c + 4 * i;
      const __m128i even = _mm_set1_epi32((v[0] & 0xffff) | static_cast<int32_t>(v[2]) * 65536);
      const __m128i odd = _mm_set1_epi32((v[1] & 0xffff) | static_cast<int32_t>(v[3]) * 65536);
      __m128i part[4];
      memcpy(part, &sums[c], sizeof part);
      for (int p = 0; p < 4; ++p) {
        const __m128i low = _mm_and_si128(bytes[p], _mm_set1_epi16(255));
        const __m128i pairs = _mm_add_epi32(_mm_madd_epi16(low, even),
                                            _mm_madd_epi16(_mm_srli_epi16(bytes[p], 8), odd));
        part[p] = _mm_add_epi32(part[p], pairs);
      }
      memcpy(&sums[c], part, sizeof part);
    }
  }
}

#else

template <int BITS, int COUNT, int C, class Weights, class First>
RR_INLINE void dots(const Weights& w, const int8_t* x, const First& first, Ints (&sums)[C]) {
  for (int c = 0; c < C; ++c) sums[c] = first(c);
  for (int i = 0; i < COUNT; ++i) {
    const Ints wi = (Ints)w(i);
    for (int c = 0; c < C; ++c)
      for (int j = 0; j < 4; ++j)
        sums[c] += ((wi >> (8 * j)) & 255) * static_cast<int32_t>(x[32 * c + 4 * i + j]);
  }
}

#endif

}  // namespace
