// What tiles of query vectors see, where its keys lie, and the vectors themselves as tensor cores
// take them: two numbers of 16 bits whose sum is the query.
#pragma once

#include "attention_task.cuh"
#include "matrix_f16.cuh"

namespace {

constexpr int kStepThreads = 256, kStepWarps = kStepThreads / kWarp;
constexpr int kRowThreads = kStepThreads / 16;  // that weigh the keys of one vector
constexpr float kLog2E = 1.44269504088896340736f;

struct Halves {
  static constexpr float scale = 32768.0f;  // of weights: small ones keep all their bits

  static __device__ unsigned pack(float a, float b) { return pack_f16(a, b); }
  static __device__ float value(unsigned pair, int i) {
    return half_to_float(static_cast<uint16_t>(pair >> (16 * i)));
  }
  static __device__ bool finite(uint16_t x) { return (x & 0x7c00) != 0x7c00; }
  static __device__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_f16(d, a, b);
  }
};

struct Bf16s {
  static constexpr float scale = 1.0f;

  static __device__ unsigned pack(float a, float b) { return pack_bf16(a, b); }
  static __device__ float value(unsigned pair, int i) {
    return bf16_to_float(static_cast<uint16_t>(pair >> (16 * i)));
  }
  static __device__ bool finite(uint16_t x) { return (x & 0x7f80) != 0x7f80; }
  static __device__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    mma_bf16(d, a, b);
  }
};

// A pair of floats as the sum of two pairs.
template <typename Number>
struct Sum2 {
  unsigned high, low;

  __device__ Sum2(float a, float b) {
    high = Number::pack(a, b);
    low = Number::pack(a - Number::value(high, 0), b - Number::value(high, 1));
  }
};

template <uint32_t dtype>
struct Cache {
  static constexpr bool codes = false;
  static constexpr int block_bytes = 64;  // of 32 elements
  using Key = Halves;
  using Value = Halves;
};
template <>
struct Cache<RR_BF16> {
  static constexpr bool codes = false;
  static constexpr int block_bytes = 64;
  using Key = Bf16s;
  using Value = Bf16s;
};
template <>
struct Cache<RR_Q8_0> {
  static constexpr bool codes = true;
  static constexpr int block_bytes = 34;
  using Key = Halves;
  using Value = Bf16s;
};
template <>
struct Cache<RR_Q4_0> {
  static constexpr bool codes = true;
  static constexpr int block_bytes = 18;
  using Key = Halves;
  using Value = Bf16s;
};

// What a query token sees. Called, for its code is long beside what else a block does.
__noinline__ __device__ Span seen_by(const Task& task, int b, int token) {
  return vector_of(task, b, 0, (token - task.offsets[b]) * task.group).seen;
}

__noinline__ __device__ void report_far(const Check& check, int64_t a, int64_t b) {
  report(check, a, b);
}

// The union of two ranges, either of which may be empty, filled up between them.
__device__ inline Span both(Span a, Span b) {
  if (a.first >= a.last) return b;
  if (b.first >= b.last) return a;
  return {min(a.first, b.first), max(a.last, b.last)};
}

struct Seen {
  Span any, all;  // by some, and by all
};

// What tokens from .. to - 1 of the batch, which sequence b has, see; by a warp, or by each lane
// for itself.
__noinline__ __device__ Seen seen_together(const Task& task, int b, int from, int to, int lanes) {
  Span any = {0, 0}, all = {0, INT32_MAX};
#pragma unroll 1
  for (int i = from + static_cast<int>(threadIdx.x) % lanes; i < to; i += lanes) {
    const Span seen = seen_by(task, b, i);
    any = both(any, seen);
    all = {max(all.first, seen.first), min(all.last, seen.last)};
  }
#pragma unroll 1
  for (int step = lanes / 2; step > 0; step /= 2) {
    any = both(any, {__shfl_xor_sync(kAllLanes, any.first, step),
                     __shfl_xor_sync(kAllLanes, any.last, step)});
    all = {max(all.first, __shfl_xor_sync(kAllLanes, all.first, step)),
           min(all.last, __shfl_xor_sync(kAllLanes, all.last, step))};
  }
  return {any, all};
}

