// Takes 64 value rows of a head's state through the chunks of a sequence: one warpgroup multiplies,
// with the rows in registers, another brings what the next chunks need. Everything is turned round,
// a row for each value and a column for each token or key, so that what a product gives is the
// first operand of the next one as it lies.
#pragma once

#include "gated_delta_net_wgmma.cuh"

namespace {

constexpr int kWalkRows = 64, kWalkThreads = 2 * kWarpgroup;
constexpr int kValueStride = kWalkRows + 4;  // lanes that read a row's values meet other banks

// Of two chunks, and P of one. The output of a chunk takes the place of its values.
template <int S>
struct WalkShared {
  Tokens<S> tokens[2];
  Terms<1> t[2], p;
  float v[2][kChunk][kValueStride];
  Factors factors[2];
};

// A sequence's chunks of a launch, and a head's rows.
struct Walked {
  int b, head, value;  // value: the first
  int first, count;    // first: among the chunks of the sequence
  int place;           // of that chunk in the workspace
};

__device__ inline Walked walked(const Task& task, int first, int slots) {
  const int slices = task.size / kWalkRows;
  Walked w = {};
  w.value = static_cast<int>(blockIdx.x) % slices * kWalkRows;
  w.head = static_cast<int>(blockIdx.x) / slices % task.heads;
  w.b = static_cast<int>(blockIdx.x) / slices / task.heads;
  const int base = chunk_base(task, w.b) - first;
  w.first = max(0, -base);
  w.place = base + w.first;
  w.count = min(chunks_of(task, w.b) - w.first, slots - w.place);
  return w;
}

// What prepare_tokens left, from the first chunk of a launch on.
template <int S>
struct Prepared {
  const Tokens<S>* tokens;
  const Relations* relations;
  const Factors* factors;
};

template <typename T>
__device__ inline void fetch_whole(T& to, const T& from) {
  for (int at = threadIdx.x % kWarpgroup; at < static_cast<int>(sizeof(T) / 16); at += kWarpgroup)
    async_copy16(reinterpret_cast<uint4*>(&to) + at, reinterpret_cast<const uint4*>(&from) + at);
}

__device__ inline void clear_blocks(Terms<1>& terms) {
  auto* to = reinterpret_cast<uint4*>(&terms);
  for (int at = threadIdx.x; at < static_cast<int>(sizeof terms / 16); at += kWalkThreads)
    to[at] = make_uint4(0, 0, 0, 0);
}

// Blocks of T or P on or below the diagonal; the others stay zeros.
__device__ inline void fetch_blocks(Terms<1>& to, const Terms<1>& from) {
#pragma unroll
  for (int row = 0; row < kChunk; row += kWarpgroup / 8) {
    const int i = row + threadIdx.x % kWarpgroup / 8, first = threadIdx.x % 8 * 8;
    if (first / kBlock > i / kBlock) continue;
    const int column = image_column(i, first);
    async_copy16(&to.high[0].at[i][column], &from.high[0].at[i][column]);
    async_copy16(&to.low[0].at[i][column], &from.low[0].at[i][column]);
  }
}

// Of rows of a chunk's values those that this thread brings, four at once.
template <typename F>
__device__ inline void each_quad(F of) {
  constexpr int kQuads = kWalkRows / 4;
#pragma unroll
  for (int at = threadIdx.x % kWarpgroup; at < kChunk * kQuads; at += kWarpgroup)
    of(at / kQuads, at % kQuads * 4);
}

__device__ inline void fetch_values(const Task& task, const Walked& w, int c,
                                    float (&to)[kChunk][kValueStride]) {
  const int token = (w.first + c) * kChunk, left = task.all.batch.length(w.b) - token;
  const float* from = task.v.at(int64_t{task.all.batch.first(w.b)} + token, w.head) + w.value;
  each_quad([&](int i, int value) {
    float4* quad = reinterpret_cast<float4*>(&to[i][value]);
    const float* v = from + i * task.v.row + value;
    if (i < left && task.whole_tokens)
      async_copy16(quad, v);
    else
      *quad = i < left ? make_float4(v[0], v[1], v[2], v[3]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  });
}

// From where its thread will put other values.
__device__ inline void store_output(const Task& task, const Walked& w, int c,
                                    const float (&from)[kChunk][kValueStride]) {
  const int token = (w.first + c) * kChunk, left = task.all.batch.length(w.b) - token;
  float* to = task.o.at(int64_t{task.all.batch.first(w.b)} + token, w.head) + w.value;
  each_quad([&](int i, int value) {
    const float4 quad = *reinterpret_cast<const float4*>(&from[i][value]);
    if (i < left) *reinterpret_cast<float4*>(to + i * task.o.row + value) = quad;
  });
}

// Starts to bring all of chunk c but P.
template <int S>
__device__ inline void fetch_chunk(const Task& task, const Walked& w, const Prepared<S>& from,
                                   int c, WalkShared<S>& shared) {
  if (c >= w.count) return;
  const int64_t slot = w.place + c, at = slot * task.heads + w.head;
  fetch_whole(shared.tokens[c % 2], from.tokens[slot * task.key_heads + key_head(task, w.head)]);
  fetch_blocks(shared.t[c % 2], from.relations[at].t);
  fetch_whole(shared.factors[c % 2], from.factors[at]);
  fetch_values(task, w, c, shared.v[c % 2]);
}

// Waits for all but the newest groups of copies, and meets those who want what came.
template <int left>
__device__ inline void arrive_fetched() {
  async_copy_wait<left>();
  share_with_products();
  __syncthreads();
}

// All threads meet twice a chunk: when all of it but P is there, which means that the chunk before
// it is done with, and when P is; and once at the end.
template <int S>
__device__ inline void bring_chunks(const Task& task, const Walked& w, const Prepared<S>& from,
                                    WalkShared<S>& shared) {
  fetch_chunk(task, w, from, 0, shared);
  async_copy_commit();
  for (int c = 0; c < w.count; ++c) {
    arrive_fetched<0>();
    fetch_blocks(shared.p, from.relations[int64_t{w.place + c} * task.heads + w.head].p);
    async_copy_commit();
    if (c > 0) store_output(task, w, c - 1, shared.v[(c + 1) % 2]);
    fetch_chunk(task, w, from, c + 1, shared);
    async_copy_commit();
    arrive_fetched<1>();
  }
  __syncthreads();
  store_output(task, w, w.count - 1, shared.v[(w.count + 1) % 2]);
}

// A thread's part of a product: values `row` and row + 8 of the slice, columns column + 8j and the
// one behind it.
struct WalkPart {
  int row, column;
};

__device__ inline WalkPart part_of_thread() {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return {warp * 16 + lane / 4, lane % 4 * 2};
}

// A matrix as first operands, each 16 columns of it: the larger terms and the smaller ones.
template <int steps>
struct Operand {
  unsigned high[steps][4], low[steps][4];

  __device__ void put(int step, int r, float a, float b) {
    const uint2 pair = split_pair(a, b);
    high[step][r] = pair.x;
    low[step][r] = pair.y;
  }
};

template <int steps>
__device__ inline void pack_rows(const float (&x)[8 * steps], Operand<steps>& to) {
#pragma unroll
  for (int s = 0; s < steps; ++s)
#pragma unroll
    for (int r = 0; r < 4; ++r) to.put(s, r, x[8 * s + 2 * r], x[8 * s + 2 * r + 1]);
}

// d <- A B, or d + A B, of some steps of a's columns.
template <int columns, bool across, int from, int to, int steps>
__device__ inline void multiply_steps(float (&d)[columns / 2], const Operand<steps>& a,
                                      const Image* high, const Image* low, bool add) {
  products_begin();
#pragma unroll
  for (int s = from; s < to; ++s) {
    multiply<columns, across>(d, a.low[s], high, 16 * s, add || s > 0);
    multiply<columns, across>(d, a.high[s], low, 16 * s, true);
    multiply<columns, across>(d, a.high[s], high, 16 * s, true);
  }
  products_commit();
}

template <int columns, bool across, int steps>
__device__ inline void multiply_all(float (&d)[columns / 2], const Operand<steps>& a,
                                    const Image* high, const Image* low, bool add) {
  multiply_steps<columns, across, 0, steps>(d, a, high, low, add);
}

// The output of a chunk, for those to store who bring values.
__device__ inline void leave_output(const WalkPart& part, float scale, const float (&out)[32],
                                    float (&to)[kChunk][kValueStride]) {
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      to[8 * j + part.column + e % 2][part.row + e / 2 * 8] = out[4 * j + e] * scale;
}

// What a block's products have in registers.
template <int S>
struct WalkRegisters {
  float state[S / 2];
  Operand<S / 16> operand;  // the state
};

// Rows of the state in memory.
template <int S, typename F>
__device__ inline void each_state_pair(const Task& task, const Walked& w, const WalkPart& part,
                                       F of) {
  float* plane = task.all.kept.plane(w.b, task.all.kept.source(w.b));
  float* rows = plane + (int64_t{w.head} * S + w.value + part.row) * S + part.column;
#pragma unroll
  for (int j = 0; j < S / 8; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      of(*reinterpret_cast<float2*>(rows + 8 * r * S + 8 * j), 4 * j + 2 * r);
}

// beta (V - exp(G) K M^T) of 16 tokens as an operand; x: K M^T.
__device__ inline void correct_values(const Factors& factors, const WalkPart& part, int step,
                                      const float (&v)[kChunk][kValueStride], const float (&x)[32],
                                      Operand<4>& to) {
#pragma unroll
  for (int j = 2 * step; j < 2 * step + 2; ++j) {
    const int token = 8 * j + part.column;
    const float4 by = *reinterpret_cast<const float4*>(&factors.taken[token]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* of = &x[4 * j + 2 * r];
      const float first = fmaf(-by.y, of[0], by.x * v[token][part.row + 8 * r]);
      const float second = fmaf(-by.w, of[1], by.z * v[token + 1][part.row + 8 * r]);
      to.put(step, j % 2 * 2 + r, first, second);
    }
  }
}

// A quarter of the queries' product with the state, which runs while 16 tokens' values are made.
template <int S, int step>
__device__ inline void correct_and_ask(const Operand<S / 16>& state, const Factors& factors,
                                       const WalkPart& part, const Terms<S / kImage>& q,
                                       const float (&v)[kChunk][kValueStride], const float (&x)[32],
                                       float (&out)[32], Operand<4>& to) {
  constexpr int kSteps = S / 64;
  multiply_steps<64, false, step * kSteps, (step + 1) * kSteps>(out, state, q.high, q.low, false);
  correct_values(factors, part, step, v, x, to);
}

// V' as the state takes it.
__device__ inline void leave_values(const Factors& factors, const WalkPart& part,
                                    const float (&x)[32], Operand<4>& to) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 by = *reinterpret_cast<const float2*>(&factors.left[8 * j + part.column]);
    to.put(j / 2, j % 2 * 2, x[4 * j] * by.x, x[4 * j + 1] * by.y);
    to.put(j / 2, j % 2 * 2 + 1, x[4 * j + 2] * by.x, x[4 * j + 3] * by.y);
  }
}

__device__ inline void fade_output(const Factors& factors, const WalkPart& part, float (&out)[32]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 by = *reinterpret_cast<const float2*>(&factors.grown[8 * j + part.column]);
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      out[4 * j + r] *= by.x;
      out[4 * j + r + 1] *= by.y;
    }
  }
}

