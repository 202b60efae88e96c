// y = x w^T for few rows of x and weights of block types on tensor cores, row-exact.
//
// A block takes a share of the rows of w, in units of 16, which its warps take whole or cut into
// runs of as many blocks of 256 values; bytes come to the warp's own part of shared memory in the
// background. Where a unit is cut, its pieces' sums meet in shared memory and are added in the
// order of K. Where it is cut depends on the weights of the launch and on the card, not on x, so a
// row's result depends on neither the other rows nor how many they are.
#pragma once

#include "step_fetch.cuh"
#include "step_x.cuh"

namespace {

// Of a lane, for row t of each four of x: those of rows g and g + 8 of w.
template <class Shape>
struct StepSums {
  float at[Shape::tiles][2] = {};
};

// Where rows of x lie as the kernel reads them: groups of four rows, or the `rows` that there are.
struct StepLayout {
  int quarter, sums, scales, record;  // bytes

  __host__ __device__ static StepLayout of(int rows) {
    const int quarter = rows * 128;
    return {quarter, 4 * quarter, 4 * quarter + rows * 32, 4 * quarter + rows * 32 + 16};
  }
  __device__ static StepLayout given() {
    return {kStepQuarter, kStepSums, kStepScales, kStepRecord};
  }
};

// Copies x to shared memory, of fewer than four rows only what they have. All threads.
template <class Shape>
__device__ inline StepLayout bring_x(const StepJob& job, unsigned char* own) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const bool some = Shape::tiles == 1 && job.n < kStepRows;
  const StepLayout from = StepLayout::given(), to = some ? StepLayout::of(job.n) : from;
  const int rows = some ? job.n : kStepRows;
  const int groups = some ? 1 : (job.n + kStepRows - 1) / kStepRows;
#pragma unroll 1
  for (int i = warp; i < groups * job.blocks; i += kStepWarps) {
    const unsigned char* source = job.x + int64_t{i} * from.record;
    unsigned char* target = own + i * to.record;
    const int column = lane % 8 * 16, quarter = lane / 8;
    for (int row = 0; row < rows; ++row)
      async_copy16(target + quarter * to.quarter + row * 128 + column,
                   source + quarter * from.quarter + row * 128 + column);
    if (lane < 2 * rows) async_copy16(target + to.sums + lane * 16, source + from.sums + lane * 16);
    if (lane == kWarp - 1) async_copy16(target + to.scales, source + from.scales);
  }
  async_copy_commit();
  async_copy_wait<0>();
  __syncthreads();
  return to;
}

// Where a lane's parts of records of x lie. Rows beyond the last are as the last of the tile, tiles
// beyond as the first.
template <class Shape>
struct StepColumns {
  const unsigned char* x;
  StepLayout layout;
  unsigned apart[Shape::tiles];   // bytes from the record of tile 0
  unsigned column, sums, scales;  // bytes in a record

  __device__ StepColumns(const StepJob& job, int first, const unsigned char* from,
                         const StepLayout& of)
      : x(from), layout(of) {
    const int lane = static_cast<int>(threadIdx.x % kWarp), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      const int tile = (first + n) * kStepRows < job.n ? first + n : 0;
      apart[n] = static_cast<unsigned>(tile) * static_cast<unsigned>(job.blocks * layout.record);
    }
    const int rows = min(job.n - first * kStepRows, kStepRows);
    column = static_cast<unsigned>(min(g / 2, rows - 1) * 128 + g % 2 * 64 + t * 16);
    sums = static_cast<unsigned>(layout.sums + min(g / 2, rows - 1) * 32 + t * 8);
    scales = static_cast<unsigned>(layout.scales + min(t, rows - 1) * 4);
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
                                                                     quarter * at.layout.quarter);
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
__device__ inline void add_step_block(const F& f, const unsigned char* from,
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

// Stores a lane's sums of a tile's row of x: rows g and g + 8 of a unit, if it has them.
__device__ inline void store_step_sums(const StepJob& job, const StepWeight& w,
                                       const StepShare& share, int unit, int tile, float2 sums,
                                       int lane) {
  const int column = tile * kStepRows + lane % 4, g = lane / 4, left = share.left(unit);
  float* y = w.y + column * w.y_row + share.row(unit) + g;
  if (column >= job.n) return;
  if (g < left) y[0] = sums.x;
  if (g + kStepHalf < left) y[kStepHalf] = sums.y;
}

// Adds, in the order of K, the sums of pieces of the units that are cut.
template <class Shape>
__device__ inline void add_step_pieces(const StepJob& job, const StepWeight& w,
                                       const StepShare& share, int first_tile,
                                       const float2* slots) {
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
    store_step_sums(job, w, share, share.whole + unit, first_tile + at / kWarp, sum, at % kWarp);
  }
}

