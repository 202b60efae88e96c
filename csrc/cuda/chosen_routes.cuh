// What products with chosen weights share of sorting pairs of a token and one of its experts.
#pragma once

#include "kernel.cuh"

namespace {

constexpr int kSortThreads = 1024, kClearThreads = 256;
constexpr int64_t kMostExperts = 4096;

// start(i, the sum of all size(j) before i) for all i < n, by one warp; the sum of all.
template <class Size, class Start>
__device__ inline int sums_before(int64_t n, Size size, Start start) {
  const int lane = threadIdx.x % kWarp;
  int before = 0;
  for (int64_t first = 0; first < n; first += kWarp) {
    const int64_t i = first + lane;
    const int own = i < n ? size(i) : 0;
    int through = own;
    for (int step = 1; step < kWarp; step *= 2) {
      const int below = __shfl_up_sync(kAllLanes, through, step);
      if (lane >= step) through += below;
    }
    if (i < n) start(i, before + through - own);
    before += __shfl_sync(kAllLanes, through, kWarp - 1);
  }
  return before;
}

// Rows of y without expert: zeros. Grid: pairs.
[[maybe_unused]] __global__ void __launch_bounds__(kClearThreads)
    clear_unrouted(const int* ids, int experts, float* y, int64_t y_row, int m) {
  enter_grid();
  const int id = ids[blockIdx.x];
  if (id >= 0 && id < experts) return;
  for (int i = threadIdx.x; i < m; i += kClearThreads) y[blockIdx.x * y_row + i] = 0.0f;
}

[[maybe_unused]] inline Check check_experts(const rr_exec* exec) {
  return check(exec, "'ids' should be below %lld, the number of experts, got %lld");
}

}  // namespace
