// Step products of more than 16 rows of x on warpgroups (wgmma), for weights of one type, of those
// whose codes times steps are two bytes. A row's bits are those of mul_mat_step.cuh.
//
// Blocks have the shares of rows of w that they have there. Warpgroups multiply tiles of 64 rows of
// w, a warp its own unit of 16, by all rows of x. Four more warps copy: a stage of shared memory is
// one record of x or two and, of the same values, all rows of w. What a share cuts into runs is
// summed in such pieces.
#pragma once

#include "step_wgmma.cuh"
#include "step_wide.hpp"
#include "step_wide_fetch.cuh"

namespace {

// Of blocks in units that a share cuts: which run they are in, by a reciprocal.
struct WideRuns {
  const StepShare& share;
  unsigned all, reciprocal;

  __device__ explicit WideRuns(const StepShare& of)
      : share(of),
        all(static_cast<unsigned>(of.cut_blocks())),
        reciprocal(0xffffffffu / max(all, 1u)) {}

  // Where the run that block `block` of a unit is in ends, and whether that begins with the unit.
  __device__ int end(int unit, int block, bool& first) const {
    first = true;
    if (unit < share.whole) return share.blocks;
    const int begin = (unit - share.whole) * share.blocks;
    const unsigned eighths = static_cast<unsigned>(begin + block + 1) * kStepWarps - 1;
    unsigned run = __umulhi(eighths, reciprocal);
    run += (run + 1) * all <= eighths;  // at most one less than the quotient
    first = share.cut(static_cast<int>(run)) <= begin;
    return min(share.blocks, share.cut(static_cast<int>(run) + 1) - begin);
  }
};

// A warpgroup's part of a pass over a share.
template <class F>
struct WidePass {
  static constexpr int kFours = WideRecord::rows / 4;  // of rows of x
  using Record = WideRecord;
  using Sums = float[kFours][2];  // of rows g and g + 8 of w
  const StepJob& job;
  const StepWeight& w;
  const StepShare& share;
  const WideMemory& memory;
  int first, units;  // of the pass
  int warp = step_warp();
  WideRuns runs{share};

  // Products of a block: lower bytes of codes times steps, and upper ones.
  __device__ static void multiply(F& f, StepOperand x, int (&low)[32], int (&high)[32]) {
    unsigned a[2][2][4];  // operands of 32 values, and of those before
#pragma unroll
    for (int i = 0; i < kStepBlock / 32; ++i) {
      unsigned(&of)[2][4] = a[i % 2];
      if (i >= 2) {
        wgmma_wait<1>();
        hold(of);
      }
      f.operands(i, of);
      hold(of);
      const StepOperand at = step_operand_behind(x, i / 4 * Record::slab + i % 4 * 32);
      if (i == 0)
        wgmma_step<false, F::kSigned>(low, high, of, at);
      else
        wgmma_step<true, F::kSigned>(low, high, of, at);
    }
    wgmma_wait<0>();
    hold_sums(low);
    hold_sums(high);
  }

  // A block's values before the powers of two of x.
  __device__ static void values(const F& f, const int (&low)[32], const int (&high)[32],
                                const unsigned char* x_sums, Sums& to) {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int pair = 0; pair < kFours / 2; ++pair) {
      float minima_of[4] = {};
      if constexpr (F::kMinima) {
        // Columns 2t and 2t + 1 are row t of either of two fours.
        const uint2 own =
            *reinterpret_cast<const uint2*>(x_sums + (8 * pair + g / 2 + g % 2 * 4) * 32 + t * 8);
        const unsigned minima[4] = {f.minima[0], f.minima[1], f.minima[0], f.minima[1]};
        const unsigned b[2] = {own.x, own.y};
        mma_f16(minima_of, minima, b);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int j = 2 * pair + i, at = 4 * j + 2 * r;
          to[j][r] = f.factor(r) * F::whole(low[at], high[at], low[at + 1], high[at + 1]);
          if constexpr (F::kMinima)
            to[j][r] = fmaf(-kStepSumUnit * f.dmin[r], minima_of[2 * r + i], to[j][r]);
        }
    }
  }

  __device__ static void add(const Sums& values, const float (&scales)[kFours], Sums& sums) {
#pragma unroll
    for (int j = 0; j < kFours; ++j)
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[j][r] = fmaf(values[j][r], scales[j], sums[j][r]);
  }

