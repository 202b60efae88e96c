// What a chunk of 64 tokens makes of a head's state, whatever that is. With G the sums of g from
// the chunk's start and D_ij = exp(G_i - G_j):
//
//   A_ij = beta_i D_ij k_i k_j for j < i, P_ij = D_ij q_i k_j for j <= i
//   (I + A) W = beta exp(G) K, (I + A) U = beta V, V' = U - W M^T
//   O = scale (exp(G) Q M^T + P V'), M <- exp(G_last) M + V'^T (exp(G_last - G) K)
//
// Exponents are only G itself and a later G less an earlier one: exp(-G) overflows. Operands of
// tensor cores are sums of two bf16 each. Source: Yang, Wang, Zhang, Shen & Kim 2024.
#pragma once

#include "delta_chunks.cuh"

namespace {

constexpr int kTile = 16;  // tokens, keys or values of a tensor core's operand

// A chunk of a head, ready for whatever state comes. Pairs are the larger and the smaller term.
template <int S>
struct __align__(16) Ready {
  uint16_t w[2][kChunk][S], q[2][kChunk][S];          // q: exp(G) scale Q
  uint16_t k[2][S][kChunk];                           // exp(G_last - G) K, a row for each key
  uint4 p[kChunk / kTile][kChunk / kTile][2][kWarp];  // scale P: tiles as operands lie in lanes
  float u[S][kChunk];                                 // a row for each value
  float decay, unused[3];                             // exp(G_last)
};

// Where this lane's row of a 16x16 tile lies that is the first operand of a product, or the second
// (whose rows are columns of the product): what load_matrix4 wants.
__device__ inline const uint16_t* left_row(const uint16_t* tile, int stride) {
  const int lane = threadIdx.x % kWarp;
  return tile + lane % 16 * stride + lane / 16 * 8;
}

__device__ inline const uint16_t* right_row(const uint16_t* tile, int stride) {
  const int lane = threadIdx.x % kWarp;
  return tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
}

// A 16x16 tile of an operand in registers, both terms.
struct Pair {
  unsigned high[4], low[4];
};

// to + small += left right: a 16x16 tile, as two halves of columns. Products with smaller terms go
// to `small`, which may be the same: two sums wait less for each other.
__device__ inline void multiply_tile(float (&to)[2][4], float (&small)[2][4], const Pair& left,
                                     const Pair& right) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned high[2] = {right.high[2 * half], right.high[2 * half + 1]};
    const unsigned low[2] = {right.low[2 * half], right.low[2 * half + 1]};
    mma_bf16(small[half], left.low, high);
    mma_bf16(small[half], left.high, low);
    mma_bf16(to[half], left.high, high);
  }
}

__device__ inline void add_tile(float (&to)[2][4], const float (&x)[2][4]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) to[e / 4][e % 4] += x[e / 4][e % 4];
}

// `apart`: from the larger terms of a tile to the smaller ones.
__device__ inline Pair load_left(const uint16_t* tile, int stride, int apart) {
  Pair pair;
  load_matrix4(pair.high, left_row(tile, stride));
  load_matrix4(pair.low, left_row(tile + apart, stride));
  return pair;
}

__device__ inline Pair load_right(const uint16_t* tile, int stride, int apart) {
  Pair pair;
  load_matrix4(pair.high, right_row(tile, stride));
  load_matrix4(pair.low, right_row(tile + apart, stride));
  return pair;
}

}  // namespace
