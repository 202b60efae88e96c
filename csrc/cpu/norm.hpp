// Sums that row normalisations share.
#pragma once

#include "native_vec.hpp"

namespace {

// f32 squares summed in f64, sixteen running sums and one order on every instruction set: huge and
// tiny rows stay exact.
inline double sum_of_squares(const float* x, int64_t n) {
  constexpr int lanes_each = kLanes / 2, parts = 16 / lanes_each;
  typedef float narrow __attribute__((vector_size(4 * lanes_each)));
  typedef double wide __attribute__((vector_size(8 * lanes_each)));
  wide sums[parts] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int part = 0; part < parts; ++part) {
      narrow v;
      memcpy(&v, x + i + part * lanes_each, sizeof v);
      const wide w = __builtin_convertvector(v, wide);
      sums[part] += w * w;
    }
  }
  double lanes[16];
  memcpy(lanes, sums, sizeof lanes);
  for (int width = 8; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  for (; i < n; ++i) lanes[0] += static_cast<double>(x[i]) * x[i];
  return lanes[0];
}

}  // namespace
