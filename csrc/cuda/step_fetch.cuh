// How a block of the step products shares its part of a weight out among warps, and how the bytes
// come to shared memory (mul_mat_step.cuh).
#pragma once

#include "step_codes_32.cuh"
#include "step_products.hpp"

namespace {

using riverrun::StepJob;
using riverrun::StepWeight;

constexpr int kStepUnit = 16, kStepHalf = 8;  // rows of w

constexpr int kStepWarps = 8;

// How a kernel for up to 4 * tiles rows of x is built: blocks of which an SM holds one.
template <int tiles_>
struct StepShape {
  static constexpr int tiles = tiles_, threads = kStepWarps * kWarp;
  // Of a row, that come at a time; with several tiles the room is for x.
  static constexpr int bytes = tiles == 1 ? 640 : 320;
  // Sums of a unit that a warp begins or ends within: 8 bytes a lane for each tile.
  static constexpr int slot = tiles * kWarp;  // in float2
  static constexpr int sums = 2 * kStepWarps * slot * 8;
};

// A stage of a warp's part of shared memory: some blocks of 256 values of a unit's rows, which are
// an odd number of 16 bytes apart. Long runs of bytes are what memory reads fastest.
template <class F, class Shape>
struct StepStage {
  __host__ __device__ static constexpr int pieces_of(int blocks) {
    return (16 - F::kGrain + blocks * F::kBytes + 15) / 16;
  }
  static constexpr int blocks = Shape::bytes / F::kBytes, pieces = pieces_of(blocks);
  static constexpr int pitch = 16 * (pieces | 1), bytes = kStepUnit * pitch;
};

// What a block has of a weight: rows from `first` on, in units of 16 and at the end perhaps one of
// 8 or fewer, of so many blocks of 256 values. Warps take a whole unit each, and again; what is
// left is cut into runs of as many blocks for each warp, unit after unit.
struct StepShare {
  int first, rows, units, blocks, whole;

  __device__ StepShare(int begin, int count, int of_blocks)
      : first(begin),
        rows(count),
        units((count + kStepUnit - 1) / kStepUnit),
        blocks(of_blocks),
        whole(units / kStepWarps * kStepWarps) {}

  __device__ int row(int unit) const { return first + unit * kStepUnit; }
  // Of a unit's rows.
  __device__ int left(int unit) const { return min(rows - unit * kStepUnit, kStepUnit); }
  __device__ int cut_blocks() const { return (units - whole) * blocks; }
  // Where a run begins in what is cut.
  __device__ int cut(int run) const {
    return static_cast<int>(static_cast<unsigned>(cut_blocks() * run) / kStepWarps);
  }
};

// Goes through a warp's blocks of 256 values, a stage at a time: whole units, then its run.
struct StepWalk {
  int taken = static_cast<int>(threadIdx.x / kWarp) - kStepWarps;  // the last whole unit
  int unit = 0, block = 0, left = 0;                               // left: until it or the run ends
  bool cut = false, ended = false;                                 // in the run; no more blocks

  __device__ explicit StepWalk(const StepShare& share) { next(share); }

  __device__ void next(const StepShare& share) {
    ended = cut;
    if (ended) return;
    taken += kStepWarps;
    unit = taken, block = 0, left = share.blocks;
    if (taken < share.whole) return;
    const int warp = static_cast<int>(threadIdx.x / kWarp), begin = share.cut(warp);
    const int of_cut =
        static_cast<int>(static_cast<unsigned>(begin) / static_cast<unsigned>(share.blocks));
    unit = share.whole + of_cut;
    block = begin - of_cut * share.blocks;
    left = share.cut(warp + 1) - begin;
    cut = true, ended = left == 0;
  }
  __device__ int stage(const StepShare& share, int most) const {
    return min(min(most, share.blocks - block), left);
  }
  __device__ void advance(const StepShare& share, int blocks) {
    left -= blocks;
    block += blocks;
    if (block == share.blocks) block = 0, ++unit;
  }
};

// What a warp fetches next.
template <class F, class Shape>
struct StepFetch {
  using Stage = StepStage<F, Shape>;
  const StepWeight& w;
  const StepShare& share;
  StepWalk walk;

  // A piece of 16 bytes, of a row that begins at any multiple of kGrain. Memory of cards ends at
  // multiples of 16 bytes.
  __device__ void copy(unsigned char* target, const unsigned char* source) const {
    if constexpr (F::kGrain < 16) {
      source -= reinterpret_cast<uintptr_t>(source) & 15;
      if (source >= w.end) return;
    }
    async_copy16(target, source);
  }

  // Of so many rows, eight lanes to each.
  template <bool all>
  __device__ void copy_rows(unsigned char* stage, int rows, int pieces) const {
    constexpr int kLanes = 8, kRows = kWarp / kLanes;
    const int lane = threadIdx.x % kWarp, row = lane / kLanes, piece = lane % kLanes;
    const unsigned char* source = w.data + (share.row(walk.unit) + row) * w.row_bytes +
                                  int64_t{walk.block} * F::kBytes + piece * 16;
    unsigned char* target = stage + row * Stage::pitch + piece * 16;
#pragma unroll
    for (int r = 0; r < kStepUnit; r += kRows, source += kRows * w.row_bytes) {
      if (!all && r + row >= rows) return;
#pragma unroll
      for (int i = 0; i < Stage::pieces; i += kLanes)
        if (piece + i < (all ? Stage::pieces : pieces))
          copy(target + r * Stage::pitch + 16 * i, source + 16 * i);
    }
  }

  __device__ void next(unsigned char* stage) {
    if (!walk.ended) {
      const int blocks = walk.stage(share, Stage::blocks), rows = share.left(walk.unit);
      if (blocks == Stage::blocks && rows == kStepUnit)
        copy_rows<true>(stage, rows, Stage::pieces);
      else
        copy_rows<false>(stage, rows, Stage::pieces_of(blocks));
      walk.advance(share, blocks);
      if (walk.left == 0) walk.next(share);
    }
    async_copy_commit();
  }
};

// Waits for the oldest stage of so many.
__device__ inline void await_stage(int stages) {
  if (stages == 2)
    async_copy_wait<1>();
  else
    async_copy_wait<2>();
  __syncwarp();
}

}  // namespace
