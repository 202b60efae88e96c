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

#include "attention_task.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kSplit = 128;       // keys
constexpr int kRun = 64;          // elements of keys that are staged at a time
constexpr int kPitch = kRun + 4;  // of staged keys: eight of them meet no bank twice
constexpr int kRows = 8;          // vectors of a thread
constexpr int kParts = 4;         // of a product
constexpr float kUnseen = -1.0f;  // in place of a weight

// What a block knows of its vectors, in shared memory, where it takes no registers.
template <int R>
struct Tile {
  Span any, all;                   // positions that some vector sees, and that all see
  Span seen[R];                    // positions, by vector
  float top[R], total[R];          // of the split: largest score, sum of exp(score - top)
  float run_top[R], run_total[R];  // of the splits so far
  float keep[R], take[R];
  // Bytes from the start of a pool to each key of the split, and to each value in the order of
  // ValueChunks; negative: nobody sees it.
  long long key_at[kSplit], value_at[kSplit];
};

// Values that are staged at a time: of the widest so few that they take no more than keys do.
template <int QN>
constexpr int kKeys = QN > 64 ? 16 : 32;

// Parts of dynamic shared memory, in floats.
template <int R, int QN>
struct Layout {
  static constexpr int wide = 4 * QN, weight_pitch = R + 4;
  static constexpr int keys = kSplit * kPitch, values = kKeys<QN> * wide;
  static constexpr int stage = keys > values ? keys : values;
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

// How chunks of keys and values are staged. A thread has the same four elements of every
// `stride`-th row of a chunk; a row of the stage has `pitch` floats.
struct KeyChunks {
  static constexpr int stride = kThreads * 4 / kRun, count = kSplit / stride, pitch = kPitch;

  static __device__ int row() { return threadIdx.x / (kRun / 4); }
  static __device__ int column() { return threadIdx.x % (kRun / 4) * 4; }
  static __device__ int element(int chunk) { return chunk * kRun + column(); }
  static __device__ int first(int) { return row(); }
};

// Chunks of values go through the runs of keys that are summed at the same time side by side.
template <int R, int QN>
struct ValueChunks {
  static constexpr int runs = kThreads / QN, run_keys = kSplit / runs;
  static constexpr int groups = R / kRows, together = runs / groups;  // runs summed at once
  static constexpr int chunks = kSplit / kKeys<QN>, round_chunks = chunks / groups;
  static constexpr int step_keys = kKeys<QN> / together;  // of each run in a chunk
  static constexpr int stride = kThreads / QN, count = kKeys<QN> / stride, pitch = 4 * QN;

  // Keys in the order in which chunks have them: the place of a key, and the key in a place.
  static __device__ int place_of(int key) {
    const int run = key / run_keys, at = key % run_keys;
    const int chunk = run / together * round_chunks + at / step_keys;
    return chunk * kKeys<QN> + run % together * step_keys + at % step_keys;
  }
  static __device__ int key_of(int chunk, int slot) {
    const int round = chunk / round_chunks, step = chunk % round_chunks;
    return (round * together + slot / step_keys) * run_keys + step * step_keys + slot % step_keys;
  }
  static __device__ int row() { return threadIdx.x / QN; }
  static __device__ int column() { return threadIdx.x % QN * 4; }
  static __device__ int element(int) { return column(); }
  static __device__ int first(int chunk) { return chunk * kKeys<QN> + row(); }
};

// Elements of a chunk on their way from memory to the stage; at: where each row lies, from `head`
// on, negative for rows of zeros. What cannot be fetched ahead is read when it is staged.
template <int most>
struct Flight {
  uint2 raw[most];

  template <typename Chunks>
  __device__ void fetch(const Pool& pool, const char* head, const long long* at, int chunk) {
    if (!pool.ahead()) return;
    if (pool.dtype == RR_Q8_0)
      fetch_as<Chunks, RR_Q8_0>(pool, head, at, chunk);
    else if (pool.dtype == RR_Q4_0)
      fetch_as<Chunks, RR_Q4_0>(pool, head, at, chunk);
    else
      fetch_as<Chunks, RR_F16>(pool, head, at, chunk);
  }

  template <typename Chunks, uint32_t dtype>
  __device__ void fetch_as(const Pool& pool, const char* head, const long long* at, int chunk) {
    const int d = Chunks::element(chunk);
    const Place4 place = place4(dtype, d);
    const long long* own = at + Chunks::first(chunk);
#pragma unroll
    for (int i = 0; i < Chunks::count; ++i) {
      const long long row = own[i * Chunks::stride];
      raw[i] = make_uint2(0, 0);
      if (row >= 0 && d < pool.size) raw[i] = fetch4<dtype>(head + row, place);
    }
  }

