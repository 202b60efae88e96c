// What kernels of norm take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  if (x.dtype != RR_F32 || !dense_tail(x, 1)) return refuse(why, size, "x needs dense f32 rows");
  for (int i = 1; i < 3; ++i)
    if (present(node->inputs[i]) && (node->inputs[i].dtype != RR_F32 || !dense(node->inputs[i])))
      return refuse(why, size, "w and b need to be dense f32");
  return 1;
}

}  // namespace
