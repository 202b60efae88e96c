// How the step products on warpgroups share out tiles and shared memory, and what brings x and
// weights there (step_wide.cuh).
#pragma once

#include "mul_mat_step.cuh"
#include "step_wide_codes.cuh"

namespace {

constexpr int kWideGroups = 3, kWideTile = 4;  // warpgroups; units of a tile, one for each warp
constexpr int kWideWarps = kWideGroups * kWarpgroup / kWarp, kWideCopiers = 4;
constexpr int kWideThreads = (kWideWarps + kWideCopiers) * kWarp;
constexpr int kWideApart = 1024;  // bytes: operands' rows in shared memory
constexpr int kWideRecord = (WideRecord::bytes + kWideApart - 1) / kWideApart * kWideApart;
constexpr int kMostWideStages = 8;

// How shared memory is used: tiles of a weight that a pass takes at most, blocks of 256 values of a
// stage, bytes of a stage, stages, bytes of sums, of pieces and of all.
struct WideLayout {
  int tiles, blocks, stage, stages, sums, pieces, bytes;

  // Units of each pass over a weight's shares.
  __host__ __device__ int pass(const riverrun::StepWeight& w) const {
    const int all = ((w.each + (w.more > 0) + 1) / 2 + kWideTile - 1) / kWideTile;
    const int passes = (all + tiles - 1) / tiles;
    return (all + passes - 1) / passes * kWideTile;
  }
};

// Each warpgroup has a tile of its own, if there are as many. Of those that are left all warpgroups
// take blocks in turn: of tile r, number b is warpgroup (b + r) % kWideGroups's.
__host__ __device__ constexpr int own_tiles(int units) {
  return units > (kWideGroups - 1) * kWideTile ? kWideGroups : 0;
}
__host__ __device__ constexpr int turn_units(int units) {
  return units > own_tiles(units) * kWideTile ? units - own_tiles(units) * kWideTile : 0;
}
constexpr int kMostTurnUnits = (kWideGroups - 1) * kWideTile;

struct WideMemory {
  unsigned char* stages;
  int at;                               // bytes before them
  float4* sums;                         // of units that warpgroups take in turn
  float4* pieces;                       // of units that are cut, those before the running one
  uint64_t *full, *empty, *turn, *met;  // barriers; `met` of all warps but those that copy
  float* factors;                       // of rows' products, in the order of a record's scales

  __device__ explicit WideMemory(const WideLayout& layout) {
    unsigned char* start = dynamic_shared();
    // By a shuffle, so that it is found once.
    at = __shfl_sync(kAllLanes,
                     static_cast<int>(-reinterpret_cast<uintptr_t>(start) & (kWideApart - 1)), 0);
    stages = start + at;
    sums = reinterpret_cast<float4*>(stages + layout.stages * layout.stage);
    pieces = sums + layout.sums / 16;
    full = reinterpret_cast<uint64_t*>(pieces + layout.pieces / 16);
    empty = full + kMostWideStages;
    turn = empty + kMostWideStages;
    met = turn + kWideGroups * kMostTurnUnits;
    factors = reinterpret_cast<float*>(met + 1);
  }
  static constexpr int barriers = 2 * kMostWideStages + kWideGroups * kMostTurnUnits + 1;
  static constexpr int behind = barriers * 8 + WideRecord::rows * 4;  // bytes behind them

  __device__ void make_barriers(int count) const {
    for (int i = 0; i < count; ++i) {
      barrier_init(full + i, 1 + kWideCopiers);  // x, and rows of w
      barrier_init(empty + i, kWideWarps);
    }
    for (int i = 0; i < kWideGroups * kMostTurnUnits; ++i) barrier_init(turn + i, 1);
    barrier_init(met, kWideWarps);
    barriers_made();
  }
};

// Where a stage has the eight rows of w of a number within the pass.
template <class F>
__device__ inline int wide_eight(const WideLayout& layout, int eight) {
  return layout.blocks * kWideRecord + eight * StepStage<F>::half(layout.blocks);
}

// The factors of the block's rows of x, by warps of warpgroups: four rows each.
__device__ inline void find_factors(const StepJob& job, const WideMemory& memory) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  constexpr int rows = WideRecord::rows;
  const int first = static_cast<int>(blockIdx.y) * rows + 4 * warp;
  if (4 * warp < rows) {
    float factor = 1.0f;
    if (job.squares && first < job.n)
      factor = tile_factor(job.squares + int64_t{first} * job.blocks, min(job.n - first, 4),
                           job.blocks, {job.blocks * kStepBlock, job.eps});
    if (lane < 4) memory.factors[lane * (rows / 4) + warp] = factor;
  }
}

