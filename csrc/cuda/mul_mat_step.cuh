// y = x w^T for few rows of x and weights of block types on tensor cores, row-exact.
//
// A block takes a share of the rows of w, in units of 16 (or 32). A unit's K is cut into parts by
// the shape of w alone. Each warp multiplies one part of one unit at a time, 256 values after 256,
// with up to 32 rows of x; the parts' sums are added in order, so a row's result depends on neither
// the other rows, nor how many they are, nor the grid. The bytes of w come to each warp's own part
// of shared memory in the background, some blocks of 256 ahead, also beyond the end of an item.
// Items go by groups of units, in a group part by part, so that warps read the same part of x.
#pragma once

#include "fragments_32.cuh"
#include "step_products.hpp"
#include "step_prologue.cuh"
#include "step_x.cuh"

namespace {

using riverrun::StepJob;
using riverrun::StepWeight;

constexpr int kStepWarps = 8, kStepThreads = kStepWarps * kWarp;

// How a kernel for up to 8 * tiles rows of x is built.
template <int tiles_>
struct StepShape {
  static constexpr int tiles = tiles_;
  static constexpr int sixteens = tiles > 2 ? 2 : 1;  // of rows in a unit
  static constexpr int rows = 16 * sixteens;
  static constexpr int group = tiles > 2 ? 16 : 8;  // most units of a group
  static constexpr int resident = tiles > 1 ? 1 : 2;
  // Of shared memory, in bytes: all, so that `resident` blocks fit an SM, and of it the units' sums.
  static constexpr int memory = (tiles > 1 ? 227 : 113) * 1024;
  static constexpr int sums = group * sixteens * tiles * kWarp * 16;
};

// How the bytes of a type come to shared memory: some blocks of 256 values at a time, rows an odd
// number of 16 bytes apart.
template <uint32_t dtype, class Shape>
struct StepStage {
  using F = Fragment<dtype>;
  static constexpr int blocks = Shape::sixteens == 1 && F::kBytes == 144 ? 2 : 1;
  static constexpr int pieces = (16 - F::kGrain + blocks * F::kBytes + 15) / 16;
  static constexpr int pitch = 16 * (pieces | 1);
  static constexpr int bytes = Shape::rows * pitch;
  // 16 bytes more are read beyond the last row.
  static constexpr int room = (Shape::memory - Shape::sums - 16) / (kStepWarps * bytes);
  static constexpr int count = room < 8 ? room : 8;
  static constexpr int shared = Shape::sums + kStepWarps * count * bytes + 16;
  static_assert(count >= 2, "one stage is filled while another is read");

  // A warp copies whole pieces of several rows at a time, `lanes` to a row, then the rest of all
  // rows in one go, if it is that small.
  __host__ __device__ static constexpr int rest(int lanes) {
    return pieces % lanes * Shape::rows <= kWarp ? pieces % lanes : 0;
  }
  __host__ __device__ static constexpr int full(int lanes) {
    return (pieces - rest(lanes) + lanes - 1) / lanes * lanes;
  }
  __host__ __device__ static constexpr int copies(int lanes) {
    return full(lanes) * Shape::rows / kWarp + (rest(lanes) > 0);
  }
  static constexpr int lanes = copies(8) < copies(16) ? 8 : 16;
};

// The items of a block's share of a weight: units [first, first + units) in nearly equal groups,
// blocks of 256 values in nearly equal parts.
struct StepItems {
  int first, units, parts;
  int groups, base, larger;  // units of a group; the first `larger` have one more
  int blocks, longer;        // of a part; the first `longer` have one more
  unsigned inverse[2];       // 2^16 / base, 2^16 / (base + 1), upwards

  __device__ StepItems(int first_unit, int n_units, int n_parts, int all_blocks, int most)
      : first(first_unit), units(n_units), parts(n_parts) {
    groups = (units + most - 1) / most;
    base = units / groups;
    larger = units - groups * base;
    blocks = all_blocks / parts;
    longer = all_blocks - blocks * parts;
    inverse[0] = (65535u + base) / static_cast<unsigned>(base);
    inverse[1] = (65536u + base) / static_cast<unsigned>(base + 1);
  }
  __device__ int count() const { return units * parts; }
};

// One item after the other of a warp.
struct StepItem {
  const StepItems& items;
  int group = 0, start = 0, within;  // the group, its first unit, the number in the group
  int number;

