// The arithmetic of attention: R query vectors that share a key head, against one split of keys.
// Splits lie at absolute multiples of kSplit positions. What is computed for a vector, and in which
// order, depends on the sizes of keys and values alone: not on R, on the other vectors, or on who
// computes the other splits.
//
// Scores: a thread has 8 vectors, some keys, and every fourth run of 16 elements; the four parts of
// a product are added in order. Values: a thread has 8 vectors, 4 elements, and one of 256 / QN
// equal runs of keys (QN: elements of a value, in fours and rounded up); the runs' sums are added
// in order.
#pragma once

#include "attention_pool.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kSplit = 128;       // keys
constexpr int kRun = 64;          // elements of keys that are staged at a time
constexpr int kPitch = kRun + 4;  // of staged keys: eight of them meet no bank twice
constexpr int kKeys = 32;         // values that are staged at a time
constexpr int kRows = 8;          // vectors of a thread
constexpr int kParts = 4;         // of a product
constexpr float kUnseen = -1.0f;  // in place of a weight

// A range of positions; empty where last is not above first.
struct Span {
  int first, last;
};

// What a block knows of its vectors, in shared memory.
template <int R>
struct Tile {
  Span seen[R];                    // positions, by vector
  float top[R], total[R];          // of the split: largest score, sum of exp(score - top)
  float run_top[R], run_total[R];  // of the splits so far
  float keep[R], take[R];
  long long key[kSplit];  // pool row of each key of the split; -1: nobody sees it
};

// Parts of dynamic shared memory, in floats.
template <int R, int QN>
struct Layout {
  static constexpr int wide = 4 * QN, weight_pitch = R + 4;
  static constexpr int stage = kSplit * kPitch > kKeys* wide ? kSplit* kPitch : kKeys* wide;
  static constexpr int weights = kSplit * weight_pitch, sums = R * wide;

  static __host__ __device__ int floats(int k_room, bool walk) {
    return stage + weights + sums * (walk ? 2 : 1) + R * k_room;
  }
};

// q [R, k_room], stage: see above, weights [kSplit, R + 4], sum and run [R, 4 QN].
struct Shared {
  float *stage, *weights, *sum, *q, *run;
};

template <int R, int QN>
__device__ Shared shared_parts(int k_room) {
  using L = Layout<R, QN>;
  Shared s;
  s.stage = reinterpret_cast<float*>(dynamic_shared());
  s.weights = s.stage + L::stage;
  s.sum = s.weights + L::weights;
  s.q = s.sum + L::sums;
  s.run = s.q + R * k_room;
  return s;
}

__device__ inline float4 read_float4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}

__device__ inline void write_float4(float* p, float4 v) {
  *reinterpret_cast<float4*>(p) = v;
}

// Which key of the split, and which four elements, a thread stages as its piece i of a chunk.
struct Piece {
  int key, d, at;  // at: in the stage
};

struct KeyPieces {
  static constexpr int count = kSplit * kRun / 4 / kThreads;

  static __device__ Piece piece(int chunk, int i) {
    const int unit = threadIdx.x + i * kThreads, key = unit / (kRun / 4), d = unit % (kRun / 4) * 4;
    return {key, chunk * kRun + d, key * kPitch + d};
  }
};

// Chunks of values go through the runs of keys that are summed at the same time side by side.
template <int R, int QN>
struct ValuePieces {
  static constexpr int runs = kThreads / QN, run_keys = kSplit / runs;
  static constexpr int groups = R / kRows,
                       together = runs / groups;  // runs that are summed at once
  static constexpr int chunks = kSplit / kKeys, round_chunks = chunks / groups;
  static constexpr int step_keys = kKeys / together;  // of each run in a chunk
  static constexpr int count = kKeys * QN / kThreads;

  // The key in place `slot` of a chunk.
  static __device__ int key_of(int chunk, int slot) {
    const int round = chunk / round_chunks, step = chunk % round_chunks;
    return (round * together + slot / step_keys) * run_keys + step * step_keys + slot % step_keys;
  }
  static __device__ Piece piece(int chunk, int i) {
    const int unit = threadIdx.x + i * kThreads, slot = unit / QN, d = unit % QN * 4;
    return {key_of(chunk, slot), d, slot * 4 * QN + d};
  }
};

// Pieces of a chunk on their way from memory to the stage. Those of f32 are not fetched ahead.
template <int most>
struct Flight {
  uint2 raw[most];

  template <typename Pieces>
  __device__ void fetch(const Pool& pool, const char* head, const long long* rows, int chunk) {
    if (pool.dtype == RR_F16 || pool.dtype == RR_BF16)
      fetch_as<Pieces, RR_F16>(pool, head, rows, chunk);
    else if (pool.dtype == RR_Q8_0)
      fetch_as<Pieces, RR_Q8_0>(pool, head, rows, chunk);
    else if (pool.dtype == RR_Q4_0)
      fetch_as<Pieces, RR_Q4_0>(pool, head, rows, chunk);
  }