// A block's share of a weight, of which `fetch` has begun to fill `stages` stages.
template <class F, class Shape>
__device__ inline void multiply_step_share(const StepJob& job, const StepWeight& w,
                                           const StepShare& share,
                                           const StepColumns<Shape>& columns, int first_tile,
                                           StepFetch<F, Shape>& fetch, unsigned char* stages) {
  using Stage = StepStage<F, Shape>;
  const int lane = threadIdx.x % kWarp;
  auto* slots = reinterpret_cast<float2*>(dynamic_shared() + job.own_x);
  unsigned char *stage = stages, *last_stage = stages + (job.stages - 1) * Stage::bytes;
  StepWalk walk(share);
  bool whole = walk.block == 0;  // the unit from its beginning on
  StepSums<Shape> sums;
#pragma unroll 1
  while (!walk.ended) {
    const int blocks = walk.stage(share, Stage::blocks), unit = walk.unit;
    const unsigned char* from = columns.x + int64_t{walk.block} * columns.layout.record;
    await_stage(job.stages);
#pragma unroll 1
    for (int i = 0; i < blocks; ++i, from += columns.layout.record) {
      StepX<Shape> x;
#pragma unroll
      for (int quarter = 0; quarter < StepX<Shape>::ahead; ++quarter)
        x.load(from, columns, quarter);
      if constexpr (Shape::tiles == 1) x.template load_others<F::kMinima>(from, columns);
      F f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int of_unit = kStepHalf * r + lane / 4;
        const unsigned char* bytes = stage + of_unit * Stage::pitch + i * F::kBytes;
        if constexpr (F::kGrain < 16)
          bytes += reinterpret_cast<uintptr_t>(w.data + (share.row(unit) + of_unit) * w.row_bytes +
                                               int64_t{walk.block} * F::kBytes) &
                   15;
        f.load(r, bytes, lane % 4);
      }
      if constexpr (F::kMatrix)
        f.matrix = stage + lane % kStepUnit * Stage::pitch + lane / kStepUnit * 16 + i * F::kBytes;
      add_step_block<F, Shape>(f, from, columns, x, sums);
    }
    __syncwarp();
    fetch.next(stage);
    stage = stage == last_stage ? stages : stage + Stage::bytes;
    walk.advance(share, blocks);
    if (walk.block != 0 && walk.left > 0) continue;
    float2* slot = slots + lane;
    slot += (2 * (threadIdx.x / kWarp) + (whole ? 1 : 0)) * Shape::slot;
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      const float2 own = make_float2(sums.at[n][0], sums.at[n][1]);
      if (whole && walk.block == 0)
        store_step_sums(job, w, share, unit, first_tile + n, own, lane);
      else
        slot[n * kWarp] = own;
      sums.at[n][0] = sums.at[n][1] = 0.0f;
    }
    if (walk.left == 0) walk.next(share);
    whole = walk.block == 0;
  }
  __syncthreads();
  add_step_pieces<Shape>(job, w, share, first_tile, slots);
  __syncthreads();
}

