// Pools of keys and values: which types they have, how their bytes lie, and what they hold.
#pragma once

#include "native_vec.hpp"
#include "pool_rows.hpp"

namespace {

// kLanes bytes as floats.
inline vec from_bytes(const char* p) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const ivec wide = (ivec)_mm512_maskz_cvtepi8_epi32(0xffff, bytes);
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const ivec wide = (ivec)_mm256_cvtepi8_epi32(bytes);
#else
  typedef int8_t bvec __attribute__((vector_size(kLanes)));
  bvec bytes;
  memcpy(&bytes, p, sizeof bytes);
  const ivec wide = __builtin_convertvector(bytes, ivec);
#endif
  return __builtin_convertvector(wide, vec);
}

// The low or, from shift 4 on, high nibbles of kLanes bytes, less 8.
inline vec from_nibbles(const char* p, int shift) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const ivec wide = (ivec)_mm512_maskz_cvtepu8_epi32(0xffff, bytes);
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const ivec wide = (ivec)_mm256_cvtepu8_epi32(bytes);
#else
  typedef uint8_t bvec __attribute__((vector_size(kLanes)));
  bvec bytes;
  memcpy(&bytes, p, sizeof bytes);
  const ivec wide = __builtin_convertvector(bytes, ivec);
#endif
  return __builtin_convertvector((wide >> shift & 15) - 8, vec);
}

inline float block_scale(const char* block) {
  uint16_t half;
  memcpy(&half, block, sizeof half);
  return f16_to_f32(half);
}

// d f16, int8 q. y = d * q.
inline void q8_0_values(float* to, const char* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kPoolBlock, from += 34) {
    const vec d = vec_of(block_scale(from));
    for (int j = 0; j < kPoolBlock; j += kLanes)
      store_vec(to + i + j, from_bytes(from + 2 + j) * d);
  }
}

// d f16, nibbles in halves. y = d * (q - 8).
inline void q4_0_values(float* to, const char* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kPoolBlock, from += 18) {
    const vec d = vec_of(block_scale(from));
    for (int j = 0; j < kPoolBlock; j += kLanes)
      store_vec(to + i + j, from_nibbles(from + 2 + j % 16, j / 16 * 4) * d);
  }
}

// A row as floats, then zeros up to whole vectors.
[[maybe_unused]] inline void pool_values(float* to, const char* from, uint32_t dtype, int64_t n) {
  if (dtype == RR_Q8_0)
    q8_0_values(to, from, n);
  else if (dtype == RR_Q4_0)
    q4_0_values(to, from, n);
  else
    widen(to, from, dtype, n);
}

// A vector of a row from element i on, which is a multiple of kLanes, of each type that is quick to
// make f32 more than once. kAsksAhead: readers of such rows ask for those that follow.
struct FloatRow {
  static constexpr bool kAsksAhead = false;
  static constexpr int kBytes = 4;
  static vec at(const char* row, int64_t i) { return load_vec(row + i * 4); }
};

struct HalfRow {
  static constexpr bool kAsksAhead = true;
  static constexpr int kBytes = 2;
  static vec at(const char* row, int64_t i) {
    hvec h;
    memcpy(&h, row + i * 2, sizeof h);
    return from_f16(h);
  }
};

}  // namespace
