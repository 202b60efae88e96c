// One lane per weight row: sixteen floats, sixteen ints, or sixteen times four bytes, in whatever
// registers the instruction set has. Structs of two halves instead of one wide vector type on
// AVX2, because the compiler keeps those in registers.
#pragma once

#include "simd.hpp"

#define RR_INLINE [[maybe_unused]] inline __attribute__((always_inline))
#define RR_INLINE_BODY __attribute__((always_inline))  // after a lambda's parameters

namespace {

RR_INLINE int32_t load_int(const void* p) {
  int32_t v;
  memcpy(&v, p, sizeof v);
  return v;
}

RR_INLINE float load_float(const void* p) {
  float v;
  memcpy(&v, p, sizeof v);
  return v;
}

#if defined(__AVX512BW__)

typedef __m512 Floats;
typedef __m512i Ints;
typedef __m512i Bytes;

RR_INLINE Floats f_splat(float x) {
  return _mm512_set1_ps(x);
}
RR_INLINE Floats f_load(const void* p) {
  return _mm512_loadu_ps(p);
}
RR_INLINE void f_store(void* p, Floats a) {
  _mm512_storeu_ps(p, a);
}
RR_INLINE Floats f_add(Floats a, Floats b) {
  return _mm512_add_ps(a, b);
}
RR_INLINE Floats f_mul(Floats a, Floats b) {
  return _mm512_mul_ps(a, b);
}
RR_INLINE Floats f_fma(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
RR_INLINE Floats f_from_ints(Ints a) {
  return _mm512_maskz_cvtepi32_ps(0xffff, a);
}
RR_INLINE Floats f_from_f16(const void* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
RR_INLINE Floats f_from_bf16(const void* p) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, half), 16));
}
RR_INLINE Floats f_from_u8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return f_from_ints(_mm512_maskz_cvtepu8_epi32(0xffff, bytes));
}
RR_INLINE Floats f_from_i8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return f_from_ints(_mm512_maskz_cvtepi8_epi32(0xffff, bytes));
}

RR_INLINE Bytes b_load(const void* p) {
  return _mm512_loadu_si512(p);
}
RR_INLINE void b_store(void* p, Bytes a) {
  _mm512_storeu_si512(p, a);
}
RR_INLINE Bytes b_splat(uint8_t x) {
  return _mm512_set1_epi8(static_cast<char>(x));
}
RR_INLINE Bytes b_and(Bytes a, Bytes b) {
  return _mm512_and_si512(a, b);
}
// Bits of a where mask is set, else of b.
RR_INLINE Bytes b_select(Bytes mask, Bytes a, Bytes b) {
  return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}
// Shifts move bits between neighbouring bytes: mask afterwards.
template <int N>
RR_INLINE Bytes b_shr(Bytes a) {
  return _mm512_srli_epi16(a, N);
}
template <int N>
RR_INLINE Bytes b_shl(Bytes a) {
  return _mm512_slli_epi16(a, N);
}

