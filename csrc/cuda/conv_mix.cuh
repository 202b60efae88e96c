// What the kernels of conv_delta_mix share: a convolution's channels of a token, four a lane, with
// the arithmetic of ssm_conv_silu and l2_norm.
#pragma once

#include "activation.cuh"
#include "gated_delta_net.cuh"
#include "row_length.cuh"
#include "ssm_conv.cuh"

#ifdef RR_EMULATE
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#endif

namespace {

constexpr int kTaps = 4;

// rule: with alpha as g, and without q, k and v. tail, tail_log: those of the convolution, which
// the numbers of the rule's choose. constant: no kernel writes the weights. at_once: all blocks run
// at the same time.
struct ConvMix {
  Task rule;
  const float *x, *w, *dt, *a;
  int64_t x_row, channels;
  Kept tail;
  Replay tail_log;
  EuclideanLength length;
  unsigned* counters;
  bool constant, at_once;
};

__device__ inline float tapped(const float4& tap, float a, float b, float c, float d) {
  return silu(fmaf(tap.w, d, fmaf(tap.z, c, fmaf(tap.y, b, fmaf(tap.x, a, 0.0f)))));
}

__device__ inline float4 convolved(const float4 (&tap)[4], const float4 (&in)[kTaps]) {
  return make_float4(tapped(tap[0], in[0].x, in[1].x, in[2].x, in[3].x),
                     tapped(tap[1], in[0].y, in[1].y, in[2].y, in[3].y),
                     tapped(tap[2], in[0].z, in[1].z, in[2].z, in[3].z),
                     tapped(tap[3], in[0].w, in[1].w, in[2].w, in[3].w));
}

// As divide_row of a row that a warp holds.
template <typename T>
__device__ inline bool divide(float4& v, const EuclideanLength& length) {
  const T a = v.x, b = v.y, c = v.z, d = v.w;
  T sum = 0;
  sum += (a * a + b * b) + (c * c + d * d);
  const T divisor = length(sum = group_sum<kWarp>(sum));
  if (!in_range(sum, divisor)) return false;
  const T factor = T(1) / divisor;
  v = make_float4(static_cast<float>(a * factor), static_cast<float>(b * factor),
                  static_cast<float>(c * factor), static_cast<float>(d * factor));
  return true;
}

// Apart, as what is rare should not lie among what is not: instructions come from memory, too.
__noinline__ __device__ float4 divided_in_double(float4 v, EuclideanLength length) {
  divide<double>(v, length);
  return v;
}

}  // namespace
