// Integer dot products of sixteen weight rows with one activation column.
#pragma once

#include "lanes.hpp"

#if defined(__SSE2__) && !defined(__AVX2__)
#include <emmintrin.h>
#endif

namespace {

// init + sum over i < COUNT, j < 4 of w[i].lane[j] * x[4i + j] in every lane. Weights are unsigned
// and below 2^BITS, activations within -127 .. 127, so that the result is exact on every path.
#if defined(__AVX512VNNI__)

template <int BITS, int COUNT>
RR_INLINE Ints dot(const Bytes* w, const int8_t* x, int32_t init) {
  Ints sum = i_splat(init);
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i)
    sum = _mm512_dpbusd_epi32(sum, w[i], i_splat(load_int(x + 4 * i)));
  return sum;
}

#elif defined(__AVX2__)

// Sums of w[i] * x over RUN vectors at a time fit in 16 bits: RUN * 2 * (2^BITS - 1) * 127 < 2^15.
template <int RUN, int COUNT>
RR_INLINE Ints dot_small(const Bytes* w, const int8_t* x, Ints sum, int16_t times) {
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; i += RUN) {
    Ints pairs = i_pairs(w[i], i_splat(load_int(x + 4 * i)));
#pragma GCC unroll 8
    for (int j = 1; j < RUN; ++j)
      pairs = i_add_pairs(pairs, i_pairs(w[i + j], i_splat(load_int(x + 4 * (i + j)))));
    sum = i_add(sum, i_widen(pairs, times));
  }
  return sum;
}

template <int BITS, int COUNT>
RR_INLINE Ints dot(const Bytes* w, const int8_t* x, int32_t init) {
  const Ints sum = i_splat(init);
  constexpr int kRun = BITS == 5 ? 4 : BITS == 6 ? 2 : 8;
  if (BITS <= 6) return dot_small<kRun < COUNT ? kRun : COUNT, COUNT>(w, x, sum, 1);
  // Products of whole bytes would saturate: low and high nibbles apart.
  Bytes low[COUNT], high[COUNT];
#pragma GCC unroll 8
  for (int i = 0; i < COUNT; ++i) {
    low[i] = b_and(w[i], b_splat(15));
    high[i] = b_and(b_shr<4>(w[i]), b_splat(15));
  }
  return dot_small<8, COUNT>(low, x, dot_small<8, COUNT>(high, x, sum, 16), 1);
}

#elif defined(__SSE2__)

template <int BITS, int COUNT>
RR_INLINE Ints dot(const Bytes* w, const int8_t* x, int32_t init) {
  union {
    Ints whole;
    __m128i part[4];
  } sum = {i_splat(init)};
  for (int i = 0; i < COUNT; ++i) {
    const int8_t* v = x + 4 * i;
    const __m128i even = _mm_set1_epi32((v[0] & 0xffff) | static_cast<int32_t>(v[2]) * 65536);
    const __m128i odd = _mm_set1_epi32((v[1] & 0xffff) | static_cast<int32_t>(v[3]) * 65536);
    for (int p = 0; p < 4; ++p) {
      __m128i bytes;
      memcpy(&bytes, reinterpret_cast<const char*>(&w[i]) + 16 * p, sizeof bytes);
      const __m128i low = _mm_and_si128(bytes, _mm_set1_epi16(255));
      const __m128i pairs = _mm_add_epi32(_mm_madd_epi16(low, even),
                                          _mm_madd_epi16(_mm_srli_epi16(bytes, 8), odd));
      sum.part[p] = _mm_add_epi32(sum.part[p], pairs);
    }
  }
  return sum.whole;
}

#else

template <int BITS, int COUNT>
RR_INLINE Ints dot(const Bytes* w, const int8_t* x, int32_t init) {
  Ints sum = i_splat(init);
  for (int i = 0; i < COUNT; ++i)
    for (int j = 0; j < 4; ++j) sum += (((Ints)w[i] >> (8 * j)) & 255) * int32_t{x[4 * i + j]};
  return sum;
}

#endif

}  // namespace
