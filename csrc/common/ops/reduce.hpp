// What kernels of reduce take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (x.dtype != RR_F32 || !dense_tail(x, 1)) return refuse(why, size, "x needs dense f32 rows");
  if (y.dtype != RR_F32 || !dense(y)) return refuse(why, size, "y needs to be dense f32");
  return 1;
}

}  // namespace