// The products of chunk c.
template <int S>
__device__ inline void walk_chunk(const Task& task, const WalkPart& part, int c,
                                  WalkRegisters<S>& own, WalkShared<S>& shared) {
  const Terms<S / kImage>&k = shared.tokens[c % 2].k, &q = shared.tokens[c % 2].q;
  const Terms<1>&t = shared.t[c % 2], &p = shared.p;
  const Factors& factors = shared.factors[c % 2];
  float x[32], out[32];
  __syncthreads();
  multiply_all<64, false>(x, own.operand, k.high, k.low, false);
  products_wait<0>();
  Operand<4> values;
  const auto& v = shared.v[c % 2];
  correct_and_ask<S, 0>(own.operand, factors, part, q, v, x, out, values);
  correct_and_ask<S, 1>(own.operand, factors, part, q, v, x, out, values);
  correct_and_ask<S, 2>(own.operand, factors, part, q, v, x, out, values);
  correct_and_ask<S, 3>(own.operand, factors, part, q, v, x, out, values);
  multiply_all<64, false>(x, values, t.high, t.low, false);
  const float decay = factors.decay;
#pragma unroll
  for (int i = 0; i < S / 2; ++i) own.state[i] *= decay;
  products_wait<0>();
  Operand<4> left;
  leave_values(factors, part, x, left);
  multiply_all<S, true>(own.state, left, k.high, k.low, true);
  pack_rows(x, values);
  fade_output(factors, part, out);
  __syncthreads();
  multiply_all<64, false>(out, values, p.high, p.low, true);
  products_wait<1>();
  pack_rows(own.state, own.operand);
  products_wait<0>();
  leave_output(part, task.scale, out, shared.v[c % 2]);
}

