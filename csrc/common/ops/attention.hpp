// What kernels of attention take.
#pragma once

#include "node.hpp"
#include "pool_rows.hpp"

namespace {

[[maybe_unused]] inline int supports_attention(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  if (in[0].dtype != RR_F32 || in[0].rank != 3 || !dense_tail(in[0], 1))
    return refuse(why, size, "q needs to be f32 of rank 3 and dense along the last axis");
  for (int i = 1; i < 3; ++i)
    if (in[i].rank != 3 || !dense_pool(in[i]))
      return refuse(why, size, "k and v need to be dense f32, f16, bf16, q8_0 or q4_0 of rank 3");
  for (int i = 3; i < 6; ++i)
    if (in[i].dtype != RR_I32 || !dense(in[i]))
      return refuse(why, size, "offsets, positions and block table need to be dense i32");
  if (present(in[6]) && (in[6].dtype != RR_F32 || !dense(in[6])))
    return refuse(why, size, "sinks need to be dense f32");
  return 1;
}

}  // namespace
