// What products share: groups of up to kColumns rows of x that meet the same weights, and the
// routing of mul_mat_id, which makes such groups of the pairs of a token and one of its experts.
#pragma once

#include "chosen_routes.cuh"
#include "ops/mul_mat_id.hpp"
#include "rows.cuh"

namespace {

constexpr int kColumns = 8;
constexpr int kFewColumns = 2;  // of a tile where experts have a pair or two

// Rows [first, first + count) of x and of y.
struct DenseGroup {
  int64_t first;
  int count;

  __device__ int64_t x_row(int c) const { return first + c; }
  __device__ int64_t y_row(int c) const { return first + c; }
};

// Pairs that chose one expert, by their place in ids; expert -1: pairs whose rows of y are zeros.
struct Tile {
  int expert, count;
  int pairs[kColumns];
};

struct ChosenGroup {
  const Tile& tile;
  int64_t per_row;  // pairs that share a row of x
  int count;

  __device__ int64_t x_row(int c) const { return tile.pairs[c] / per_row; }
  __device__ int64_t y_row(int c) const { return tile.pairs[c]; }
};

// In the workspace: n_tiles (in 16 bytes), tiles, then per expert and the pseudo expert of negative
// ids its pairs and its first tile, and each pair's number within its expert.
struct Routing {
  int* n_tiles;
  Tile* tiles;
  int *counts, *starts, *numbers;
  const int* ids;
  int64_t experts, pairs;
  int columns;  // of a tile at most
  Check check;
};

// With an expert a pair, tiles of two: kernels of few columns have more warps at once.
inline int columns_of(int64_t experts, int64_t pairs) {
  return pairs <= experts ? kFewColumns : kColumns;
}

inline int64_t most_tiles(int64_t experts, int64_t pairs) {
  const int64_t full = pairs / columns_of(experts, pairs), some = full + experts + 1;
  return some < pairs ? some : pairs;
}

[[maybe_unused]] inline int64_t routing_bytes(int64_t experts, int64_t pairs) {
  const int64_t tiles = most_tiles(experts, pairs) * static_cast<int64_t>(sizeof(Tile));
  return (16 + tiles + 4 * (2 * (experts + 1) + pairs) + 255) / 256 * 256;
}

inline int64_t routing_bytes(const rr_node* node) {
  return routing_bytes(node->inputs[1].shape[0], numel(node->inputs[2]));
}

inline Routing routing(const rr_exec* exec, const rr_tensor& chosen, int64_t experts, void* at) {
  const int64_t pairs = numel(chosen);
  char* memory = static_cast<char*>(at);
  Routing r{};
  r.n_tiles = reinterpret_cast<int*>(memory);
  r.tiles = reinterpret_cast<Tile*>(memory + 16);
  r.counts = reinterpret_cast<int*>(r.tiles + most_tiles(experts, pairs));
  r.starts = r.counts + experts + 1;
  r.numbers = r.starts + experts + 1;
  r.ids = data<const int>(chosen);
  r.experts = experts;
  r.columns = columns_of(experts, pairs);
  r.pairs = pairs;
  r.check = check_experts(exec);
  return r;
}

// The expert of a pair, `experts` for none.
__device__ inline int64_t bucket(const Routing& r, int64_t pair) {
  const int id = r.ids[pair];
  if (id >= r.experts) report(r.check, r.experts, id);
  return id < 0 || id >= r.experts ? r.experts : id;
}

// Sorts all pairs into tiles; by the threads of one block. Their order within an expert is
// whichever thread comes first, which no result depends on.
__device__ inline void route(const Routing& r) {
  const int threads = blockDim.x, t = threadIdx.x;
  for (int64_t e = t; e <= r.experts; e += threads) r.counts[e] = 0;
  __syncthreads();
  for (int64_t p = t; p < r.pairs; p += threads)
    r.numbers[p] = atomicAdd(r.counts + bucket(r, p), 1);
  __syncthreads();
  if (t < kWarp) {
    const int tiles = sums_before(
        r.experts + 1, [&](int64_t e) { return (r.counts[e] + r.columns - 1) / r.columns; },
        [&](int64_t e, int before) { r.starts[e] = before; });
    if (t == 0) *r.n_tiles = tiles;
  }
  __syncthreads();
  for (int64_t p = t; p < r.pairs; p += threads) {
    const int64_t e = bucket(r, p);
    const int number = r.numbers[p], first = number / r.columns * r.columns;
    Tile& tile = r.tiles[r.starts[e] + number / r.columns];
    tile.pairs[number % r.columns] = static_cast<int>(p);
    if (number != first) continue;
    tile.expert = e == r.experts ? -1 : static_cast<int>(e);
    tile.count = min(r.counts[e] - first, r.columns);
  }
}

// Zeros in the tile's rows of y, of m elements: part `part` of so many, by a block.
[[maybe_unused]] __device__ inline void clear_share(const Rows& y, const Tile& tile, int64_t m,
                                                    unsigned part, unsigned parts) {
  const int64_t first = int64_t{part} * blockDim.x + threadIdx.x;
  for (int c = 0; c < tile.count; ++c) {
    float* row = row_at(y, tile.pairs[c]);
    for (int64_t i = first; i < m; i += int64_t{parts} * blockDim.x) row[i] = 0.0f;
  }
}

// The sums of n values (a power of two) over the lanes of a warp, each by the same tree: lane
// l gets value l / (32 / n).
template <int n, int step = kWarp / 2, int all>
__device__ inline float warp_sums(float (&v)[all]) {
  if constexpr (n > 1) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const float kept = upper ? v[i + n / 2] : v[i], sent = upper ? v[i] : v[i + n / 2];
      v[i] = kept + __shfl_xor_sync(kAllLanes, sent, step);
    }
    return warp_sums<n / 2, step / 2>(v);
  } else {
#pragma unroll
    for (int left = step; left > 0; left /= 2) v[0] += __shfl_xor_sync(kAllLanes, v[0], left);
    return v[0];
  }
}

// Blocks along the rows of w, for `units` parts of which each warp takes one at a time: as many
// as run at once, and so that all have about the same number.
inline unsigned row_blocks(const rr_exec* exec, int64_t units, int64_t per_block, int64_t groups,
                           int blocks_at_once) {
  const int64_t wanted = blocks_for(units, per_block);
  int64_t fit = int64_t{cuda(exec).multiprocessors} * blocks_at_once / (groups > 0 ? groups : 1);
  fit = fit < 1 ? 1 : fit > 65535 ? 65535 : fit;
  const int64_t rounds = blocks_for(wanted, fit);
  return static_cast<unsigned>(rounds == 0 ? 1 : blocks_for(wanted, rounds));
}

}  // namespace
