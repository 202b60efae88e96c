// What kernels of softmax take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &mask = node->inputs[1];
  if (x.dtype != RR_F32 || !dense_tail(x, 1)) return refuse(why, size, "x needs dense f32 rows");
  if (present(mask) && (mask.dtype != RR_F32 || !dense_tail(mask, mask.rank > 0 ? 1 : 0)))
    return refuse(why, size, "mask needs dense f32 rows");
  return 1;
}

}  // namespace
