// Sixteen floats at a time, on any instruction set: the compiler splits the vector as it must.
// The order of every sum is fixed, so that results do not depend on the instruction set's width,
// save where fused multiply-add exists.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16x32 __attribute__((vector_size(64)));  // 16 lanes of 32 bits

[[maybe_unused]] inline v16 splat(float x) {
  return x - v16{};
}

[[maybe_unused]] inline v16 load16(const void* p) {
  v16 v;
  memcpy(&v, p, sizeof v);
  return v;
}

[[maybe_unused]] inline void store16(void* p, v16 v) {
  memcpy(p, &v, sizeof v);
}

// Lanes 0 .. n-1; the others are zero.
[[maybe_unused]] inline v16 load_part(const float* p, int64_t n) {
  v16 v = {};
  memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
  return v;
}

[[maybe_unused]] inline void store_part(float* p, v16 v, int64_t n) {
  memcpy(p, &v, static_cast<size_t>(n) * sizeof(float));
}

// a*b + c, fused where the instruction set has it.
[[maybe_unused]] inline v16 fma16(v16 a, v16 b, v16 c) {
#if defined(__AVX512F__)
  return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  typedef float v8 __attribute__((vector_size(32)));
  union {
    v16 whole;
    v8 half[2];
  } x = {a}, y = {b}, z = {c};
  for (int i = 0; i < 2; ++i)
    z.half[i] = (v8)_mm256_fmadd_ps((__m256)x.half[i], (__m256)y.half[i], (__m256)z.half[i]);
  return z.whole;
#elif defined(__aarch64__)
  union {
    v16 whole;
    float32x4_t quarter[4];
  } x = {a}, y = {b}, z = {c};
  for (int i = 0; i < 4; ++i) z.quarter[i] = vfmaq_f32(z.quarter[i], x.quarter[i], y.quarter[i]);
  return z.whole;
#else
  return a * b + c;
#endif
}

// Sum of the lanes, as a tree: 16 -> 8 -> 4 -> 2 -> 1.
[[maybe_unused]] inline float sum16(v16 v) {
  typedef float v8 __attribute__((vector_size(32)));
  typedef float v4 __attribute__((vector_size(16)));
  union {
    v16 whole;
    v8 half[2];
  } a = {v};
  union {
    v8 whole;
    v4 half[2];
  } b = {a.half[0] + a.half[1]};
  const v4 c = b.half[0] + b.half[1];
  return (c[0] + c[2]) + (c[1] + c[3]);
}

// What one instruction takes of a v16: comparisons and selections of wider vectors are compiled
// lane by lane.
#if defined(__AVX512F__)
constexpr int kPart = 16;
#elif defined(__AVX2__)
constexpr int kPart = 8;
#else
constexpr int kPart = 4;
#endif
typedef float v16_part __attribute__((vector_size(4 * kPart)));
typedef int32_t i16x32_part __attribute__((vector_size(4 * kPart)));

[[maybe_unused]] inline v16_part part_of(const v16& v, int first) {
  v16_part part;
  memcpy(&part, reinterpret_cast<const float*>(&v) + first, sizeof part);
  return part;
}

[[maybe_unused]] inline void set_part(v16& v, int first, v16_part part) {
  memcpy(reinterpret_cast<float*>(&v) + first, &part, sizeof part);
}

[[maybe_unused]] inline v16 max16(v16 a, v16 b) {
  for (int i = 0; i < 16; i += kPart) {
    const v16_part x = part_of(a, i), y = part_of(b, i);
    set_part(a, i, x > y ? x : y);
  }
  return a;
}

