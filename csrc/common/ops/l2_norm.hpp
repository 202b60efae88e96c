// What kernels of l2_norm take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  if (x.dtype != RR_F32 || !dense_tail(x, 1)) return refuse(why, size, "x needs dense f32 rows");
  if (!attr_is(node, "form", "add") && !attr_is(node, "form", "max"))
    return refuse(why, size, "form needs to be add or max");
  return 1;
}

}  // namespace
