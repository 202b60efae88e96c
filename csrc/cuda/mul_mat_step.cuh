// y = x w^T for few rows of x and weights of block types on tensor cores, row-exact.
//
// A block takes a share of the rows of w, in units of 16, which its warps take whole or cut into
// runs of as many blocks of 256 values. Weights are packed by eight rows (rows8.cuh), so that
// what a warp takes at a time is one bulk copy for eight rows, into its own part of shared memory.
// Where a unit is cut, its pieces' sums meet in shared memory and are added in the order of K.
// Where it is cut depends on the weights of the launch and on the card, not on x, so a row's result
// depends on neither the other rows nor how many they are.
#pragma once

#include "ahead.cuh"
#include "step_ending.cuh"
#include "step_fetch.cuh"
#include "step_x.cuh"

namespace {

// Of a lane, for row t of each four of x: those of rows g and g + 8 of w.
template <class Shape>
struct StepSums {
  float at[Shape::tiles][2] = {};
};

// Where a lane's parts of records of x lie. Rows beyond the last are as the last of the tile, tiles
// beyond as the first.
template <class Shape>
struct StepColumns {
  const unsigned char* x;
  StepRecord record;
  unsigned apart[Shape::tiles];   // bytes from the record of tile 0
  unsigned column, sums, scales;  // bytes in a record

  __device__ StepColumns(const StepJob& job, int first)
      : x(Shape::own_x ? dynamic_shared() : job.x), record(StepRecord::of(job.n)) {
    const int lane = static_cast<int>(threadIdx.x % kWarp), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      const int tile = (first + n) * kStepRows < job.n ? first + n : 0;
      apart[n] = static_cast<unsigned>(tile) * static_cast<unsigned>(job.blocks * record.bytes);
    }
    const int rows = min(job.n - first * kStepRows, kStepRows);
    column = static_cast<unsigned>(min(g / 2, rows - 1) * 128 + g % 2 * 64 + t * 16);
    sums = static_cast<unsigned>(record.sums + min(g / 2, rows - 1) * 32 + t * 8);
    scales = static_cast<unsigned>(record.scales + min(t, rows - 1) * 4);
  }
};

// A lane's parts of a record of x: of some quarters, and what is behind them.
template <class Shape>
struct StepX {
  static constexpr int ahead = Shape::tiles == 1 ? 4 : 1;
  uint4 quarters[ahead][Shape::tiles];
  uint2 sums[Shape::tiles];
  float scales[Shape::tiles];

  __device__ void load(const unsigned char* x, const StepColumns<Shape>& at, int quarter) {
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n)
      quarters[quarter % ahead][n] = *reinterpret_cast<const uint4*>(x + at.apart[n] + at.column +
                                                                     quarter * at.record.quarter);
  }
  template <bool minima>
  __device__ void load_others(const unsigned char* x, const StepColumns<Shape>& at) {
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      if (minima) sums[n] = *reinterpret_cast<const uint2*>(x + at.apart[n] + at.sums);
      scales[n] = *reinterpret_cast<const float*>(x + at.apart[n] + at.scales);
    }
  }
};

// Sums over 256 values before the powers of two of x: whole ones of lower and upper bytes, or
// floats of both.
template <class F>
struct BlockSums {
  int whole[4] = {};
  float both[2] = {};

  __device__ void add(const F& f, int i, const int (&c)[4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (F::kWhole) {
        whole[2 * r] += c[2 * r] * f.step(r, i);
        whole[2 * r + 1] += c[2 * r + 1] * f.step(r, i);
      } else {
        both[r] = fmaf(static_cast<float>(c[2 * r] + 128 * c[2 * r + 1]), f.step(r, i), both[r]);
      }
    }
  }
  __device__ float value(const F& f, int r) const {
    if constexpr (F::kWhole)
      return f.d[r] *
             fmaf(128.0f, static_cast<float>(whole[2 * r + 1]), static_cast<float>(whole[2 * r]));
    return both[r];
  }
};

