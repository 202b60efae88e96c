// Copying elements of any plain type between any two layouts.
#pragma once

#include "elementwise.hpp"

namespace {

template <int bytes>
inline void copy_strided(char* to, int64_t to_step, const char* from, int64_t from_step,
                         int64_t n) {
  for (int64_t i = 0; i < n; ++i) memcpy(to + i * to_step, from + i * from_step, bytes);
}

inline void copy_run(char* const* p, const int64_t* step, int64_t n, int64_t bytes) {
  if (step[0] == bytes && step[1] == bytes) {
    memcpy(p[0], p[1], static_cast<size_t>(n * bytes));
    return;
  }
  switch (bytes) {
    case 1:
      return copy_strided<1>(p[0], step[0], p[1], step[1], n);
    case 2:
      return copy_strided<2>(p[0], step[0], p[1], step[1], n);
    case 4:
      return copy_strided<4>(p[0], step[0], p[1], step[1], n);
    default:
      return copy_strided<8>(p[0], step[0], p[1], step[1], n);
  }
}

// This thread's part of y = x; both have one shape and element type.
inline void copy_elements(const rr_tensor& y, const rr_tensor& x, int64_t rows,
                          const rr_exec* exec) {
  const rr_tensor* of[] = {&y, &x};
  const Walk walk = make_walk(of, 2, rows);
  const int64_t bytes = element_bytes(x.dtype);
  each_run<2>(walk, split(exec, walk.size, 64),
              [=](char** p, const int64_t* step, int64_t n) { copy_run(p, step, n, bytes); });
}

}  // namespace
