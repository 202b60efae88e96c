// What kernels of ssm_scan take.
#pragma once

#include "kept.hpp"
#include "node.hpp"

namespace {

inline int supports_scan(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  const rr_tensor *const rows[] = {&in[0], &in[3], &in[4]}, *const plain[] = {&in[1], &in[2]};
  for (const rr_tensor* t : rows)
    if (t->dtype != RR_F32 || t->rank != 3 || !dense_tail(*t, 1))
      return refuse(why, size, "x, b and c need to be f32 of rank 3 and dense along the last axis");
  for (const rr_tensor* t : plain)
    if (t->dtype != RR_F32 || !dense(*t)) return refuse(why, size, "dt and a need to be dense f32");
  if (in[5].dtype != RR_I32 || !dense(in[5]))
    return refuse(why, size, "seq_offsets needs to be dense i32");
  const char* complaint = kept_complaint(in[7], in[6], in[8], in[9]);
  if (*complaint) return refuse(why, size, complaint);
  const int64_t heads = in[0].shape[1];
  const int64_t entry = in[3].shape[1] * in[3].shape[2] + heads * in[0].shape[2] + heads;
  complaint = replay_complaint(in + 10, in[7], entry);
  return *complaint ? refuse(why, size, complaint) : 1;
}

}  // namespace
