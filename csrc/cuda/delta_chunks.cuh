// What both kernels of gated_delta_net in chunks of 64 tokens share: where the chunks of a batch's
// sequences are, and operands that are sums of two bf16.
#pragma once

#include "gated_delta_net.cuh"

namespace {

constexpr int kChunk = 64;

// Chunks of all sequences in one line. Sequence b's begin at slot chunk_base(b), so there are gaps,
// but no table is needed.
__device__ inline int chunk_base(const Task& task, int b) {
  return task.all.batch.first(b) / kChunk + b;
}

inline int64_t most_chunks(int64_t tokens, int64_t sequences) {
  return tokens / kChunk + sequences;
}

__device__ inline int chunks_of(const Task& task, int b) {
  const Pass pass = task.all.replay.pass(task.all.batch, b);
  return in_chunks(task, pass) ? (pass.tokens + kChunk - 1) / kChunk : 0;
}

// The sequence that a slot is a chunk of, or -1.
__device__ inline int sequence_at(const Task& task, int slot) {
  __shared__ int found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  for (int b = threadIdx.x; b < task.all.batch.count; b += blockDim.x) {
    const int at = slot - chunk_base(task, b);
    if (at >= 0 && at < chunks_of(task, b)) found = b;
  }
  __syncthreads();
  return found;
}

// Two floats as sums of bf16: the larger terms, and what they leave.
__device__ inline uint2 split_pair(float a, float b) {
  const unsigned high = pack_bf16(a, b);
  const float left_a = a - __uint_as_float(high << 16);
  const float left_b = b - __uint_as_float(high & 0xffff0000u);
  return make_uint2(high, pack_bf16(left_a, left_b));
}

}  // namespace
