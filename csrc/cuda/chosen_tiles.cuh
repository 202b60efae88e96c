// The products of a prompt with chosen weights, as tiles: pairs of a token and one of its experts
// lie sorted by expert, each expert's from a multiple of eight rows on, and are cut into groups of
// up to 256 rows, which meet the same weights.
#pragma once

#include "chosen_routes.cuh"
#include "prompt_tiles.cuh"

namespace {

// Where routing puts what it finds.
struct ChosenTable {
  int* number;   // of groups
  int4* groups;  // expert, first row, width of its tiles, end of the expert's rows
  int* order;    // the pair of each row
  int* places;   // the row of each pair, or -1
};

// gated: rows of two weights in turn.
template <bool gated>
struct ChosenTiles {
  static constexpr bool kChosen = true, kGated = gated, kInPieces = false;

  const int* groups_number;
  const int4* groups;
  const int* order;  // null: rows of y lie as those of x
  int down;          // tiles of the same rows of x
  int chunks;        // of k

  __device__ int number() const { return *groups_number * down; }
  __device__ int first() const { return static_cast<int>(blockIdx.x); }
  __device__ int after(int i) const { return i + static_cast<int>(gridDim.x); }

  __device__ PromptTile tile(int i) const {
    const int4 group = groups[i / down];
    return {0, i % down, group.y, group.z, group.w, group.x, 0, chunks, 1, 0, 0};
  }

  __device__ int row_of_y(int at) const { return order ? order[at] : at; }
};

// How large all of that gets.
struct ChosenCut {
  int64_t pairs, experts;

  int64_t used() const { return pairs < experts ? pairs : experts; }
  int64_t groups() const { return pairs / kWidest + used(); }
  int64_t rows() const { return pairs + 7 * used(); }
  // Of slabs: the last tile may reach beyond its rows.
  int64_t slab_rows() const { return rows() + kWidest - 1; }

  int64_t table_bytes() const {
    const int64_t all = 16 + groups() * static_cast<int64_t>(sizeof(int4)) + 4 * (rows() + pairs);
    return (all + 1023) / 1024 * 1024;
  }

  ChosenTable table(void* memory) const {
    ChosenTable t{};
    t.number = static_cast<int*>(memory);
    t.groups = reinterpret_cast<int4*>(t.number + 4);
    t.order = reinterpret_cast<int*>(t.groups + groups());
    t.places = t.order + rows();
    return t;
  }
};

// Of so many rows.
__device__ inline int width_of_group(int rows) {
  return rows <= kWidest / 4 ? kWidest / 4 : rows <= kWidest / 2 ? kWidest / 2 : kWidest;
}

// Passes of prompts have so many tokens at least, and products take them all; fewer are left to
// other kernels unless an expert has a few of them.
constexpr int64_t kFewestOfAnyPrompt = 96, kFewestOfChosen = 33;

[[maybe_unused]] inline int takes_prompt(const rr_tensor& ids, int64_t experts, char* why,
                                         size_t size) {
  if (ids.dtype != RR_I32 || !dense(ids)) return refuse(why, size, "ids need to be dense i32");
  if (experts > kMostExperts) return refuse(why, size, "more than 4096 experts");
  if (ids.shape[0] >= kFewestOfAnyPrompt) return 1;
  if (ids.shape[0] < kFewestOfChosen || numel(ids) < 4 * experts)
    return refuse(why, size, "fewer than 96 tokens, and than 33 or 4 pairs an expert");
  return 1;
}

// One block. Dynamic shared memory: three ints an expert. Pairs of one expert come in any order: a
// product's rows do not depend on each other.
[[maybe_unused]] __global__ void __launch_bounds__(kSortThreads)
    route_groups(const int* ids, int pairs, int experts, ChosenTable table, Check bad) {
  enter_grid();
  constexpr int kAtOnce = 8;
  int* count = reinterpret_cast<int*>(dynamic_shared());
  int *row = count + experts, *group = row + experts;
  for (int e = threadIdx.x; e < experts; e += kSortThreads) count[e] = 0;
  __syncthreads();
  const auto load_ids = [&](int first, int(&id)[kAtOnce]) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int p = first + i * kSortThreads;
      id[i] = p < pairs ? ids[p] : -1;
    }
  };
  for (int first = threadIdx.x; first < pairs; first += kAtOnce * kSortThreads) {
    int id[kAtOnce];
    load_ids(first, id);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int p = first + i * kSortThreads;
      if (id[i] >= experts) report(bad, experts, id[i]);
      if (p < pairs)
        table.places[p] = id[i] < 0 || id[i] >= experts ? -1 : atomicAdd(&count[id[i]], 1);
    }
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const int all = sums_before(
        experts, [&](int64_t e) { return (count[e] + kWidest - 1) / kWidest; },
        [&](int64_t e, int before) { group[e] = before; });
    if (threadIdx.x == 0) *table.number = all;
  } else if (threadIdx.x < 2 * kWarp) {
    sums_before(
        experts, [&](int64_t e) { return (count[e] + 7) / 8 * 8; },
        [&](int64_t e, int before) { row[e] = before; });
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kSortThreads)
    for (int i = 0; i < count[e]; i += kWidest)
      table.groups[group[e] + i / kWidest] =
          make_int4(e, row[e] + i, width_of_group(count[e] - i), row[e] + count[e]);
  for (int first = threadIdx.x; first < pairs; first += kAtOnce * kSortThreads) {
    int id[kAtOnce];
    load_ids(first, id);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int p = first + i * kSortThreads;
      if (id[i] < 0 || id[i] >= experts) continue;
      const int at = row[id[i]] + table.places[p];
      table.places[p] = at;
      table.order[at] = p;
    }
  }
}

[[maybe_unused]] inline void launch_routing(const rr_exec* exec, const int* ids,
                                            const ChosenCut& cut, const ChosenTable& table) {
  const int bytes = 3 * static_cast<int>(cut.experts * sizeof(int));
  allow_shared(route_groups, bytes);
  RR_LAUNCH(exec, route_groups, 1, kSortThreads, bytes, ids, static_cast<int>(cut.pairs),
            static_cast<int>(cut.experts), table, check_experts(exec));
}

}  // namespace
