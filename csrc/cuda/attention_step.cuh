// attention of few query vectors: a grid that fits a card at once goes through the splits of all
// tiles of vectors at all key heads; what it finds of each is merged by a second kernel.
//
// Splits lie at fixed positions, and get longer with them. A block's copies run ahead from one
// split into the next. Where no kernel writes the numbers that say where keys lie, what a block is
// to do is found while the kernels before this one end.
#pragma once

#include "ahead.cuh"
#include "attention_step_fetch.cuh"

namespace {

constexpr int kMostSequences = 512;

// Splits of 64 keys up to position 1024, of 128 up to 8192, of 256 up to 32768, of 512 beyond.
struct Splits {
  static __host__ __device__ int of(int at) {
    if (at < 1024) return at / 64;
    if (at < 8192) return 16 + (at - 1024) / 128;
    if (at < 32768) return 72 + (at - 8192) / 256;
    return 168 + (at - 32768) / 512;
  }
  static __host__ __device__ int first(int split) {
    if (split < 16) return split * 64;
    if (split < 72) return 1024 + (split - 16) * 128;
    if (split < 168) return 8192 + (split - 72) * 256;
    return 32768 + (split - 168) * 512;
  }
};

// What one launch works on: tiles first_tile .. first_tile + tiles - 1, and where results go: sums
// [tile, key head, split, vector, Dv], then highest score and total [tile, key head, split, vector,
// 2]. early: no kernel writes offsets, positions and block table.
struct StepJob {
  Task task;
  float *sums, *marks;
  int first_tile, tiles, tile_rows;  // vectors of a tile that have a place
  bool early;

  __device__ int64_t index(int tile, int kv_head, int split) const {
    return ((static_cast<int64_t>(tile) * task.kv_heads + kv_head) * task.splits + split) *
           tile_rows;
  }
};

// Of each sequence: tiles and units of work of it and those before it. A unit is a split of a tile
// at a key head, in the order split, tile, key head.
struct Sequences {
  int tiles[kMostSequences + 1], units[kMostSequences + 1];
  int first_split[kMostSequences], splits[kMostSequences];
  bool bad;
};

// The sequence's part of the launch's tiles.
struct Share {
  int first, count;  // tiles of the sequence

  __device__ Share(const StepJob& job, const Sequences& s, int b) {
    first = max(0, job.first_tile - s.tiles[b]);
    count = max(0, min(s.tiles[b + 1], job.first_tile + job.tiles) - s.tiles[b] - first);
  }
};

// Running sums of numbers[1 ..= n]; all threads take part.
__device__ inline void add_up(int* numbers, int n) {
  static_assert(kMostSequences == 2 * kStepThreads, "two numbers a thread");
#pragma unroll 1
  for (int step = 1; step < n; step *= 2) {
    int own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 1 + threadIdx.x + i * kStepThreads;
      own[i] = at <= n && at > step ? numbers[at - step] : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 1 + threadIdx.x + i * kStepThreads;
      if (at <= n) numbers[at] += own[i];
    }
    __syncthreads();
  }
}

// All threads; nothing is to be done if the offsets are bad.
template <int R>
__device__ void list_sequences(const StepJob& job, Sequences& s) {
  const Task& task = job.task;
  if (threadIdx.x == 0) {
    s.tiles[0] = s.units[0] = 0;
    s.bad = task.offsets[0] != 0;
    if (s.bad) report_far(task.first, task.offsets[0], 0);
  }
  __syncthreads();
#pragma unroll 1
  for (int b = threadIdx.x; b < task.batch; b += kStepThreads) {
    const int from = task.offsets[b], to = task.offsets[b + 1];
    const bool good = from <= to && to <= task.tokens;
    if (!good) {
      report_far(task.ascending, from, to);
      s.bad = true;
    }
    s.tiles[b + 1] = good ? ((to - from) * task.group + R - 1) / R : 0;
    const Span any = good ? seen_together(task, from, to, to).any : Span{0, 0};
    s.first_split[b] = Splits::of(any.first);
    s.splits[b] = any.first < any.last ? Splits::of(any.last - 1) + 1 - s.first_split[b] : 0;
  }
  __syncthreads();
  add_up(s.tiles, task.batch);
#pragma unroll 1
  for (int b = threadIdx.x; b < task.batch; b += kStepThreads)
    s.units[b + 1] = s.bad ? 0 : s.splits[b] * Share(job, s, b).count * task.kv_heads;
  __syncthreads();
  add_up(s.units, task.batch);
}

// A split of a tile at a key head, and the blocks of its keys that are seen: none where `over`.
struct Unit {
  TileAt at;
  Span any, all;  // what some and what all of the tile's vectors see
  int tile, split, block, end;
};

