// What kernels of repeat take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (element_bytes(x.dtype) == 0) return refuse(why, size, "x has a block type");
  if (!dense_tail(y, y.rank > 0 ? 1 : 0)) return refuse(why, size, "y needs dense rows");
  return 1;
}

}  // namespace
