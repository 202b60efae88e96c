// attention of few query vectors: a grid that fits a card at once goes through the splits of all
// tiles of vectors at all key heads; what it finds of each is merged by a second kernel.
//
// Splits lie at fixed positions, and get longer with them. A block's copies run ahead from one
// split into the next.
#pragma once

#include "attention_step_fetch.cuh"

namespace {

constexpr int kMostSequences = 512;

// Splits of 128 keys up to position 8192, of 256 up to 32768, of 512 beyond.
struct Splits {
  static constexpr int short_end = 8192, middle_end = 32768;
  static constexpr int shorts = short_end / 128, middles = (middle_end - short_end) / 256;

  static __host__ __device__ int of(int at) {
    if (at < short_end) return at / 128;
    if (at < middle_end) return shorts + (at - short_end) / 256;
    return shorts + middles + (at - middle_end) / 512;
  }
  static __host__ __device__ int first(int split) {
    if (split < shorts) return split * 128;
    if (split < shorts + middles) return short_end + (split - shorts) * 256;
    return middle_end + (split - shorts - middles) * 512;
  }
};

// What one launch works on: tiles first_tile .. first_tile + tiles - 1, and where results go: sums
// [tile, key head, split, vector, Dv], then highest score and total [tile, key head, split, vector,
// 2].
struct StepJob {
  Task task;
  float *sums, *marks;
  int first_tile, tiles, tile_rows;  // vectors of a tile that have a place

  __device__ int64_t index(int tile, int kv_head, int split) const {
    return ((static_cast<int64_t>(tile) * task.kv_heads + kv_head) * task.splits + split) *
           tile_rows;
  }
};

// Of each sequence: tiles and units of work of it and those before it. A unit is a split of a tile
// at a key head, in the order split, tile, key head.
struct Sequences {
  int tiles[kMostSequences + 1], units[kMostSequences + 1];
  int first_split[kMostSequences];
};

// The sequence's part of the launch's tiles.
struct Share {
  int first, count;  // tiles of the sequence

  __device__ Share(const StepJob& job, const Sequences& s, int b) {
    first = max(0, job.first_tile - s.tiles[b]);
    count = max(0, min(s.tiles[b + 1], job.first_tile + job.tiles) - s.tiles[b] - first);
  }
};

// Running sums of numbers[1 ..= n], by a warp.
__device__ inline void add_up(int* numbers, int n) {
  const int lane = threadIdx.x % kWarp;
  int before = 0;
#pragma unroll 1
  for (int i = 1; i <= n; i += kWarp) {
    int own = i + lane <= n ? numbers[i + lane] : 0;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, own, step);
      if (lane >= step) own += other;
    }
    own += before;
    if (i + lane <= n) numbers[i + lane] = own;
    before = __shfl_sync(kAllLanes, own, kWarp - 1);
  }
  __syncwarp();
}

// By a warp; nothing is to be done if the offsets are bad.
template <int R>
__device__ void list_sequences(const StepJob& job, Sequences& s) {
  const Task& task = job.task;
  const int lane = threadIdx.x % kWarp;
  bool bad = task.offsets[0] != 0;
  if (bad) report_far(task.first, task.offsets[0], 0);
#pragma unroll 1
  for (int b = lane; b < task.batch; b += kWarp) {
    const int from = task.offsets[b], to = task.offsets[b + 1];
    const bool good = from <= to && to <= task.tokens;
    if (!good) report_far(task.ascending, from, to);
    bad = bad || !good;
    s.tiles[b + 1] = ((to - from) * task.group + R - 1) / R;
  }
  if (lane == 0) s.tiles[0] = s.units[0] = 0;
  __syncwarp();
  if (__any_sync(kAllLanes, bad)) {
#pragma unroll 1
    for (int b = lane; b < task.batch; b += kWarp) s.units[b + 1] = 0;
    __syncwarp();
    return;
  }
  add_up(s.tiles, task.batch);
  // A warp a sequence where there are few, else a lane.
  const int lanes = task.batch <= 8 ? kWarp : 1;
#pragma unroll 1
  for (int i = 0; i < task.batch; i += kWarp / lanes) {
    const int b = i + lane / lanes;
    if (b >= task.batch) break;
    const Span any = seen_together(task, b, task.offsets[b], task.offsets[b + 1], lanes).any;
    if (lane % lanes != 0) continue;
    const int first = Splits::of(any.first);
    s.first_split[b] = first;
    const int splits = any.first < any.last ? Splits::of(any.last - 1) + 1 - first : 0;
    s.units[b + 1] = splits * Share(job, s, b).count * task.kv_heads;
  }
  __syncwarp();
  add_up(s.units, task.batch);
}

// A block of keys of one unit, as the warps that compute find it in shared memory.
struct Work {
  int rows[kBlockKeys];  // of the pool; -1: a key that nobody sees
  TileAt at;
  int base, tile, split;   // the first key's position
  bool over, fresh, last;  // no more work; the first and the last block of its unit
  bool other, mixed;       // another tile or head than before; some vector does not see some key
};

