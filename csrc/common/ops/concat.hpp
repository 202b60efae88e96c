// What kernels of concat take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  for (uint32_t i = 0; i < node->n_inputs; ++i)
    if (element_bytes(node->inputs[i].dtype) == 0 ||
        node->inputs[i].dtype != node->outputs[0].dtype)
      return refuse(why, size, "takes plain element types, all the same");
  return 1;
}

}  // namespace