  __device__ StepItem(const StepItems& all, int n) : items(all), within(n), number(n) { settle(); }
  __device__ bool exists() const { return number < items.count(); }
  __device__ int size() const { return items.base + (group < items.larger); }
  __device__ void settle() {
    while (group < items.groups && within >= size() * items.parts) {
      within -= size() * items.parts;
      start += size();
      ++group;
    }
  }
  __device__ void next() {
    number += kStepWarps;
    within += kStepWarps;
    settle();
  }
  __device__ int part() const {
    const unsigned inverse = group < items.larger ? items.inverse[1] : items.inverse[0];
    return static_cast<int>(static_cast<unsigned>(within) * inverse >> 16);
  }
  // The unit, in the group.
  __device__ int place() const { return within - part() * size(); }
  __device__ int unit() const { return items.first + start + place(); }
  // Blocks of the part.
  __device__ int begin() const { return part() * items.blocks + min(part(), items.longer); }
  __device__ int count() const { return items.blocks + (part() < items.longer); }
};

// What a warp fetches next.
template <uint32_t dtype, class Shape>
struct StepFetch {
  using F = Fragment<dtype>;
  using Stage = StepStage<dtype, Shape>;
  const StepWeight& w;
  StepItem item;
  int row = 0, left = 0;  // the unit's first row; blocks that the item has left
  const unsigned char* from = nullptr;

  __device__ StepFetch(const StepWeight& weight, const StepItems& items)
      : w(weight), item(items, static_cast<int>(threadIdx.x / kWarp)) {
    if (item.exists()) begin();
  }

  __device__ void begin() {
    row = item.unit() * Shape::rows;
    from = w.data + int64_t{item.begin()} * F::kBytes;
    left = item.count();
  }

  // A piece of 16 bytes of a row, if the row has as much. Rows beyond the last are as the last.
  __device__ void copy(unsigned char* stage, int of_unit, int piece, int bytes) const {
    const unsigned char* source = from + min(row + of_unit, w.rows - 1) * w.row_bytes;
    if constexpr (F::kGrain < 16) {
      const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(source) & 15);
      source -= shift;
      bytes += shift;
    }
    if (16 * piece >= bytes) return;
    source += 16 * piece;
    unsigned char* target = stage + of_unit * Stage::pitch + 16 * piece;
    if (F::kGrain == 16 || source + 16 <= w.end)
      async_copy16(target, source);
    else
      for (int i = 0; source + i < w.end; ++i) target[i] = source[i];
  }

  __device__ void next(unsigned char* stage) {
    constexpr int kLanes = Stage::lanes, kRest = Stage::rest(kLanes), kFull = Stage::full(kLanes);
    const int lane = threadIdx.x % kWarp;
    if (item.exists()) {
      const int blocks = min(left, Stage::blocks), bytes = blocks * F::kBytes;
#pragma unroll
      for (int piece = 0; piece < kFull; piece += kLanes)
#pragma unroll
        for (int r = 0; r < Shape::rows; r += kWarp / kLanes)
          copy(stage, r + lane / kLanes, piece + lane % kLanes, bytes);
      if constexpr (kRest > 0)
        if (lane < Shape::rows * kRest) copy(stage, lane / kRest, kFull + lane % kRest, bytes);
      from += bytes;
      left -= blocks;
      if (left == 0) {
        item.next();
        if (item.exists()) begin();
      }
    }
    async_copy_commit();
  }
};

template <class Shape>
struct StepSums {
  float at[Shape::sixteens][Shape::tiles][4] = {};
};

// Where a lane's parts of the records of block 0 begin, in bytes of x, for tiles of eight rows.
// Columns beyond the last are as the last of the tile, those of tiles beyond, as in the first.
template <class Shape>
struct StepColumns {
  const unsigned char* x;
  unsigned tile[Shape::tiles], values[Shape::tiles];

  __device__ StepColumns(const StepJob& job, int first) : x(job.x + blockIdx.x * job.prologue.own_bytes) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      const int group = (first + n) * kStepRows < job.n ? first + n : 0;
      const int g = min(lane / 4, job.n - 1 - group * kStepRows);
      tile[n] = static_cast<unsigned>(group) * static_cast<unsigned>(job.blocks * kStepRecord);
      values[n] = static_cast<unsigned>(g * 64 + lane % 4 * 16);
    }
  }
  __device__ uint4 pair(int n, unsigned record, int i) const {
    return *reinterpret_cast<const uint4*>(x + (tile[n] + values[n] + record + i * 512));
  }
  __device__ uint2 sums(int n, unsigned record) const {
    return *reinterpret_cast<const uint2*>(x + (tile[n] + values[n] / 2 + record + kStepSums));
  }
  __device__ float2 scales(int n, unsigned record) const {
    return *reinterpret_cast<const float2*>(
        x + (tile[n] + threadIdx.x % 4 * 8 + record + kStepScales));
  }
};