// Goes through the units of a block of the grid, for its last warp.
template <int R>
struct Cursor {
  TileAt at;
  int unit, block, end, tile, split, last_head, last_tile;
  Seen seen;
  Page pages;

  __device__ Cursor()
      : at{-1, 0, 0, -1},
        unit(static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x)),
        block(0),
        end(0),
        tile(-1),
        split(0),
        last_head(-1),
        last_tile(-1),
        seen{},
        pages{-1, -1, 0} {}

  // The next block of keys that somebody sees.
  __device__ void put(const StepJob& job, const Sequences& s, Work& work) {
    const Task& task = job.task;
    const int lane = threadIdx.x % kWarp, units = s.units[task.batch];
    const bool fresh = ++block >= end;
    if (fresh) {
#pragma unroll 1
      do {
        unit += gridDim.x;
        if (unit >= units) break;
        enter(job, s);
      } while (block >= end);
    }
    const bool over = unit >= units;
    const int base = block * kBlockKeys;
    if (!over) work.rows[lane] = pages.row_of(task, at, seen.any, base + lane);
    if (lane == 0) {
      work.base = base;
      work.at = at, work.tile = tile, work.split = split;
      work.over = over, work.fresh = fresh, work.last = block + 1 >= end;
      work.other = at.kv_head != last_head || tile != last_tile;
      work.mixed = seen.all.first > base || seen.all.last < base + kBlockKeys;
    }
    last_head = at.kv_head, last_tile = tile;
  }

  // The unit's tile, and which blocks of keys of its split are seen.
  __device__ void enter(const StepJob& job, const Sequences& s) {
    const Task& task = job.task;
    int b = 0;
#pragma unroll 1
    for (int after = task.batch; after - b > 1;) {
      const int middle = (b + after) / 2;
      (s.units[middle] <= unit ? b : after) = middle;
    }
    const Share share(job, s, b);
    int rest = unit - s.units[b];
    at.kv_head = rest % task.kv_heads;
    rest /= task.kv_heads;
    const int own = share.first + rest % share.count;
    split = s.first_split[b] + rest / share.count;
    tile = s.tiles[b] + own - job.first_tile;
    if (b != at.b || own * R != at.first) {
      const int from = task.offsets[b], vectors = (task.offsets[b + 1] - from) * task.group;
      at.b = b, at.first = own * R, at.count = min(R, vectors - own * R);
      seen = seen_together(task, b, from + at.first / task.group,
                           from + (at.first + at.count - 1) / task.group + 1, kWarp);
    }
    const int begin = max(seen.any.first, Splits::first(split));
    const int last = min(seen.any.last, Splits::first(split + 1));
    block = begin / kBlockKeys;
    end = begin < last ? (last + kBlockKeys - 1) / kBlockKeys : block;
  }
};

// Lets the kernel that merges begin as soon as all blocks have begun: it is small.
__device__ inline void release_merge() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A barrier of the warps that compute, and what the leading warp does there: nothing on a card,
// where the barrier is one of kStepThreads threads.
#ifdef RR_EMULATE
inline void sync_computing() {
  __syncthreads();
}
inline void pass_computing() {
  __syncthreads();
}
#else
__device__ inline void sync_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(kStepThreads) : "memory");
}
__device__ inline void pass_computing() {}
#endif

template <int W, uint32_t dtype, int T>
struct Step {
  using L = StepLayout<W, dtype, T>;
  using C = Cache<dtype>;
  static constexpr int ring = L::stages + 2;
  const StepJob& job;
  const Work* works;
  unsigned char* shared;
  Row* rows;
  float* keep;
  Products<W, dtype, T> products;
  Weighted<W, dtype, T> weighted;
  Softening<T> softening;

  __device__ Step(const StepJob& j, const Work* w, unsigned char* dynamic, Row* r, float* k)
      : job(j), works(w), shared(dynamic), rows(r), keep(k) {}

  __device__ float* parts() const { return reinterpret_cast<float*>(shared + L::parts); }
  __device__ unsigned char* slot(int from, int turn) const {
    return shared + from + turn % L::stages * L::stage;
  }

  __device__ void fetch(int turn, const Pool& pool, int from) const {
    const Work& at = works[turn % ring];
    if (!at.over) Fetch<W, dtype, T>::run(job.task, pool, at.at.kv_head, at.rows, slot(from, turn));
  }

  __device__ void begin(const Work& at) {
    if (at.other) load_queries<W, 16 * T, typename C::Key>(job.task, at.at, shared, rows);
#pragma unroll
    for (int t = 0; t < T; ++t) softening.top[t] = -INFINITY, softening.total[t] = 0.0f;
    weighted.clear();
  }

