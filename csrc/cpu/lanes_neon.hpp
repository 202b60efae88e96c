// The lanes of lanes.hpp in four registers of NEON, one for four weight rows. A struct of them,
// because the compiler keeps a wider vector in memory.
#pragma once

#include <arm_neon.h>

namespace {

template <class Part>
struct Quarters {
  Part a, b, c, d;
};
typedef Quarters<float32x4_t> Floats;
typedef Quarters<int32x4_t> Ints;
typedef Quarters<uint8x16_t> Bytes;

// op of each quarter.
template <class To, class V, class Op>
RR_INLINE To quarters(const V& x, const Op& op) {
  return {op(x.a), op(x.b), op(x.c), op(x.d)};
}
template <class To, class V, class Op>
RR_INLINE To quarters(const V& x, const V& y, const Op& op) {
  return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};
}

RR_INLINE Floats f_splat(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
RR_INLINE Floats f_load(const void* p) {
  const float* f = static_cast<const float*>(p);
  return {vld1q_f32(f), vld1q_f32(f + 4), vld1q_f32(f + 8), vld1q_f32(f + 12)};
}
RR_INLINE void f_store(void* p, Floats x) {
  float* f = static_cast<float*>(p);
  vst1q_f32(f, x.a);
  vst1q_f32(f + 4, x.b);
  vst1q_f32(f + 8, x.c);
  vst1q_f32(f + 12, x.d);
}
RR_INLINE Floats f_add(Floats x, Floats y) {
  return quarters<Floats>(
      x, y, [](float32x4_t a, float32x4_t b) RR_INLINE_BODY { return vaddq_f32(a, b); });
}
RR_INLINE Floats f_mul(Floats x, Floats y) {
  return quarters<Floats>(
      x, y, [](float32x4_t a, float32x4_t b) RR_INLINE_BODY { return vmulq_f32(a, b); });
}
RR_INLINE Floats f_fma(Floats x, Floats y, Floats z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
          vfmaq_f32(z.d, x.d, y.d)};
}
RR_INLINE Floats f_from_ints(Ints x) {
  return quarters<Floats>(x, [](int32x4_t a) RR_INLINE_BODY { return vcvtq_f32_s32(a); });
}
RR_INLINE Floats f_from_f16(const void* p) {
  const uint16_t* h = static_cast<const uint16_t*>(p);
  const auto wide = [](const uint16_t* four) RR_INLINE_BODY {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(four)));
  };
  return {wide(h), wide(h + 4), wide(h + 8), wide(h + 12)};
}
RR_INLINE Floats f_from_bf16(const void* p) {
  const uint16_t* h = static_cast<const uint16_t*>(p);
  const auto wide = [](const uint16_t* four) RR_INLINE_BODY {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(four), 16));
  };
  return {wide(h), wide(h + 4), wide(h + 8), wide(h + 12)};
}
RR_INLINE Floats f_from_i8(const void* p) {
  const int8x16_t bytes = vld1q_s8(static_cast<const int8_t*>(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return f_from_ints({vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low),
                      vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)});
}
RR_INLINE Floats f_from_u8(const void* p) {
  const uint8x16_t bytes = vld1q_u8(static_cast<const uint8_t*>(p));
  const auto whole = [](uint16x8_t v) RR_INLINE_BODY { return vreinterpretq_s16_u16(v); };
  const int16x8_t low = whole(vmovl_u8(vget_low_u8(bytes))), high = whole(vmovl_high_u8(bytes));
  return f_from_ints({vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low),
                      vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)});
}

RR_INLINE Bytes b_load(const void* p) {
  const uint8_t* v = static_cast<const uint8_t*>(p);
  return {vld1q_u8(v), vld1q_u8(v + 16), vld1q_u8(v + 32), vld1q_u8(v + 48)};
}
RR_INLINE void b_store(void* p, Bytes x) {
  uint8_t* v = static_cast<uint8_t*>(p);
  vst1q_u8(v, x.a);
  vst1q_u8(v + 16, x.b);
  vst1q_u8(v + 32, x.c);
  vst1q_u8(v + 48, x.d);
}
RR_INLINE Bytes b_splat(uint8_t x) {
  const uint8x16_t v = vdupq_n_u8(x);
  return {v, v, v, v};
}
RR_INLINE Bytes b_and(Bytes x, Bytes y) {
  return quarters<Bytes>(x, y,
                         [](uint8x16_t a, uint8x16_t b) RR_INLINE_BODY { return vandq_u8(a, b); });
}
RR_INLINE Bytes b_xor(Bytes x, Bytes y) {
  return quarters<Bytes>(x, y,
                         [](uint8x16_t a, uint8x16_t b) RR_INLINE_BODY { return veorq_u8(a, b); });
}
// Bits of x where mask is set, else of y.
RR_INLINE Bytes b_select(Bytes mask, Bytes x, Bytes y) {
  return {vbslq_u8(mask.a, x.a, y.a), vbslq_u8(mask.b, x.b, y.b), vbslq_u8(mask.c, x.c, y.c),
          vbslq_u8(mask.d, x.d, y.d)};
}
// Zeros come in here, where other instruction sets shift in bits of the neighbouring byte.
template <int N>
RR_INLINE Bytes b_shr(Bytes x) {
  return quarters<Bytes>(x, [](uint8x16_t a) RR_INLINE_BODY { return vshrq_n_u8(a, N); });
}
template <int N>
RR_INLINE Bytes b_shl(Bytes x) {
  return quarters<Bytes>(x, [](uint8x16_t a) RR_INLINE_BODY { return vshlq_n_u8(a, N); });
}

