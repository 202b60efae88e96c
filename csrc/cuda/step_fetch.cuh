// How a block of the step products shares its part of a weight out among warps, and how the bytes
// come to shared memory (mul_mat_step.cuh).
#pragma once

#include "bulk_copy.cuh"
#include "step_codes_32.cuh"
#include "step_products.hpp"

namespace {

using riverrun::StepJob;
using riverrun::StepWeight;

constexpr int kStepWarps = 8, kMostStages = 8;
constexpr int kCopiesApart = 128;  // bytes; bulk copies to other addresses are slow

// How a kernel for up to 4 * tiles rows of x is built: blocks of which an SM holds one.
// own_x: whether rows of x come to shared memory.
template <int tiles_, bool own_x_>
struct StepShape {
  static constexpr int tiles = tiles_, threads = kStepWarps * kWarp;
  static constexpr bool own_x = own_x_;
  // Sums of a unit that a warp begins or ends within: 8 bytes a lane for each tile.
  static constexpr int slot = tiles * kWarp;  // in float2
  static constexpr int sums = 2 * kStepWarps * slot * 8;
};

// The number of this warp, from one lane, so that what follows from it is known to be the same in
// all of them and is computed once for the warp.
__device__ inline int step_warp() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
}

// A stage of a warp's part of shared memory: some blocks of 256 values of a unit's rows, one half
// of the unit after the other. Bytes are as far behind a multiple of kCopiesApart as in memory.
template <class F>
struct StepStage {
  static constexpr int row = StepRowsOf<F>::kBytes, block = kStepHalf * row;
  static constexpr bool skewed = block % kCopiesApart != 0;
  static constexpr int most = row > 216 ? 2 : 432 / row;  // blocks, where there is room

  __host__ __device__ static constexpr int half(int blocks) {
    return (blocks * block + kCopiesApart - 1) / kCopiesApart * kCopiesApart +
           (skewed ? kCopiesApart : 0);
  }
  // Of a block of eight rows, by its number in the weight.
  __device__ static unsigned skew(unsigned number) {
    return skewed ? number * static_cast<unsigned>(block) % kCopiesApart : 0;
  }
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
  // Of the first block of a unit, counting blocks of eight rows of 256 values.
  __device__ unsigned number(int unit) const {
    return static_cast<unsigned>(row(unit) / kStepHalf) * static_cast<unsigned>(blocks);
  }
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
  int warp, taken;                    // taken: the last whole unit
  int unit = 0, block = 0, left = 0;  // left: until it or the run ends
  bool cut = false, ended = false;    // in the run; no more blocks

  __device__ StepWalk(const StepShare& share, int of_warp)
      : warp(of_warp), taken(of_warp - kStepWarps) {
    next(share);
  }

  __device__ void next(const StepShare& share) {
    ended = cut;
    if (ended) return;
    taken += kStepWarps;
    unit = taken, block = 0, left = share.blocks;
    if (taken < share.whole) return;
    const int begin = share.cut(warp);
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

// A warp's stages, of which each is filled and read in turn: barriers, the stage that is read next
// and the parity of its round. Stages of another type begin where this one's are.
struct StepRing {
  uint64_t* full;
  int stages, at = 0, parity = 0;

  __device__ int behind(int stage) const { return stage + 1 == stages ? 0 : stage + 1; }
  __device__ void advance() {
    at = behind(at);
    if (at == 0) parity ^= 1;
  }
};

// What a warp fetches next, so many blocks at a time: one lane of it.
template <class F>
struct StepFetch {
  using Stage = StepStage<F>;
  const StepWeight& w;
  const StepShare& share;
  int most, half;  // blocks of a stage, bytes of half a stage
  StepWalk walk;

  __device__ void next(unsigned char* stage, uint64_t* full) {
    if (walk.ended) return;
    const int blocks = walk.stage(share, most);
    if (threadIdx.x % kWarp == 0) {
      const unsigned bytes = static_cast<unsigned>(blocks * Stage::block);
      const bool both = share.left(walk.unit) > kStepHalf;
      barrier_expect(full, both ? 2 * bytes : bytes);
      copy(stage, share.number(walk.unit) + walk.block, bytes, full);
      if (both)
        copy(stage + half, share.number(walk.unit) + share.blocks + walk.block, bytes, full);
    }
    walk.advance(share, blocks);
    if (walk.left == 0) walk.next(share);
  }

 private:
  __device__ void copy(unsigned char* to, unsigned number, unsigned bytes, uint64_t* full) const {
    bulk_copy_once(to + Stage::skew(number), w.data + int64_t{number} * Stage::block, bytes, full);
  }
};

}  // namespace
