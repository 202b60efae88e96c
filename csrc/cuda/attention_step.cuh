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

// What a query token sees. Called, for its code is long beside what else a block does.
__noinline__ __device__ Span seen_by(const Task& task, int b, int token) {
  return vector_of(task, b, 0, (token - task.offsets[b]) * task.group).seen;
}

__noinline__ __device__ void report_far(const Check& check, int64_t a, int64_t b) {
  report(check, a, b);
}

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

// The union of two ranges, either of which may be empty, filled up between them.
__device__ inline Span both(Span a, Span b) {
  if (a.first >= a.last) return b;
  if (b.first >= b.last) return a;
  return {min(a.first, b.first), max(a.last, b.last)};
}

struct Seen {
  Span any, all;  // by some, and by all
};

// What tokens from .. to - 1 of the batch, which sequence b has, see; by a warp, or by each lane
// for itself.
__noinline__ __device__ Seen seen_together(const Task& task, int b, int from, int to, int lanes) {
  Span any = {0, 0}, all = {0, INT32_MAX};
#pragma unroll 1
  for (int i = from + static_cast<int>(threadIdx.x) % lanes; i < to; i += lanes) {
    const Span seen = seen_by(task, b, i);
    any = both(any, seen);
    all = {max(all.first, seen.first), min(all.last, seen.last)};
  }
#pragma unroll 1
  for (int step = lanes / 2; step > 0; step /= 2) {
    any = both(any, {__shfl_xor_sync(kAllLanes, any.first, step),
                     __shfl_xor_sync(kAllLanes, any.last, step)});
    all = {max(all.first, __shfl_xor_sync(kAllLanes, all.first, step)),
           min(all.last, __shfl_xor_sync(kAllLanes, all.last, step))};
  }
  return {any, all};
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
  int rows[kBlockKeys];       // of the pool; -1: a key that nobody sees
  int base, b, first, count;  // the first key's position; the sequence, and its vectors in the tile
  int kv_head, tile, split;
  bool over, fresh, last;  // no more work; the first and the last block of its unit
  bool other, mixed;       // another tile or head than before; some vector does not see some key
};

// Goes through the units of a block of the grid, for its last warp.
template <int R>
struct Cursor {
  int unit, block, end, b, first, count;
  int kv_head, tile, split, last_head, last_tile;
  Seen seen;

  __device__ Cursor()
      : unit(static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x)),
        block(0),
        end(0),
        b(-1),
        first(0),
        count(0),
        kv_head(-1),
        tile(-1),
        split(0),
        last_head(-1),
        last_tile(-1),
        seen{} {}

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
    if (!over) work.rows[lane] = row_of(task, base + lane);
    if (lane == 0) {
      work.base = base;
      work.b = b, work.first = first, work.count = count;
      work.kv_head = kv_head, work.tile = tile, work.split = split;
      work.over = over, work.fresh = fresh, work.last = block + 1 >= end;
      work.other = kv_head != last_head || tile != last_tile;
      work.mixed = seen.all.first > base || seen.all.last < base + kBlockKeys;
    }
    last_head = kv_head, last_tile = tile;
  }

  // The unit's tile, and which blocks of keys of its split are seen.
  __device__ void enter(const StepJob& job, const Sequences& s) {
    const Task& task = job.task;
    int at = 0;
#pragma unroll 1
    for (int after = task.batch; after - at > 1;) {
      const int middle = (at + after) / 2;
      (s.units[middle] <= unit ? at : after) = middle;
    }
    const Share share(job, s, at);
    int rest = unit - s.units[at];
    kv_head = rest % task.kv_heads;
    rest /= task.kv_heads;
    const int own = share.first + rest % share.count;
    split = s.first_split[at] + rest / share.count;
    tile = s.tiles[at] + own - job.first_tile;
    if (at != b || own * R != first) {
      const int from = task.offsets[at], vectors = (task.offsets[at + 1] - from) * task.group;
      b = at, first = own * R, count = min(R, vectors - own * R);
      seen = seen_together(task, b, from + first / task.group,
                           from + (first + count - 1) / task.group + 1, kWarp);
    }
    const int begin = max(seen.any.first, Splits::first(split));
    const int last = min(seen.any.last, Splits::first(split + 1));
    block = begin / kBlockKeys;
    end = begin < last ? (last + kBlockKeys - 1) / kBlockKeys : block;
  }

  // The pool row that holds a position, or -1 where nobody sees it.
  __device__ int row_of(const Task& task, int at) const {
    if (at < seen.any.first || at >= seen.any.last) return -1;
    const int page = at / task.page;
    const int entry = task.table[static_cast<int64_t>(b) * task.table_pages + page];
    if (entry >= 0 && entry < task.pool_pages) return entry * task.page + at - page * task.page;
#pragma unroll 1
    for (int i = first; i < first + count; i += task.group) {
      const Span own = seen_by(task, b, task.offsets[b] + i / task.group);
      if (at < own.first || at >= own.last) continue;
      report_far(task.entry, task.pool_pages, entry);
      break;
    }
    return -1;
  }
};