// Unit `number` of the launch.
template <int R>
__device__ void find_unit(const StepJob& job, const Sequences& s, int number, Unit& unit) {
  const Task& task = job.task;
  int b = 0;
#pragma unroll 1
  for (int after = task.batch; after - b > 1;) {
    const int middle = (b + after) / 2;
    (s.units[middle] <= number ? b : after) = middle;
  }
  const Share share(job, s, b);
  int rest = number - s.units[b];
  unit.at.kv_head = rest % task.kv_heads;
  rest /= task.kv_heads;
  const int own = share.first + rest % share.count, split = s.first_split[b] + rest / share.count;
  const int from = task.offsets[b], end = task.offsets[b + 1];
  const int first = own * R, count = min(R, (end - from) * task.group - first);
  unit.at.b = b, unit.at.first = first, unit.at.count = count;
  unit.tile = s.tiles[b] + own - job.first_tile, unit.split = split;
  const Seen seen = seen_together(task, from + first / task.group,
                                  from + (first + count - 1) / task.group + 1, end);
  unit.any = seen.any, unit.all = seen.all;
  const int begin = max(seen.any.first, Splits::first(split));
  const int last = min(seen.any.last, Splits::first(split + 1));
  unit.block = begin / kBlockKeys;
  unit.end = begin < last ? (last + kBlockKeys - 1) / kBlockKeys : unit.block;
}

// A block of keys among a block's units.
struct Turn {
  int unit = 0, block = 0;

  // Over what has no keys.
  __device__ void settle(const Unit* units, int count) {
    while (unit < count && block >= units[unit].end) {
      ++unit;
      if (unit < count) block = units[unit].block;
    }
  }
  __device__ void begin(const Unit* units, int count) {
    if (count > 0) block = units[0].block;
    settle(units, count);
  }
  __device__ void advance(const Unit* units, int count) {
    ++block;
    settle(units, count);
  }
};

template <int W, uint32_t dtype, int T>
struct Step {
  using L = StepLayout<W, dtype, T>;
  using C = Cache<dtype>;
  using Copies = Fetch<W, dtype, T>;
  const StepJob& job;
  const Unit* units;
  int count;
  unsigned char* shared;
  Row* rows;
  float* keep;
  Products<W, dtype, T> products;
  Weighted<W, dtype, T> weighted;
  Softening<T> softening;

  __device__ Step(const StepJob& j, const Unit* u, int n, unsigned char* dynamic, Row* r, float* k)
      : job(j), units(u), count(n), shared(dynamic), rows(r), keep(k) {}

  // Queries of one tile lie where products come: those are over with when a unit begins.
  __device__ float* parts() const { return reinterpret_cast<float*>(shared + L::parts); }
  __device__ unsigned char* slot(int from, int turn) const {
    return shared + from + turn % L::stages * L::stage;
  }

  // The row of the first key of a block, or -1; asked for well before it is needed.
  __device__ int first_row(const Turn& at) const {
    if (at.unit >= count) return -1;
    const Unit& unit = units[at.unit];
    const int base = at.block * kBlockKeys, seen = max(base, unit.any.first);
    const int row = row_of(job.task, unit.at, seen, base + kBlockKeys - seen);
    return row < 0 ? -1 : row - (seen - base);
  }

  // row: of the block's first key.
  __device__ void fetch(const Turn& at, int row, const Pool& pool, unsigned char* to) const {
    if (at.unit >= count) return;
    const Unit& unit = units[at.unit];
    const int base = at.block * kBlockKeys;
    Span keys = {unit.any.first - base, unit.any.last - base};
    if (row < 0) keys.last = 0;
    Copies::run(pool, unit.at.kv_head, row, keys, to);
  }

  __device__ void begin(const Turn& at, bool other) {
    const Unit& unit = units[at.unit];
    if (other)
      load_queries<W, 16 * T, dtype>(job.task, unit.at, {unit.any, unit.all}, shared, rows);
#pragma unroll
    for (int t = 0; t < T; ++t) softening.top[t] = -INFINITY, softening.total[t] = 0.0f;
    weighted.clear();
  }

  __device__ void finish(const Unit& unit) {
    const int64_t to = job.index(unit.tile, unit.at.kv_head, unit.split);
    const int size = job.task.v.size;
    weighted.write(job.sums + to * size, size, unit.at.count, size);
#pragma unroll
    for (int t = 0; t < T; ++t) {
      float total = softening.total[t];
      for (int step = kRowThreads / 2; step > 0; step /= 2)
        total += __shfl_xor_sync(kAllLanes, total, step);
      const int row = 16 * t + threadIdx.x / kRowThreads;
      if (threadIdx.x % kRowThreads == 0 && row < unit.at.count)
        *reinterpret_cast<float2*>(job.marks + 2 * (to + row)) =
            make_float2(softening.top[t], total);
    }
  }