  template <typename Pieces, uint32_t dtype>
  __device__ void fetch_as(const Pool& pool, const char* head, const long long* rows, int chunk) {
#pragma unroll
    for (int i = 0; i < Pieces::count; ++i) {
      const Piece p = Pieces::piece(chunk, i);
      const long long row = rows[p.key];
      raw[i] = make_uint2(0, 0);
      if (row >= 0 && p.d < pool.size)
        raw[i] = fetch4<dtype>(head + row * pool.row_bytes, p.d, pool.size, pool.fours);
    }
  }

  template <typename Pieces>
  __device__ void land(const Pool& pool, const char* head, const long long* rows, int chunk,
                       float* stage) {
    if (pool.dtype == RR_F16)
      land_as<Pieces, RR_F16>(chunk, stage);
    else if (pool.dtype == RR_BF16)
      land_as<Pieces, RR_BF16>(chunk, stage);
    else if (pool.dtype == RR_Q8_0)
      land_as<Pieces, RR_Q8_0>(chunk, stage);
    else if (pool.dtype == RR_Q4_0)
      land_as<Pieces, RR_Q4_0>(chunk, stage);
    else
      carry<Pieces>(pool, head, rows, chunk, stage);
  }

  template <typename Pieces, uint32_t dtype>
  __device__ void land_as(int chunk, float* stage) {
#pragma unroll
    for (int i = 0; i < Pieces::count; ++i)
      write_float4(stage + Pieces::piece(chunk, i).at, decode4<dtype>(raw[i]));
  }

  template <typename Pieces>
  __device__ void carry(const Pool& pool, const char* head, const long long* rows, int chunk,
                        float* stage) {
#pragma unroll 2
    for (int i = 0; i < Pieces::count; ++i) {
      const Piece p = Pieces::piece(chunk, i);
      const long long row = rows[p.key];
      float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (row >= 0 && p.d < pool.size)
        v = read4(head + row * pool.row_bytes, p.d, pool.size, pool.fours);
      write_float4(stage + p.at, v);
    }
  }
};

// Adds the products of a chunk of keys with 8 vectors; q: at this thread's vectors and part.
template <int keys>
__device__ void score_chunk(const float* stage, const float* q, int k_room, int key,
                            float (&sum)[kRows][keys]) {
#pragma unroll
  for (int d = 0; d < kRun / kParts; d += 4) {
    float4 k[keys];
#pragma unroll
    for (int i = 0; i < keys; ++i)
      k[i] = read_float4(stage + (key + i * (kSplit / keys)) * kPitch + d);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 x = read_float4(q + r * k_room + d);
#pragma unroll
      for (int i = 0; i < keys; ++i) {
        float s = fmaf(x.x, k[i].x, sum[r][i]);
        s = fmaf(x.y, k[i].y, s);
        s = fmaf(x.z, k[i].z, s);
        sum[r][i] = fmaf(x.w, k[i].w, s);
      }
    }
  }
}

// Products of all vectors with the keys into weights [key][vector]. All threads take part.
template <int R, int QN>
__device__ void score(const Shared& s, float (&sum)[kRows][R / 4], int part, int key, int group) {
  constexpr int keys = R / 4;
  for (int turn = 0; turn < kParts; ++turn) {
    if (turn == part) {
#pragma unroll
      for (int i = 0; i < keys; ++i) {
        float* to =
            s.weights + (key + i * (kSplit / keys)) * Layout<R, QN>::weight_pitch + group * kRows;
#pragma unroll
        for (int r = 0; r < kRows; r += 4) {
          float4 v = make_float4(sum[r][i], sum[r + 1][i], sum[r + 2][i], sum[r + 3][i]);
          if (turn > 0) {
            const float4 before = read_float4(to + r);
            v = make_float4(before.x + v.x, before.y + v.y, before.z + v.z, before.w + v.w);
          }
          write_float4(to + r, v);
        }
      }
    }
    __syncthreads();
  }
}

// Products become exp(score - top); what a vector does not see becomes kUnseen. A warp a vector.
template <int R, int QN>
__device__ void soften(const Shared& s, Tile<R>& tile, int base, float scale) {
  const int lane = threadIdx.x % kWarp;
  for (int r = threadIdx.x / kWarp; r < R; r += kThreads / kWarp) {
    const Span seen = tile.seen[r];
    float x[kSplit / kWarp], top = -INFINITY, total = 0.0f;
#pragma unroll
    for (int i = 0; i < kSplit / kWarp; ++i) {
      const int key = lane + i * kWarp;
      const bool visible = base + key >= seen.first && base + key < seen.last;
      x[i] = visible ? s.weights[key * Layout<R, QN>::weight_pitch + r] * scale : 0.0f;
      if (visible) top = fmaxf(top, x[i]);
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < kSplit / kWarp; ++i) {
      const int key = lane + i * kWarp;
      const bool visible = base + key >= seen.first && base + key < seen.last;
      const float weight = visible ? expf(x[i] - top) : kUnseen;
      if (visible) total += weight;
      s.weights[key * Layout<R, QN>::weight_pitch + r] = weight;
    }
    total = warp_sum(total);
    if (lane == 0) tile.top[r] = top, tile.total[r] = total;
  }
}

