// Merging what was found of a vector's splits: those of a group first, then the groups, each in
// order. Groups begin at absolute multiples of kGroupSplits, so that a vector's sums are the same
// whoever adds them: the last block of a tile's units, or, where tiles have many vectors, a kernel.
#pragma once

#include "attention_step.cuh"
#include "counters.cuh"

namespace {

constexpr int kMergeThreads = 256, kMergeColumns = 64, kMostSplits = 4096;
constexpr int kMergeLanes = kMergeColumns / 4;            // threads that share a group
constexpr int kMergeParts = kMergeThreads / kMergeLanes;  // of a vector's groups
constexpr int kMergeBatch = 4;                            // results that are read at a time

// What was found of some of a vector's keys: highest score, total, and of four elements the sums.
struct Found {
  float top, total;
  float4 sum;
};

// `count` results in one. sums: four elements of the first, and how far it is to those of the next;
// marks: likewise, its highest score and total.
__device__ inline Found merged(const float* sums, int64_t sums_step, const float* marks,
                               int64_t marks_step, int count) {
  Found f = {-INFINITY, 0.0f, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
#pragma unroll 4
  for (int i = 0; i < count; ++i) f.top = fmaxf(f.top, marks[i * marks_step]);
#pragma unroll 1
  for (int i = 0; i < count; i += kMergeBatch) {
    float4 x[kMergeBatch];
    float2 mark[kMergeBatch];
#pragma unroll
    for (int j = 0; j < kMergeBatch; ++j) {
      if (i + j >= count) break;
      x[j] = *reinterpret_cast<const float4*>(sums + (i + j) * sums_step);
      mark[j] = *reinterpret_cast<const float2*>(marks + (i + j) * marks_step);
    }
#pragma unroll
    for (int j = 0; j < kMergeBatch; ++j) {
      if (i + j >= count) break;
      const float w = exp2f((mark[j].x - f.top) * kLog2E);
      f.total = fmaf(w, mark[j].y, f.total);
      f.sum = make_float4(fmaf(x[j].x, w, f.sum.x), fmaf(x[j].y, w, f.sum.y),
                          fmaf(x[j].z, w, f.sum.z), fmaf(x[j].w, w, f.sum.w));
    }
  }
  return f;
}

// Numbers from first to before end, none where it is not above first.
struct Numbers {
  int first, end;

  __device__ int count() const { return max(0, end - first); }
  __device__ Numbers within(Numbers other) const {
    return {max(first, other.first), min(end, other.end)};
  }
  // The groups that these splits are in.
  __device__ Numbers groups() const {
    return {first / kGroupSplits, first < end ? (end - 1) / kGroupSplits + 1 : 0};
  }
};

__device__ inline Numbers splits_of_group(int group) {
  return {group * kGroupSplits, (group + 1) * kGroupSplits};
}

__device__ inline Numbers splits_seen(const Vector& v) {
  if (v.seen.first >= v.seen.last) return {0, 0};
  return {Splits::of(v.seen.first), Splits::of(v.seen.last - 1) + 1};
}

// Four elements, from d on, of what was found of vector r of a tile in some splits, or groups.
__device__ inline Found merge_splits_of(const StepJob& job, int tile, int kv_head, Numbers splits,
                                        int r, int d) {
  const int64_t at = job.index(tile, kv_head, splits.first) + r;
  return merged(job.sums + at * job.task.v.size + d, int64_t{job.tile_rows} * job.task.v.size,
                job.marks + 2 * at, 2 * job.tile_rows, splits.count());
}

__device__ inline Found merge_groups_of(const StepJob& job, int tile, int kv_head, Numbers groups,
                                        int r, int d) {
  const int64_t at = job.group_index(tile, kv_head, groups.first) + r;
  return merged(job.group_sums + at * job.task.v.size + d, int64_t{job.tile_rows} * job.task.v.size,
                job.group_marks + 2 * at, 2 * job.tile_rows, groups.count());
}

__device__ inline void write_mean(const Task& task, const Vector& v, const Found& f, int d) {
  float* to = reinterpret_cast<float*>(at_head(task.o, v.token, v.head)) + d;
  *reinterpret_cast<float4*>(to) = make_float4(
      mean(task, v.head, f.sum.x, f.top, f.total), mean(task, v.head, f.sum.y, f.top, f.total),
      mean(task, v.head, f.sum.z, f.top, f.total), mean(task, v.head, f.sum.w, f.top, f.total));
}

// A group of a unit's tile whose splits have all been gone through; all threads of a block. Of a
// sequence with one group the results are the vectors'.
__device__ void merge_group(const StepJob& job, const Unit& unit, int group, bool only) {
  const Task& task = job.task;
  const int quads = task.v.size / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < unit.at.count * quads; i += kStepThreads) {
    const int r = i / quads, d = i % quads * 4;
    const Vector v = vector_of(task, unit.at.b, unit.at.kv_head, unit.at.first + r);
    const Numbers splits = splits_seen(v).within(splits_of_group(group));
    if (splits.count() == 0 && !only) continue;
    const Found f = merge_splits_of(job, unit.tile, unit.at.kv_head, splits, r, d);
    if (only) {
      write_mean(task, v, f, d);
      continue;
    }
    const int64_t to = job.group_index(unit.tile, unit.at.kv_head, group) + r;
    *reinterpret_cast<float4*>(job.group_sums + to * task.v.size + d) = f.sum;
    if (d == 0) *reinterpret_cast<float2*>(job.group_marks + 2 * to) = make_float2(f.top, f.total);
  }
}

// The results of a unit's tile, all of whose groups have been merged.
__device__ void merge_tile(const StepJob& job, const Unit& unit) {
  const Task& task = job.task;
  const int quads = task.v.size / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < unit.at.count * quads; i += kStepThreads) {
    const int r = i / quads, d = i % quads * 4;
    const Vector v = vector_of(task, unit.at.b, unit.at.kv_head, unit.at.first + r);
    const Numbers groups = splits_seen(v).groups();
    write_mean(task, v, merge_groups_of(job, unit.tile, unit.at.kv_head, groups, r, d), d);
  }
}

