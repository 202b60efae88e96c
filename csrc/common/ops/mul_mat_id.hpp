// What kernels of mul_mat_id ask of rows, experts and their ids.
#pragma once

#include "node.hpp"

namespace {

[[maybe_unused]] inline int supports_routing(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &ids = node->inputs[2];
  if (w.rank != 3 || ids.rank != 2) return refuse(why, size, "w needs rank 3");
  if (x.dtype != RR_F32 || !dense_tail(x, 1) || !dense_tail(node->outputs[0], 1))
    return refuse(why, size, "x and y need dense f32 rows");
  if (ids.dtype != RR_I32 || !dense(ids)) return refuse(why, size, "ids need to be dense i32");
  if (numel(ids) > INT32_MAX) return refuse(why, size, "more pairs than i32 indices");
  return 1;
}

}  // namespace
