// Vectors of the width that the instruction set has, for kernels that keep sums in registers:
// compilers hold a wider vector on the stack. How a dot product is summed depends on the width
// alone, never on what is computed beside it.
#pragma once

#include "node.hpp"
#include "simd.hpp"

#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__clang__)
#define RR_SHUFFLE(mask, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define RR_SHUFFLE(mask, a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Whether there are 32 vector registers, so that sixteen sums stay in them, or else 16.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kManyRegisters = true;
#else
constexpr bool kManyRegisters = false;
#endif

typedef float vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t ivec __attribute__((vector_size(4 * kLanes)));
typedef uint32_t uvec __attribute__((vector_size(4 * kLanes)));
typedef uint16_t hvec __attribute__((vector_size(2 * kLanes)));
typedef float v4 __attribute__((vector_size(16)));

// n rounded up to whole vectors.
[[maybe_unused]] inline int64_t padded(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

// Less zero: adding it would turn -0 into 0, and so cost an instruction.
[[maybe_unused]] inline vec vec_of(float x) {
  return x - vec{};
}

[[maybe_unused]] inline vec load_vec(const void* p) {
  vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

[[maybe_unused]] inline void store_vec(void* p, vec v) {
  memcpy(p, &v, sizeof v);
}

// Lanes 0 .. n-1; the others are zero.
[[maybe_unused]] inline vec load_vec(const float* p, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load_vec(lanes);
}

[[maybe_unused]] inline void store_vec(float* p, vec v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
}

// a*b + c, fused where the instruction set has it.
[[maybe_unused]] inline vec fma_vec(vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__) && defined(__ARM_NEON)
  return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

[[maybe_unused]] inline v4 low4(vec v) {
  v4 low;
  memcpy(&low, &v, sizeof low);
  return low;
}

// The sums of the lanes of a, b, c and d. Each is folded in halves, whatever its place.
[[maybe_unused]] inline v4 sums(vec a, vec b, vec c, vec d) {
#if defined(__AVX512F__)
  const auto half = [](vec x, vec y) {
    return RR_SHUFFLE(ivec, x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           RR_SHUFFLE(ivec, x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  };
  const vec ab = half(a, b), cd = half(c, d);
  vec s = RR_SHUFFLE(ivec, ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
          RR_SHUFFLE(ivec, ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  s += RR_SHUFFLE(ivec, s, s, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  s += RR_SHUFFLE(ivec, s, s, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  s = RR_SHUFFLE(ivec, s, s, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  return low4(s);
#elif defined(__AVX2__)
  const auto half = [](vec x, vec y) {
    return RR_SHUFFLE(ivec, x, y, 0, 1, 2, 3, 8, 9, 10, 11) +
           RR_SHUFFLE(ivec, x, y, 4, 5, 6, 7, 12, 13, 14, 15);
  };
  const vec ab = half(a, b), cd = half(c, d);
  vec s = RR_SHUFFLE(ivec, ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
          RR_SHUFFLE(ivec, ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  s += RR_SHUFFLE(ivec, s, s, 1, 0, 3, 2, 5, 4, 7, 6);
  s = RR_SHUFFLE(ivec, s, s, 0, 4, 2, 6, 0, 4, 2, 6);
  return low4(s);
#else
  const vec ab = RR_SHUFFLE(ivec, a, b, 0, 1, 4, 5) + RR_SHUFFLE(ivec, a, b, 2, 3, 6, 7);
  const vec cd = RR_SHUFFLE(ivec, c, d, 0, 1, 4, 5) + RR_SHUFFLE(ivec, c, d, 2, 3, 6, 7);
  return RR_SHUFFLE(ivec, ab, cd, 0, 2, 4, 6) + RR_SHUFFLE(ivec, ab, cd, 1, 3, 5, 7);
#endif
}

// Every second lane of a and then b, from the first or from the second on.
[[maybe_unused]] inline vec even_lanes(vec a, vec b) {
#if defined(__AVX512F__)
  return RR_SHUFFLE(ivec, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#elif defined(__AVX2__)
  return RR_SHUFFLE(ivec, a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
  return RR_SHUFFLE(ivec, a, b, 0, 2, 4, 6);
#endif
}

[[maybe_unused]] inline vec odd_lanes(vec a, vec b) {
#if defined(__AVX512F__)
  return RR_SHUFFLE(ivec, a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(__AVX2__)
  return RR_SHUFFLE(ivec, a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  return RR_SHUFFLE(ivec, a, b, 1, 3, 5, 7);
#endif
}

// A square of vectors: lane j of vector i becomes lane i of vector j. Each round takes the lowest
// bit of the lane into the number of the vector, and a bit of that into the highest of the lane.
[[maybe_unused]] inline __attribute__((always_inline)) void transpose(vec (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int bit = 1; bit < kLanes; bit *= 2)
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
      if ((i & bit) == 0) {
        const vec a = rows[i], b = rows[i + bit];
        rows[i] = even_lanes(a, b);
        rows[i + bit] = odd_lanes(a, b);
      }
}

[[maybe_unused]] inline vec from_bf16(hvec h) {
  return (vec)(__builtin_convertvector(h, uvec) << 16);
}

// Exact, subnormals, infinities and NaN included.
[[maybe_unused]] inline vec from_f16(hvec h) {
#if defined(__AVX512F__)
  return (vec)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
#elif defined(__F16C__)
  return (vec)_mm256_cvtph_ps((__m128i)h);
#elif defined(__aarch64__) && defined(__ARM_NEON)
  return (vec)vcvt_f32_f16((float16x4_t)h);
#else
  const uvec bits = __builtin_convertvector(h, uvec);
  const uvec rest = (bits & 0x7fff) << 13;
  // As a float the shifted bits are the value times 2^-112, save for infinities and NaN.
  const uvec scaled = (uvec)((vec)rest * vec_of(0x1p112f));
  const uvec special = (uvec)((bits & 0x7c00) == 0x7c00) & 0x7f800000;
  return (vec)(scaled | special | ((bits & 0x8000) << 16));
#endif
}

// e^x, and 0 where that is no normal number: arithmetic with subnormal ones is very slow.
[[maybe_unused]] inline v16 normal_exp16(v16 x) {
  const v16 y = exp16(x);
  return y < splat(0x1p-126f) ? v16{} : y;
}

// n plain elements as floats, then zeros up to whole vectors.
[[maybe_unused]] inline void widen(float* to, const void* from, uint32_t dtype, int64_t n) {
  const auto* halves = static_cast<const uint16_t*>(from);
  const int64_t whole = n / kLanes * kLanes;
  hvec h;
  if (dtype == RR_F32) {
    memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else if (dtype == RR_F16) {
    for (int64_t i = 0; i < whole; i += kLanes) {
      memcpy(&h, halves + i, sizeof h);
      store_vec(to + i, from_f16(h));
    }
    for (int64_t i = whole; i < n; ++i) to[i] = f16_to_f32(halves[i]);
  } else {
    for (int64_t i = 0; i < whole; i += kLanes) {
      memcpy(&h, halves + i, sizeof h);
      store_vec(to + i, from_bf16(h));
    }
    for (int64_t i = whole; i < n; ++i) to[i] = bf16_to_f32(halves[i]);
  }
  for (int64_t i = n; i < padded(n); ++i) to[i] = 0.0f;
}

}  // namespace