// Adds the products of 64 values.
template <class F>
__device__ inline void add_quarter(const F& f, int quarter, const unsigned (&codes)[4][2],
                                   const uint4& x, BlockSums<F>& sums) {
  const unsigned words[4] = {x.x, x.y, x.z, x.w};
  constexpr int kSixteens = F::kValues / 16;
#pragma unroll
  for (int s = 0; s < 4; s += kSixteens) {
    int c[4] = {};
    if constexpr (kSixteens == 1) {
      mma_s8(c, codes[s], words[s]);
    } else {
      const unsigned a[4] = {codes[s][0], codes[s][1], codes[s + 1][0], codes[s + 1][1]};
      const unsigned b[2] = {words[s], words[s + 1]};
      if constexpr (F::kSigned)
        mma_s8(c, a, b);
      else
        mma_u8(c, a, b);
    }
    sums.add(f, (4 * quarter + s) / kSixteens, c);
  }
}

// Adds the products of a block of 256 values, of which f has this lane's part, with x, of which the
// first quarters are there.
template <class F, class Shape>
__device__ inline void add_step_block(F f, const unsigned char* from,
                                      const StepColumns<Shape>& columns, StepX<Shape>& x,
                                      StepSums<Shape>& sums) {
  BlockSums<F> of[Shape::tiles];
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    unsigned codes[4][2];
    f.codes(quarter, codes);
    StepX<Shape> own = x;
    if (StepX<Shape>::ahead == 1 && quarter < 3) x.load(from, columns, quarter + 1);
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n)
      add_quarter(f, quarter, codes, own.quarters[quarter % StepX<Shape>::ahead][n], of[n]);
  }
  if constexpr (Shape::tiles > 1) x.template load_others<F::kMinima>(from, columns);
#pragma unroll
  for (int n = 0; n < Shape::tiles; ++n) {
    float low[4] = {};
    if constexpr (F::kMinima) {
      const unsigned a[4] = {f.minima[0], f.minima[1], f.minima[0], f.minima[1]};
      const unsigned b[2] = {x.sums[n].x, x.sums[n].y};
      mma_f16(low, a, b);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float value = of[n].value(f, r);
      if constexpr (F::kMinima) value = fmaf(-kStepSumUnit * f.dmin[r], low[2 * r], value);
      sums.at[n][r] = fmaf(value, x.scales[n], sums.at[n][r]);
    }
  }
}

// What products of a tile's rows of x are multiplied by: lane t of each four has that of row t.
template <class Shape>
struct StepFactors {
  float of[Shape::tiles];
  bool known = false;

  __device__ void find(const StepJob& job, int first_tile) {
    if (known) return;
    known = true;
    const double* squares = job.squares;
    if (Shape::own_x && squares)
      squares = reinterpret_cast<const double*>(dynamic_shared() + job.own_x - job.own_squares);
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      of[n] = 1.0f;
      const int first = (first_tile + n) * kStepRows;
      if (!squares || first >= job.n) continue;
      of[n] = tile_factor(squares + int64_t{first} * job.blocks, min(job.n - first, kStepRows),
                          job.blocks, {job.blocks * kStepBlock, job.eps});
    }
  }
};

// Where a block's sums go: rows of x from 4 first_tile on.
struct StepStore {
  const StepJob& job;
  const StepWeight& w;
  const StepShare& share;
  int first_tile;

  // A lane's sums of a tile's row of x: rows g and g + 8 of a unit, if it has them.
  __device__ void store(int unit, int tile, float2 sums, int lane) const {
    const int column = (first_tile + tile) * kStepRows + lane % 4;
    const int g = lane / 4, left = share.left(unit);
    if (column >= job.n) return;
    float* y = w.y + column * w.y_row + share.row(unit) + g;
    if (g < left) y[0] = sums.x;
    if (g + kStepHalf < left) y[kStepHalf] = sums.y;
  }
};

// Adds, in the order of K, the sums of pieces of the units that are cut.
template <class Shape>
__device__ inline void add_step_pieces(const StepStore& to, const float2* slots) {
  const StepShare& share = to.share;
  const int all = share.cut_blocks();
  for (int i = threadIdx.x; i < (share.units - share.whole) * Shape::slot; i += Shape::threads) {
    const int unit = i / Shape::slot, at = i % Shape::slot;
    const int begin = unit * share.blocks, end = begin + share.blocks;
    int run = static_cast<int>(static_cast<unsigned>((begin + 1) * kStepWarps - 1) /
                               static_cast<unsigned>(all));
    if (share.cut(run + 1) >= end) continue;
    float2 sum = slots[(2 * run + 1) * Shape::slot + at];
    for (++run; run < kStepWarps && share.cut(run) < end; ++run) {
      if (share.cut(run) == share.cut(run + 1)) continue;
      const float2 v = slots[2 * run * Shape::slot + at];
      sum.x += v.x, sum.y += v.y;
    }
    to.store(share.whole + unit, at / kWarp, sum, at % kWarp);
  }
}

