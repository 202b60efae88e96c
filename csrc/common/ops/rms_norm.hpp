// What kernels of rms_norm take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  if (x.dtype != RR_F32 || !dense_tail(x, 1)) return refuse(why, size, "x needs dense f32 rows");
  if (present(node->inputs[1]) && !dense(node->inputs[1]))
    return refuse(why, size, "w needs to be dense");
  return 1;
}

}  // namespace
