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

template <class Shape>
struct StepSums {
  float at[Shape::tiles][4] = {};
};

// A load that stays where it is written: in front of what hides its latency.
__device__ inline uint4 load_now(const unsigned char* at) {
#ifdef RR_EMULATE
  return *reinterpret_cast<const uint4*>(at);
#else
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
#endif
}

// Where a lane's parts of records of x lie. Columns beyond the last are as the last of the tile,
// tiles beyond as the first.
template <class Shape>
struct StepColumns {
  unsigned apart[Shape::tiles];  // bytes from the record of tile 0

  __device__ StepColumns(const StepJob& job, int first) {
    const int g = static_cast<int>(threadIdx.x % kWarp) / 4;
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      const int tile = (first + n) * kStepRows < job.n ? first + n : 0;
      apart[n] = static_cast<unsigned>(tile) * static_cast<unsigned>(job.blocks * kStepRecord) +
                 static_cast<unsigned>(min(g, job.n - 1 - tile * kStepRows) * 64);
    }
  }
};

// A lane's part of a record of x: of its pairs of steps the first or the next `ahead`.
template <class Shape>
struct StepX {
  static constexpr int ahead = Shape::tiles == 4 ? 2 : 8;
  uint4 pairs[ahead][Shape::tiles];
  uint4 others[Shape::tiles];  // sums and scales

  __device__ void load(const unsigned char* x, const StepColumns<Shape>& columns, int pair) {
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n)
      pairs[pair % ahead][n] = load_now(x + columns.apart[n] + pair * 512);
  }
  __device__ void load_others(const unsigned char* x, const StepColumns<Shape>& columns) {
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) others[n] = load_now(x + columns.apart[n] + kStepSums);
  }
  __device__ void begin(const unsigned char* x, const StepColumns<Shape>& columns) {
    if constexpr (ahead == 8) load_others(x, columns);
#pragma unroll
    for (int pair = 0; pair < ahead; ++pair) load(x, columns, pair);
  }
};

// Adds the products of a block of 256 values, of which f holds this lane's part, with x, which has
// begun. Steps of even and of odd number are summed apart.
template <class F, class Shape>
__device__ inline void add_step_block(const F& f, const unsigned char* from,
                                      const StepColumns<Shape>& columns, StepX<Shape>& x,
                                      StepSums<Shape>& sums) {
  float c[Shape::tiles][2][4] = {};
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    constexpr int kAhead = StepX<Shape>::ahead;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned a[4];
      f.step(2 * pair + h, a);
#pragma unroll
      for (int n = 0; n < Shape::tiles; ++n) {
        const uint4& both = x.pairs[pair % kAhead][n];
        const unsigned b[2] = {h ? both.z : both.x, h ? both.w : both.y};
        mma_f16(c[n][h], a, b);
      }
    }
    if (pair + kAhead < 8) x.load(from, columns, pair + kAhead);
    if (kAhead < 8 && pair == 6) x.load_others(from, columns);
  }
#pragma unroll
  for (int n = 0; n < Shape::tiles; ++n) {
    float low[4] = {};
    if constexpr (F::kMinima) {
      const unsigned a[4] = {f.minima[0], f.minima[1], f.minima[0], f.minima[1]};
      const unsigned b[2] = {x.others[n].x, x.others[n].y};
      mma_f16(low, a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value = f.d[i / 2] * (c[n][0][i] + c[n][1][i]);
      if constexpr (F::kMinima) value = fmaf(-f.dmin[i / 2], low[i], value);
      const float scale = __uint_as_float(i % 2 ? x.others[n].w : x.others[n].z);
      sums.at[n][i] = fmaf(value, scale, sums.at[n][i]);
    }
  }
}

// A lane's sums of tile n of rows of x: rows of w `row` and row + 8 (lane / 4 in), two columns.
__device__ inline void store_step_sums(const StepJob& job, const StepWeight& w, int row, int tile,
                                       const float (&sums)[4], int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = tile * kStepRows + lane % 4 * 2 + i % 2;
    if (column < job.n) w.y[column * w.y_row + row + lane / 4 + i / 2 * 8] = sums[i];
  }
}

