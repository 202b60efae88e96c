// What attention is asked for, as its kernels see it: queries, pools, which keys a query sees, and
// where results go.
#pragma once

#include "attention_pool.cuh"
#include "ops/attention.hpp"

namespace {

// A range of positions; empty where last is not above first.
struct Span {
  int first, last;
};

// A product becomes a score by `scale`, and by cap * tanh(score / cap) where cap is above 0.
struct Scores {
  float scale, cap;

  __device__ float of(float product) const {
    const float score = product * scale;
    return cap > 0.0f ? tanhf(score / cap) * cap : score;
  }
};

struct Task {
  View q, o;
  Pool k, v;
  const int32_t *offsets, *positions, *table;
  int batch, tokens, table_pages, page, kv_heads, group, k_room, splits;
  int64_t pool_pages, limit, window;  // limit: positions of the block table
  Scores scores;
  const float* sinks;  // of each head, or null
  bool causal, tiled;
  Check first, ascending, position, entry;
};

// Where a tile's vectors begin in its sequence, and how many it has; none: there is no such tile.
struct Place {
  int b, first, count;
};

// False if the offsets are bad; tiles are counted over all sequences. By whole warps, whose lanes
// look at a sequence each.
__device__ inline bool find_tile(const Task& task, int rows, int tile, Place& place) {
  place = {0, 0, 0};
  if (task.offsets[0] != 0) {
    report(task.first, task.offsets[0], 0);
    return false;
  }
  const int lane = threadIdx.x % kWarp;
  for (int first = 0; first < task.batch; first += kWarp) {
    const int b = min(first + lane, task.batch - 1);
    const int from = task.offsets[b], to = task.offsets[b + 1];
    const unsigned bad = __ballot_sync(kAllLanes, from > to || to > task.tokens);
    if (bad != 0) {
      if (lane == __ffs(bad) - 1) report(task.ascending, from, to);
      return false;
    }
    const int vectors = first + lane < task.batch ? (to - from) * task.group : 0;
    const int tiles = (vectors + rows - 1) / rows;
    int through = tiles;
    for (int step = 1; step < kWarp; step *= 2) {
      const int below = __shfl_up_sync(kAllLanes, through, step);
      if (lane >= step) through += below;
    }
    const int before = through - tiles, at = (tile - before) * rows;
    const unsigned own = __ballot_sync(kAllLanes, tile >= before && tile < through);
    if (own != 0) {
      const int of = __ffs(own) - 1;
      place = {first + of, __shfl_sync(kAllLanes, at, of),
               __shfl_sync(kAllLanes, min(rows, vectors - at), of)};
    }
    tile -= __shfl_sync(kAllLanes, through, kWarp - 1);
  }
  return true;
}

struct Vector {
  int token, head;
  Span seen;
};

// A member of the group of query heads that share a key head.
__device__ inline int head_of(const Task& task, int kv_head, int member) {
  return task.tiled ? member * task.kv_heads + kv_head : kv_head * task.group + member;
}

__device__ inline bool position_of(const Task& task, int token, int& at) {
  at = task.positions[token];
  if (at >= 0 && at < task.limit) return true;
  report(task.position, task.limit, at);
  return false;
}

// Vector i of a sequence at a key head; one whose position is bad sees nothing.
__device__ inline Vector vector_of(const Task& task, int b, int kv_head, int i) {
  const int token = task.offsets[b] + i / task.group, member = i % task.group;
  Vector v = {token, head_of(task, kv_head, member), {0, 0}};
  int at = 0, newest = 0;
  if (!position_of(task, token, at)) return v;
  if (!position_of(task, task.causal ? token : task.offsets[b + 1] - 1, newest)) return v;
  const int first =
      task.window > 0 && at >= task.window ? at - static_cast<int>(task.window) + 1 : 0;
  if (newest >= first) v.seen = {first, newest + 1};
  return v;
}

__device__ inline char* at_head(const View& v, int token, int head) {
  return v.data + token * v.strides[0] + head * v.strides[1];
}

// An element of the result from the sums over all splits, zero where nothing was seen: a head's
// sink is one more score, whose value is zero.
__device__ inline float mean(const Task& task, int head, float sum, float top, float total) {
  if (total == 0.0f) return 0.0f;
  if (!task.sinks) return sum / total;
  const float sink = task.sinks[head], highest = fmaxf(top, sink), keep = expf(top - highest);
  return sum * keep / (total * keep + expf(sink - highest));
}

// Elements begin .. end - 1 of the heads of a key head in padding rows become zero.
__device__ inline void clear_padding(const Task& task, int kv_head, int start, int step, int begin,
                                     int end) {
  for (int token = task.offsets[task.batch] + start; token < task.tokens; token += step)
    for (int member = 0; member < task.group; ++member) {
      const int head = kv_head * task.group + member;
      float* o = reinterpret_cast<float*>(at_head(task.o, token, head));
      for (int d = begin + threadIdx.x; d < end; d += blockDim.x) o[d] = 0.0f;
    }
}

[[maybe_unused]] inline Task read_task(const rr_node* node, const rr_exec* exec) {
  const rr_tensor* in = node->inputs;
  Task t = {};
  t.q = view(in[0]);
  t.o = view(node->outputs[0]);
  t.k = pool_of(in[1]);
  t.v = pool_of(in[2]);
  t.offsets = data<const int32_t>(in[3]);
  t.positions = data<const int32_t>(in[4]);
  t.table = data<const int32_t>(in[5]);
  t.batch = static_cast<int>(in[3].shape[0] - 1);
  t.tokens = static_cast<int>(in[0].shape[0]);
  t.table_pages = static_cast<int>(in[5].shape[1]);
  t.page = static_cast<int>(attr_int(node, "page", 256));
  t.kv_heads = static_cast<int>(in[1].shape[1]);
  t.group = static_cast<int>(in[0].shape[1] / in[1].shape[1]);
  t.pool_pages = in[1].shape[0] / t.page;
  t.limit = static_cast<int64_t>(t.table_pages) * t.page;
  t.window = attr_int(node, "window", 0);
  t.scores = {static_cast<float>(attr_float(node, "scale", 1.0)),
              static_cast<float>(attr_float(node, "softcap", 0.0))};
  t.sinks = present(in[6]) ? data<const float>(in[6]) : nullptr;
  t.causal = attr_is(node, "mask", "causal");
  t.tiled = attr_is(node, "heads", "tiled");
  t.first = check(exec, "'seq_offsets' should be 0 at [0], got %lld");
  t.ascending = check(exec,
                      "'seq_offsets' should be ascending and at most the number of rows, got %lld, "
                      "%lld");
  t.position = check(exec, "'positions' should be in [0, %lld), got %lld");
  t.entry = check(exec, "'block_table' should be in [0, %lld), pages of the pool, got %lld");
  return t;
}

// The most shared memory that a block of the current device may have.
[[maybe_unused]] inline int most_shared() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

}  // namespace