  // A piece of a unit ends, which is added to those before it: they wait in shared memory until the
  // unit ends.
  __device__ void end_piece(int unit, Sums& sums, bool begins, bool ends) const {
    const int lane = threadIdx.x % kWarp, t = lane % 4;
    const float* factors = memory.factors + t * kFours;
    float4* pieces = memory.pieces + max(unit - share.whole, 0) * (kFours / 2) * kWarp + lane;
#pragma unroll
    for (int i = 0; i < kFours / 2; ++i) {
      const float first = factors[2 * i], second = factors[2 * i + 1];
      float4 of = make_float4(sums[2 * i][0] * first, sums[2 * i][1] * first,
                              sums[2 * i + 1][0] * second, sums[2 * i + 1][1] * second);
      if (!begins) {
        const float4 before = pieces[i * kWarp];
        of = make_float4(before.x + of.x, before.y + of.y, before.z + of.z, before.w + of.w);
      }
      if (ends)
        store(unit, i, of);
      else
        pieces[i * kWarp] = of;
      sums[2 * i][0] = sums[2 * i][1] = sums[2 * i + 1][0] = sums[2 * i + 1][1] = 0.0f;
    }
  }

  // Products of a unit with two fours' rows of x.
  __device__ void store(int unit, int pair, const float4& v) const {
    const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4, left = share.left(unit);
    const int n = static_cast<int>(blockIdx.y) * Record::rows + 8 * pair + t;
    float* y = w.y + n * w.y_row + share.row(unit) + g;
    if (n < job.n && g < left) y[0] = v.x;
    if (n < job.n && g + kStepHalf < left) y[kStepHalf] = v.y;
    y += 4 * w.y_row;
    if (n + 4 < job.n && g < left) y[0] = v.z;
    if (n + 4 < job.n && g + kStepHalf < left) y[kStepHalf] = v.w;
  }

  // Block `block` of tile r of those that warpgroups take in turn, by the one whose turn it is.
  __device__ void take_turn(int r, int unit, int block, const Sums& values,
                            const float (&scales)[kFours], unsigned& parities) const {
    const int group = warp / kWideTile, next = (group + 1) % kWideGroups;
    const int at = unit - own_tiles(units) * kWideTile, lane = threadIdx.x % kWarp;
    float4* from = memory.sums + at * (kFours / 2) * kWarp + lane;
    // While others are not through: what follows the wait is what all others wait for.
    bool begins;
    const bool piece_ends = block + 1 == runs.end(first + unit, block, begins);
    const bool ends = block + 1 == share.blocks;
    Sums sums = {};
    if (block > 0) {
      barrier_wait(memory.turn + at * kWideGroups + group, parities >> r & 1);
      parities ^= 1u << r;
#pragma unroll
      for (int i = 0; i < kFours / 2; ++i) {
        const float4 v = from[i * kWarp];
        sums[2 * i][0] = v.x, sums[2 * i][1] = v.y, sums[2 * i + 1][0] = v.z;
        sums[2 * i + 1][1] = v.w;
      }
    }
    add(values, scales, sums);
    if (piece_ends) end_piece(first + unit, sums, begins, ends);
    if (ends) return;
#pragma unroll
    for (int i = 0; i < kFours / 2; ++i)
      from[i * kWarp] =
          make_float4(sums[2 * i][0], sums[2 * i][1], sums[2 * i + 1][0], sums[2 * i + 1][1]);
    __syncwarp();
    if (lane == 0) barrier_arrive(memory.turn + at * kWideGroups + next);
  }

  // The warp's unit of a tile of the pass.
  __device__ int unit_of(int tile) const { return tile * kWideTile + warp % kWideTile; }

  // A unit's values of a block, which is number `at` of the stage.
  __device__ F codes(const WideLayout& layout, const unsigned char* stage, int unit, int block,
                     int at) const {
    using Stage = StepStage<F>;
    const unsigned number = share.number(first + unit) + static_cast<unsigned>(block - at);
    const unsigned char* eight = stage + wide_eight<F>(layout, 2 * unit) + at * Stage::block;
    const unsigned char* second = eight + Stage::skew(number);
    if (share.left(first + unit) > kStepHalf)
      second = eight + Stage::half(layout.blocks) +
               Stage::skew(number + static_cast<unsigned>(share.blocks));
    F f = step_codes<F>(eight + Stage::skew(number), second);
    f.begin();
    return f;
  }