// Adds what `count` parts from number `first` on have left in their slots, to y once a unit has all
// of them; what is behind the last slot, of the unit that goes on.
template <class Shape>
__device__ inline void add_step_parts(const StepJob& job, const StepWeight& w,
                                      const StepShare& share, int first_tile, int first, int count,
                                      float4* slots) {
  const int rest = share.units / Shape::warps * Shape::warps;
  const int first_unit = first / share.parts, last_unit = (first + count - 1) / share.parts;
  float4* carried = slots + Shape::slots * Shape::slot;
  const int at = static_cast<int>(threadIdx.x) % Shape::slot;
  constexpr int kAtOnce = Shape::threads / Shape::slot;
  float4 carry = carried[at];
  __syncthreads();
  for (int unit = first_unit + static_cast<int>(threadIdx.x) / Shape::slot; unit <= last_unit;
       unit += kAtOnce) {
    const int begin = max(unit * share.parts, first) - first;
    const int end = min((unit + 1) * share.parts, first + count) - first;
    const bool goes_on = unit * share.parts < first;
    float4 sum = goes_on ? carry : slots[begin * Shape::slot + at];
    for (int i = begin + (goes_on ? 0 : 1); i < end; ++i) {
      const float4 v = slots[i * Shape::slot + at];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    if (end + first < (unit + 1) * share.parts) {
      carried[at] = sum;
      continue;
    }
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
    store_step_sums(job, w, first_row(w, share, rest + unit), first_tile + at / kWarp, sums,
                    at % kWarp);
  }
  __syncthreads();
}

// Adds a part's sums to those of its unit, in the lane's place of a slot.
template <class Shape>
__device__ inline void add_step_part(StepSums<Shape>& sums, bool first, float4* slot) {
#pragma unroll
  for (int n = 0; n < Shape::tiles; ++n) {
    float(&own)[4] = sums.at[n];
    float4 total = make_float4(own[0], own[1], own[2], own[3]);
    if (!first) {
      const float4 before = slot[n * kWarp];
      total.x = before.x + total.x, total.y = before.y + total.y;
      total.z = before.z + total.z, total.w = before.w + total.w;
    }
    slot[n * kWarp] = total;
    own[0] = own[1] = own[2] = own[3] = 0.0f;
  }
}

// A block's share of a weight.
template <uint32_t dtype, class Shape>
__device__ inline void multiply_step_share(const StepJob& job, const StepWeight& w, int first,
                                           int units, bool waits) {
  using F = Fragment<dtype>;
  using Stage = StepStage<dtype, Shape>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  auto* slots = reinterpret_cast<float4*>(dynamic_shared());
  unsigned char* stages = dynamic_shared() + Shape::sums + warp * Stage::count * Stage::bytes;
  unsigned char *stage = stages, *last_stage = stages + (Stage::count - 1) * Stage::bytes;

  const int blocks = job.blocks / w.parts;
  const StepShare share = {first, units, w.parts, blocks, job.blocks - blocks * w.parts};
  StepFetch<dtype, Shape> fetch(w, share);
#pragma unroll 1
  for (int s = 0; s < Stage::count; ++s) fetch.next(stages + s * Stage::bytes);
  if (waits) await_grid();

  const int first_tile = static_cast<int>(blockIdx.y) * Shape::tiles;
  const StepColumns<Shape> columns(job, first_tile);
  const unsigned char* x_lane = job.x + lane % 4 * 16;

  StepItem<Shape> item(share);
  const int parts = units % Shape::warps * w.parts;  // of the units that are not taken whole
  int done = 0;
#pragma unroll 1
  for (bool whole = item.whole > 0; whole || done < parts; whole = item.whole > 0) {
    StepSums<Shape> sums;
    float4* slot = slots + (whole ? warp : item.number - done) * Shape::slot + lane;
    const bool exists = item.exists(share);
    if (exists) {
      const int row = first_row(w, share, item.unit), end = item.end(share);
      int part = item.part, part_end = share.end(part), block = item.begin(share);
      const unsigned char* from = x_lane + int64_t{block} * kStepRecord;
      int within = 0;  // of the stage
#pragma unroll 1
      for (; block < end; ++block, from += kStepRecord) {
        StepX<Shape> x;
        x.begin(from, columns);
        if (within == 0) {
          async_copy_wait<Stage::count - 1>();
          __syncwarp();
        }
        F f;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int of_unit = 8 * r + lane / 4;
          const unsigned char* bytes = stage + of_unit * Stage::pitch + within * F::kBytes;
          if constexpr (F::kGrain < 16)
            bytes += reinterpret_cast<uintptr_t>(w.data + (row + of_unit) * w.row_bytes +
                                                 int64_t{block - within} * F::kBytes) &
                     15;
          f.load(r, bytes, lane % 4);
        }
        if (++within == Stage::blocks || block + 1 == end) {
          __syncwarp();
          fetch.next(stage);
          stage = stage == last_stage ? stages : stage + Stage::bytes;
          within = 0;
        }
        add_step_block<F, Shape>(f, from, columns, x, sums);
        if (block + 1 < part_end) continue;
        add_step_part<Shape>(sums, part == item.part, slot);
        part_end = share.end(++part);
      }
      if (whole)
#pragma unroll
        for (int n = 0; n < Shape::tiles; ++n) {
          const float4 total = slot[n * kWarp];
          const float own[4] = {total.x, total.y, total.z, total.w};
          store_step_sums(job, w, row, first_tile + n, own, lane);
        }
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
__global__ void __launch_bounds__(Shape::threads, 1) multiply_step(StepJob job) {
  release_at_once();
  if (!job.constant) await_grid();
  const int begin = static_cast<int>(blockIdx.x) * job.share, end = begin + job.share;
  bool waits = job.constant;
  for (int i = 0; i < job.count; ++i) {
    const StepWeight& w = job.weights[i];
    const int first = max(begin - w.before + w.cost - 1, 0) / w.cost;
    const int units = min(max(end - w.before + w.cost - 1, 0) / w.cost, w.units) - first;
    if (units <= 0) continue;
    const bool done[] = {
        (w.dtype == dtypes &&
         (multiply_step_share<dtypes, Shape>(job, w, first, units, waits), true))...};
    static_cast<void>(done);
    waits = false;
  }
  if (waits) await_grid();
}

// Launches for a job whose weights have these types.
template <class Shape, uint32_t... dtypes>
inline void launch_step(const rr_exec* exec, StepJob& job) {
  int shared = 0, all = 0, units = 0;
  for (int i = 0; i < job.count; ++i) {
    StepWeight& w = job.weights[i];
    w.units = static_cast<int>(blocks_for(w.rows, kStepUnit));
    w.before = all;
    const bool done[] = {
        (w.dtype == dtypes && (w.cost = Fragment<dtypes>::kBytes / 2,
                               shared = max(shared, StepStage<dtypes, Shape>::shared), true))...};
    static_cast<void>(done);
    all += w.units * w.cost;
    units += w.units;
  }
  const int blocks = min(cuda(exec).multiprocessors, units);
  job.share = (all + blocks - 1) / blocks;
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(blocks_for(job.n, kStepRows * Shape::tiles)));
  allow_shared(multiply_step<Shape, dtypes...>, Shape::memory);
  RR_LAUNCH(exec, (multiply_step<Shape, dtypes...>), grid, Shape::threads,
            static_cast<size_t>(shared), job);
}

// Types that models mix. q6_k is not among the types: to decode its 210 bytes takes so many
// instructions that products of its own (mul_mat_quant.cuh) are faster with one row of x, and as
// fast with 8 and with 32.
#define RR_STEP_MIXED RR_Q4_K, RR_Q5_K, RR_Q8_0
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
