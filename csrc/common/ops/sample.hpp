// What kernels of sample take.
#pragma once

#include "node.hpp"

namespace {

enum { kLogits, kIds, kTopK, kTemperature, kTopP, kMinP, kSeed, kPosition };
constexpr int kWords[] = {kTopK, kSeed, kPosition};

inline int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor* in = node->inputs;
  if (in[kLogits].dtype != RR_F32 || !dense_tail(in[kLogits], 1))
    return refuse(why, size, "logits need dense f32 rows");
  if (in[kIds].dtype != RR_I32 || !dense_tail(in[kIds], 1))
    return refuse(why, size, "ids need dense i32 rows");
  for (int i = kTemperature; i <= kMinP; ++i)
    if (in[i].dtype != RR_F64 || !dense(in[i]))
      return refuse(why, size, "temperature, top_p and min_p need to be dense f64");
  for (const int i : kWords)
    if (in[i].dtype != RR_I32 || !dense(in[i]))
      return refuse(why, size, "top_k, seed and position need to be dense i32");
  return 1;
}

}  // namespace
