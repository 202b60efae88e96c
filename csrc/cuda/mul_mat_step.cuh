// y = x w^T for few rows of x and weights of block types on tensor cores, row-exact.
//
// A block takes a share of the rows of w, in units of 16. K is cut into parts by its length
// alone; a unit's sum is that of its parts in order, so a row's result depends on neither the other
// rows, nor how many they are, nor the grid. First each warp takes whole units. Of the units that
// are left, fewer than warps, it takes single parts, whose sums meet in shared memory. The bytes of
// w come to each warp's own part of shared memory in the background, some blocks of 256 values
// ahead, also beyond the end of a unit or part.
#pragma once

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
  unsigned apart[Shape::tiles];   // bytes from the record of tile 0
  unsigned column, sums, scales;  // bytes in a record

  __device__ StepColumns(const StepJob& job, int first) {
    const int lane = static_cast<int>(threadIdx.x % kWarp), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      const int tile = (first + n) * kStepRows < job.n ? first + n : 0;
      apart[n] = static_cast<unsigned>(tile) * static_cast<unsigned>(job.blocks * kStepRecord);
    }
    const int rows = min(job.n - first * kStepRows, kStepRows);
    column = static_cast<unsigned>(min(g / 2, rows - 1) * 128 + g % 2 * 64 + t * 16);
    sums = static_cast<unsigned>(kStepSums + min(g / 2, rows - 1) * 32 + t * 8);
    scales = static_cast<unsigned>(kStepScales + min(t, rows - 1) * 4);
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
      quarters[quarter % ahead][n] =
          *reinterpret_cast<const uint4*>(x + at.apart[n] + at.column + quarter * kStepQuarter);
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

// A lane's sums of four rows of x: two rows of w from `row` on, if the unit has them.
__device__ inline void store_step_sums(const StepJob& job, const StepWeight& w,
                                       const StepShare& share, int unit, int tile, float2 sums,
                                       int lane) {
  const int column = tile * kStepRows + lane % 4, g = lane / 4, left = share.left(unit);
  float* y = w.y + column * w.y_row + share.row(unit) + g;
  if (column >= job.n) return;
  if (g < left) y[0] = sums.x;
  if (g + kStepHalf < left) y[kStepHalf] = sums.y;
}

// Adds what `count` parts from number `first` on have left in their slots, to y once a unit has all
// of them; what is behind the last slot, of the unit that goes on.
template <class Shape>
__device__ inline void add_step_parts(const StepJob& job, const StepWeight& w,
                                      const StepShare& share, int first_tile, int first, int count,
                                      float2* slots) {
  const int rest = share.units / Shape::warps * Shape::warps;
  const int first_unit = first / share.parts, last_unit = (first + count - 1) / share.parts;
  float2* carried = slots + Shape::slots * Shape::slot;
  const int at = static_cast<int>(threadIdx.x) % Shape::slot;
  constexpr int kAtOnce = Shape::threads / Shape::slot;
  float2 carry = carried[at];
  __syncthreads();
  for (int unit = first_unit + static_cast<int>(threadIdx.x) / Shape::slot; unit <= last_unit;
       unit += kAtOnce) {
    const int begin = max(unit * share.parts, first) - first;
    const int end = min((unit + 1) * share.parts, first + count) - first;
    const bool goes_on = unit * share.parts < first;
    float2 sum = goes_on ? carry : slots[begin * Shape::slot + at];
    for (int i = begin + (goes_on ? 0 : 1); i < end; ++i) {
      const float2 v = slots[i * Shape::slot + at];
      sum.x += v.x, sum.y += v.y;
    }
    if (end + first < (unit + 1) * share.parts) {
      carried[at] = sum;
      continue;
    }
    store_step_sums(job, w, share, rest + unit, first_tile + at / kWarp, sum, at % kWarp);
  }
  __syncthreads();
}

// Adds a part's sums to those of its unit, in the lane's place of a slot.
template <class Shape>
__device__ inline void add_step_part(StepSums<Shape>& sums, bool first, float2* slot) {
#pragma unroll
  for (int n = 0; n < Shape::tiles; ++n) {
    float(&own)[2] = sums.at[n];
    float2 total = make_float2(own[0], own[1]);
    if (!first) {
      const float2 before = slot[n * kWarp];
      total.x = before.x + total.x, total.y = before.y + total.y;
    }
    slot[n * kWarp] = total;
    own[0] = own[1] = 0.0f;
  }
}