  // Of a lane's rows of x.
  __device__ static void load_scales(const unsigned char* x, float (&scales)[kFours]) {
    const auto* from =
        reinterpret_cast<const float4*>(x + Record::scales + threadIdx.x % 4 * kFours * 4);
#pragma unroll
    for (int i = 0; i < kFours / 4; ++i) {
      const float4 four = from[i];
      scales[4 * i] = four.x, scales[4 * i + 1] = four.y;
      scales[4 * i + 2] = four.z, scales[4 * i + 3] = four.w;
    }
  }

  __device__ void run(const WideLayout& layout, StepRing& ring, unsigned& parities) {
    const int group = warp / kWideTile;
    const int own = own_tiles(units), turns = (turn_units(units) + kWideTile - 1) / kWideTile;
    const int own_unit = unit_of(group);
    // The tile that it is this warpgroup's turn at.
    int turn = group;
    Sums sums = {};
    bool begins = true;
    int end = own_unit < units ? runs.end(first + own_unit, 0, begins) : 0;
#pragma unroll 1
    for (int block = 0, at = 0; block < share.blocks; ++block) {
      if (at == 0) barrier_wait(ring.full + ring.at, ring.parity);
      // The shuffle tells the compiler that all lanes have the same.
      const int stage = __shfl_sync(kAllLanes, memory.at + ring.at * layout.stage, 0);
      const unsigned char* x = dynamic_shared() + stage + at * kWideRecord;
      const StepOperand operand = step_operand_same(
          step_operand_behind(step_operand(dynamic_shared()), stage + at * kWideRecord));
#pragma unroll 1
      for (int i = own ? 0 : 1; i < (turn < turns ? 2 : 1); ++i) {
        const int unit = i == 0 ? own_unit : unit_of(own + turn);
        const bool has = unit < units;
        // A warp without a unit multiplies the last one as others of its warpgroup do theirs.
        F f = codes(layout, dynamic_shared() + stage, has ? unit : units - 1, block, at);
        int low[32], high[32];
        multiply(f, operand, low, high);
        if (!has) continue;
        Sums now;
        values(f, low, high, x + Record::sums, now);
        float scales[kFours];
        load_scales(x, scales);
        if (i == 1) {
          take_turn(turn, unit, block, now, scales, parities);
          continue;
        }
        add(now, scales, sums);
        if (block + 1 < end) continue;
        end_piece(first + unit, sums, begins, block + 1 == share.blocks);
        end = runs.end(first + unit, block + 1, begins);
      }
      turn = turn == 0 ? kWideGroups - 1 : turn - 1;
      if (++at < layout.blocks && block + 1 < share.blocks) continue;
      at = 0;
      __syncwarp();
      if (threadIdx.x % kWarp == 0) barrier_arrive(memory.empty + ring.at);
      ring.advance();
    }
  }
};

// Of barriers of which each phase is waited for once: bits of turns, and whether all warps have met
// an odd number of times.
struct WideParities {
  unsigned turns = 0;
  int met = 0;

  __device__ void meet(const WideMemory& memory) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) barrier_arrive(memory.met);
    barrier_wait(memory.met, met);
    met ^= 1;
  }
};

// A warpgroup's part of a share.
template <class F>
__device__ inline void multiply_wide_share(const StepJob& job, const StepWeight& w,
                                           const StepShare& share, const WideLayout& layout,
                                           const WideMemory& memory, StepRing& ring,
                                           WideParities& parities) {
  const int pass = layout.pass(w);
  for (int first = 0; first < share.units; first += pass) {
    WidePass<F> of{job, w, share, memory, first, min(share.units - first, pass)};
    of.run(layout, ring, parities.turns);
    parities.meet(memory);  // whose turn is first writes what whose is last reads
  }
}

// Grid: shares of about the same cost, groups of 32 rows of x. All weights have the type.
template <uint32_t dtype>
__global__ void __launch_bounds__(kWideThreads, 1) multiply_wide(StepJob job, WideLayout layout) {
  using F = WideCodes<dtype>;
  release_all();
  const WideMemory memory(layout);
  if (threadIdx.x == 0) memory.make_barriers(layout.stages);
  __syncthreads();
  const int copier = static_cast<int>(threadIdx.x / kWarp) - kWideWarps;
  if (copier >= 0) {
    keep_registers<24>();
    if (threadIdx.x % kWarp != 0) return;
    WideCopies copies(job, layout, memory, copier);
    for_each_share(job, [&](const StepWeight& w, const StepShare& share) {
      copies.template copy<F>(w, share);
    });
    copies.begin();
    return;
  }
  take_registers<160>();
  await_grid();
  WideParities parities;
  find_factors(job, memory);
  parities.meet(memory);
  StepRing ring{memory.full, layout.stages};
  for_each_share(job, [&](const StepWeight& w, const StepShare& share) {
    multiply_wide_share<F>(job, w, share, layout, memory, ring, parities);
  });
}

