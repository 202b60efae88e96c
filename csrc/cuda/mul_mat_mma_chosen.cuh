// mul_mat_id on tensor cores: pairs of a token and one of its experts are sorted by expert on the
// device, each expert's into tiles of its own; rows of x are rounded in that order, and a tile's
// products are those of mul_mat with the expert's weight.
#pragma once

#include "chosen_routes.cuh"
#include "mul_mat_mma.cuh"

namespace {

// Workspace: for each tile its expert, for each of its rows the pair, and the rows of x.
struct ChosenCut {
  int64_t pairs, experts, m, k, x_row, tiles;
  int tokens;

  int64_t rows() const { return tiles * tokens; }
  int64_t table_bytes() const { return (tiles + rows() + 15) / 16 * 64; }
  int64_t workspace() const { return table_bytes() + rows() * x_row * 2; }
};

inline ChosenCut cut_chosen(const rr_node* node) {
  const rr_tensor& w = node->inputs[1];
  ChosenCut cut{numel(node->inputs[2]), w.shape[0], w.shape[1], w.shape[2], 0, 0, 32};
  cut.x_row = blocks_for(cut.k, kUnit) * kUnit;
  if (cut.pairs > 48 * cut.experts) cut.tokens = 64;
  // Each expert may leave one tile unfilled.
  cut.tiles = cut.pairs / cut.tokens + min(cut.pairs, cut.experts);
  return cut;
}

// One block. Dynamic shared memory: two ints an expert. Pairs of one expert come in any order: a
// product's rows do not depend on each other.
__global__ void __launch_bounds__(kSortThreads)
    route_tiles(const int* ids, int pairs, int experts, int tokens, int tiles, int* weights,
                int* order, Check bad) {
  enter_grid();
  int* count = reinterpret_cast<int*>(dynamic_shared());
  int* next = count + experts;
  for (int e = threadIdx.x; e < experts; e += kSortThreads) count[e] = 0;
  for (int i = threadIdx.x; i < tiles; i += kSortThreads) weights[i] = -1;
  for (int i = threadIdx.x; i < tiles * tokens; i += kSortThreads) order[i] = -1;
  __syncthreads();
  for (int p = threadIdx.x; p < pairs; p += kSortThreads) {
    const int id = ids[p];
    if (id >= experts) report(bad, experts, id);
    if (id >= 0 && id < experts) atomicAdd(&count[id], 1);
  }
  __syncthreads();
  if (threadIdx.x < kWarp)
    sums_before(
        experts, [&](int64_t e) { return (count[e] + tokens - 1) / tokens; },
        [&](int64_t e, int before) { next[e] = before * tokens; });
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kSortThreads)
    for (int i = 0; i < count[e]; i += tokens) weights[(next[e] + i) / tokens] = e;
  __syncthreads();
  for (int p = threadIdx.x; p < pairs; p += kSortThreads) {
    const int id = ids[p];
    if (id >= 0 && id < experts) order[atomicAdd(&next[id], 1)] = p;
  }
}

// Grid: rows of tiles, columns. shared_by: pairs that share a row of x.
__global__ void __launch_bounds__(kMmaThreads)
    round_chosen(const float* x, int64_t x_row, int64_t k, int shared_by, const int* order,
                 uint16_t* out, int64_t out_row) {
  enter_grid();
  const int64_t at = 8 * (static_cast<int64_t>(blockIdx.y) * kMmaThreads + threadIdx.x);
  const int pair = order[blockIdx.x];
  if (pair < 0 || at >= out_row) return;
  round_eight(x + pair / shared_by * x_row, k, at, out + blockIdx.x * out_row + at);
}

template <uint32_t dtype>
void run_chosen_mma(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  const ChosenCut cut = cut_chosen(node);
  if (cut.m == 0 || cut.pairs == 0) return;
  const int* ids = data<const int>(node->inputs[2]);
  auto* memory = static_cast<uint8_t*>(exec->workspace);
  int* weights = reinterpret_cast<int*>(memory);
  int* order = weights + cut.tiles;
  auto* rounded = reinterpret_cast<uint16_t*>(memory + cut.table_bytes());
  const auto pairs = static_cast<int>(cut.pairs), experts = static_cast<int>(cut.experts);

  RR_LAUNCH(exec, route_tiles, 1, kSortThreads, 2 * experts * static_cast<int>(sizeof(int)), ids,
            pairs, experts, cut.tokens, static_cast<int>(cut.tiles), weights, order,
            check_experts(exec));
  const dim3 rows(static_cast<unsigned>(cut.rows()),
                  static_cast<unsigned>(blocks_for(cut.x_row / 8, kMmaThreads)));
  const int shared_by = x.rank == 3 ? 1 : static_cast<int>(node->inputs[2].shape[1]);
  RR_LAUNCH(exec, round_chosen, rows, kMmaThreads, 0, data<const float>(x), row_step(x), cut.k,
            shared_by, order, rounded, cut.x_row);

  MmaJob job{};
  job.w = data<const uint8_t>(w);
  job.w_row = cut.k / Block<dtype>::kValues * Block<dtype>::kBytes;
  job.w_matrix = cut.m * job.w_row;
  job.w_end = job.w + cut.experts * job.w_matrix;
  job.x = rounded;
  job.x_row = cut.x_row;
  job.y = data<float>(y);
  job.y_row = row_step(y);
  job.n = pairs;
  job.m = static_cast<int>(cut.m);
  job.k = static_cast<int>(cut.k);
  job.units = static_cast<int>(blocks_for(cut.k, Chunk<dtype>::values)) * Chunk<dtype>::units;
  job.vector = takes_vectors(job);
  job.weights = weights;
  job.order = order;
  if (cut.tokens == 32)
    launch_tiles<dtype, 32, true>(exec, job, cut.tiles, 1);
  else
    launch_tiles<dtype, 64, true>(exec, job, cut.tiles, 1);
  RR_LAUNCH(exec, clear_unrouted, pairs, kClearThreads, 0, ids, experts, data<float>(y), job.y_row,
            job.m);
}

template <uint32_t dtype>
size_t workspace_chosen_mma(const rr_node* node, int32_t) {
  return static_cast<size_t>(cut_chosen(node).workspace());
}

template <uint32_t dtype>
int supports_chosen_mma(const rr_node* node, char* why, size_t size) {
  const rr_tensor &w = node->inputs[1], &ids = node->inputs[2];
  if (!supports_tiles<dtype>(node, why, size)) return 0;
  if (w.rank != 3 || ids.rank != 2) return refuse(why, size, "w needs rank 3");
  if (ids.dtype != RR_I32 || !dense(ids)) return refuse(why, size, "ids need to be dense i32");
  if (w.shape[0] > kMostExperts) return refuse(why, size, "more than 4096 experts");
  if (numel(ids) < kFewestRows || numel(ids) < 2 * w.shape[0])
    return refuse(why, size, "too few rows for tensor cores");
  return 1;
}

}  // namespace

#define RR_MMA_PRODUCT(id, dtype)                                                               \
  RR_CUDA_KERNEL(id, 0, "mul_mat", "mma", "products of bf16: 4e-3 of a row's norm", 10,         \
                 supports_mma<dtype>, workspace_mma<dtype>, run_mma<dtype>)                     \
  RR_CUDA_KERNEL(id##_chosen, 0, "mul_mat_id", "mma", "products of bf16: 4e-3 of a row's norm", \
                 10, supports_chosen_mma<dtype>, workspace_chosen_mma<dtype>,                   \
                 run_chosen_mma<dtype>)