  __device__ Laid laid(const Turn& at, const Pool& pool, const unsigned char* slot) const {
    const auto head =
        reinterpret_cast<uintptr_t>(pool.base) + units[at.unit].at.kv_head * pool.head_bytes;
    return {slot, static_cast<int>(head & 15), static_cast<int>(pool.row_bytes & 15),
            pool.size / 32};
  }

  __device__ void multiply(const Turn& at, const unsigned char* keys, bool other) {
    if (other && T == 1) {
      products.hold(shared);
      __syncthreads();
    }
    products.multiply(shared, laid(at, job.task.k, keys), parts());
  }

  __device__ void soften(const Turn& at) {
    soften_block<W, dtype, T>(job.task.scores, at.block * kBlockKeys, rows, parts(),
                              shared + L::weights, keep, softening);
  }

  __device__ void weigh(const Turn& at, const unsigned char* values) {
    const Unit& unit = units[at.unit];
    const int base = at.block * kBlockKeys;
    const bool mixed = unit.all.first > base || unit.all.last < base + kBlockKeys;
    weighted.add(parts(), shared + L::weights, laid(at, job.task.v, values), keep, mixed);
    if (at.block + 1 >= unit.end) finish(unit);
  }

  // Whether the tile or the head is another than in the unit before.
  __device__ bool changes(int unit) const {
    return unit == 0 || units[unit].tile != units[unit - 1].tile ||
           units[unit].at.kv_head != units[unit - 1].at.kv_head;
  }

  // Copies of keys and of values are groups of their own: values of a block are waited for after
  // its keys have been multiplied, and the places of both are filled anew at once. The row of a
  // block is looked up while the one before is waited for.
  __device__ void run() {
    Turn at, ahead;
    int ring[L::stages];  // rows of the blocks whose keys have been asked for
    at.begin(units, count);
    ahead = at;
    Turn values = at;
    int row = first_row(ahead);
#pragma unroll
    for (int i = 0; i < L::stages; ++i) {
      fetch(ahead, row, job.task.k, slot(L::keys, i));
      async_copy_commit();
      ring[i] = row;
      ahead.advance(units, count);
      row = first_row(ahead);
      if (i == L::stages - 1) break;
      fetch(values, ring[i], job.task.v, slot(L::values, i));
      async_copy_commit();
      values.advance(units, count);
    }
    int unit = -1;
#pragma unroll 1
    for (int i = 0; at.unit < count; ++i) {
      bool other = false;
      if (at.unit != unit) {
        other = changes(at.unit) || unit < 0;
        unit = at.unit;
        // Weights of codes may still be read where queries come.
        if (C::codes && other && T == 1) __syncthreads();
        begin(at, other);
      }
      async_copy_wait<2 * L::stages - 2>();
      __syncthreads();
      fetch(values, ring[L::stages - 1], job.task.v, slot(L::values, i + L::stages - 1));
      async_copy_commit();
      values.advance(units, count);
      multiply(at, slot(L::keys, i), other);
      __syncthreads();
      fetch(ahead, row, job.task.k, slot(L::keys, i));
      async_copy_commit();
      ring[L::stages - 1] = row;
      ahead.advance(units, count);
      row = first_row(ahead);
      soften(at);
      async_copy_wait<2 * L::stages - 1>();
      __syncthreads();
      weigh(at, slot(L::values, i));
      at.advance(units, count);
    }
  }
};

// Units are found for so many of a block's at once, by a thread each.
constexpr int kMostUnits = 64;

template <int R>
__device__ inline int find_units(const StepJob& job, const Sequences& s, int first, Unit* units) {
  const int grid = gridDim.x, all = s.units[job.task.batch];
  const int count = max(0, min(kMostUnits, (all - first + grid - 1) / grid));
  if (static_cast<int>(threadIdx.x) < count)
    find_unit<R>(job, s, first + threadIdx.x * grid, units[threadIdx.x]);
  __syncthreads();
  return count;
}

// The kernel that merges is small: it may begin as soon as all blocks have begun.
template <int W, uint32_t dtype, int T>
__global__ void __launch_bounds__(kStepThreads, StepLayout<W, dtype, T>::blocks)
    step_kernel(const __grid_constant__ StepJob job) {
  release_all();
  if (!job.early) await_grid();
  __shared__ Sequences sequences;
  __shared__ Unit units[kMostUnits];
  __shared__ Row rows[16 * T];
  __shared__ float keep[16 * T];
  list_sequences<16 * T>(job, sequences);
  const int grid = gridDim.x;
  int first = blockIdx.x, count = find_units<16 * T>(job, sequences, first, units);
  if (job.early) await_grid();
#pragma unroll 1
  while (count > 0) {
    Step<W, dtype, T> step(job, units, count, dynamic_shared(), rows, keep);
    step.run();
    async_copy_wait<0>();
    __syncthreads();
    first += kMostUnits * grid;
    if (first >= sequences.units[job.task.batch]) break;
    count = find_units<16 * T>(job, sequences, first, units);
  }
}

}  // namespace
