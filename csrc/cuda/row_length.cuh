// y = x / length(sum of x*x over the row) * w: what rms_norm and l2_norm share.
#pragma once

#include "rows.cuh"

namespace {

struct LengthRow {
  const float* x;
  const float* w;  // or null
  float* y;
  int64_t width;
};

// Whether a sum of squares and what rows are divided by are within their type's range.
__device__ inline bool in_range(float sum, float divisor) {
  return sum <= 1e37f && divisor >= 1e-15f;
}

__device__ inline bool in_range(double, double) {
  return true;
}

// The row in arithmetic of type T. False, and nothing is written, where T's range is too small.
template <int group, typename T, typename Length>
__device__ inline bool divide_row(const LengthRow& row, const Length& length) {
  const bool quads = in_quads(row.x, row.width);
  const int first = 4 * (threadIdx.x % group);
  T sum = 0;
#pragma unroll 2
  for (int64_t i = first; i < row.width; i += 4 * group) {
    const float4 v = load_quad(row.x, i, row.width, quads, 0.0f);
    const T a = v.x, b = v.y, c = v.z, d = v.w;
    sum += (a * a + b * b) + (c * c + d * d);
  }
  sum = group_sum<group>(sum);
  const T divisor = length(sum);
  if (!in_range(sum, divisor)) return false;
  const T factor = T(1) / divisor;
  const bool stores = quads && in_quads(row.y, row.width), weighs = row.w && in_quads(row.w, 4);
#pragma unroll 2
  for (int64_t i = first; i < row.width; i += 4 * group) {
    float4 v = load_quad(row.x, i, row.width, quads, 0.0f);
    v.x = static_cast<float>(v.x * factor);
    v.y = static_cast<float>(v.y * factor);
    v.z = static_cast<float>(v.z * factor);
    v.w = static_cast<float>(v.w * factor);
    if (row.w) {
      const float4 w = load_quad(row.w, i, row.width, quads && weighs, 0.0f);
      v.x *= w.x;
      v.y *= w.y;
      v.z *= w.z;
      v.w *= w.w;
    }
    store_quad(row.y, i, row.width, stores, v);
  }
  return true;
}

// What rms_norm divides rows by.
struct RootMeanSquare {
  int64_t width;
  double eps;

  __device__ float operator()(float squares) const {
    return sqrtf(squares / static_cast<float>(width) + static_cast<float>(eps));
  }
  __device__ double operator()(double squares) const {
    return sqrt(squares / static_cast<double>(width) + eps);
  }
};

// What l2_norm divides rows by; add: its form.
struct EuclideanLength {
  bool add;
  double eps;

  __device__ float operator()(float squares) const {
    const float least = static_cast<float>(eps);
    return add ? sqrtf(squares + least) : fmaxf(sqrtf(squares), least);
  }
  __device__ double operator()(double squares) const {
    return add ? sqrt(squares + eps) : fmax(sqrt(squares), eps);
  }
};

// f64 only for a row whose squares leave f32.
template <int group, typename Length>
__device__ inline void divide_safely(const LengthRow& row, const Length& length) {
  if (!divide_row<group, float>(row, length)) divide_row<group, double>(row, length);
}

template <int group, typename Length>
__device__ inline void divide_rows(const Rows& x, const float* w, const Rows& y, int64_t rows,
                                   int64_t width, const Length& length) {
  const int64_t r = own_row<group>();
  if (r >= rows) return;
  divide_safely<group>(LengthRow{row_at(x, r), w, row_at(y, r), width}, length);
}

}  // namespace