// A block's share of a weight.
template <uint32_t dtype, class Shape>
__device__ inline void multiply_step_share(const StepJob& job, const StepWeight& w,
                                           const StepShare& share, bool waits) {
  using F = StepCodes<dtype>;
  using Stage = StepStage<dtype, Shape>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  auto* slots = reinterpret_cast<float2*>(dynamic_shared());
  unsigned char* stages = dynamic_shared() + Shape::sums + warp * Stage::count * Stage::bytes;
  unsigned char *stage = stages, *last_stage = stages + (Stage::count - 1) * Stage::bytes;

  StepFetch<dtype, Shape> fetch(w, share);
#pragma unroll 1
  for (int s = 0; s < Stage::count; ++s) fetch.next(stages + s * Stage::bytes);
  if (waits) await_grid();

  const int first_tile = static_cast<int>(blockIdx.y) * Shape::tiles;
  const StepColumns<Shape> columns(job, first_tile);

  StepItem<Shape> item(share);
  const int parts = share.units % Shape::warps * w.parts;  // of the units that are not taken whole
  int done = 0;
#pragma unroll 1
  for (bool whole = item.whole > 0; whole || done < parts; whole = item.whole > 0) {
    StepSums<Shape> sums;
    float2* slot = slots + (whole ? warp : item.number - done) * Shape::slot + lane;
    const bool exists = item.exists(share);
    if (exists) {
      const int end = item.end(share);
      int part = item.part, part_end = share.end(part), block = item.begin(share);
      const unsigned char* from = job.x + int64_t{block} * kStepRecord;
#pragma unroll 1
      for (; block < end; ++block, from += kStepRecord) {
        StepX<Shape> x;
#pragma unroll
        for (int i = 0; i < StepX<Shape>::ahead; ++i) x.load(from, columns, i);
        if constexpr (Shape::tiles == 1) x.template load_others<F::kMinima>(from, columns);
        async_copy_wait<Stage::count - 1>();
        __syncwarp();
        F f;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int of_unit = kStepHalf * r + lane / 4;
          const unsigned char* bytes = stage + of_unit * Stage::pitch;
          if constexpr (F::kGrain < 16)
            bytes += reinterpret_cast<uintptr_t>(w.data +
                                                 (share.row(item.unit) + of_unit) * w.row_bytes +
                                                 int64_t{block} * F::kBytes) &
                     15;
          f.load(r, bytes, lane % 4);
        }
        if constexpr (F::kMatrix)
          f.matrix = stage + lane % kStepUnit * Stage::pitch + lane / kStepUnit * 16;
        add_step_block<F, Shape>(f, from, columns, x, sums);
        __syncwarp();
        fetch.next(stage);
        stage = stage == last_stage ? stages : stage + Stage::bytes;
        if (block + 1 < part_end) continue;
        add_step_part<Shape>(sums, part == item.part, slot);
        part_end = share.end(++part);
      }
      if (whole)
#pragma unroll
        for (int n = 0; n < Shape::tiles; ++n)
          store_step_sums(job, w, share, item.unit, first_tile + n, slot[n * kWarp], lane);
    }
    item.next(share);
    // When all slots are full, or no parts are left for any warp.
    const int next = item.number / Shape::warps * Shape::warps - done;
    if (whole || (next < Shape::slots / Shape::warps * Shape::warps && next + done < parts))
      continue;
    __syncthreads();
    const int count = min(next, parts - done);
    add_step_parts<Shape>(job, w, share, first_tile, done, count, slots);
    done += count;
  }
}

// Lets the next kernel start while this one runs.
__device__ inline void release_at_once() {
#if !defined(RR_EMULATE) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Grid: shares of about the same cost, groups of rows of x.
template <class Shape, uint32_t... dtypes>
__global__ void __launch_bounds__(Shape::threads, Shape::resident) multiply_step(StepJob job) {
  release_at_once();
  if (!job.constant) await_grid();
  const int begin = static_cast<int>(blockIdx.x) * job.share, end = begin + job.share;
  bool waits = job.constant;
  for (int i = 0; i < job.count; ++i) {
    const StepWeight& w = job.weights[i];
    const int first = max(begin - w.before + w.cost - 1, 0) / w.cost * kStepHalf;
    const int last = max(end - w.before + w.cost - 1, 0) / w.cost * kStepHalf;
    const int rows = min(last, w.rows) - first, blocks = job.blocks / w.parts;
    if (rows <= 0) continue;
    const StepShare share = {first,   rows,   (rows + kStepUnit - 1) / kStepUnit,
                             w.parts, blocks, job.blocks - blocks * w.parts};
    const bool done[] = {
        (w.dtype == dtypes && (multiply_step_share<dtypes, Shape>(job, w, share, waits), true))...};
    static_cast<void>(done);
    waits = false;
  }
  if (waits) await_grid();
}

// Launches for a job whose weights have these types.
template <class Shape, uint32_t... dtypes>
inline void launch_step(const rr_exec* exec, StepJob& job) {
  int shared = 0, all = 0, halves = 0;
  for (int i = 0; i < job.count; ++i) {
    StepWeight& w = job.weights[i];
    const int own = static_cast<int>(blocks_for(w.rows, kStepHalf));
    w.before = all;
    const bool done[] = {
        (w.dtype == dtypes && (w.cost = StepCodes<dtypes>::kBytes / 2,
                               shared = max(shared, StepStage<dtypes, Shape>::shared), true))...};
    static_cast<void>(done);
    all += own * w.cost;
    halves += own;
  }
  const int blocks = min(cuda(exec).multiprocessors, halves);
  job.share = (all + blocks - 1) / blocks;
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(blocks_for(job.n, kStepRows * Shape::tiles)));
  allow_shared(multiply_step<Shape, dtypes...>, Shape::memory);
  RR_LAUNCH(exec, (multiply_step<Shape, dtypes...>), grid, Shape::threads,
            static_cast<size_t>(shared), job);
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
