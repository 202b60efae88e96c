// Rows of floats, each taken by a group of threads: a warp for short rows (several to a block), a
// whole block for longer ones. The group follows from the row's width alone, and a thread takes the
// same elements in the same order however the row lies in memory.
#pragma once

#include "kernel.cuh"

namespace {

constexpr int kWarpsOfRows = 4;  // of a block whose warps have a row each

// The rows of a tensor, all axes but the last as few as their strides allow: mostly one.
struct Rows {
  char* data;
  int axes;
  int64_t extents[RR_MAX_RANK - 1], pitches[RR_MAX_RANK - 1];  // innermost first
};

inline Rows rows_of(const rr_tensor& t) {
  Rows rows = {static_cast<char*>(t.data), 0, {1, 1, 1, 1, 1}, {}};
  for (int i = t.rank - 2; i >= 0; --i) {
    const int last = rows.axes - 1;
    if (t.shape[i] == 1) continue;
    if (last >= 0 && t.strides[i] == rows.pitches[last] * rows.extents[last]) {
      rows.extents[last] *= t.shape[i];
      continue;
    }
    rows.extents[rows.axes] = t.shape[i];
    rows.pitches[rows.axes++] = t.strides[i];
  }
  return rows;
}

// Start of row r. Only constant indices, which keep the argument out of local memory.
template <typename T = float>
__device__ inline T* row_at(const Rows& rows, int64_t r) {
  char* p = rows.data;
  if (rows.axes <= 1) return reinterpret_cast<T*>(p + r * rows.pitches[0]);
  if (rows.axes == 2) {
    const int64_t outer = r / rows.extents[0], inner = r - outer * rows.extents[0];
    return reinterpret_cast<T*>(p + inner * rows.pitches[0] + outer * rows.pitches[1]);
  }
#pragma unroll
  for (int i = 0; i < RR_MAX_RANK - 1; ++i) {
    p += r % rows.extents[i] * rows.pitches[i];
    r /= rows.extents[i];
  }
  return reinterpret_cast<T*>(p);
}

// The row of this thread's group; it may lie behind the last one.
template <int group>
__device__ inline int64_t own_row() {
  if (group > kWarp) return blockIdx.x;
  return static_cast<int64_t>(blockIdx.x) * kWarpsOfRows + threadIdx.x / kWarp;
}

// The sum over a group, the same bits in each thread.
template <int group, typename T>
__device__ inline T group_sum(T x) {
  __shared__ T scratch[group / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  if (group == kWarp) return x;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = scratch[0];
  for (int i = 1; i < group / kWarp; ++i) x += scratch[i];
  __syncthreads();
  return x;
}

template <int group>
__device__ inline float group_max(float x) {
  __shared__ float scratch[group / kWarp];
  return group == kWarp ? warp_max(x) : block_max<group>(x, scratch);
}

__device__ inline bool in_quads(const float* row, int64_t width) {
  return width % 4 == 0 && reinterpret_cast<uintptr_t>(row) % sizeof(float4) == 0;
}

// Elements at .. at + 3; those behind the row are `beyond`. quads: in_quads of the row.
__device__ inline float4 load_quad(const float* row, int64_t at, int64_t width, bool quads,
                                   float beyond) {
  if (quads) return *reinterpret_cast<const float4*>(row + at);
  float4 v = make_float4(row[at], beyond, beyond, beyond);
  if (at + 1 < width) v.y = row[at + 1];
  if (at + 2 < width) v.z = row[at + 2];
  if (at + 3 < width) v.w = row[at + 3];
  return v;
}

__device__ inline void store_quad(float* row, int64_t at, int64_t width, bool quads, float4 v) {
  if (quads) {
    *reinterpret_cast<float4*>(row + at) = v;
    return;
  }
  row[at] = v.x;
  if (at + 1 < width) row[at + 1] = v.y;
  if (at + 2 < width) row[at + 2] = v.z;
  if (at + 3 < width) row[at + 3] = v.w;
}

}  // namespace

// Launches kernel<group> over `rows` rows of `width` elements.
#define RR_LAUNCH_ROWS(exec, kernel, rows, width, ...)                              \
  do {                                                                              \
    const dim3 a_row_each(static_cast<unsigned>(rows));                             \
    const dim3 several(static_cast<unsigned>(blocks_for(rows, kWarpsOfRows)));      \
    if ((width) <= 16 * kWarp)                                                      \
      RR_LAUNCH(exec, kernel<kWarp>, several, kWarpsOfRows* kWarp, 0, __VA_ARGS__); \
    else if ((width) <= 2048)                                                       \
      RR_LAUNCH(exec, kernel<128>, a_row_each, 128, 0, __VA_ARGS__);                \
    else                                                                            \
      RR_LAUNCH(exec, kernel<512>, a_row_each, 512, 0, __VA_ARGS__);                \
  } while (0)