// The most units that warpgroups take in turn in a pass over shares of so many units.
inline int most_turn_units(int units, int pass) {
  const int last = units - (units - 1) / pass * pass;
  return max(turn_units(min(units, pass)), turn_units(last));
}

// What shares take of shared memory: eights of w of a stage, units that warpgroups take in turn,
// and those that are cut.
struct WideNeeds {
  int eights = 0, turns = 0, cuts = 0;

  void add(const StepWeight& w, const WideLayout& layout) {
    const int pass = layout.pass(w), most = w.each + (w.more > 0), units = (most + 1) / 2;
    eights = max(eights, min(2 * pass, most));
    turns = max(turns, most_turn_units(units, pass));
    if (units > 1) turns = max(turns, most_turn_units(units - 1, pass));
    cuts = max(cuts, max(units % kStepWarps, (units - 1) % kStepWarps));
  }
};

// Whether there is room for so many stages.
template <class F>
inline bool wide_fits(const StepJob& job, int stages, WideLayout& layout) {
  constexpr int kOfUnit = WideRecord::rows * kStepUnit * 4;  // bytes of sums
  WideNeeds needs;
  for (int i = 0; i < job.count; ++i) needs.add(job.weights[i], layout);
  const int rows = needs.eights * StepStage<F>::half(layout.blocks);
  layout.stage = (layout.blocks * kWideRecord + rows + kWideApart - 1) / kWideApart * kWideApart;
  layout.sums = needs.turns * kOfUnit;
  layout.pieces = needs.cuts * kOfUnit;
  const int beyond = kWideApart + 16 + WideMemory::behind + layout.sums + layout.pieces;
  layout.stages = min((kMostStepShared - beyond) / layout.stage, kMostWideStages);
  layout.bytes = beyond + layout.stages * layout.stage;
  return layout.stages >= stages;
}

// Stages of two blocks where there is room for four, else of one and passes of as many tiles as
// leave room for three, or two.
template <class F>
inline bool lay_out_wide(const StepJob& job, WideLayout& layout) {
  constexpr int kMostTiles = 2 * kWideGroups - 1;
  layout.tiles = kMostTiles, layout.blocks = 2;
  if (wide_fits<F>(job, 4, layout)) return true;
  layout.blocks = 1;
  for (int stages = 3; stages >= 2; --stages)
    for (layout.tiles = kMostTiles; layout.tiles > 0; --layout.tiles)
      if (wide_fits<F>(job, stages, layout)) return true;
  return false;
}

// Whether blocks have more rows each than that: with fewer, what a tile's rows that are not there
// cost is more than multiply_step's instructions.
constexpr int kLeastWideRows = 96;

inline bool wide_shares(const StepJob& job, unsigned blocks) {
  int64_t rows = 0;
  for (int i = 0; i < job.count; ++i) rows += job.weights[i].rows;
  return rows > int64_t{blocks} * kLeastWideRows;
}

// Launches for a job whose weights have this type, and says whether it did.
template <uint32_t dtype>
inline bool launch_wide_of(const rr_exec* exec, StepJob& job) {
  using F = WideCodes<dtype>;
  const unsigned blocks = share_step<dtype>(exec, job);
  WideLayout layout;
  if (!wide_shares(job, blocks) || !lay_out_wide<F>(job, layout)) return false;
  const dim3 grid(blocks, static_cast<unsigned>(blocks_for(job.n, WideRecord::rows)));
  allow_shared(multiply_wide<dtype>, kMostStepShared);
  RR_LAUNCH(exec, multiply_wide<dtype>, grid, kWideThreads, static_cast<size_t>(layout.bytes), job,
            layout);
  return true;
}

template <uint32_t... dtypes>
inline bool launch_wide_of_any(const rr_exec* exec, StepJob& job) {
  if (!serves_warpgroups()) return false;
  bool launched = false;
  static_cast<void>(
      (... || (all_of<dtypes>(job) && (launched = launch_wide_of<dtypes>(exec, job), true))));
  return launched;
}

}  // namespace
