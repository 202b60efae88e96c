// What the kernels of gated_delta_net in chunks of 64 tokens on warpgroups hand to each other. With
// G the sums of g from the chunk's start and D_ij = exp(G_i - G_j), of keys k, queries q:
//
//   B_ij = beta_i k_i k_j for j < i, T_ij = D_ij ((I + B)^-1)_ij, P_ij = D_ij q_i k_j for j <= i
//   V' = T (beta (V - exp(G) K M^T))
//   O = scale (exp(G) Q M^T + P V'), M <- exp(G_last) M + V'^T (exp(G_last - G) K)
//
// Exponents are only G itself and a later G less an earlier one: exp(-G) overflows. The inverse
// needs no decays: those of (I + A)^-1, A_ij = D_ij B_ij, come out of it as they go in. Operands of
// products are sums of two bf16 each, and sums are f32. Nothing that is made of a token depends on
// those behind it. Source: Yang, Wang, Zhang, Shen & Kim 2024.
#pragma once

#include "gated_delta_net.cuh"
#include "wgmma_images.cuh"

namespace {

constexpr int kChunk = kImage;

// The larger terms of a matrix and the smaller ones, as images beside each other.
template <int images>
struct Terms {
  Image high[images], low[images];
};

// Of a chunk and a key head: rows of tokens.
template <int S>
struct Tokens {
  Terms<S / kImage> k, q;
};

constexpr int kBlock = 16, kBlocks = kChunk / kBlock;

// Of a chunk and a value head, in blocks; those above the diagonal are not there.
struct Relations {
  Terms<1> t, p;
};

// Of the tokens of a chunk and a value head.
struct Factors {
  float2 taken[kChunk];    // beta, beta exp(G)
  float grown[kChunk];     // exp(G)
  float left[kChunk];      // exp(G_last - G)
  float decay, unused[3];  // exp(G_last)
};

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
