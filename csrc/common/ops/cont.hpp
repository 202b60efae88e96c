// What kernels of cont and cast take.
#pragma once

#include "castable.hpp"
#include "node.hpp"

namespace {

inline int supports_cont(const rr_node* node, char* why, size_t size) {
  if (element_bytes(node->inputs[0].dtype) == 0) return refuse(why, size, "x has a block type");
  return 1;
}

inline int supports_cast(const rr_node* node, char* why, size_t size) {
  if (!castable(node->inputs[0].dtype) || !castable(node->outputs[0].dtype))
    return refuse(why, size, "casts among f32, f16, bf16 and i32 only");
  return 1;
}

}  // namespace
