// What kernels of the gated delta rule take.
#pragma once

#include "kept.hpp"
#include "node.hpp"

namespace {

// The operands of a token, q, k, v, g and beta, and the inputs from seq_offsets on.
[[maybe_unused]] inline int supports_rule_operands(const rr_tensor* in, const rr_tensor* memory,
                                                   char* why, size_t size) {
  for (int i = 0; i < 3; ++i)
    if (in[i].dtype != RR_F32 || in[i].rank != 3 || !dense_tail(in[i], 1))
      return refuse(why, size, "q, k and v need to be f32 of rank 3 and dense along the last axis");
  if (in[2].shape[2] != in[1].shape[2]) return refuse(why, size, "keys and values differ in size");
  if (memory[0].dtype != RR_I32 || !dense(memory[0]))
    return refuse(why, size, "seq_offsets needs to be dense i32");
  const char* complaint = kept_complaint(memory[2], memory[1], memory[3], memory[4]);
  if (*complaint) return refuse(why, size, complaint);
  const int64_t heads = in[2].shape[1], of_head = in[2].shape[2];
  const int64_t decays = heads * (in[3].rank == 3 ? of_head : 1);
  const int64_t entry = (in[1].shape[1] + heads) * of_head + decays;
  complaint = replay_complaint(memory + 5, memory[2], entry);
  return *complaint ? refuse(why, size, complaint) : 1;
}

[[maybe_unused]] inline int supports_rule(const rr_node* node, char* why, size_t size) {
  for (int i = 3; i < 5; ++i)
    if (node->inputs[i].dtype != RR_F32 || !dense(node->inputs[i]))
      return refuse(why, size, "g and beta need to be dense f32");
  return supports_rule_operands(node->inputs, node->inputs + 5, why, size);
}

// Of delta_mix: the inputs before its memory's.
[[maybe_unused]] constexpr int kMixOperands = 7;

[[maybe_unused]] inline int supports_mix_operands(const rr_tensor* in, char* why, size_t size) {
  for (int i = 3; i < 5; ++i)
    if (in[i].dtype != RR_F32 || in[i].rank != 2 || !dense_tail(in[i], 1))
      return refuse(why, size, "alpha and beta need dense f32 rows");
  for (int i = 5; i < kMixOperands; ++i)
    if (in[i].dtype != RR_F32 || in[i].layout != RR_LAYOUT_PLAIN || !dense(in[i]))
      return refuse(why, size, "dt and a need to be dense f32");
  return 1;
}

}  // namespace
