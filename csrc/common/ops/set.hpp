// What kernels of set take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &dst = node->inputs[0], &src = node->inputs[1];
  if (element_bytes(dst.dtype) == 0 || src.dtype != dst.dtype)
    return refuse(why, size, "takes plain element types, both the same");
  return 1;
}

}  // namespace