__device__ inline void add_weighted(float4& sum, float weight, float4 v) {
  sum.x = fmaf(weight, v.x, sum.x);
  sum.y = fmaf(weight, v.y, sum.y);
  sum.z = fmaf(weight, v.z, sum.z);
  sum.w = fmaf(weight, v.w, sum.w);
}

// Adds the staged values of one run to 8 vectors. common: the keys of the split that all vectors
// see; of others, a vector that does not see one must not take a zero from it, for a value may be
// infinite.
template <int R, int QN>
__device__ void weigh_chunk(const float* stage, const float* weights, int chunk, Span common,
                            float4 (&sum)[kRows]) {
  using P = ValuePieces<R, QN>;
  const int quad = threadIdx.x % QN, rest = threadIdx.x / QN;
  const int group = rest / P::together, slot = rest % P::together * P::step_keys;
  const int key = P::key_of(chunk, slot);
  for (int x = 0; x < P::step_keys; ++x) {
    const float4 v = read_float4(stage + (slot + x) * 4 * QN + quad * 4);
    const float* at = weights + (key + x) * Layout<R, QN>::weight_pitch + group * kRows;
    const float4 a = read_float4(at), b = read_float4(at + 4);
    const float w[kRows] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    if (key + x >= common.first && key + x < common.last) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) add_weighted(sum[r], w[r], v);
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (w[r] != kUnseen) add_weighted(sum[r], w[r], v);
    }
  }
}

// Adds the sums of the runs of one round to s.sum [R, 4 QN], in order. All threads take part.
template <int R, int QN>
__device__ void gather(const Shared& s, int round, float4 (&sum)[kRows]) {
  using P = ValuePieces<R, QN>;
  const int quad = threadIdx.x % QN, rest = threadIdx.x / QN;
  for (int turn = 0; turn < P::together; ++turn) {
    if (rest % P::together == turn) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float* to = s.sum + (rest / P::together * kRows + r) * 4 * QN + quad * 4;
        if (round + turn > 0) {
          const float4 before = read_float4(to);
          sum[r] = make_float4(before.x + sum[r].x, before.y + sum[r].y, before.z + sum[r].z,
                               before.w + sum[r].w);
        }
        write_float4(to, sum[r]);
        sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    }
    __syncthreads();
  }
}

// The block's vectors against the split that starts at position `base`: tile.top, tile.total and
// s.sum, valid for vectors that see something. tile.key is filled; all threads take part.
template <int R, int QN>
__device__ void attend(const Pool& keys, const char* k_head, const Pool& values, const char* v_head,
                       int k_room, float scale, int base, Span common, const Shared& s,
                       Tile<R>& tile) {
  using V = ValuePieces<R, QN>;
  constexpr int most = KeyPieces::count > V::count ? KeyPieces::count : V::count;
  constexpr int per_group = kThreads / kParts / (R / kRows);
  Flight<most> flight;
  const int part = threadIdx.x / (kThreads / kParts), own = threadIdx.x % (kThreads / kParts);
  const int key = own % per_group, group = own / per_group, chunks = k_room / kRun;
  {
    float sum[kRows][R / 4] = {};
    const float* q = s.q + group * kRows * k_room + part * (kRun / kParts);
    flight.template fetch<KeyPieces>(keys, k_head, tile.key, 0);
    for (int c = 0; c < chunks; ++c) {
      __syncthreads();
      flight.template land<KeyPieces>(keys, k_head, tile.key, c, s.stage);
      __syncthreads();
      if (c + 1 < chunks)
        flight.template fetch<KeyPieces>(keys, k_head, tile.key, c + 1);
      else
        flight.template fetch<V>(values, v_head, tile.key, 0);
      score_chunk<R / 4>(s.stage + part * (kRun / kParts), q + c * kRun, k_room, key, sum);
    }
    score<R, QN>(s, sum, part, key, group);
  }
  soften<R, QN>(s, tile, base, scale);
  float4 sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int c = 0; c < V::chunks; ++c) {
    __syncthreads();
    flight.template land<V>(values, v_head, tile.key, c, s.stage);
    __syncthreads();
    if (c + 1 < V::chunks) flight.template fetch<V>(values, v_head, tile.key, c + 1);
    weigh_chunk<R, QN>(s.stage, s.weights, c, common, sum);
    if (c % V::round_chunks == V::round_chunks - 1) gather<R, QN>(s, c / V::round_chunks, sum);
  }
}

}  // namespace
