// argmax: a warp or a block a row. Wide rows go in parts, whose best keys a second launch compares.

#include "ops/argmax.hpp"
#include "rank_keys.cuh"

namespace {

constexpr int64_t kWide = 8192, kPart = 4096;
constexpr int kThreads = 256;

// The key of the largest of the elements begin .. begin + width - 1 of a row; index 0 where none is
// above minus infinity, since that is then the row's first largest.
template <int group>
__device__ inline uint64_t largest_key(const float* row, int64_t begin, int64_t width) {
  const float* x = row + begin;
  const bool quads = in_quads(x, width);
  float best = -INFINITY;
  int64_t where = 0;
#pragma unroll 4
  for (int64_t i = 4 * (threadIdx.x % group); i < width; i += 4 * group) {
    const float4 v = load_quad(x, i, width, quads, -INFINITY);
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (values[j] > best) {
        best = values[j];
        where = begin + i + j;
      }
    }
  }
  return group_most<group>(rank_key(best, where, 0));
}

template <int group>
__global__ void argmax_rows(Rows x, int64_t rows, int64_t width, int32_t* y) {
  enter_grid();
  const int64_t r = own_row<group>();
  if (r >= rows) return;
  const uint64_t key = largest_key<group>(row_at(x, r), 0, width);
  if (threadIdx.x % group == 0) y[r] = key_index(key);
}

// found: [rows, parts]
__global__ void __launch_bounds__(kThreads)
    argmax_parts(Rows x, int64_t width, int64_t parts, uint64_t* found) {
  enter_grid();
  const int64_t r = blockIdx.x / parts, begin = blockIdx.x % parts * kPart;
  const uint64_t key = largest_key<kThreads>(row_at(x, r), begin, min(kPart, width - begin));
  if (threadIdx.x == 0) found[blockIdx.x] = key;
}

__global__ void argmax_of_parts(const uint64_t* found, int64_t parts, int32_t* y) {
  enter_grid();
  uint64_t key = 0;
  for (int64_t p = threadIdx.x; p < parts; p += kWarp)
    key = max(key, found[blockIdx.x * parts + p]);
  key = warp_most(key);
  if (threadIdx.x == 0) y[blockIdx.x] = key_index(key);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  if (numel(x) == 0) return;
  const int64_t rows = n_rows(x), width = x.shape[x.rank - 1];
  int32_t* y = data<int32_t>(node->outputs[0]);
  if (width <= kWide) {
    RR_LAUNCH_ROWS(exec, argmax_rows, rows, width, rows_of(x), rows, width, y);
    return;
  }
  const int64_t parts = blocks_for(width, kPart);
  uint64_t* found = static_cast<uint64_t*>(exec->workspace);
  const dim3 per_part(static_cast<unsigned>(rows * parts)), per_row(static_cast<unsigned>(rows));
  RR_LAUNCH(exec, argmax_parts, per_part, kThreads, 0, rows_of(x), width, parts, found);
  RR_LAUNCH(exec, argmax_of_parts, per_row, kWarp, 0, found, parts, y);
}

size_t workspace(const rr_node* node, int32_t) {
  const rr_tensor& x = node->inputs[0];
  const int64_t width = x.shape[x.rank - 1];
  if (width <= kWide) return 0;
  return static_cast<size_t>(n_rows(x) * blocks_for(width, kPart)) * sizeof(uint64_t);
}

}  // namespace

RR_CUDA_KERNEL(argmax, RR_ROW_EXACT, "argmax", "cuda", "", 0, supports, workspace, run)