  __device__ void finish(const Work& at) {
    const int64_t to = job.index(at.tile, at.at.kv_head, at.split);
    const int size = job.task.v.size;
    weighted.write(job.sums + to * size, size, at.at.count, size);
#pragma unroll
    for (int t = 0; t < T; ++t) {
      float total = softening.total[t];
      for (int step = kRowThreads / 2; step > 0; step /= 2)
        total += __shfl_xor_sync(kAllLanes, total, step);
      const int row = 16 * t + threadIdx.x / kRowThreads;
      if (threadIdx.x % kRowThreads == 0 && row < at.at.count)
        *reinterpret_cast<float2*>(job.marks + 2 * (to + row)) =
            make_float2(softening.top[t], total);
    }
  }

  __device__ void multiply(const Work& at, const unsigned char* keys) {
    if (at.fresh && at.other) products.hold(shared);
    products.multiply(shared, keys, reinterpret_cast<const float*>(shared + L::key_scales),
                      parts());
  }

  __device__ void soften(const Work& at) {
    soften_block<W, dtype, T>(job.task.scores, at.base, rows, parts(), shared + L::weights, keep,
                              softening);
  }

  __device__ void weigh(const Work& at, const unsigned char* values) {
    weighted.add(parts(), shared + L::weights, values,
                 reinterpret_cast<const float*>(shared + L::value_scales), keep, at.mixed);
    if (at.last) finish(at);
  }

  // Copies of keys and of values are groups of their own: values of a block are waited for after
  // its keys have been multiplied, and the places of both are filled anew at once.
  __device__ void run_plain() {
#pragma unroll 1
    for (int i = 0; i < L::stages; ++i) {
      fetch(i, job.task.k, L::keys);
      async_copy_commit();
      if (i == L::stages - 1) break;
      fetch(i, job.task.v, L::values);
      async_copy_commit();
    }
#pragma unroll 1
    for (int i = 0; !works[i % ring].over; ++i) {
      const Work& at = works[i % ring];
      if (at.fresh) begin(at);
      async_copy_wait<2 * L::stages - 2>();
      __syncthreads();
      fetch(i + L::stages - 1, job.task.v, L::values);
      async_copy_commit();
      multiply(at, slot(L::keys, i));
      sync_computing();
      fetch(i + L::stages, job.task.k, L::keys);
      async_copy_commit();
      soften(at);
      async_copy_wait<2 * L::stages - 1>();
      sync_computing();
      weigh(at, slot(L::values, i));
    }
  }

  // Codes are decoded from where they were fetched, which can then be filled anew.
  __device__ void run_codes() {
#pragma unroll 1
    for (int i = 0; i < L::stages; ++i) {
      fetch(i, job.task.k, L::keys);
      fetch(i, job.task.v, L::values);
      async_copy_commit();
    }
#pragma unroll 1
    for (int i = 0; !works[i % ring].over; ++i) {
      const Work& at = works[i % ring];
      if (at.fresh) begin(at);
      async_copy_wait<L::stages - 1>();
      __syncthreads();
      decode_block<W, dtype, T, typename C::Key>(job.task.k, at.at.kv_head, at.base,
                                                 slot(L::keys, i), shared + L::key_tile,
                                                 reinterpret_cast<float*>(shared + L::key_scales));
      decode_block<W, dtype, T, typename C::Value>(
          job.task.v, at.at.kv_head, at.base, slot(L::values, i), shared + L::value_tile,
          reinterpret_cast<float*>(shared + L::value_scales));
      sync_computing();
      fetch(i + L::stages, job.task.k, L::keys);
      fetch(i + L::stages, job.task.v, L::values);
      async_copy_commit();
      multiply(at, shared + L::key_tile);
      sync_computing();
      soften(at);
      sync_computing();
      weigh(at, shared + L::value_tile);
    }
  }
};

// The last warp finds out what the others compute with, ahead of them.
template <int W, uint32_t dtype, int T>
__device__ void lead(const StepJob& job, Sequences& sequences, Work* works) {
  using L = StepLayout<W, dtype, T>;
  constexpr int ring = L::stages + 2;
  list_sequences<16 * T>(job, sequences);
  Cursor<16 * T> cursor;
  int next = 0;
#pragma unroll 1
  for (; next <= L::stages; ++next) cursor.put(job, sequences, works[next]);
  __syncthreads();
#pragma unroll 1
  for (int i = 0; !works[i % ring].over; ++i, ++next) {
    __syncthreads();
    cursor.put(job, sequences, works[next % ring]);
    for (int x = 0; x < (Cache<dtype>::codes ? 3 : 2); ++x) pass_computing();
  }
}

template <int W, uint32_t dtype, int T>
__global__ void __launch_bounds__(kStepThreads + kWarp, T == 1 ? 2 : 1)
    step_kernel(const __grid_constant__ StepJob job) {
  release_merge();
  await_grid();
  __shared__ Sequences sequences;
  __shared__ Work works[Step<W, dtype, T>::ring];
  __shared__ Row rows[16 * T];
  __shared__ float keep[16 * T];
  if (threadIdx.x >= kStepThreads) return lead<W, dtype, T>(job, sequences, works);
  __syncthreads();
  Step<W, dtype, T> step(job, works, dynamic_shared(), rows, keep);
  if constexpr (Cache<dtype>::codes)
    step.run_codes();
  else
    step.run_plain();
}

}  // namespace