// A block's share of a weight, of which `fetch` has begun to fill the ring's stages.
template <class F, class Shape>
__device__ inline void multiply_step_share(const StepStore& to, StepFetch<F>& fetch, StepRing& ring,
                                           unsigned char* stages) {
  using Stage = StepStage<F>;
  const int lane = threadIdx.x % kWarp;
  const StepJob& job = to.job;
  const StepShare& share = to.share;
  const StepColumns<Shape> columns(job, to.first_tile);
  auto* slots = reinterpret_cast<float2*>(dynamic_shared() + job.own_x);
  StepWalk walk(share, fetch.walk.warp);
  bool whole = walk.block == 0;  // the unit from its beginning on
  StepSums<Shape> sums;
  StepFactors<Shape> factors;
#pragma unroll 1
  while (!walk.ended) {
    const int blocks = walk.stage(share, fetch.most), unit = walk.unit;
    const unsigned char* from = columns.x + walk.block * columns.record.bytes;
    unsigned char* stage = stages + ring.at * 2 * fetch.half;
    const unsigned number = share.number(unit) + walk.block;
    const unsigned char* first = stage + Stage::skew(number);
    const unsigned char* second = stage + fetch.half + Stage::skew(number + share.blocks);
    barrier_wait(ring.full + ring.at, ring.parity);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      StepX<Shape> x;
#pragma unroll
      for (int quarter = 0; quarter < StepX<Shape>::ahead; ++quarter)
        x.load(from, columns, quarter);
      if constexpr (Shape::tiles == 1) x.template load_others<F::kMinima>(from, columns);
      add_step_block<F, Shape>(step_codes<F>(first, second), from, columns, x, sums);
      from += columns.record.bytes, first += Stage::block, second += Stage::block;
    }
    __syncwarp();
    fetch.next(stage, ring.full + ring.at);
    ring.advance();
    walk.advance(share, blocks);
    if (walk.block != 0 && walk.left > 0) continue;
    factors.find(job, to.first_tile);
    float2* slot = slots + lane;
    slot += (2 * walk.warp + (whole ? 1 : 0)) * Shape::slot;
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      const float2 own = make_float2(sums.at[n][0] * factors.of[n], sums.at[n][1] * factors.of[n]);
      if (whole && walk.block == 0)
        to.store(unit, n, own, lane);
      else
        slot[n * kWarp] = own;
      sums.at[n][0] = sums.at[n][1] = 0.0f;
    }
    if (walk.left == 0) walk.next(share);
    whole = walk.block == 0;
  }
  __syncthreads();
  add_step_pieces<Shape>(to, slots);
  __syncthreads();
}

// The shares of a block one after the other. x comes to shared memory with the first.
template <class Shape>
struct StepBlock {
  const StepJob& job;
  int first_tile = static_cast<int>(blockIdx.y) * Shape::tiles;
  bool begun = false;
  int warp = step_warp();
  uint64_t* barriers;  // one of x, then those of each warp's stages
  unsigned char* stages;
  StepRing ring;

  __device__ explicit StepBlock(const StepJob& of)
      : job(of),
        barriers(reinterpret_cast<uint64_t*>(dynamic_shared() + of.own_x + Shape::sums)),
        stages(apart(reinterpret_cast<unsigned char*>(barriers) + kBarriers)),
        ring{barriers + 1 + warp * kMostStages, of.stages} {
    if (threadIdx.x % kWarp == 0) {
      for (int s = 0; s < job.stages; ++s) barrier_init(ring.full + s, 1);
      if (threadIdx.x == 0) barrier_init(barriers, 1);
      barriers_made();
    }
    __syncthreads();
  }

  // Bytes of barriers in shared memory, and of what the block's warps tell each other at the end.
  static constexpr int kBarriers = (2 + kStepWarps * kMostStages) * 8;

  __device__ unsigned* complete() const {
    return reinterpret_cast<unsigned*>(barriers + 1 + kStepWarps * kMostStages);
  }

