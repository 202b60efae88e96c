// What kernels of argmax take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  if (x.dtype != RR_F32 || !dense_tail(x, 1)) return refuse(why, size, "x needs dense f32 rows");
  if (x.shape[x.rank - 1] > INT32_MAX) return refuse(why, size, "a row exceeds i32 indices");
  return 1;
}

}  // namespace
