// What kernels of ops on single elements take.
#pragma once

#include "node.hpp"

namespace {

[[maybe_unused]] inline int all_f32(const rr_node* node, char* why, size_t size) {
  for (uint32_t i = 0; i < node->n_inputs; ++i)
    if (node->inputs[i].dtype != RR_F32) return refuse(why, size, "takes f32 only");
  return 1;
}

}  // namespace
