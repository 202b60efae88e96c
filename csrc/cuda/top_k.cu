// top_k: the best of each chunk, sorted, until one chunk holds them all. Where one is asked for,
// blocks have a part of a row each, and the last of a row's takes the best of what they found.

#include "counters.cuh"
#include "ops/top_k.hpp"
#include "sort.cuh"

namespace {

constexpr int kThreads = 256, kEach = 8;     // elements of a thread
constexpr int64_t kPart = kThreads * kEach;  // of a block

// found: of each row's parts.
__global__ void __launch_bounds__(kThreads)
    find_best(Sorting s, uint64_t* found, unsigned* counts, int64_t parts) {
  enter_grid();
  __shared__ bool last;
  const int64_t r = blockIdx.x / parts, part = blockIdx.x % parts;
  const float* x = row_at(s.x, r);
  float values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = part * kPart + i * kThreads + threadIdx.x;
    values[i] = at < s.width ? x[at] : 0.0f;
  }
  uint64_t best = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = part * kPart + i * kThreads + threadIdx.x;
    if (at < s.width) best = max(best, rank_key(values[i], at, s.flip, s.nan));
  }
  best = group_most<kThreads>(best);
  if (parts > 1) {
    if (threadIdx.x == 0) {
      found[r * parts + part] = best;
      last = arrives_last(counts + r, static_cast<unsigned>(parts));
    }
    __syncthreads();
    if (!last) return;
    for (int64_t i = threadIdx.x; i < parts; i += kThreads) best = max(best, found[r * parts + i]);
    best = group_most<kThreads>(best);
  }
  if (threadIdx.x == 0) put(s, r, 0, best);
}

inline bool finds_best(const rr_node* node) {
  return attr_int(node, "k", 0) == 1 && n_rows(node->inputs[0]) <= kCounters;
}

inline int64_t parts_of(const rr_tensor& x) {
  return blocks_for(x.shape[x.rank - 1], kPart);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  if (numel(x) == 0) return;
  Sorting s = {};
  s.x = rows_of(x);
  s.step = sizeof(float);
  s.rows = n_rows(x);
  s.width = x.shape[x.rank - 1];
  s.nan = kNanFirst;
  s.k = attr_int(node, "k", 1);
  s.indices = rows_of(node->outputs[1]);
  s.values = rows_of(node->outputs[0]);
  s.wants_values = true;
  if (!finds_best(node)) return sort_rows(exec, s);
  const dim3 grid(static_cast<unsigned>(s.rows * parts_of(x)));
  RR_LAUNCH(exec, find_best, grid, kThreads, 0, s, static_cast<uint64_t*>(exec->workspace),
            counters(exec), parts_of(x));
}

size_t workspace(const rr_node* node, int32_t) {
  const rr_tensor& x = node->inputs[0];
  if (finds_best(node)) return static_cast<size_t>(n_rows(x) * parts_of(x)) * sizeof(uint64_t);
  return sort_bytes(n_rows(x), x.shape[x.rank - 1], attr_int(node, "k", 1));
}

}  // namespace

RR_CUDA_KERNEL(top_k, RR_ROW_EXACT, "top_k", "cuda", "", 0, supports, workspace, run)