// x on its way: of eight pairs of steps the next `ahead`, whatever block they are in.
template <class Shape>
struct StepAhead {
  static constexpr int ahead = 8 / Shape::tiles;
  uint4 x[ahead][Shape::tiles];

  __device__ void load(const StepColumns<Shape>& columns, unsigned record, int pair) {
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) x[pair % ahead][n] = columns.pair(n, record, pair);
  }
};

// Adds the products of a block of 256 values, of which f holds this lane's part; record: where x's
// is, following: where the next block's will be. Steps of even and of odd number are summed apart.
template <class F, class Shape>
__device__ inline void add_step_block(const F (&f)[Shape::sixteens],
                                      const StepColumns<Shape>& columns, unsigned record,
                                      unsigned following, StepAhead<Shape>& x,
                                      StepSums<Shape>& sums) {
  float c[Shape::sixteens][Shape::tiles][2][4] = {};
  float2 scale[Shape::tiles];
  uint2 of_x[Shape::tiles];
#pragma unroll
  for (int n = 0; n < Shape::tiles; ++n) {
    scale[n] = columns.scales(n, record);
    if constexpr (F::kMinima) of_x[n] = columns.sums(n, record);
  }
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    constexpr int kAhead = StepAhead<Shape>::ahead;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int m = 0; m < Shape::sixteens; ++m) {
        unsigned a[4];
        f[m].step(2 * pair + h, a);
#pragma unroll
        for (int n = 0; n < Shape::tiles; ++n) {
          const uint4& both = x.x[pair % kAhead][n];
          const unsigned b[2] = {h ? both.z : both.x, h ? both.w : both.y};
          mma_f16(c[m][n][h], a, b);
        }
      }
    x.load(columns, pair + kAhead < 8 ? record : following, (pair + kAhead) % 8);
  }
#pragma unroll
  for (int n = 0; n < Shape::tiles; ++n)
#pragma unroll
    for (int m = 0; m < Shape::sixteens; ++m) {
      float low[4] = {};
      if constexpr (F::kMinima) {
        const unsigned a[4] = {f[m].minima[0], f[m].minima[1], f[m].minima[0], f[m].minima[1]};
        const unsigned b[2] = {of_x[n].x, of_x[n].y};
        mma_f16(low, a, b);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float value = f[m].d[i / 2] * (c[m][n][0][i] + c[m][n][1][i]);
        if constexpr (F::kMinima) value = fmaf(-f[m].dmin[i / 2], low[i], value);
        sums.at[m][n][i] = fmaf(value, i % 2 ? scale[n].y : scale[n].x, sums.at[m][n][i]);
      }
    }
}