// Lets the next kernel start while this one runs.
__device__ inline void release_at_once() {
#if !defined(RR_EMULATE) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The shares of a block one after the other. x comes to shared memory with the first.
template <class Shape>
struct StepBlock {
  const StepJob& job;
  int first_tile = static_cast<int>(blockIdx.y) * Shape::tiles;
  bool begun = false;
  const unsigned char* x = nullptr;
  StepLayout layout = {};

  __device__ void begin() {
    if (begun) return;
    begun = true;
    await_grid();
    x = job.own_x ? dynamic_shared() : job.x;
    layout = job.own_x ? bring_x<Shape>(job, dynamic_shared()) : StepLayout::given();
  }

  template <class F>
  __device__ void multiply(const StepWeight& w, const StepShare& share) {
    const int of_warp = job.stages * StepStage<F, Shape>::bytes;
    unsigned char* stages =
        dynamic_shared() + job.own_x + Shape::sums + threadIdx.x / kWarp * of_warp;
    if (!job.constant) begin();
    StepFetch<F, Shape> fetch = {w, share, StepWalk(share)};
#pragma unroll 1
    for (int s = 0; s < job.stages; ++s) fetch.next(stages + s * StepStage<F, Shape>::bytes);
    begin();
    const StepColumns<Shape> columns(job, first_tile, x, layout);
    multiply_step_share<F, Shape>(job, w, share, columns, first_tile, fetch, stages);
  }
};

// Grid: shares of about the same cost, groups of rows of x.
template <class Shape, uint32_t... dtypes>
__global__ void __launch_bounds__(Shape::threads, 1) multiply_step(StepJob job) {
  release_at_once();
  StepBlock<Shape> block = {job};
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
  }
  if (!block.begun) await_grid();
}

// Whether x comes to shared memory and how many stages there are. Returns bytes of shared memory.
template <class Shape, uint32_t... dtypes>
inline int lay_out_step(StepJob& job) {
  constexpr int kMost = 220 * 1024, kBeyond = 16;  // bytes are read beyond the last row
  int stage = 0;
  for (int i = 0; i < job.count; ++i) {
    const bool done[] = {
        (job.weights[i].dtype == dtypes &&
         (stage = max(stage, kStepWarps * StepStage<StepCodes<dtypes>, Shape>::bytes), true))...};
    static_cast<void>(done);
  }
  const bool some = Shape::tiles == 1 && job.n < kStepRows;
  const int64_t record = some ? StepLayout::of(job.n).record : kStepRecord;
  const int64_t own = (some ? 1 : blocks_for(job.n, kStepRows)) * job.blocks * record;
  const int64_t room = kMost - kBeyond - Shape::sums;
  const bool fits = Shape::tiles <= 2 && own + 2 * stage <= room;
  job.own_x = fits ? static_cast<int>(own) : 0;
  job.stages = job.own_x + 3 * stage <= room ? 3 : 2;
  return job.own_x + Shape::sums + job.stages * stage + kBeyond;
}

// Launches for a job whose weights have these types. Each weight has blocks of its own by its cost,
// but those that are too small for that, which share some.
template <class Shape, uint32_t... dtypes>
inline void launch_step(const rr_exec* exec, StepJob& job) {
  int64_t costs[riverrun::kMostStepWeights], all = 0, halves = 0;
  for (int i = 0; i < job.count; ++i) {
    const StepWeight& w = job.weights[i];
    const bool done[] = {(w.dtype == dtypes && (costs[i] = StepCodes<dtypes>::kBytes, true))...};
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
  const int bytes = lay_out_step<Shape, dtypes...>(job);
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(blocks_for(job.n, kStepRows * Shape::tiles)));
  allow_shared(multiply_step<Shape, dtypes...>, 224 * 1024);
  RR_LAUNCH(exec, (multiply_step<Shape, dtypes...>), grid, Shape::threads,
            static_cast<size_t>(bytes), job);
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

// The kernel for weights of one type if there is but one: the more types, the slower its code.
template <class Shape, uint32_t... dtypes>
inline void launch_step_alone(const rr_exec* exec, StepJob& job) {
  if ((... || (all_of<dtypes>(job) && (launch_step<Shape, dtypes>(exec, job), true)))) return;
  if (all_of<RR_STEP_MIXED>(job)) return launch_step<Shape, RR_STEP_MIXED>(exec, job);
  launch_step<Shape, dtypes...>(exec, job);
}

}  // namespace
