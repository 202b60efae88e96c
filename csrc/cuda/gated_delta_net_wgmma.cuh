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

#include "delta_chunks.cuh"
#include "wgmma_images.cuh"

namespace {

static_assert(kChunk == kImage, "a chunk is an image");

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

}  // namespace
