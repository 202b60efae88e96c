// The gated delta rule for a few value rows of a head in registers: what a token, and what an entry
// of a log, make of the state, with the same roundings.
#pragma once

#include "kept_state.cuh"

namespace {

// Rows of heads, whose leading axes may have gaps; strides in floats.
struct Heads {
  float* data;
  int64_t row, head;

  __device__ float* at(int64_t r, int h) const { return data + r * row + h * head; }
};

[[maybe_unused]] inline bool aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

[[maybe_unused]] inline bool aligned(const Heads& heads) {
  return aligned(heads.data) && heads.row % 4 == 0 && heads.head % 4 == 0;
}

[[maybe_unused]] inline Heads heads_of(const rr_tensor& t) {
  const int64_t bytes = sizeof(float);
  return {data<float>(t), t.strides[0] / bytes, t.strides[1] / bytes};
}

// How the rows of a head of S values lie in a block's registers: kSpan lanes share kRows rows, and
// each of them has kQuads groups of four neighbouring keys, kSpan groups apart. steps: that are
// staged at once, 0 for a few.
template <int span, int quads, int rows, int steps = 0>
struct Shape {
  static constexpr int kSpan = span, kQuads = quads, kRows = rows;
  static constexpr int kThreads = 128;
  static constexpr int kKeys = 4 * span * quads;  // S or more
  static constexpr int kBlockRows = kThreads / span * rows;
  static constexpr int kBlocks = kKeys <= 256 ? 4 : 2;  // a multiprocessor, at least
  static constexpr int kSteps = steps > 0 ? steps : kKeys <= 128 ? 8 : kKeys <= 256 ? 4 : 1;
};

// A lane's keys of a vector over the key dimension.
template <typename S>
struct Part {
  float4 quad[S::kQuads];
};

template <typename S>
__device__ inline Part<S> load_part(const float* keys, int lane) {
  Part<S> part;
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c)
    part.quad[c] = reinterpret_cast<const float4*>(keys)[lane + S::kSpan * c];
  return part;
}

// From or to memory, where a row has `size` keys and may be aligned for whole quads.
template <typename S>
__device__ inline Part<S> load_keys(const float* keys, int lane, int size, bool aligned) {
  Part<S> part;
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    const int i = 4 * (lane + S::kSpan * c);
    float4& quad = part.quad[c];
    quad = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (aligned && i < size) quad = *reinterpret_cast<const float4*>(keys + i);
  }
  if (aligned) return part;
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    const int i = 4 * (lane + S::kSpan * c);
    float4& quad = part.quad[c];
    if (i < size) quad.x = keys[i];
    if (i + 1 < size) quad.y = keys[i + 1];
    if (i + 2 < size) quad.z = keys[i + 2];
    if (i + 3 < size) quad.w = keys[i + 3];
  }
  return part;
}

template <typename S>
__device__ inline void store_keys(float* keys, const Part<S>& part, int lane, int size,
                                  bool aligned) {
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    const int i = 4 * (lane + S::kSpan * c);
    if (aligned && i < size) *reinterpret_cast<float4*>(keys + i) = part.quad[c];
  }
  if (aligned) return;
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    const int i = 4 * (lane + S::kSpan * c);
    const float4& quad = part.quad[c];
    if (i < size) keys[i] = quad.x;
    if (i + 1 < size) keys[i + 1] = quad.y;
    if (i + 2 < size) keys[i + 2] = quad.z;
    if (i + 3 < size) keys[i + 3] = quad.w;
  }
}

// One decay for all keys.
struct EvenDecay {
  float all;

  __device__ float4 at(int) const { return make_float4(all, all, all, all); }
};

template <typename S>
struct KeyDecay {
  Part<S> part;

  __device__ float4 at(int c) const { return part.quad[c]; }
};

// m <- m * decay
template <typename S, typename Decay>
__device__ inline void decay_row(Part<S>& m, const Decay& decay) {
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    const float4 by = decay.at(c);
    m.quad[c].x *= by.x;
    m.quad[c].y *= by.y;
    m.quad[c].z *= by.z;
    m.quad[c].w *= by.w;
  }
}

// m <- m + d k
template <typename S>
__device__ inline void add_row(Part<S>& m, float d, const Part<S>& k) {
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    m.quad[c].x = fmaf(d, k.quad[c].x, m.quad[c].x);
    m.quad[c].y = fmaf(d, k.quad[c].y, m.quad[c].y);
    m.quad[c].z = fmaf(d, k.quad[c].z, m.quad[c].z);
    m.quad[c].w = fmaf(d, k.quad[c].w, m.quad[c].w);
  }
}

// A lane's part of the product of two rows.
template <typename S>
__device__ inline float dot_part(const Part<S>& a, const Part<S>& b) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int c = 0; c < S::kQuads; ++c) {
    sum.x = fmaf(a.quad[c].x, b.quad[c].x, sum.x);
    sum.y = fmaf(a.quad[c].y, b.quad[c].y, sum.y);
    sum.z = fmaf(a.quad[c].z, b.quad[c].z, sum.z);
    sum.w = fmaf(a.quad[c].w, b.quad[c].w, sum.w);
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}

// Adds two sets of values over the lanes that share rows, the one in the shadow of the other.
template <typename S>
__device__ inline void sum_rows(float (&a)[S::kRows], float (&b)[S::kRows]) {
#pragma unroll
  for (int step = S::kSpan / 2; step > 0; step /= 2) {
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      a[r] += __shfl_xor_sync(kAllLanes, a[r], step);
      b[r] += __shfl_xor_sync(kAllLanes, b[r], step);
    }
  }
}

}  // namespace