[[maybe_unused]] inline float largest16(v16 v) {
  float best = v[0];
  for (int i = 1; i < 16; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

// Sum over n of a[i]*b[i], sixteen running sums.
[[maybe_unused]] inline float dot(const float* a, const float* b, int64_t n) {
  v16 sum = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) sum = fma16(load16(a + i), load16(b + i), sum);
  if (i < n) sum = fma16(load_part(a + i, n - i), load_part(b + i, n - i), sum);
  return sum16(sum);
}

// e^x by range reduction x = k ln2 + r and a polynomial on |r| <= ln2/2; relative error < 1.5e-7.
// Below -87.3 the result is a rounded subnormal number, then 0; above 88.7 it is infinity; NaN
// stays NaN. Lanes out of range compute e^0, since work on subnormal numbers is slow.
// V and I are floats and 32-bit ints of any number of lanes, fma(a, b, c) is their a*b + c.
template <typename V, typename I, typename Fma>
inline V exp_lanes(V x, const Fma& fma) {
  const float low = -103.97208f, high = 88.72283f;
  const V t = (x >= low) & (x <= high) ? x : V{};
  const float rounder = 12582912.0f;  // 1.5 * 2^23 rounds to an integer when added
  const V kf = (t * 1.44269504088896341f + rounder) - rounder;
  V r = fma(kf, V{} - 0.693359375f, t);
  r = fma(kf, V{} + 2.12194440e-4f, r);
  V p = V{} + 1.0f / 5040;
  p = fma(p, r, V{} + 1.0f / 720);
  p = fma(p, r, V{} + 1.0f / 120);
  p = fma(p, r, V{} + 1.0f / 24);
  p = fma(p, r, V{} + 1.0f / 6);
  p = fma(p, r, V{} + 0.5f);
  p = fma(p, r, V{} + 1.0f);
  p = fma(p, r, V{} + 1.0f);
  // 2^k in two factors, because k = 128 alone is not a float.
  const I k = __builtin_convertvector(kf, I);
  const I half = k >> 1;
  V y = p * (V)((half + 127) << 23) * (V)((k - half + 127) << 23);
  y = x < low ? V{} : y;
  y = x > high ? V{} + INFINITY : y;
  return x == x ? y : x;
}

[[maybe_unused]] inline v16 exp16(v16 x) {
  const auto fma = [](v16_part a, v16_part b, v16_part c) {
#if defined(__AVX512F__)
    return fma16(a, b, c);
#elif defined(__FMA__)
    return (v16_part)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (v16_part)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
  };
  for (int i = 0; i < 16; i += kPart)
    set_part(x, i, exp_lanes<v16_part, i16x32_part>(part_of(x, i), fma));
  return x;
}

// One f16 as f32, in integer arithmetic; exact, subnormals, infinities and NaN included.
[[maybe_unused]] inline float f16_to_f32(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(h & 0x7fff) << 13;
  uint32_t bits = rest + (112u << 23);
  if ((h & 0x7c00) == 0x7c00) bits = rest + (224u << 23);
  float value;
  if ((h & 0x7c00) == 0) {
    value = static_cast<float>(h & 0x3ff) * 5.9604644775390625e-8f;
    memcpy(&bits, &value, 4);
  }
  bits |= sign;
  memcpy(&value, &bits, 4);
  return value;
#endif
}

// f32 to f16, round to nearest even, NaN kept.
[[maybe_unused]] inline uint16_t f32_to_f16(float value) {
#if defined(__F16C__)
  return static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (bits >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (bits < 0x38800000) {  // subnormal: the float adder does the rounding
    float small;
    memcpy(&small, &bits, 4);
    small += 0.5f;
    uint32_t out;
    memcpy(&out, &small, 4);
    return static_cast<uint16_t>(sign | (out - 0x3f000000));
  }
  const uint32_t odd = (bits >> 13) & 1;
  return static_cast<uint16_t>(sign | ((bits + 0xc8000fff + odd) >> 13));
#endif
}

[[maybe_unused]] inline float bf16_to_f32(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

[[maybe_unused]] inline uint16_t f32_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 64);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Sixteen f16 or bf16 as floats.
[[maybe_unused]] inline v16 load16_f16(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (v16)_mm512_maskz_cvtph_ps(0xffff, half);
#elif defined(__F16C__)
  v16 v;
  for (int i = 0; i < 2; ++i) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i);
    const __m256 wide = _mm256_cvtph_ps(half);
    memcpy(reinterpret_cast<float*>(&v) + 8 * i, &wide, sizeof wide);
  }
  return v;
#else
  v16 v;
  for (int i = 0; i < 16; ++i) v[i] = f16_to_f32(p[i]);
  return v;
#endif
}

[[maybe_unused]] inline void store16_f16(uint16_t* p, v16 v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  for (int i = 0; i < 2; ++i) {
    __m256 wide;
    memcpy(&wide, reinterpret_cast<float*>(&v) + 8 * i, sizeof wide);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p) + i,
                     _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT));
  }
#else
  for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(v[i]);
#endif
}

[[maybe_unused]] inline v16 load16_bf16(const uint16_t* p) {
  i16x32 bits = {};
  for (int i = 0; i < 16; ++i) bits[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i]) << 16);
  return (v16)bits;
}

}  // namespace