// After a block's units: counts them, and merges what nobody else will add to. `last` has room for
// them.
__device__ void merge_units(const StepJob& job, const Sequences& s, const Unit* units, int count,
                            bool* last) {
  const auto splits_of = [&](const Unit& unit) {
    const int first = s.first_split[unit.at.b];
    return Numbers{first, first + s.splits[unit.at.b]};
  };
  if (static_cast<int>(threadIdx.x) < count) {
    const Unit& unit = units[threadIdx.x];
    const int group = unit.split / kGroupSplits;
    const int all = splits_of(unit).within(splits_of_group(group)).count();
    last[threadIdx.x] = arrives_last(job.counter(unit.tile, unit.at.kv_head) + group, all);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    if (!last[i]) continue;
    const Unit& unit = units[i];
    const int groups = splits_of(unit).groups().count();
    merge_group(job, unit, unit.split / kGroupSplits, groups == 1);
    if (groups == 1) continue;
    __syncthreads();
    if (threadIdx.x == 0)
      last[i] = arrives_last(job.counter(unit.tile, unit.at.kv_head) + job.groups, groups);
    __syncthreads();
    if (last[i]) merge_tile(job, unit);
  }
}

// Zeros for padding, and for sequences without a unit: none of their vectors sees anything.
__device__ void clear_unseen(const StepJob& job, const Sequences& s) {
  const Task& task = job.task;
  const int size = task.v.size;
  for (int kv_head = 0; kv_head < task.kv_heads; ++kv_head)
    clear_padding(task, kv_head, blockIdx.x, gridDim.x, 0, size);
  const int heads = task.kv_heads * task.group;
#pragma unroll 1
  for (int b = blockIdx.x; b < task.batch; b += gridDim.x) {
    if (s.splits[b] > 0) continue;
    const int count = (task.offsets[b + 1] - task.offsets[b]) * heads * size;
    for (int i = threadIdx.x; i < count; i += kStepThreads)
      reinterpret_cast<float*>(
          at_head(task.o, task.offsets[b] + i / size / heads, i / size % heads))[i % size] = 0.0f;
  }
}

// A block has kMergeColumns elements of one vector: part p of the threads its groups p,
// p + kMergeParts, .. Dynamic shared memory: sums and marks of job.groups groups.
template <int R>
__global__ void __launch_bounds__(kMergeThreads) merge_splits(const __grid_constant__ StepJob job) {
  enter_grid();
  const Task& task = job.task;
  const int r = blockIdx.x % job.tile_rows, tile = blockIdx.x / job.tile_rows;
  const int kv_head = blockIdx.y, begin = blockIdx.z * kMergeColumns, size = task.v.size;
  Place place;
  if (!find_tile(task, R, job.first_tile + tile, place)) return;
  if (job.first_tile == 0)
    clear_padding(task, kv_head, blockIdx.x, gridDim.x, begin, min(begin + kMergeColumns, size));
  if (r >= place.count) return;
  const Vector v = vector_of(task, place.b, kv_head, place.first + r);
  const Numbers all = splits_seen(v), groups = all.groups();
  const int lane = threadIdx.x % kMergeLanes, part = threadIdx.x / kMergeLanes;
  const int d = begin + 4 * lane;
  float* sums = reinterpret_cast<float*>(dynamic_shared());
  float* marks = sums + job.groups * kMergeColumns;
  for (int i = part; i < groups.count() && d < size; i += kMergeParts) {
    const Numbers splits = all.within(splits_of_group(groups.first + i));
    const Found f = merge_splits_of(job, tile, kv_head, splits, r, d);
    *reinterpret_cast<float4*>(sums + i * kMergeColumns + 4 * lane) = f.sum;
    if (lane == 0) *reinterpret_cast<float2*>(marks + 2 * i) = make_float2(f.top, f.total);
  }
  __syncthreads();
  if (part > 0 || d >= size) return;
  write_mean(task, v, merged(sums + 4 * lane, kMergeColumns, marks, 2, groups.count()), d);
}

}  // namespace
