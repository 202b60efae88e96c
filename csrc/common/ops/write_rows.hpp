// What kernels of write_rows take.
#pragma once

#include "node.hpp"
#include "pool_rows.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &state = node->inputs[0], &rows = node->inputs[1], &idx = node->inputs[2];
  if (state.rank < 2 || !dense_pool(state))
    return refuse(why, size, "the state needs to be dense f32, f16, bf16, q8_0 or q4_0");
  if (rows.dtype != RR_F32 || rows.rank != state.rank || !dense_tail(rows, 1))
    return refuse(why, size, "rows need to be f32 and dense along the last axis");
  if (idx.dtype != RR_I32 || !dense(idx)) return refuse(why, size, "idx needs to be dense i32");
  return 1;
}

}  // namespace
