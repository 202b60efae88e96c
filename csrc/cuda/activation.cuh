// Activation functions, with a small relative error over the whole range.
#pragma once

#include "device.cuh"

namespace {

// 1 / (1 + e^-x), of which e^x / (1 + e^x) keeps the small values of negative x.
__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x)), r = 1.0f / (1.0f + e);
  return x < 0.0f ? e * r : r;
}

__device__ inline float silu(float x) {
  return x * sigmoid(x);
}

// x/2 (1 + tanh u) = x / (1 + e^-2u): no cancellation for negative x. The exponent is of size 30
// where e^-2u matters, so that it takes more than one float: each product and sum has its rounding
// error beside it. At |x| = 14 it is 218.
__device__ inline float gelu(float x) {
  constexpr double kLinear = 1.5957691216057308, kCubic = 0.07135481627159867;
  constexpr float a = static_cast<float>(kLinear), b = static_cast<float>(kCubic);
  constexpr float a_rest = static_cast<float>(kLinear - static_cast<double>(a));
  constexpr float b_rest = static_cast<float>(kCubic - static_cast<double>(b));
  const float size = fminf(fabsf(x), 14.0f);
  const float square = size * size, square_rest = fmaf(size, size, -square);
  const float term = b * square, term_rest = fmaf(b, square, -term);
  const float factor = a + term, added = factor - a;
  const float sum_rest = (a - (factor - added)) + (term - added);
  const float rest = sum_rest + term_rest + fmaf(b, square_rest, fmaf(b_rest, square, a_rest));
  const float u = size * factor, u_rest = fmaf(size, rest, fmaf(size, factor, -u));
  float e = expf(-u);
  e -= e * u_rest;
  const float r = 1.0f / (1.0f + e);
  return x * (x < 0.0f ? e * r : r);
}

// x Phi(x), where the normal distribution's lower tail Phi(-|x|) is e^(-x^2/2) t Q(t) with
// t = 1 / (1 + 0.3 |x|); Q is minimax up to |x| = 14.5, relative error 4e-9. The exponent is of
// size 100 in the tail: the square has its rounding error beside it.
__device__ inline float gelu_erf(float x) {
  const float size = fminf(fabsf(x), 14.5f);
  const float square = size * size, square_rest = fmaf(size, size, -square);
  const float t = 1.0f / (1.0f + 0.3f * size);
  float q = -0.0206235521f;
  q = fmaf(q, t, 0.112436063f);
  q = fmaf(q, t, -0.228214652f);
  q = fmaf(q, t, 0.191785927f);
  q = fmaf(q, t, -0.079424637f);
  q = fmaf(q, t, 0.0961574386f);
  q = fmaf(q, t, 0.0783894441f);
  q = fmaf(q, t, 0.110235468f);
  q = fmaf(q, t, 0.119571809f);
  q = fmaf(q, t, 0.11968669f);
  const float e = expf(-0.5f * square), tail = fmaf(e, -0.5f * square_rest, e) * (t * q);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// log(1 + e^x) without overflow; above 20 the sum rounds to x by itself.
__device__ inline float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

}  // namespace