// Calls f for each weight with the block's share of it.
template <class Function>
__device__ inline void for_each_share(const StepJob& job, Function f) {
  for (int i = 0; i < job.count; ++i) {
    const StepWeight& w = job.weights[i];
    const int number = static_cast<int>(blockIdx.x) - w.first;
    if (number < 0 || number >= w.grid) continue;
    const int begin = number * w.each + min(number, w.more);
    const int first = begin * kStepHalf;
    const int last = (begin + w.each + (number < w.more)) * kStepHalf;
    const int rows = min(last, w.rows) - first;
    if (rows > 0) f(w, StepShare(first, rows, job.blocks));
  }
}

// One of the warps that copy, a lane of it: each has every kWideCopiers-th eight, the last one x,
// too. Copies of x wait for the launch before, those of weights only if it may have written them.
struct WideCopies {
  const StepJob& job;
  const WideLayout& layout;
  const WideMemory& memory;
  int copier;
  const unsigned char* x;
  StepRing ring;
  int made = 0;
  bool begun = false;

  __device__ WideCopies(const StepJob& of, const WideLayout& as, const WideMemory& in, int number)
      : job(of),
        layout(as),
        memory(in),
        copier(number),
        x(of.x + wide_step_x(of.n, int64_t{of.blocks} * kStepBlock) +
          int64_t{blockIdx.y} * of.blocks * WideRecord::bytes),
        ring{in.full, as.stages} {
    if (!job.constant) begin();
  }

  __device__ void copy_x(int stage, int block) const {
    if (copier + 1 < kWideCopiers) return;
    constexpr unsigned bytes = WideRecord::bytes;
    const int count = min(layout.blocks, job.blocks - block);
    barrier_expect(memory.full + stage, static_cast<unsigned>(count) * bytes);
    for (int i = 0; i < count; ++i)
      bulk_copy(memory.stages + stage * layout.stage + i * kWideRecord,
                x + int64_t{block + i} * bytes, bytes, memory.full + stage);
  }
  __device__ void begin() {
    if (begun) return;
    begun = true;
    await_grid();
    const int each = (job.blocks + layout.blocks - 1) / layout.blocks;
    for (int i = 0; i < made; ++i) copy_x(i, i % each * layout.blocks);
  }

  // Blocks of the pass's eights from `number` on, that of the first.
  template <class F>
  __device__ void copy_w(const StepWeight& w, unsigned number, int eights, int count) const {
    using Stage = StepStage<F>;
    const int own = (eights - copier + kWideCopiers - 1) / kWideCopiers;
    const auto each = static_cast<unsigned>(count * Stage::block);
    barrier_expect(ring.full + ring.at, static_cast<unsigned>(own) * each);
    unsigned char* stage = memory.stages + ring.at * layout.stage;
    for (int i = copier; i < eights; i += kWideCopiers) {
      const unsigned at = number + static_cast<unsigned>(i * job.blocks);
      bulk_copy_once(stage + wide_eight<F>(layout, i) + Stage::skew(at),
                     w.data + int64_t{at} * Stage::block, each, ring.full + ring.at);
    }
  }

  template <class F>
  __device__ void copy(const StepWeight& w, const StepShare& share) {
    const int pass = layout.pass(w);
    for (int first = 0; first < share.units; first += pass) {
      const int rows = min(share.rows - first * kStepUnit, pass * kStepUnit);
      const int eights = (rows + kStepHalf - 1) / kStepHalf;
      for (int block = 0; block < job.blocks; block += layout.blocks) {
        if (made == layout.stages) begin();
        barrier_wait(memory.empty + ring.at, ring.parity ^ 1);
        copy_w<F>(w, share.number(first) + static_cast<unsigned>(block), eights,
                  min(layout.blocks, job.blocks - block));
        if (begun) copy_x(ring.at, block);
        if (!begun) ++made;
        ring.advance();
      }
    }
  }
};

}  // namespace