// Adds an item's sums to those of its unit, which the last part takes to y.
template <class Shape>
__device__ inline void add_step_item(const StepJob& job, const StepWeight& w, const StepItem& item,
                                     int first_column, float4* totals, StepSums<Shape>& sums) {
  const int lane = threadIdx.x % kWarp, part = item.part();
  float4* total = totals + item.place() * Shape::sixteens * Shape::tiles * kWarp + lane;
#pragma unroll
  for (int m = 0; m < Shape::sixteens; ++m)
#pragma unroll
    for (int n = 0; n < Shape::tiles; ++n) {
      float(&own)[4] = sums.at[m][n];
      float4* at = total + (m * Shape::tiles + n) * kWarp;
      if (part > 0) {
        const float4 before = *at;
        own[0] = before.x + own[0], own[1] = before.y + own[1];
        own[2] = before.z + own[2], own[3] = before.w + own[3];
      }
      if (part < w.parts - 1) {
        *at = make_float4(own[0], own[1], own[2], own[3]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = item.unit() * Shape::rows + 16 * m + lane / 4 + i / 2 * 8;
        const int column = first_column + 8 * n + lane % 4 * 2 + i % 2;
        if (row < w.rows && column < job.n) w.y[column * w.y_row + row] = own[i];
      }
    }
}

// Waits for x, or makes it.
__device__ inline void begin_step(const StepJob& job) {
  await_grid();
  if (job.prologue.makes == riverrun::StepMakes::kNothing) return;
  auto* x = const_cast<unsigned char*>(job.x) + blockIdx.x * job.prologue.own_bytes;
  make_own_x<kStepWarps>(job.prologue, job.blocks, x, dynamic_shared());
  __syncthreads();
}

// Units [first, first + units) of a weight.
template <uint32_t dtype, class Shape>
__device__ inline void multiply_step_share(const StepJob& job, const StepWeight& w, int first,
                                           int units, bool waits) {
  using F = Fragment<dtype>;
  using Stage = StepStage<dtype, Shape>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  auto* totals = reinterpret_cast<float4*>(dynamic_shared());
  unsigned char* stages = dynamic_shared() + Shape::sums + warp * Stage::count * Stage::bytes;
  unsigned char *stage = stages, *last_stage = stages + (Stage::count - 1) * Stage::bytes;

  const StepItems items(first, units, w.parts, job.blocks, Shape::group);
  StepFetch<dtype, Shape> fetch(w, items);
#pragma unroll 1
  for (int s = 0; s < Stage::count; ++s) fetch.next(stages + s * Stage::bytes);
  if (waits) begin_step(job);

  const int first_tile = static_cast<int>(blockIdx.y) * Shape::tiles;
  const StepColumns<Shape> columns(job, first_tile);
  StepItem item(items, warp);
  StepAhead<Shape> x;
  if (item.exists())
#pragma unroll
    for (int pair = 0; pair < StepAhead<Shape>::ahead; ++pair)
      x.load(columns, static_cast<unsigned>(item.begin() * kStepRecord), pair);

  const int rounds = (items.count() + kStepWarps - 1) / kStepWarps;
  const int turns = (kStepWarps + items.base - 1) / items.base, turn = warp / items.base;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    StepItem next = item;
    next.next();
    StepSums<Shape> sums;
    if (item.exists()) {
      const int begin = item.begin(), end = begin + item.count();
      const int after = next.exists() ? next.begin() : begin;
      const int row = item.unit() * Shape::rows;
#pragma unroll 1
      for (int b = begin; b < end; ++b) {
        const int within = (b - begin) % Stage::blocks;
        if (within == 0) {
          async_copy_wait<Stage::count - 1>();
          __syncwarp();
        }
        F f[Shape::sixteens];
#pragma unroll
        for (int m = 0; m < Shape::sixteens; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int of_unit = 16 * m + 8 * r + lane / 4;
            const unsigned char* block = stage + of_unit * Stage::pitch + within * F::kBytes;
            if constexpr (F::kGrain < 16)
              block += reinterpret_cast<uintptr_t>(
                           w.data + min(row + of_unit, w.rows - 1) * w.row_bytes +
                           int64_t{b} * F::kBytes) &
                       15;
            f[m].load(r, block, lane % 4);
          }
        if (within == Stage::blocks - 1 || b == end - 1) {
          __syncwarp();
          fetch.next(stage);
          stage = stage == last_stage ? stages : stage + Stage::bytes;
        }
        const int following = b + 1 < end ? b + 1 : after;
        add_step_block<F, Shape>(f, columns, static_cast<unsigned>(b * kStepRecord),
                                 static_cast<unsigned>(following * kStepRecord), x, sums);
      }
    }
    for (int i = 0; i < turns; ++i) {
      if (i == turn && item.exists())
        add_step_item<Shape>(job, w, item, first_tile * kStepRows, totals, sums);
      __syncthreads();
    }
    item.number = next.number, item.within = next.within;
    item.group = next.group, item.start = next.start;
  }
}

// Lets the next kernel start while this one runs: it finds room beside it.
__device__ inline void release_at_once() {
#if !defined(RR_EMULATE) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Grid: shares of about the same cost, groups of rows of x.
template <class Shape, uint32_t... dtypes>
__global__ void __launch_bounds__(kStepThreads, Shape::resident) multiply_step(StepJob job) {
  release_at_once();
  begin_own_x<kStepWarps>(job.prologue, job.blocks);
  if (!job.constant) begin_step(job);
  const int begin = static_cast<int>(blockIdx.x) * job.share, end = begin + job.share;
  bool waits = job.constant;
  for (int i = 0; i < job.count; ++i) {
    const StepWeight& w = job.weights[i];
    const int first = max(begin - w.before + w.cost - 1, 0) / w.cost;
    const int units = min(max(end - w.before + w.cost - 1, 0) / w.cost, w.units) - first;
    if (units <= 0) continue;
    const bool done[] = {(w.dtype == dtypes &&
                          (multiply_step_share<dtypes, Shape>(job, w, first, units, waits),
                           true))...};
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
    w.units = static_cast<int>(blocks_for(w.rows, Shape::rows));
    w.before = all;
    const bool done[] = {(w.dtype == dtypes &&
                          (w.cost = Fragment<dtypes>::kBytes / 2,
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
  RR_LAUNCH(exec, (multiply_step<Shape, dtypes...>), grid, kStepThreads,
            static_cast<size_t>(shared), job);
}

#define RR_STEP_TYPES                                                                      \
  RR_Q4_K, RR_Q5_K, RR_Q6_K, RR_Q8_0, RR_Q4_0, RR_Q4_1, RR_Q5_0, RR_Q5_1, RR_IQ4_NL, RR_IQ4_XS, \
      RR_MXFP4

}  // namespace
