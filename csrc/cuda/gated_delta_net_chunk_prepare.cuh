// The part of a chunk that needs no state: products of keys and queries on tensor cores, then W and
// U by forward substitution in f32, a column in each thread.
#pragma once

#include "gated_delta_net_chunk.cuh"

namespace {

template <int S>
struct __align__(16) Scratch {
  static constexpr int kStride = S + 8;  // rows of a tile fall into different banks
  uint16_t k[2][kChunk][kStride], q[2][kChunk][kStride];
  float a[kChunk][kChunk + 4];        // [j][i] = A_ij
  float sum[kChunk], rest[kChunk];    // G as the sum of two floats
  float beta[kChunk], grown[kChunk];  // grown: exp(G)
  float left[kChunk];                 // exp(G_last - G)
};

struct Place {
  int head, key, tokens;
  int64_t row;  // of the first token
};

// exp(G_i - G_j)
template <int S>
__device__ inline float decay_between(const Scratch<S>& scratch, int i, int j) {
  return expf(scratch.sum[i] - scratch.sum[j] + (scratch.rest[i] - scratch.rest[j]));
}

// G in double: a chunk may sum to -6400, and differences are exponents. Below -1e4 a decay is 0 as
// well, and sums of such stay finite.
template <int S>
__device__ inline void sum_decays(const Task& task, const Place& place, Scratch<S>& scratch) {
  if (threadIdx.x >= kWarp) return;
  const int lane = threadIdx.x;
  double of_token[2];
  for (int e = 0; e < 2; ++e) {
    const int i = 2 * lane + e;
    const int64_t at = (place.row + i) * task.heads + place.head;
    of_token[e] = i < place.tokens ? fmaxf(task.g[at], -1e4f) : 0.0f;
    scratch.beta[i] = i < place.tokens ? task.beta[at] : 0.0f;
  }
  double sum = of_token[0] + of_token[1];
  for (int step = 1; step < kWarp; step *= 2) {
    const double before = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += before;
  }
  const double last = __shfl_sync(kAllLanes, sum, kWarp - 1);
  for (int e = 0; e < 2; ++e) {
    const int i = 2 * lane + e;
    const double g = e == 0 ? sum - of_token[1] : sum;
    scratch.sum[i] = static_cast<float>(g);
    scratch.rest[i] = static_cast<float>(g - scratch.sum[i]);
    scratch.grown[i] = expf(static_cast<float>(g));
    scratch.left[i] = expf(static_cast<float>(last - g));
  }
}

__device__ inline float4 load_quad(const float* from, bool whole) {
  if (whole) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], from[1], from[2], from[3]);
}

__device__ inline void store_split(const float4& x, uint16_t* high, uint16_t* low) {
  const uint2 first = split_pair(x.x, x.y), second = split_pair(x.z, x.w);
  *reinterpret_cast<uint2*>(high) = make_uint2(first.x, second.x);
  *reinterpret_cast<uint2*>(low) = make_uint2(first.y, second.y);
}

template <int S>
__device__ inline void load_operands(const Task& task, const Place& place, Scratch<S>& scratch,
                                     Ready<S>& ready) {
  constexpr int kQuads = S / 4;
#pragma unroll 4
  for (int at = threadIdx.x; at < kChunk * kQuads; at += 2 * S) {
    const int i = at / kQuads, key = at % kQuads * 4;
    float4 k = make_float4(0.0f, 0.0f, 0.0f, 0.0f), q = k;
    if (i < place.tokens) {
      k = load_quad(task.k.at(place.row + i, place.key) + key, task.whole_tokens);
      q = load_quad(task.q.at(place.row + i, place.key) + key, task.whole_tokens);
    }
    store_split(k, &scratch.k[0][i][key], &scratch.k[1][i][key]);
    store_split(q, &scratch.q[0][i][key], &scratch.q[1][i][key]);
    const float by = task.scale * scratch.grown[i];
    q = make_float4(q.x * by, q.y * by, q.z * by, q.w * by);
    store_split(q, &ready.q[0][i][key], &ready.q[1][i][key]);
  }
}

// x_i x_j for a tile of tokens i and one of tokens j, which are keys.
template <int S>
__device__ inline void multiply_tokens(float (&to)[2][4], const uint16_t* x, const uint16_t* k,
                                       int i, int j) {
  constexpr int kStride = Scratch<S>::kStride, kApart = kChunk * kStride;
  float small[2][4] = {};
#pragma unroll
  for (int key = 0; key < S; key += kTile) {
    const Pair left = load_left(x + i * kStride + key, kStride, kApart);
    const Pair right = load_right(k + j * kStride + key, kStride, kApart);
    multiply_tile(to, small, left, right);
  }
  add_tile(to, small);
}

