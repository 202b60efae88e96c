// What tiles of query vectors see, where its keys lie, and the vectors themselves as tensor cores
// take them: two numbers of 16 bits whose sum is the query.
#pragma once

#include "attention_task.cuh"
#include "matrix_f16.cuh"

namespace {

constexpr int kStepThreads = 256, kStepWarps = kStepThreads / kWarp;
constexpr int kRowThreads = kStepThreads / 16;  // that weigh the keys of one vector
constexpr float kLog2E = 1.44269504088896340736f;

// Two to the power of x.
__device__ inline float power_of_two(float x) {
#if defined(RR_EMULATE)
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// tanh(x) as 1 - 2 / (1 + e^2x), to 2^-22; without a branch.
__device__ inline float short_tanh(float x) {
  const float sum = 1.0f + power_of_two(x * (2.0f * kLog2E));
#if defined(RR_EMULATE)
  const float inverse = 1.0f / sum;
#else
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));
#endif
  return fmaf(-2.0f, inverse, 1.0f);
}

struct Halves {
  static constexpr uint32_t dtype = RR_F16;
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
  static constexpr uint32_t dtype = RR_BF16;
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

__noinline__ __device__ void report_far(const Check& check, int64_t a, int64_t b) {
  report(check, a, b);
}

// What a query token of sequence b sees, which has tokens up to `end`; nothing where a position is
// bad.
__device__ inline Span seen_by(const Task& task, int token, int end) {
  const int at = task.positions[token];
  const int newest = task.causal ? at : task.positions[end - 1];
  const bool bad = at < 0 || at >= task.limit;
  if (bad || newest < 0 || newest >= task.limit) {
    report_far(task.position, task.limit, bad ? at : newest);
    return {0, 0};
  }
  const int first =
      task.window > 0 && at >= task.window ? at - static_cast<int>(task.window) + 1 : 0;
  return newest >= first ? Span{first, newest + 1} : Span{0, 0};
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

// What tokens from .. to - 1 of a sequence with tokens up to `end` see.
__device__ inline Seen seen_together(const Task& task, int from, int to, int end) {
  Seen seen = {{0, 0}, {0, INT32_MAX}};
#pragma unroll 1
  for (int i = from; i < to; ++i) {
    const Span own = seen_by(task, i, end);
    seen.any = both(seen.any, own);
    seen.all = {max(seen.all.first, own.first), min(seen.all.last, own.last)};
  }
  return seen;
}

// The same, by all lanes of a warp.
__device__ inline Seen seen_by_warp(const Task& task, int from, int to, int end) {
  Seen seen = {{0, 0}, {0, INT32_MAX}};
#pragma unroll 1
  for (int i = from + static_cast<int>(threadIdx.x) % kWarp; i < to; i += kWarp) {
    const Span own = seen_by(task, i, end);
    seen.any = both(seen.any, own);
    seen.all = {max(seen.all.first, own.first), min(seen.all.last, own.last)};
  }
#pragma unroll 1
  for (int step = kWarp / 2; step > 0; step /= 2) {
    seen.any = both(seen.any, {__shfl_xor_sync(kAllLanes, seen.any.first, step),
                               __shfl_xor_sync(kAllLanes, seen.any.last, step)});
    seen.all = {max(seen.all.first, __shfl_xor_sync(kAllLanes, seen.all.first, step)),
                min(seen.all.last, __shfl_xor_sync(kAllLanes, seen.all.last, step))};
  }
  return seen;
}

// Of a sequence, a tile's vectors, which share a key head.
struct TileAt {
  int b, first, count, kv_head;
};

// Reports an entry of the block table if some vector of the tile sees one of `count` positions.
__noinline__ __device__ void complain(const Task& task, TileAt tile, int at, int count, int entry) {
  const int from = task.offsets[tile.b], end = task.offsets[tile.b + 1];
#pragma unroll 1
  for (int i = tile.first; i < tile.first + tile.count; i += task.group) {
    const Span own = seen_by(task, from + i / task.group, end);
    if (at + count <= own.first || at >= own.last) continue;
    report_far(task.entry, task.pool_pages, entry);
    break;
  }
}

// The pool row that holds a position, or -1 where its page is not in the pool; count: of the
// positions from this on in the page, how many are asked for.
__device__ inline int row_of(const Task& task, const TileAt& tile, int at, int count) {
  const int page = at / task.page;
  const int entry = task.table[static_cast<int64_t>(tile.b) * task.table_pages + page];
  if (entry >= 0 && entry < task.pool_pages) return entry * task.page + at - page * task.page;
  complain(task, tile, at, count, entry);
  return -1;
}

// What is known of a vector: what it sees, and its factor from products to scores' products.
struct Row {
  Span seen;
  float factor;
};

// Where a pair of elements comes in a row of queries: in the order in which keys' codes are read.
template <uint32_t dtype>
__device__ inline int query_place(int d) {
  if (!Cache<dtype>::codes) return d;
  const int e = d % 32, r = dtype == RR_Q8_0 ? e % 8 : e % 4;
  const int lane = dtype == RR_Q8_0 ? e / 8 : e % 16 / 4;
  const int step = dtype == RR_Q8_0 ? r / 4 : e / 16;
  return d - e + 16 * step + r % 4 / 2 * 8 + 2 * lane;
}

// together: what the tile's vectors see. A tile's queries [R, W] scaled by powers of two, the high
// parts and then the low parts, and what its vectors see; by kStepThreads threads.
template <int W, int R, uint32_t dtype>
__device__ void load_queries(const Task& task, const TileAt& at, const Seen& together,
                             unsigned char* q, Row* rows) {
  using Key = typename Cache<dtype>::Key;
  constexpr int pitch = 2 * W + 16;
  constexpr int own = W / kRowThreads;  // elements of a thread, in pairs
#pragma unroll 1
  for (int r = threadIdx.x / kRowThreads; r < R; r += 16) {
    const int lane = threadIdx.x % kRowThreads;
    Span seen = {0, 0};
    float x[own] = {}, most = 0.0f;
    if (r < at.count) {
      const int token = task.offsets[at.b] + (at.first + r) / task.group;
      const bool alike =
          together.any.first == together.all.first && together.any.last == together.all.last;
      seen = alike ? together.any : seen_by(task, token, task.offsets[at.b + 1]);
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
      unsigned char* to = q + r * pitch + 2 * query_place<dtype>(i * kRowThreads + 2 * lane);
      *reinterpret_cast<unsigned*>(to) = pair.high;
      *reinterpret_cast<unsigned*>(to + R * pitch) = pair.low;
    }
  }
}

}  // namespace
