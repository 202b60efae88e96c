// Merging what was found of a vector's splits.
#pragma once

#include "attention_step.cuh"

namespace {

constexpr int kMergeThreads = 256, kMergeColumns = 64, kMostSplits = 4096;
constexpr int kMergeLanes = kMergeColumns / 4;            // threads that share a split
constexpr int kMergeParts = kMergeThreads / kMergeLanes;  // of a vector's splits
constexpr int kMergeBatch = 4;                            // splits that are read at a time

// A block has kMergeColumns elements of one vector. Part p of the threads has splits p,
// p + kMergeParts, .. of those that the vector sees; parts' sums are added in order.
template <int R>
__global__ void __launch_bounds__(kMergeThreads) merge_splits(const __grid_constant__ StepJob job) {
  enter_grid();
  __shared__ float take[kMostSplits], scratch[kMergeThreads / kWarp];
  __shared__ float4 sums[kMergeParts][kMergeLanes];
  const Task& task = job.task;
  const int r = blockIdx.x % job.tile_rows, tile = blockIdx.x / job.tile_rows;
  const int kv_head = blockIdx.y, begin = blockIdx.z * kMergeColumns, size = task.v.size;
  Place place;
  if (!find_tile(task, R, job.first_tile + tile, place)) return;
  if (job.first_tile == 0)
    clear_padding(task, kv_head, blockIdx.x, gridDim.x, begin, min(begin + kMergeColumns, size));
  if (r >= place.count) return;
  const Vector v = vector_of(task, place.b, kv_head, place.first + r);
  const bool none = v.seen.first >= v.seen.last;
  const int first = none ? 0 : Splits::of(v.seen.first);
  const int count = none ? 0 : Splits::of(v.seen.last - 1) + 1 - first;
  const int64_t own = job.index(tile, kv_head, first) + r;
  const float* marks = job.marks + 2 * own;
  float top = -INFINITY, total = 0.0f;
  for (int i = threadIdx.x; i < count; i += kMergeThreads)
    top = fmaxf(top, marks[2 * static_cast<int64_t>(i) * job.tile_rows]);
  top = block_max<kMergeThreads>(top, scratch);
  for (int i = threadIdx.x; i < count; i += kMergeThreads) {
    const float2 mark =
        *reinterpret_cast<const float2*>(marks + 2 * static_cast<int64_t>(i) * job.tile_rows);
    const float share = exp2f((mark.x - top) * kLog2E);
    take[i] = share;
    total += share * mark.y;
  }
  total = block_sum<kMergeThreads>(total, scratch);
  const int lane = threadIdx.x % kMergeLanes, part = threadIdx.x / kMergeLanes;
  const int d = begin + 4 * lane;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float* from = job.sums + own * size + d;
  const int64_t step = static_cast<int64_t>(job.tile_rows) * size;
  if (d < size) {
#pragma unroll 1
    for (int i = part; i < count; i += kMergeParts * kMergeBatch) {
      float4 x[kMergeBatch];
#pragma unroll
      for (int j = 0; j < kMergeBatch; ++j) {
        const int split = i + j * kMergeParts;
        x[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (split < count) x[j] = *reinterpret_cast<const float4*>(from + split * step);
      }
#pragma unroll
      for (int j = 0; j < kMergeBatch; ++j) {
        const int split = i + j * kMergeParts;
        if (split >= count) break;
        const float w = take[split];
        sum = make_float4(fmaf(x[j].x, w, sum.x), fmaf(x[j].y, w, sum.y), fmaf(x[j].z, w, sum.z),
                          fmaf(x[j].w, w, sum.w));
      }
    }
  }
  sums[part][lane] = sum;
  __syncthreads();
  if (threadIdx.x >= kMergeColumns || begin + static_cast<int>(threadIdx.x) >= size) return;
  float x = 0.0f;
  for (int p = 0; p < min(kMergeParts, count); ++p)
    x += reinterpret_cast<const float*>(sums[p])[threadIdx.x];
  reinterpret_cast<float*>(at_head(task.o, v.token, v.head))[begin + threadIdx.x] =
      mean(task, v.head, x, top, total);
}

}  // namespace