  template <typename Chunks>
  __device__ void land(const Pool& pool, const char* head, const long long* at, int chunk,
                       float* stage) {
    stage += Chunks::row() * Chunks::pitch + Chunks::column();
    if (!pool.ahead())
      carry<Chunks>(pool, head, at + Chunks::first(chunk), Chunks::element(chunk), stage);
    else if (pool.dtype == RR_F16)
      land_as<Chunks, RR_F16>(stage);
    else if (pool.dtype == RR_BF16)
      land_as<Chunks, RR_BF16>(stage);
    else if (pool.dtype == RR_Q8_0)
      land_as<Chunks, RR_Q8_0>(stage);
    else
      land_as<Chunks, RR_Q4_0>(stage);
  }

  template <typename Chunks, uint32_t dtype>
  __device__ void land_as(float* stage) {
#pragma unroll
    for (int i = 0; i < Chunks::count; ++i)
      write_float4(stage + i * (Chunks::stride * Chunks::pitch), decode4<dtype>(raw[i]));
  }

  template <typename Chunks>
  __device__ void carry(const Pool& pool, const char* head, const long long* at, int d,
                        float* stage) {
#pragma unroll 1
    for (int i = 0; i < Chunks::count; ++i) {
      const long long row = at[i * Chunks::stride];
      float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (row >= 0 && d < pool.size) v = read4(pool, head + row, d);
      write_float4(stage + i * (Chunks::stride * Chunks::pitch), v);
    }
  }
};

// Adds the products of a chunk of keys with 8 vectors; q: at this thread's vectors and part.
template <int keys>
__device__ void score_chunk(const float* stage, const float* q, int k_room, int key,
                            float (&sum)[kRows][keys]) {
#pragma unroll 1
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
#pragma unroll 1
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
__device__ void soften(const Shared& s, Tile<R>& tile, int base, Scores scores) {
  const int lane = threadIdx.x % kWarp;
  for (int r = threadIdx.x / kWarp; r < R; r += kThreads / kWarp) {
    const Span seen = tile.seen[r];
    float x[kSplit / kWarp], top = -INFINITY, total = 0.0f;
#pragma unroll
    for (int i = 0; i < kSplit / kWarp; ++i) {
      const int key = lane + i * kWarp;
      const bool visible = base + key >= seen.first && base + key < seen.last;
      x[i] = visible ? scores.of(s.weights[key * Layout<R, QN>::weight_pitch + r]) : 0.0f;
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
  using P = ValueChunks<R, QN>;
  const int quad = threadIdx.x % QN, rest = threadIdx.x / QN;
  const int group = rest / P::together, slot = rest % P::together * P::step_keys;
  const int key = P::key_of(chunk, slot);
#pragma unroll 2
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
  using P = ValueChunks<R, QN>;
  const int quad = threadIdx.x % QN, rest = threadIdx.x / QN;
#pragma unroll 1
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
// s.sum, valid for vectors that see something. the places of keys and values are given; all threads
// take part.
template <int R, int QN>
__device__ void attend(const Pool& keys, const char* k_head, const Pool& values, const char* v_head,
                       int k_room, Scores scores, int base, const Shared& s, Tile<R>& tile) {
  using V = ValueChunks<R, QN>;
  constexpr int most = KeyChunks::count > V::count ? KeyChunks::count : V::count;
  constexpr int per_group = kThreads / kParts / (R / kRows);
  Flight<most> flight;
  const int part = threadIdx.x / (kThreads / kParts), own = threadIdx.x % (kThreads / kParts);
  const int key = own % per_group, group = own / per_group, chunks = k_room / kRun;
  {
    float sum[kRows][R / 4] = {};
    const float* q = s.q + group * kRows * k_room + part * (kRun / kParts);
    flight.template fetch<KeyChunks>(keys, k_head, tile.key_at, 0);
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      __syncthreads();
      flight.template land<KeyChunks>(keys, k_head, tile.key_at, c, s.stage);
      __syncthreads();
      if (c + 1 < chunks)
        flight.template fetch<KeyChunks>(keys, k_head, tile.key_at, c + 1);
      else
        flight.template fetch<V>(values, v_head, tile.value_at, 0);
      score_chunk<R / 4>(s.stage + part * (kRun / kParts), q + c * kRun, k_room, key, sum);
    }
    score<R, QN>(s, sum, part, key, group);
  }
  soften<R, QN>(s, tile, base, scores);
  float4 sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int c = 0; c < V::chunks; ++c) {
    __syncthreads();
    flight.template land<V>(values, v_head, tile.value_at, c, s.stage);
    __syncthreads();
    if (c + 1 < V::chunks) flight.template fetch<V>(values, v_head, tile.value_at, c + 1);
    weigh_chunk<R, QN>(s.stage, s.weights, c, {tile.all.first - base, tile.all.last - base}, sum);
    if (c % V::round_chunks == V::round_chunks - 1) gather<R, QN>(s, c / V::round_chunks, sum);
  }
}

}  // namespace
