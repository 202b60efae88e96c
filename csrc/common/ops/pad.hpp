// What kernels of pad take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const rr_attr* before = find_attr(node, "before");
  if (x.dtype != RR_F32) return refuse(why, size, "x needs to be f32");
  if (!dense_tail(y, y.rank > 0 ? 1 : 0)) return refuse(why, size, "y needs dense rows");
  if (before == nullptr || static_cast<int32_t>(before->count) != x.rank)
    return refuse(why, size, "before needs one number an axis");
  return 1;
}

}  // namespace
