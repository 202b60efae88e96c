// Sorting rows by keys: a block sorts a chunk in shared memory (bitonic; Batcher 1968). Of longer
// rows either the best of each chunk are sorted anew until they fit into one, where few are wanted,
// or sorted runs are merged, each key finding its place by its rank in the other run.
#pragma once

#include "rank_keys.cuh"

namespace {

constexpr int kChunk = 1024, kSortThreads = kChunk / 2, kMergeThreads = 256;
constexpr int64_t kFew = kChunk / 4;  // of each chunk, so that a row shrinks by 4 at least

// What is sorted, and where the first k of each row go.
struct Sorting {
  Rows x;
  int64_t step;  // bytes between elements of a row
  int64_t rows, width;
  uint32_t flip, nan;  // of rank_key
  int64_t k;
  Rows indices, values;
  bool wants_values;
};

// Sorted pieces of rows: keys of row r begin at keys + r * pitch; `width` of them to a row. With
// null for keys they are the elements of x, or the results.
struct Keys {
  uint64_t* keys;
  int64_t pitch, width;
};

__device__ inline void put(const Sorting& s, int64_t r, int64_t at, uint64_t key) {
  const int32_t index = key_index(key);
  row_at<int32_t>(s.indices, r)[at] = index;
  if (!s.wants_values) return;
  const char* x = row_at<char>(s.x, r);
  row_at(s.values, r)[at] = *reinterpret_cast<const float*>(x + index * s.step);
}

// Largest first; size: a power of two from 64 on, two keys to a thread. A warp exchanges within
// aligned pieces of 64 for strides up to 32, so that all warps meet only for wider ones and the one
// after those.
__device__ inline void sort_shared(uint64_t* keys, int size) {
  const int thread = threadIdx.x;
  for (int length = 2; length <= size; length *= 2) {
    for (int stride = length / 2; stride > 0; stride /= 2) {
      if (stride >= kWarp)
        __syncthreads();
      else
        __syncwarp();
      const int low = 2 * thread - (thread & (stride - 1)), high = low + stride;
      const uint64_t a = keys[low], b = keys[high];
      if ((a < b) == ((low & length) == 0)) {
        keys[low] = b;
        keys[high] = a;
      }
    }
  }
  __syncthreads();
}

// The `keep` largest of each chunk of `size` keys, or as many as it has.
__global__ void __launch_bounds__(kSortThreads)
    sort_chunks(Sorting s, Keys from, Keys to, int size, int64_t chunks, int64_t keep) {
  enter_grid();
  uint64_t* keys = reinterpret_cast<uint64_t*>(dynamic_shared());
  const int64_t r = blockIdx.x / chunks, chunk = blockIdx.x % chunks, begin = chunk * size;
  const int64_t count = min(static_cast<int64_t>(size), from.width - begin);
  const char* x = row_at<char>(s.x, r);
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    const int64_t at = begin + i;
    uint64_t key = 0;
    if (i < count && from.keys)
      key = from.keys[r * from.pitch + at];
    else if (i < count)
      key = rank_key(*reinterpret_cast<const float*>(x + at * s.step), at, s.flip, s.nan);
    keys[i] = key;
  }
  __syncthreads();
  sort_shared(keys, size);
  for (int64_t i = threadIdx.x; i < min(keep, count); i += blockDim.x) {
    if (to.keys)
      to.keys[r * to.pitch + chunk * keep + i] = keys[i];
    else
      put(s, r, i, keys[i]);
  }
}

// Neighbouring runs of `run` keys become one, of which the first k are needed. A thread a key.
__global__ void __launch_bounds__(kMergeThreads)
    merge_runs(Sorting s, Keys from, Keys to, int64_t run, int64_t blocks) {
  enter_grid();
  const int64_t r = blockIdx.x / blocks, n = from.width;
  const int64_t i = blockIdx.x % blocks * kMergeThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t pair = i / (2 * run) * (2 * run), middle = min(pair + run, n);
  const bool left = i < middle;
  const int64_t own = left ? i - pair : i - middle;
  if (own >= s.k) return;
  const uint64_t* keys = from.keys + r * from.pitch;
  const uint64_t key = keys[i];
  const int64_t begin = left ? middle : pair, end = left ? min(pair + 2 * run, n) : middle;
  int64_t low = begin, high = min(end, begin + s.k);
  while (low < high) {
    const int64_t half = low + (high - low) / 2;
    if (keys[half] > key)
      low = half + 1;
    else
      high = half;
  }
  const int64_t at = own + low - begin;
  if (at >= s.k) return;
  if (to.keys)
    to.keys[r * to.pitch + pair + at] = key;
  else
    put(s, r, at, key);
}

// Keys that one chunk of a row hands on.
inline int64_t kept(int64_t k) {
  return k <= kFew ? k : kChunk;
}

// Keys that all chunks of a row of n hand on.
inline int64_t handed_on(int64_t n, int64_t keep) {
  const int64_t whole = n / kChunk, rest = n % kChunk;
  return whole * keep + (rest < keep ? rest : keep);
}

// Bytes of workspace for sort_rows: two sets of keys, used in turn.
inline size_t sort_bytes(int64_t rows, int64_t width, int64_t k) {
  if (width <= kChunk) return 0;
  return static_cast<size_t>(2 * rows * handed_on(width, kept(k))) * sizeof(uint64_t);
}

inline void launch_chunks(const rr_exec* exec, const Sorting& s, Keys from, Keys to, int64_t keep) {
  int size = 2 * kWarp;
  while (size < kChunk && size < from.width) size *= 2;
  const int64_t chunks = blocks_for(from.width, size);
  const dim3 grid(static_cast<unsigned>(s.rows * chunks));
  RR_LAUNCH(exec, sort_chunks, grid, size / 2, size * sizeof(uint64_t), s, from, to, size, chunks,
            keep);
}

// The first k of each row to s.indices and s.values; s.rows and s.width are not 0.
inline void sort_rows(const rr_exec* exec, const Sorting& s) {
  const Keys results = {nullptr, 0, 0};
  Keys now = {nullptr, 0, s.width};
  const int64_t keep = kept(s.k), pitch = handed_on(s.width, keep);
  uint64_t* turns[2] = {static_cast<uint64_t*>(exec->workspace),
                        static_cast<uint64_t*>(exec->workspace) + s.rows * pitch};
  int turn = 0;
  while (now.width > kChunk) {
    const Keys next = {turns[turn], pitch, handed_on(now.width, keep)};
    launch_chunks(exec, s, now, next, keep);
    now = next;
    turn = 1 - turn;
    if (keep == kChunk) break;
  }
  if (now.width <= kChunk) {
    launch_chunks(exec, s, now, results, s.k);
    return;
  }
  const int64_t blocks = blocks_for(now.width, kMergeThreads);
  const dim3 grid(static_cast<unsigned>(s.rows * blocks));
  for (int64_t run = kChunk; run < now.width; run *= 2) {
    const Keys next = {turns[turn], pitch, now.width};
    const bool last = 2 * run >= now.width;
    RR_LAUNCH(exec, merge_runs, grid, kMergeThreads, 0, s, now, last ? results : next, run, blocks);
    now = next;
    turn = 1 - turn;
  }
}

}  // namespace
