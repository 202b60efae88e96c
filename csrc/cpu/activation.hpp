// Activation functions of sixteen floats, with a small relative error over the whole range.
#pragma once

#include "simd.hpp"

namespace {

[[maybe_unused]] inline v16 silu16(v16 x) { return x * sigmoid16(x); }

// x/2 (1 + tanh u) = x / (1 + e^-2u): no cancellation for negative x. The exponent is of size 30
// where e^-2u matters, so that it takes more than f32: f64, split into two floats.
[[maybe_unused]] inline v16 gelu16(v16 x) {
  typedef float v8 __attribute__((vector_size(32)));
  typedef double d8 __attribute__((vector_size(64)));
  v16 high, low;
  for (int i = 0; i < 2; ++i) {
    v8 part;
    memcpy(&part, reinterpret_cast<const float*>(&x) + 8 * i, sizeof part);
    const d8 wide = __builtin_convertvector(part, d8);
    d8 u = wide * (1.5957691216057308 + 0.07135481627159867 * wide * wide);
    u = u < -200.0 ? d8{} - 200.0 : u;
    u = u > 200.0 ? d8{} + 200.0 : u;
    const v8 top = __builtin_convertvector(u, v8);
    const v8 rest = __builtin_convertvector(u - __builtin_convertvector(top, d8), v8);
    memcpy(reinterpret_cast<float*>(&high) + 8 * i, &top, sizeof top);
    memcpy(reinterpret_cast<float*>(&low) + 8 * i, &rest, sizeof rest);
  }
  const v16 one = splat(1.0f), zero = splat(0.0f);
  v16 e = exp16(-abs16(high));
  e += e * (high < zero ? low : -low);
  const v16 r = one / (one + e);
  return x * (high < zero ? e * r : r);
}

// Near 0 an odd polynomial (minimax, relative error 2e-8), elsewhere 1 - 2 / (e^2|x| + 1).
[[maybe_unused]] inline v16 tanh16(v16 x) {
  const v16 size = abs16(x), z = x * x;
  const v16 far = splat(1.0f) - splat(2.0f) / (exp16(size + size) + splat(1.0f));
  const v16 far_signed = (v16)((i16x32)far | ((i16x32)x & INT32_MIN));
  v16 p = splat(-0.00609693723f);
  p = fma16(p, z, splat(0.0209973548f));
  p = fma16(p, z, splat(-0.0538509525f));
  p = fma16(p, z, splat(0.133327708f));
  p = fma16(p, z, splat(-0.333333284f));
  return size < splat(0.625f) ? fma16(x * z, p, x) : far_signed;
}

// log(1 + e^x) = max(x, 0) + log1p(e), e = e^-|x| <= 1. With s = e / (2 + e) <= 1/3, log1p(e) is
// 2 atanh(s) = 2s (1 + s^2 q(s^2)); q is minimax, relative error 1e-8. Above 20 the sum rounds to
// x by itself.
[[maybe_unused]] inline v16 softplus16(v16 x) {
  const v16 e = exp16(-abs16(x));
  const v16 t = (e + e) / (splat(2.0f) + e), z = splat(0.25f) * t * t;
  v16 q = splat(0.116167784f);
  q = fma16(q, z, splat(0.108522668f));
  q = fma16(q, z, splat(0.1429625f));
  q = fma16(q, z, splat(0.199998513f));
  q = fma16(q, z, splat(0.333333343f));
  return (x > splat(0.0f) ? x : splat(0.0f)) + fma16(t * z, q, t);
}

// The compiler makes this the vector instruction.
[[maybe_unused]] inline v16 sqrt16(v16 x) {
  float lanes[16];
  store16(lanes, x);
  for (float& lane : lanes) lane = sqrtf(lane);
  return load16(lanes);
}

}  // namespace