  // Where sums of pieces lay, which are added up.
  __device__ RowScratch& scratch() const {
    static_assert(Shape::threads == kRowOfThreads, "a thread for each value");
    static_assert(Shape::sums >= static_cast<int>(sizeof(RowScratch)), "beside x");
    return *reinterpret_cast<RowScratch*>(dynamic_shared() + job.own_x);
  }

  // The first address from here on that bulk copies to shared memory are fast at.
  __device__ static unsigned char* apart(unsigned char* at) {
    return at + (-reinterpret_cast<uintptr_t>(at) & (kCopiesApart - 1));
  }

  __device__ void begin() {
    if (begun) return;
    begun = true;
    await_grid();
    if constexpr (Shape::own_x) {
      if (threadIdx.x == 0) {
        barrier_expect(barriers, static_cast<unsigned>(job.own_x));
        bulk_copy(dynamic_shared(), job.x, static_cast<unsigned>(job.own_x), barriers);
      }
      barrier_wait(barriers, 0);
    }
  }

  template <class F>
  __device__ void multiply(const StepWeight& w, const StepShare& share) {
    if (!job.constant) begin();
    const int most = min(job.stage_blocks, StepStage<F>::most), half = StepStage<F>::half(most);
    unsigned char* own = stages + warp * job.stages * 2 * half;
    StepFetch<F> fetch = {w, share, most, half, StepWalk(share, warp)};
#pragma unroll 1
    for (int s = 0, at = ring.at; s < job.stages; ++s, at = ring.behind(at))
      fetch.next(own + at * 2 * half, ring.full + at);
    begin();
    multiply_step_share<F, Shape>({job, w, share, first_tile}, fetch, ring, own);
  }
};

// Grid: shares of about the same cost, groups of rows of x.
template <class Shape, uint32_t... dtypes>
__global__ void __launch_bounds__(Shape::threads, 1) multiply_step(StepJob job) {
  release_all();
  StepBlock<Shape> block(job);
  for (int i = 0; i < job.count; ++i) {
    const StepWeight& w = job.weights[i];
    const int number = static_cast<int>(blockIdx.x) - w.first;
    if (number < 0 || number >= w.grid) continue;
    const int begin = number * w.each + min(number, w.more);
    const int first = begin * kStepHalf;
    const int last = (begin + w.each + (number < w.more)) * kStepHalf;
    const int rows = min(last, w.rows) - first;
    if (rows <= 0) continue;
    const StepShare share(first, rows, job.blocks);
    const bool done[] = {
        (w.dtype == dtypes && (block.template multiply<StepCodes<dtypes>>(w, share), true))...};
    static_cast<void>(done);
    if (job.ending.x) end_step_products(job.ending, first, rows, block.complete(), block.scratch());
  }
  if (!block.begun) await_grid();
}

constexpr int kMostStepShared = 226 * 1024;

// Bytes of a stage of all warps.
template <class F>
inline int step_stage(const StepJob& job) {
  return kStepWarps * 2 * StepStage<F>::half(min(job.stage_blocks, StepStage<F>::most));
}

// How many stages there are, and of how many blocks: of as many as leave room for three. Returns
// bytes of shared memory; 0 where x does not fit beside two stages.
template <class Shape, uint32_t... dtypes>
inline int lay_out_step(StepJob& job) {
  constexpr int kBeyond = kCopiesApart + 16;  // bytes are read beyond the last row
  const int64_t k = int64_t{job.blocks} * kStepBlock;
  const int64_t squares = job.squares ? step_squares_bytes(job.n, k) : 0;
  const int64_t own = Shape::own_x ? step_x_bytes(job.n, k) + squares : 0;
  const int64_t room = kMostStepShared - kBeyond - Shape::sums - StepBlock<Shape>::kBarriers - own;
  job.own_x = static_cast<int>(own);
  job.own_squares = static_cast<int>(squares);
  for (int least = 3; least >= 2; --least)
    for (job.stage_blocks = 3; job.stage_blocks > 0; --job.stage_blocks) {
      int stage = 0;
      for (int i = 0; i < job.count; ++i) {
        const bool done[] = {(job.weights[i].dtype == dtypes &&
                              (stage = max(stage, step_stage<StepCodes<dtypes>>(job)), true))...};
        static_cast<void>(done);
      }
      job.stages = static_cast<int>(min(room / stage, int64_t{kMostStages}));
      if (job.stages >= least) return kMostStepShared - static_cast<int>(room - job.stages * stage);
    }
  return 0;
}

