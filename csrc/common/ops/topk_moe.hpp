// What kernels of topk_moe take.
#pragma once

#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &bias = node->inputs[1];
  if (x.dtype != RR_F32 || x.rank != 2 || !dense_tail(x, 1))
    return refuse(why, size, "logits need dense f32 rows");
  if (present(bias) && (bias.dtype != RR_F32 || !dense(bias)))
    return refuse(why, size, "bias needs to be dense f32");
  const int64_t k = attr_int(node, "k", 0);
  if (k < 1 || k > x.shape[1]) return refuse(why, size, "k is not within a row");
  return 1;
}

}  // namespace
