// Sums that row normalisations share.
#pragma once

#include "native_vec.hpp"

namespace {

// The sum of f(x[i]) in f64, f of doubles, one or several: sixteen running sums and one order on
// every instruction set. Squares of huge and tiny f32 stay exact.
template <typename F>
inline double sum_of(const float* x, int64_t n, const F& f) {
  constexpr int lanes_each = kLanes / 2, parts = 16 / lanes_each;
  typedef float narrow __attribute__((vector_size(4 * lanes_each)));
  typedef double wide __attribute__((vector_size(8 * lanes_each)));
  wide sums[parts] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int part = 0; part < parts; ++part) {
      narrow v;
      memcpy(&v, x + i + part * lanes_each, sizeof v);
      sums[part] += f(__builtin_convertvector(v, wide));
    }
  }
  double lanes[16];
  memcpy(lanes, sums, sizeof lanes);
  for (int width = 8; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  for (; i < n; ++i) lanes[0] += f(static_cast<double>(x[i]));
  return lanes[0];
}

[[maybe_unused]] inline double sum_of_elements(const float* x, int64_t n) {
  return sum_of(x, n, [](auto v) { return v; });
}

[[maybe_unused]] inline double sum_of_squares(const float* x, int64_t n) {
  return sum_of(x, n, [](auto v) { return v * v; });
}

// What rms_norm multiplies the n values of a row by.
[[maybe_unused]] inline float rms_scale(const float* x, int64_t n, double eps) {
  const double mean = sum_of_squares(x, n) / static_cast<double>(n);
  return static_cast<float>(1.0 / sqrt(mean + eps));
}

// What l2_norm multiplies the n values of a row by, in f64 because 1/eps and 1/norm may exceed f32.
// add: eps belongs to the sum, and is the least length otherwise.
[[maybe_unused]] inline double l2_factor(const float* x, int64_t n, double eps, bool add) {
  const double sum = sum_of_squares(x, n);
  return 1.0 / (add ? sqrt(sum + eps) : fmax(sqrt(sum), eps));
}

// One thread does rows of little work sooner than several meet.
[[maybe_unused]] inline int32_t row_tasks(const rr_node* node) {
  const rr_tensor& x = node->inputs[0];
  const int64_t rows = n_rows(x);
  return numel(x) < 16384 ? 1 : static_cast<int32_t>(rows < INT32_MAX ? rows : INT32_MAX);
}

}  // namespace