// Shares weights of these types out among blocks, and returns how many. Each weight has blocks of
// its own by its cost, but those that are too small for that, which share some.
template <uint32_t... dtypes>
inline unsigned share_step(const rr_exec* exec, StepJob& job) {
  int64_t costs[riverrun::kMostStepWeights] = {}, all = 0, halves = 0;
  for (int i = 0; i < job.count; ++i) {
    const StepWeight& w = job.weights[i];
    const bool done[] = {(w.dtype == dtypes && (costs[i] = kBytesOf256<dtypes>, true))...};
    static_cast<void>(done);
    costs[i] *= blocks_for(w.rows, kStepHalf);
    all += costs[i];
    halves += blocks_for(w.rows, kStepHalf);
  }
  const int64_t most = cuda(exec).multiprocessors, blocks = halves < most ? halves : most;
  const auto small = [&](int i) { return costs[i] * blocks < 4 * all; };
  int64_t shared = 0, left = all;
  for (int i = 0; i < job.count; ++i)
    if (small(i)) shared += costs[i];
  int together = static_cast<int>((shared * blocks + all / 2) / all);
  if (shared > 0 && together == 0) together = 1;
  left -= shared;
  int next = together, free = static_cast<int>(blocks) - together;
  for (int i = 0; i < job.count; ++i) {
    StepWeight& w = job.weights[i];
    w.first = small(i) ? 0 : next;
    w.grid = small(i) ? together : static_cast<int>((costs[i] * free + left / 2) / left);
    const int own = static_cast<int>(blocks_for(w.rows, kStepHalf));
    w.each = own / w.grid, w.more = own % w.grid;
    if (small(i)) continue;
    next += w.grid, free -= w.grid, left -= costs[i];
  }
  return static_cast<unsigned>(blocks);
}

// Launches for a job whose weights have these types, and says whether it could.
template <class Shape, uint32_t... dtypes>
inline bool launch_step(const rr_exec* exec, StepJob& job) {
  const int bytes = lay_out_step<Shape, dtypes...>(job);
  if (bytes == 0) return false;
  const dim3 grid(share_step<dtypes...>(exec, job),
                  static_cast<unsigned>(blocks_for(job.n, kStepRows * Shape::tiles)));
  allow_shared(multiply_step<Shape, dtypes...>, kMostStepShared);
  RR_LAUNCH(exec, (multiply_step<Shape, dtypes...>), grid, Shape::threads,
            static_cast<size_t>(bytes), job);
  return true;
}

// Types that models mix.
#define RR_STEP_MIXED RR_Q4_K, RR_Q5_K, RR_Q6_K, RR_Q8_0
#define RR_STEP_TYPES \
  RR_STEP_MIXED, RR_Q4_0, RR_Q4_1, RR_Q5_0, RR_Q5_1, RR_IQ4_NL, RR_IQ4_XS, RR_MXFP4

template <uint32_t... dtypes>
inline bool all_of(const StepJob& job) {
  bool all = true;
  for (int i = 0; i < job.count; ++i) all = all && (... || (job.weights[i].dtype == dtypes));
  return all;
}

// With x in shared memory where it fits there, if it is of few rows.
template <int tiles, uint32_t... dtypes>
inline void launch_step_of(const rr_exec* exec, StepJob& job) {
  if constexpr (tiles <= 2)
    if (launch_step<StepShape<tiles, true>, dtypes...>(exec, job)) return;
  launch_step<StepShape<tiles, false>, dtypes...>(exec, job);
}

// The kernel for weights of one type if there is but one: the more types, the slower its code.
template <int tiles, uint32_t... dtypes>
inline void launch_step_alone(const rr_exec* exec, StepJob& job) {
  if ((... || (all_of<dtypes>(job) && (launch_step_of<tiles, dtypes>(exec, job), true)))) return;
  if (all_of<RR_STEP_MIXED>(job)) return launch_step_of<tiles, RR_STEP_MIXED>(exec, job);
  launch_step_of<tiles, dtypes...>(exec, job);
}

}  // namespace