template <int S>
__device__ inline void walk_rows(const Task& task, const Walked& w, WalkShared<S>& shared) {
  const WalkPart part = part_of_thread();
  WalkRegisters<S> own;
  each_state_pair<S>(task, w, part, [&](const float2& from, int i) {
    own.state[i] = from.x;
    own.state[i + 1] = from.y;
  });
  pack_rows(own.state, own.operand);
  for (int c = 0; c < w.count; ++c) walk_chunk(task, part, c, own, shared);
  __syncthreads();
  each_state_pair<S>(task, w, part,
                     [&](float2& to, int i) { to = make_float2(own.state[i], own.state[i + 1]); });
}

// A block for each sequence, head and 64 of its values. `from`: chunks first .. first + slots - 1
// of the line.
template <int S>
__global__ void __launch_bounds__(kWalkThreads, 1)
    walk_tokens(Task task, Prepared<S> from, int first, int slots) {
  enter_grid();
  Walked w = walked(task, first, slots);
  w.count = __shfl_sync(kAllLanes, w.count, 0);
  // Most blocks of a pass over few of many sequences: those need no check, as they write nothing.
  if (w.count <= 0) return;
  if (!__shfl_sync(kAllLanes, sequences_fit(task.all) ? 1 : 0, 0)) return;
  auto& shared = *align_images<WalkShared<S>>(dynamic_shared());
  clear_blocks(shared.t[0]);
  clear_blocks(shared.t[1]);
  clear_blocks(shared.p);
  share_with_products();
  __syncthreads();
  if (__shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) == 0)
    walk_rows(task, w, shared);
  else
    bring_chunks(task, w, from, shared);
}

}  // namespace
