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

// Adds, in every lane, sum over i < COUNT, j < 4 of w(i).lane[j] * x[32c + 4i + j] to sums[c]:
// columns of x lie 32 bytes apart, and w gives the i-th vector of weights. Weights are unsigned and
// below 2^BITS, activations within -127 .. 127, so that the result is exact on every path. Columns
// take turns, because an instruction of one column would wait for the one before it.
#if defined(__AVX512VNNI__)

typedef int32_t AnyInt __attribute__((may_alias));

template <int BITS, int COUNT, int C, class Weights>
RR_INLINE void dots(const Weights& w, const int8_t* x, Ints (&sums)[C]) {
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) {
    const Bytes wi = w(i);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
      // Written out, because the compiler splits off the broadcast, which costs a fifth.
      asm("vpdpbusd %2%{1to16%}, %1, %0"
          : "+v"(sums[c])
          : "v"(wi), "m"(*reinterpret_cast<const AnyInt*>(x + 32 * c + 4 * i)));
  }
}

#elif defined(__AVX2__)

// Products of RUN vectors at a time fit in 16 bits: RUN * 2 * (2^BITS - 1) * 127 < 2^15.
template <int RUN, int COUNT, int C, class Weights>
RR_INLINE void dots_small(const Weights& w, const int8_t* x, int16_t times, Ints* sums) {
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
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[c] = i_add(sums[c], i_widen(pairs[c], times));
  }
}

// Products of whole bytes would saturate: low and high nibbles apart.
template <int COUNT, int C, class Weights>
RR_INLINE void dots_bytes(const Weights& w, const int8_t* x, Ints* sums) {
  const Bytes four = b_splat(15);
  dots_small<8, COUNT, C>([&](int i) { return b_and(w(i), four); }, x, 1, sums);
  dots_small<8, COUNT, C>([&](int i) { return b_and(b_shr<4>(w(i)), four); }, x, 16, sums);
}

template <int BITS, int COUNT, int C, class Weights>
RR_INLINE void dots(const Weights& w, const int8_t* x, Ints (&sums)[C]) {
  constexpr int kRun = BITS == 5 ? 4 : BITS == 6 ? 2 : BITS == 7 ? 1 : 8;
  if constexpr (BITS <= 7) {
    dots_small<(kRun < COUNT ? kRun : COUNT), COUNT, C>(w, x, 1, sums);
  } else if constexpr (C > 4) {
    dots_bytes<COUNT, 4>(w, x, sums);
    dots_bytes<COUNT, C - 4>(w, x + 4 * 32, sums + 4);
  } else {
    dots_bytes<COUNT, C>(w, x, sums);
  }
}

#elif defined(__SSE2__)

template <int BITS, int COUNT, int C, class Weights>
RR_INLINE void dots(const Weights& w, const int8_t* x, Ints (&sums)[C]) {
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

template <int BITS, int COUNT, int C, class Weights>
RR_INLINE void dots(const Weights& w, const int8_t* x, Ints (&sums)[C]) {
  for (int i = 0; i < COUNT; ++i) {
    const Ints wi = (Ints)w(i);
    for (int c = 0; c < C; ++c)
      for (int j = 0; j < 4; ++j)
        sums[c] += ((wi >> (8 * j)) & 255) * static_cast<int32_t>(x[32 * c + 4 * i + j]);
  }
}

#endif

}  // namespace
