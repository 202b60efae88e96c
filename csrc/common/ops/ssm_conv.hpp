// What kernels of ssm_conv take.
#pragma once

#include "kept.hpp"
#include "node.hpp"

namespace {

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1];
  if (x.dtype != RR_F32 || x.rank != 2 || !dense_tail(x, 1))
    return refuse(why, size, "x needs dense f32 rows");
  if (w.dtype != RR_F32 || w.layout != RR_LAYOUT_PLAIN || !dense(w))
    return refuse(why, size, "w needs to be dense f32");
  if (node->inputs[2].dtype != RR_I32 || !dense(node->inputs[2]))
    return refuse(why, size, "seq_offsets needs to be dense i32");
  const char* complaint =
      kept_complaint(node->inputs[4], node->inputs[3], node->inputs[5], node->inputs[6]);
  if (*complaint) return refuse(why, size, complaint);
  complaint = replay_complaint(node->inputs + 7, node->inputs[4], x.shape[1]);
  return *complaint ? refuse(why, size, complaint) : 1;
}

}  // namespace
