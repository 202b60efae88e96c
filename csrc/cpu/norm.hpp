// Sums that row normalisations share.
#pragma once

#include <stdint.h>
#include <string.h>

namespace {

// f32 squares summed in f64, sixteen running sums: huge and tiny rows stay exact.
inline double sum_of_squares(const float* x, int64_t n) {
  typedef double d8 __attribute__((vector_size(64)));
  typedef float v8 __attribute__((vector_size(32)));
  d8 low = {}, high = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    v8 a, b;
    memcpy(&a, x + i, sizeof a);
    memcpy(&b, x + i + 8, sizeof b);
    const d8 wide_a = __builtin_convertvector(a, d8), wide_b = __builtin_convertvector(b, d8);
    low += wide_a * wide_a;
    high += wide_b * wide_b;
  }
  low += high;
  double sum = ((low[0] + low[4]) + (low[1] + low[5])) + ((low[2] + low[6]) + (low[3] + low[7]));
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

}  // namespace