// A table of 16 bytes, and what it holds at the bytes of x, which are below 16.
RR_INLINE Bytes b_table(const uint8_t (&table)[16]) {
  const uint8x16_t v = vld1q_u8(table);
  return {v, v, v, v};
}
RR_INLINE Bytes b_lookup(Bytes table, Bytes x) {
  return quarters<Bytes>(
      table, x, [](uint8x16_t a, uint8x16_t b) RR_INLINE_BODY { return vqtbl1q_u8(a, b); });
}

RR_INLINE Ints i_splat(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
// Adds w.lane[j] * x[4 * FOUR + j], j < 4, in every lane. Only processors that multiply matrices
// take w as unsigned.
template <int FOUR>
RR_INLINE void i_add_dots(Ints& sum, Bytes w, int8x16_t x) {
  const auto add = [&](int32x4_t& part, uint8x16_t four) RR_INLINE_BODY {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    part = vusdotq_laneq_s32(part, four, x, FOUR);
#else
    part = vdotq_laneq_s32(part, vreinterpretq_s8_u8(four), x, FOUR);
#endif
  };
  add(sum.a, w.a);
  add(sum.b, w.b);
  add(sum.c, w.c);
  add(sum.d, w.d);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Two vectors of weights as matrices of two rows of eight values each: rows 0 .. 7, then 8 .. 15.
struct Matrices {
  Bytes low, high;
};
RR_INLINE Matrices b_matrices(Bytes x, Bytes y) {
  const auto zip = [](uint8x16_t a, uint8x16_t b, uint8x16_t& first, uint8x16_t& second)
                       RR_INLINE_BODY {
                         const uint32x4_t u = vreinterpretq_u32_u8(a), v = vreinterpretq_u32_u8(b);
                         first = vreinterpretq_u8_u32(vzip1q_u32(u, v));
                         second = vreinterpretq_u8_u32(vzip2q_u32(u, v));
                       };
  Matrices m;
  zip(x.a, y.a, m.low.a, m.low.b);
  zip(x.b, y.b, m.low.c, m.low.d);
  zip(x.c, y.c, m.high.a, m.high.b);
  zip(x.d, y.d, m.high.c, m.high.d);
  return m;
}
// Sixteen values of two columns as two matrices of two columns of eight.
RR_INLINE void i_eights(const int8_t* x, const int8_t* y, int8x16_t* out) {
  const int64x2_t u = vreinterpretq_s64_s8(vld1q_s8(x)), v = vreinterpretq_s64_s8(vld1q_s8(y));
  out[0] = vreinterpretq_s8_s64(vzip1q_s64(u, v));
  out[1] = vreinterpretq_s8_s64(vzip2q_s64(u, v));
}
// Sums of two columns, the same for all rows, as products of matrices add to them.
RR_INLINE Ints i_beside(Ints x, Ints y) {
  const int32x4_t v = vzip1q_s32(x.a, y.a);
  return {v, v, v, v};
}
RR_INLINE void i_add_products(Ints& sum, Bytes w, int8x16_t x) {
  sum = {vusmmlaq_s32(sum.a, w.a, x), vusmmlaq_s32(sum.b, w.b, x), vusmmlaq_s32(sum.c, w.c, x),
         vusmmlaq_s32(sum.d, w.d, x)};
}
// Such sums of rows 0 .. 7 and 8 .. 15, as one vector a column.
RR_INLINE void i_apart(Ints low, Ints high, Ints* x, Ints* y) {
  *x = {vuzp1q_s32(low.a, low.b), vuzp1q_s32(low.c, low.d), vuzp1q_s32(high.a, high.b),
        vuzp1q_s32(high.c, high.d)};
  *y = {vuzp2q_s32(low.a, low.b), vuzp2q_s32(low.c, low.d), vuzp2q_s32(high.a, high.b),
        vuzp2q_s32(high.c, high.d)};
}
#endif

}  // namespace
