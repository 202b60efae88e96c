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

// x Phi(x), where the normal distribution's lower tail Phi(-|x|) is e^(-x^2/2) t Q(t) with
// t = 1 / (1 + 0.3 |x|); Q is minimax up to |x| = 14.5, relative error 4e-9. The exponent is of
// size 100 in the tail: f64, split into two floats.
[[maybe_unused]] inline vec gelu_erf_vec(vec x) {
  vec size = abs_vec(x);
  size = size > 14.5f ? vec_of(14.5f) : size;
  const dvec wide = __builtin_convertvector(size, dvec), u = -0.5 * wide * wide;
  const vec high = __builtin_convertvector(u, vec);
  const vec low = __builtin_convertvector(u - __builtin_convertvector(high, dvec), vec);
  const vec t = 1.0f / (1.0f + 0.3f * size);
  vec q = vec_of(-0.0206235521f);
  q = fma_vec(q, t, vec_of(0.112436063f));
  q = fma_vec(q, t, vec_of(-0.228214652f));
  q = fma_vec(q, t, vec_of(0.191785927f));
  q = fma_vec(q, t, vec_of(-0.079424637f));
  q = fma_vec(q, t, vec_of(0.0961574386f));
  q = fma_vec(q, t, vec_of(0.0783894441f));
  q = fma_vec(q, t, vec_of(0.110235468f));
  q = fma_vec(q, t, vec_of(0.119571809f));
  q = fma_vec(q, t, vec_of(0.11968669f));
  const vec e = exp_vec(high), tail = fma_vec(e, low, e) * (t * q);
  return x * (x < 0.0f ? tail : 1.0f - tail);
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

// 2 atanh(t / 2) = t (1 + z q(z)), z = (t / 2)^2, for |t| <= 2/3; q is minimax, relative error
// 1e-9.
[[maybe_unused]] inline vec twice_atanh_half(vec t) {
  const vec z = 0.25f * t * t;
  vec q = vec_of(0.116167784f);
  q = fma_vec(q, z, vec_of(0.108522668f));
  q = fma_vec(q, z, vec_of(0.1429625f));
  q = fma_vec(q, z, vec_of(0.199998513f));
  q = fma_vec(q, z, vec_of(0.333333343f));
  return fma_vec(t * z, q, t);
}

// log(1 + e^x) = max(x, 0) + log1p(e), e = e^-|x| <= 1; log1p(e) is 2 atanh(e / (2 + e)). Above 20
// the sum rounds to x by itself.
[[maybe_unused]] inline vec softplus_vec(vec x) {
  const vec e = exp_vec(-abs_vec(x));
  return (x > 0.0f ? x : vec{}) + twice_atanh_half((e + e) / (2.0f + e));
}

// x = 2^k (1 + f) with 1 + f between the roots of 1/2 and 2, and log(1 + f) = 2 atanh(f / (2 + f)).
// Subnormal numbers are made normal first.
[[maybe_unused]] inline vec log_vec(vec x) {
  const vec tiny = x < 0x1p-126f ? vec_of(1.0f) : vec{};
  const vec y = x < 0x1p-126f ? x * 0x1p23f : x;
  // Unsigned where the bits of negative numbers and NaN wrap around: those lanes are replaced
  // below.
  const ivec k = (ivec)((uvec)y - 0x3f3504f3u) >> 23;
  const vec f = (vec)((uvec)y - ((uvec)k << 23)) - 1.0f;
  const vec of_k = __builtin_convertvector(k, vec) - 23.0f * tiny;
  const vec rest = fma_vec(of_k, vec_of(-2.12194440e-4f), twice_atanh_half((f + f) / (2.0f + f)));
  vec result = fma_vec(of_k, vec_of(0.693359375f), rest);
  result = x == 0.0f ? vec_of(-INFINITY) : result;
  result = x < 0.0f ? vec_of(NAN) : result;
  return x < INFINITY ? result : x;
}

// The compiler makes this the vector instruction.
[[maybe_unused]] inline vec sqrt_vec(vec x) {
  float lanes[kLanes];
  store_vec(lanes, x);
  for (float& lane : lanes) lane = sqrtf(lane);
  return load_vec(lanes);
}

}  // namespace
