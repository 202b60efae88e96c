// Activation functions, with a small relative error over the whole range.
#pragma once

#include "native_vec.hpp"

namespace {

typedef double dvec __attribute__((vector_size(8 * kLanes)));  // as many lanes as vec

[[maybe_unused]] inline vec exp_vec(vec x) {
  return exp_lanes<vec, ivec>(x, fma_vec);
}

[[maybe_unused]] inline vec abs_vec(vec x) {
  return (vec)((ivec)x & INT32_MAX);
}

// 1 / (1 + e^-x), of which e^x / (1 + e^x) keeps the small values of negative x.
[[maybe_unused]] inline vec sigmoid_vec(vec x) {
  const vec e = exp_vec(-abs_vec(x)), r = 1.0f / (1.0f + e);
  return x < 0.0f ? e * r : r;
}

[[maybe_unused]] inline vec silu_vec(vec x) {
  return x * sigmoid_vec(x);
}

// x/2 (1 + tanh u) = x / (1 + e^-2u): no cancellation for negative x. The exponent is of size 30
// where e^-2u matters, so that it takes more than f32: f64, split into two floats. At 14 it is 218.
[[maybe_unused]] inline vec gelu_vec(vec x) {
  vec held = x < -14.0f ? vec_of(-14.0f) : x;
  held = held > 14.0f ? vec_of(14.0f) : held;
  const dvec wide = __builtin_convertvector(held, dvec);
  const dvec u = wide * (1.5957691216057308 + 0.07135481627159867 * wide * wide);
  const vec high = __builtin_convertvector(u, vec);
  const vec low = __builtin_convertvector(u - __builtin_convertvector(high, dvec), vec);
  vec e = exp_vec(-abs_vec(high));
  e -= e * (high < 0.0f ? -low : low);
  const vec r = 1.0f / (1.0f + e);
  return x * (high < 0.0f ? e * r : r);
}

// Near 0 an odd polynomial (minimax, relative error 2e-8), elsewhere 1 - 2 / (e^2|x| + 1).
[[maybe_unused]] inline vec tanh_vec(vec x) {
  const vec size = abs_vec(x), z = x * x;
  const vec far = 1.0f - 2.0f / (exp_vec(size + size) + 1.0f);
  vec p = vec_of(-0.00609693723f);
  p = fma_vec(p, z, vec_of(0.0209973548f));
  p = fma_vec(p, z, vec_of(-0.0538509525f));
  p = fma_vec(p, z, vec_of(0.133327708f));
  p = fma_vec(p, z, vec_of(-0.333333284f));
  const vec y = size < 0.625f ? fma_vec(size * z, p, size) : far;
  return (vec)((ivec)y | ((ivec)x & INT32_MIN));
}

// log(1 + e^x) = max(x, 0) + log1p(e), e = e^-|x| <= 1. With s = e / (2 + e) <= 1/3, log1p(e) is
// 2 atanh(s) = 2s (1 + s^2 q(s^2)); q is minimax, relative error 1e-9. Above 20 the sum rounds to
// x by itself.
[[maybe_unused]] inline vec softplus_vec(vec x) {
  const vec e = exp_vec(-abs_vec(x));
  const vec t = (e + e) / (2.0f + e), z = 0.25f * t * t;
  vec q = vec_of(0.116167784f);
  q = fma_vec(q, z, vec_of(0.108522668f));
  q = fma_vec(q, z, vec_of(0.1429625f));
  q = fma_vec(q, z, vec_of(0.199998513f));
  q = fma_vec(q, z, vec_of(0.333333343f));
  return (x > 0.0f ? x : vec{}) + fma_vec(t * z, q, t);
}

// The compiler makes this the vector instruction.
[[maybe_unused]] inline vec sqrt_vec(vec x) {
  float lanes[kLanes];
  store_vec(lanes, x);
  for (float& lane : lanes) lane = sqrtf(lane);
  return load_vec(lanes);
}

}  // namespace