// The tile's queries, scaled by powers of two, as sums of two, and what its vectors see.
template <int W, uint32_t dtype, int T>
__device__ void load_queries(const Task& task, const Work& at, unsigned char* q, Row* rows) {
  using L = StepLayout<W, dtype, T>;
  using Key = typename Cache<dtype>::Key;
  constexpr int own = W / kRowThreads;  // elements of a thread, in pairs
#pragma unroll 1
  for (int r = threadIdx.x / kRowThreads; r < L::rows; r += 16) {
    const int lane = threadIdx.x % kRowThreads;
    Span seen = {0, 0};
    float x[own] = {}, most = 0.0f;
    if (r < at.count) {
      const int token = task.offsets[at.b] + (at.first + r) / task.group;
      seen = seen_by(task, at.b, token);
      const int head = head_of(task, at.kv_head, (at.first + r) % task.group);
      const float* from = reinterpret_cast<const float*>(at_head(task.q, token, head));
#pragma unroll
      for (int i = 0; i < own; ++i) {
        const int d = i / 2 * 2 * kRowThreads + 2 * lane + i % 2;
        if (d < task.k.size) x[i] = from[d];
        most = fmaxf(most, fabsf(x[i]));
      }
    }
    for (int step = kRowThreads / 2; step > 0; step /= 2)
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    // 2^(15 - e), where most is below 2^e: the largest becomes 2^14 or more, below 2^15.
    const int e = static_cast<int>(__float_as_uint(most) >> 23) - 126;
    const int up = most > 0.0f ? min(15 - e, 126) : 0;
    const float scale = __uint_as_float(static_cast<unsigned>(up + 127) << 23);
    if (lane == 0) rows[r] = {seen, __uint_as_float(static_cast<unsigned>(127 - up) << 23)};
#pragma unroll
    for (int i = 0; i < own; i += 2) {
      const Sum2<Key> pair(x[i] * scale, x[i + 1] * scale);
      unsigned char* to = q + r * L::pitch + 2 * (i * kRowThreads + 2 * lane);
      *reinterpret_cast<unsigned*>(to) = pair.high;
      *reinterpret_cast<unsigned*>(to + L::q_low) = pair.low;
    }
  }
}

// Lets the kernel that merges begin as soon as all blocks have begun: it is small.
__device__ inline void release_merge() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

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
    if (!at.over) Fetch<W, dtype, T>::run(job.task, pool, at.kv_head, at.rows, slot(from, turn));
  }

  __device__ void begin(const Work& at) {
    if (at.other) load_queries<W, dtype, T>(job.task, at, shared, rows);
#pragma unroll
    for (int t = 0; t < T; ++t) softening.top[t] = -INFINITY, softening.total[t] = 0.0f;
    weighted.clear();
  }

  __device__ void finish(const Work& at) {
    const int64_t to = job.index(at.tile, at.kv_head, at.split);
    const int size = job.task.v.size;
    weighted.write(job.sums + to * size, size, at.count, size);
#pragma unroll
    for (int t = 0; t < T; ++t) {
      float total = softening.total[t];
      for (int step = kRowThreads / 2; step > 0; step /= 2)
        total += __shfl_xor_sync(kAllLanes, total, step);
      const int row = 16 * t + threadIdx.x / kRowThreads;
      if (threadIdx.x % kRowThreads == 0 && row < at.count)
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
      __syncthreads();
      fetch(i + L::stages, job.task.k, L::keys);
      async_copy_commit();
      soften(at);
      async_copy_wait<2 * L::stages - 1>();
      __syncthreads();
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
      decode_block<W, dtype, T, typename C::Key>(job.task.k, at.kv_head, at.base, slot(L::keys, i),
                                                 shared + L::key_tile,
                                                 reinterpret_cast<float*>(shared + L::key_scales));
      decode_block<W, dtype, T, typename C::Value>(
          job.task.v, at.kv_head, at.base, slot(L::values, i), shared + L::value_tile,
          reinterpret_cast<float*>(shared + L::value_scales));
      __syncthreads();
      fetch(i + L::stages, job.task.k, L::keys);
      fetch(i + L::stages, job.task.v, L::values);
      async_copy_commit();
      multiply(at, shared + L::key_tile);
      __syncthreads();
      soften(at);
      __syncthreads();
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
    __syncthreads();
    if (Cache<dtype>::codes) __syncthreads();
    __syncthreads();
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