// A table of 16 bytes, and what it holds at the bytes of a, which are below 16.
RR_INLINE Bytes b_table(const uint8_t (&table)[16]) {
  return _mm512_maskz_broadcast_i32x4(0xffff,
                                      _mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
RR_INLINE Bytes b_lookup(Bytes table, Bytes a) {
  return _mm512_shuffle_epi8(table, a);
}

RR_INLINE Floats f_bits(Ints a) {
  return _mm512_castsi512_ps(a);
}
RR_INLINE Ints i_splat(int32_t x) {
  return _mm512_set1_epi32(x);
}
RR_INLINE Ints i_add(Ints a, Ints b) {
  return _mm512_add_epi32(a, b);
}
// Sums of two neighbouring products: of unsigned bytes and signed ones, saturated to 16 bits; of
// 16 bits; of 16 bits with one.
RR_INLINE Ints i_pairs(Bytes w, Bytes x) {
  return _mm512_maddubs_epi16(w, x);
}
RR_INLINE Ints i_add_pairs(Ints a, Ints b) {
  return _mm512_add_epi16(a, b);
}
RR_INLINE Ints i_dot_words(Ints w, Ints x) {
  return _mm512_madd_epi16(w, x);
}
RR_INLINE Ints i_widen(Ints pairs) {
  return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
// Compilers turn chains of sums into trees, for which registers do not suffice: not of sums that
// are said to be done.
RR_INLINE void i_done(Ints& a) {
  asm("" : "+v"(a));
}
RR_INLINE Bytes b_even(Bytes a) {
  return _mm512_and_si512(a, _mm512_set1_epi16(255));
}
RR_INLINE Bytes b_odd(Bytes a) {
  return _mm512_srli_epi16(a, 8);
}
#if defined(__AVX512VNNI__)
// Adds w.lane[j] * x[j], j < 4, in every lane. Written out, because the compiler splits off the
// broadcast, which costs a fifth.
RR_INLINE void i_add_dots(Ints& sum, Bytes w, const int8_t* x) {
  typedef int32_t AnyInt __attribute__((may_alias));
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(w), "m"(*reinterpret_cast<const AnyInt*>(x)));
}
#endif

#elif defined(__AVX2__)

struct Floats {
  __m256 a, b;
};
struct Ints {
  __m256i a, b;
};
typedef Ints Bytes;

RR_INLINE Floats f_splat(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
RR_INLINE Floats f_load(const void* p) {
  const float* f = static_cast<const float*>(p);
  return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
}
RR_INLINE void f_store(void* p, Floats x) {
  float* f = static_cast<float*>(p);
  _mm256_storeu_ps(f, x.a);
  _mm256_storeu_ps(f + 8, x.b);
}
RR_INLINE Floats f_add(Floats x, Floats y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
RR_INLINE Floats f_mul(Floats x, Floats y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
RR_INLINE Floats f_fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
RR_INLINE Floats f_from_ints(Ints x) {
  return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
RR_INLINE Floats f_from_f16(const void* p) {
  const __m128i* h = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
RR_INLINE Floats f_from_bf16(const void* p) {
  const __m128i* h = static_cast<const __m128i*>(p);
  const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128(h));
  const __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
}
RR_INLINE Floats f_from_u8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return f_from_ints({_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))});
}
RR_INLINE Floats f_from_i8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return f_from_ints({_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))});
}

RR_INLINE Bytes b_load(const void* p) {
  const __m256i* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
RR_INLINE void b_store(void* p, Bytes x) {
  __m256i* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, x.a);
  _mm256_storeu_si256(v + 1, x.b);
}
RR_INLINE Bytes b_splat(uint8_t x) {
  const __m256i v = _mm256_set1_epi8(static_cast<char>(x));
  return {v, v};
}
RR_INLINE Bytes b_and(Bytes x, Bytes y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
// Bits of x where mask is set, else of y.
RR_INLINE Bytes b_select(Bytes mask, Bytes x, Bytes y) {
  return {_mm256_or_si256(_mm256_and_si256(mask.a, x.a), _mm256_andnot_si256(mask.a, y.a)),
          _mm256_or_si256(_mm256_and_si256(mask.b, x.b), _mm256_andnot_si256(mask.b, y.b))};
}
// Shifts move bits between neighbouring bytes: mask afterwards.
template <int N>
RR_INLINE Bytes b_shr(Bytes x) {
  return {_mm256_srli_epi16(x.a, N), _mm256_srli_epi16(x.b, N)};
}
template <int N>
RR_INLINE Bytes b_shl(Bytes x) {
  return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
}

// A table of 16 bytes, and what it holds at the bytes of x, which are below 16.
RR_INLINE Bytes b_table(const uint8_t (&table)[16]) {
  const __m128i* v = reinterpret_cast<const __m128i*>(table);
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(v));
  return {both, both};
}
RR_INLINE Bytes b_lookup(Bytes table, Bytes x) {
  return {_mm256_shuffle_epi8(table.a, x.a), _mm256_shuffle_epi8(table.b, x.b)};
}