// Of a sequence, a tile's vectors, which share a key head.
struct TileAt {
  int b, first, count, kv_head;
};

// The page that a thread has looked up last, and its entry in the block table.
struct Page {
  int b, page, entry;

  // The pool row that holds a position, or -1 where nobody sees it. any: what the tile's vectors
  // see.
  __device__ int row_of(const Task& task, const TileAt& tile, Span any, int at) {
    if (at < any.first || at >= any.last) return -1;
    const int own = at / task.page;
    if (b != tile.b || page != own) {
      b = tile.b, page = own;
      entry = task.table[static_cast<int64_t>(b) * task.table_pages + own];
    }
    if (entry >= 0 && entry < task.pool_pages) return entry * task.page + at - own * task.page;
    complain(task, tile, at, entry);
    return -1;
  }

  // Reports an entry if a vector of the tile sees the position.
  static __noinline__ __device__ void complain(const Task& task, TileAt tile, int at, int entry) {
#pragma unroll 1
    for (int i = tile.first; i < tile.first + tile.count; i += task.group) {
      const Span own = seen_by(task, tile.b, task.offsets[tile.b] + i / task.group);
      if (at < own.first || at >= own.last) continue;
      report_far(task.entry, task.pool_pages, entry);
      break;
    }
  }
};

// What is known of a vector: what it sees, and its factor from products to scores' products.
struct Row {
  Span seen;
  float factor;
};

// A tile's queries [R, W] scaled by powers of two, the high parts and then the low parts, and what
// its vectors see; by kStepThreads threads.
template <int W, int R, typename Key>
__device__ void load_queries(const Task& task, const TileAt& at, unsigned char* q, Row* rows) {
  constexpr int pitch = 2 * W + 16;
  constexpr int own = W / kRowThreads;  // elements of a thread, in pairs
#pragma unroll 1
  for (int r = threadIdx.x / kRowThreads; r < R; r += 16) {
    const int lane = threadIdx.x % kRowThreads;
    Span seen = {0, 0};
    float x[own] = {}, most = 0.0f;
    if (r < at.count) {
      const int token = task.offsets[at.b] + (at.first + r) / task.group;
      seen = seen_by(task, at.b, token);
      const int head = head_of(task, at.kv_head, (at.first + r) % task.group);
      const float* from = reinterpret_cast<const float*>(at_head(task.q, token, head));
#pragma unroll
      for (int i = 0; i < own; ++i) {
        const int d = i / 2 * 2 * kRowThreads + 2 * lane + i % 2;
        if (d < task.k.size) x[i] = from[d];
        most = fmaxf(most, fabsf(x[i]));
      }
    }
    for (int step = kRowThreads / 2; step > 0; step /= 2)
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    // 2^(15 - e), where most is below 2^e: the largest becomes 2^14 or more, below 2^15.
    const int e = static_cast<int>(__float_as_uint(most) >> 23) - 126;
    const int up = most > 0.0f ? min(15 - e, 126) : 0;
    const float scale = __uint_as_float(static_cast<unsigned>(up + 127) << 23);
    if (lane == 0) rows[r] = {seen, __uint_as_float(static_cast<unsigned>(127 - up) << 23)};
#pragma unroll
    for (int i = 0; i < own; i += 2) {
      const Sum2<Key> pair(x[i] * scale, x[i + 1] * scale);
      unsigned char* to = q + r * pitch + 2 * (i * kRowThreads + 2 * lane);
      *reinterpret_cast<unsigned*>(to) = pair.high;
      *reinterpret_cast<unsigned*>(to + R * pitch) = pair.low;
    }
  }
}

}  // namespace
