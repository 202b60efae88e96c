// What kernels of solve_tri take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  for (int i = 0; i < 2; ++i)
    if (node->inputs[i].dtype != RR_F32 || !dense(node->inputs[i]))
      return refuse(why, size, "a and b need to be dense f32");
  return dense(node->outputs[0]) ? 1 : refuse(why, size, "x needs to be dense");
}

}  // namespace