RR_INLINE Floats f_bits(Ints x) {
  return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
RR_INLINE Ints i_splat(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
RR_INLINE Ints i_add(Ints x, Ints y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
RR_INLINE Ints i_pairs(Bytes w, Bytes x) {
  return {_mm256_maddubs_epi16(w.a, x.a), _mm256_maddubs_epi16(w.b, x.b)};
}
RR_INLINE Ints i_add_pairs(Ints x, Ints y) {
  return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)};
}
RR_INLINE Ints i_dot_words(Ints w, Ints x) {
  return {_mm256_madd_epi16(w.a, x.a), _mm256_madd_epi16(w.b, x.b)};
}
RR_INLINE Ints i_widen(Ints pairs) {
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(pairs.a, one), _mm256_madd_epi16(pairs.b, one)};
}
RR_INLINE void i_done(Ints& x) {
  asm("" : "+x"(x.a), "+x"(x.b));
}
RR_INLINE Bytes b_even(Bytes x) {
  const __m256i low = _mm256_set1_epi16(255);
  return {_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low)};
}
RR_INLINE Bytes b_odd(Bytes x) {
  return {_mm256_srli_epi16(x.a, 8), _mm256_srli_epi16(x.b, 8)};
}
#if defined(__AVXVNNI__)
RR_INLINE void i_add_dots(Ints& sum, Bytes w, const int8_t* x) {
  const __m256i four = _mm256_set1_epi32(load_int(x));
  sum = {_mm256_dpbusd_avx_epi32(sum.a, w.a, four), _mm256_dpbusd_avx_epi32(sum.b, w.b, four)};
}
#endif

#elif defined(__ARM_FEATURE_DOTPROD)

}  // namespace

#include "lanes_neon.hpp"

namespace {

#else

typedef v16 Floats;
typedef i16x32 Ints;
typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(64)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef int8_t i8x16 __attribute__((vector_size(16)));

RR_INLINE Floats f_splat(float x) {
  return splat(x);
}
RR_INLINE Floats f_load(const void* p) {
  return load16(p);
}
RR_INLINE void f_store(void* p, Floats a) {
  store16(p, a);
}
RR_INLINE Floats f_add(Floats a, Floats b) {
  return a + b;
}
RR_INLINE Floats f_mul(Floats a, Floats b) {
  return a * b;
}
RR_INLINE Floats f_fma(Floats a, Floats b, Floats c) {
  return fma16(a, b, c);
}
RR_INLINE Floats f_from_ints(Ints a) {
  return __builtin_convertvector(a, Floats);
}
RR_INLINE Floats f_from_f16(const void* p) {
  return load16_f16(static_cast<const uint16_t*>(p));
}
RR_INLINE Floats f_from_bf16(const void* p) {
  return load16_bf16(static_cast<const uint16_t*>(p));
}
RR_INLINE Floats f_from_u8(const void* p) {
  u8x16 v;
  memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, Floats);
}
RR_INLINE Floats f_from_i8(const void* p) {
  i8x16 v;
  memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, Floats);
}

RR_INLINE Bytes b_load(const void* p) {
  Bytes v;
  memcpy(&v, p, sizeof v);
  return v;
}
RR_INLINE void b_store(void* p, Bytes a) {
  memcpy(p, &a, sizeof a);
}
RR_INLINE Bytes b_splat(uint8_t x) {
  return Bytes{} + x;
}
RR_INLINE Bytes b_and(Bytes a, Bytes b) {
  return a & b;
}
// Bits of a where mask is set, else of b.
RR_INLINE Bytes b_select(Bytes mask, Bytes a, Bytes b) {
  return (mask & a) | (~mask & b);
}
// Shifts move bits between neighbouring bytes: mask afterwards.
template <int N>
RR_INLINE Bytes b_shr(Bytes a) {
  return (Bytes)((Halves)a >> N);
}
template <int N>
RR_INLINE Bytes b_shl(Bytes a) {
  return (Bytes)((Halves)a << N);
}

// A table of 16 bytes, and what it holds at the bytes of a, which are below 16.
RR_INLINE Bytes b_table(const uint8_t (&table)[16]) {
  Bytes v = {};
  memcpy(&v, table, sizeof table);
  return v;
}
RR_INLINE Bytes b_lookup(const Bytes& table, Bytes a) {
  uint8_t values[64], at[64];
  memcpy(values, &table, sizeof values);
  memcpy(at, &a, sizeof at);
  for (int i = 0; i < 64; ++i) at[i] = values[at[i]];
  return b_load(at);
}

RR_INLINE Ints i_splat(int32_t x) {
  return Ints{} + x;
}

#endif

// Lanes 0 .. n-1, with n up to 16; the others are zero.
RR_INLINE Floats f_load_part(const float* p, int n) {
  if (n == 16) return f_load(p);
  float all[16] = {};
  memcpy(all, p, static_cast<size_t>(n) * sizeof(float));
  return f_load(all);
}

RR_INLINE void f_store_part(float* p, Floats x, int n) {
  if (n == 16) return f_store(p, x);
  float all[16];
  f_store(all, x);
  memcpy(p, all, static_cast<size_t>(n) * sizeof(float));
}

}  // namespace