// A tile of A, or of P: tokens `of` against tokens `other`, on or below the diagonal.
template <int S>
__device__ inline void relate_tokens(int of, int other, bool queries, float scale,
                                     Scratch<S>& scratch, Ready<S>& ready) {
  const int lane = threadIdx.x % kWarp;
  float x[2][4] = {};
  multiply_tokens<S>(x, queries ? scratch.q[0][0] : scratch.k[0][0], scratch.k[0][0], of * kTile,
                     other * kTile);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int i = of * kTile + lane / 4 + e / 2 % 2 * 8;
    const int j = other * kTile + e / 4 * 8 + lane % 4 * 2 + e % 2;
    float& value = x[e / 4][e % 4];
    const float by = queries ? scale : scratch.beta[i];
    value = j < i || (queries && j == i) ? by * decay_between(scratch, i, j) * value : 0.0f;
    if (!queries) scratch.a[j][i] = value;
  }
  if (!queries) return;
  const uint2 a = split_pair(x[0][0], x[0][1]), b = split_pair(x[1][0], x[1][1]);
  const uint2 c = split_pair(x[0][2], x[0][3]), d = split_pair(x[1][2], x[1][3]);
  ready.p[of][other][0][lane] = make_uint4(a.x, b.x, c.x, d.x);
  ready.p[of][other][1][lane] = make_uint4(a.y, b.y, c.y, d.y);
}

// All of them, shared out among the warps.
template <int S>
__device__ inline void relate_chunk(float scale, Scratch<S>& scratch, Ready<S>& ready) {
  constexpr int kTiles = kChunk / kTile, kWarps = 2 * S / kWarp;
  const int warp = threadIdx.x / kWarp;
  int job = 0;
  for (int of = 0; of < kTiles; ++of) {
    for (int other = 0; other <= of; ++other, job += 2) {
      if (job % kWarps == warp / 2 * 2)
        relate_tokens(of, other, warp % 2 == 1, scale, scratch, ready);
    }
  }
}

// x <- (I + A)^-1 x
template <int S>
__device__ inline void substitute(const Scratch<S>& scratch, float (&x)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk - 1; ++j) {
#pragma unroll
    for (int from = (j + 1) / 4 * 4; from < kChunk; from += 4) {
      const float4 a = *reinterpret_cast<const float4*>(&scratch.a[j][from]);
      if (from > j) x[from] = fmaf(-a.x, x[j], x[from]);
      if (from + 1 > j) x[from + 1] = fmaf(-a.y, x[j], x[from + 1]);
      if (from + 2 > j) x[from + 2] = fmaf(-a.z, x[j], x[from + 2]);
      if (from + 3 > j) x[from + 3] = fmaf(-a.w, x[j], x[from + 3]);
    }
  }
}

// The keys that the state takes up, a row of tokens for each.
template <int S>
__device__ inline void store_keys_left(const Scratch<S>& scratch, const float (&x)[kChunk], int key,
                                       Ready<S>& ready) {
#pragma unroll
  for (int i = 0; i < kChunk; i += 8) {
    uint2 pair[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      pair[e] = split_pair(x[i + 2 * e] * scratch.left[i + 2 * e],
                           x[i + 2 * e + 1] * scratch.left[i + 2 * e + 1]);
    for (int term = 0; term < 2; ++term) {
      uint16_t* to = &ready.k[term][key][i];
      *reinterpret_cast<uint4*>(to) = term == 0
                                          ? make_uint4(pair[0].x, pair[1].x, pair[2].x, pair[3].x)
                                          : make_uint4(pair[0].y, pair[1].y, pair[2].y, pair[3].y);
    }
  }
}

// Threads of the first half make columns of W, those of the second rows of U.
template <int S>
__device__ inline void solve(const Task& task, const Place& place, const Scratch<S>& scratch,
                             Ready<S>& ready) {
  const bool keys = threadIdx.x < S;
  const int column = threadIdx.x % S;
  const Heads& from = keys ? task.k : task.v;
  const float* at = from.at(place.row, keys ? place.key : place.head) + column;
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i, at += from.row) x[i] = i < place.tokens ? *at : 0.0f;
  if (keys) store_keys_left(scratch, x, column, ready);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] *= scratch.beta[i] * (keys ? scratch.grown[i] : 1.0f);
  substitute(scratch, x);
  if (keys) {
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      const uint2 pair = split_pair(x[i], x[i + 1]);
      ready.w[0][i][column] = static_cast<uint16_t>(pair.x);
      ready.w[0][i + 1][column] = static_cast<uint16_t>(pair.x >> 16);
      ready.w[1][i][column] = static_cast<uint16_t>(pair.y);
      ready.w[1][i + 1][column] = static_cast<uint16_t>(pair.y >> 16);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; i += 4)
      *reinterpret_cast<float4*>(&ready.u[column][i]) =
          make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  }
}

// A block for each chunk of `first` .. and head.
template <int S>
__global__ void __launch_bounds__(2 * S, S > 64 ? 2 : 4)
    prepare_chunks(Task task, Ready<S>* all, int first) {
  enter_grid();
  if (!sequences_fit(task.all)) return;
  const int slot = first + blockIdx.x, b = sequence_at(task, slot);
  if (b < 0) return;
  const int token = (slot - chunk_base(task, b)) * kChunk;
  Place place;
  place.head = blockIdx.y;
  place.key = key_head(task, place.head);
  place.tokens = min(kChunk, task.all.batch.length(b) - token);
  place.row = int64_t{task.all.batch.first(b)} + token;
  Ready<S>& ready = all[int64_t{blockIdx.x} * task.heads + place.head];
  Scratch<S>& scratch = *reinterpret_cast<Scratch<S>*>(dynamic_shared());
  sum_decays(task, place, scratch);
  __syncthreads();
  if (threadIdx.x == 0) ready.decay = scratch.grown[kChunk - 1];
  load_operands(task, place, scratch, ready);
  __syncthreads();
  relate_chunk(task.scale, scratch, ready);
  __syncthreads();
  solve(task, place, scratch, ready);
}

}  // namespace
