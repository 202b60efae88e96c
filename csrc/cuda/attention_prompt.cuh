// Attention of prompts on tensor cores: a block has a tile of kTileRows query vectors that share a
// key head, a warp 16 of them, whose sums stay in its registers while it goes through all keys that
// the tile sees, in blocks of kPromptKeys at absolute multiples of it.
//
// Queries and weights are sums of two halves, as in passes of few queries. A block that a vector
// does not see changes nothing of what it has, to the bit.
#pragma once

#include "attention_queries.cuh"

namespace {

constexpr int kTileRows = 128, kPromptKeys = 64;

// Two to the power of x.
__device__ inline float power_of_two(float x) {
#if defined(RR_EMULATE)
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

template <int W>
struct PromptLayout {
  static constexpr int pitch = 2 * W + 16, keys = 2 * kTileRows * pitch;
  static constexpr int values = keys + kPromptKeys * pitch;
  static constexpr int bytes = values + kPromptKeys * pitch;
};

// What a thread has of the vectors in rows g and g + 8 of its warp, g = lane / 4.
template <int W, typename Number>
struct PromptRows {
  static constexpr int key_tiles = kPromptKeys / 8, tiles = W / 8, steps = W / 16;
  static constexpr int pitch = PromptLayout<W>::pitch;
  Span seen[2];
  float factor[2];  // from products to scores, in powers of two
  float top[2], total[2];
  float sum[tiles][4];

  __device__ void begin(const Task& task, const Row* rows) {
    const int first =
        static_cast<int>(threadIdx.x) / kWarp * 16 + static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Row row = rows[first + 8 * half];
      seen[half] = row.seen;
      factor[half] = row.factor * task.scores.scale;
      top[half] = -INFINITY, total[half] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) sum[j][x] = 0.0f;
  }

  // Products of the warp's queries with a block's keys.
  __device__ void multiply(const unsigned char* q, const unsigned char* keys,
                           float (&s)[key_tiles][4]) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const unsigned char* own = q + (16 * warp + lane % 16) * pitch + lane / 16 * 16;
    const unsigned char* at = keys + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int j = 0; j < key_tiles; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) s[j][x] = 0.0f;
#pragma unroll 4
    for (int i = 0; i < steps; ++i) {
      unsigned high[4], low[4], b[key_tiles][2];
      load_matrix4(high, own + 32 * i);
      load_matrix4(low, own + kTileRows * pitch + 32 * i);
#pragma unroll
      for (int j = 0; j < key_tiles; j += 2) {
        unsigned four[4];
        load_matrix4(four, at + 8 * j * pitch + 32 * i);
        b[j][0] = four[0], b[j][1] = four[1];
        b[j + 1][0] = four[2], b[j + 1][1] = four[3];
      }
#pragma unroll
      for (int j = 0; j < key_tiles; ++j) Number::mma(s[j], high, b[j]);
#pragma unroll
      for (int j = 0; j < key_tiles; ++j) Number::mma(s[j], low, b[j]);
    }
  }

  // Products become weights times Number::scale; sums so far are scaled down to the new top.
  // masked: some vector does not see some key.
  __device__ void soften(float cap, int base, bool masked, float (&s)[key_tiles][4]) {
    const int first = base + static_cast<int>(threadIdx.x) % 4 * 2;
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < key_tiles; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        float y = s[j][x] * factor[x / 2];
        if (cap > 0.0f) y = tanhf(y / cap) * cap;
        y *= kLog2E;
        const int at = first + 8 * j + x % 2;
        if (masked && (at < seen[x / 2].first || at >= seen[x / 2].last)) y = -INFINITY;
        s[j][x] = y;
        most[x / 2] = fmaxf(most[x / 2], y);
      }
    float kept[2], least[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(kAllLanes, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(kAllLanes, most[half], 2));
      const float next = fmaxf(top[half], most[half]);
      kept[half] = next == -INFINITY ? 1.0f : power_of_two(top[half] - next);
      least[half] = next == -INFINITY ? 0.0f : next - kLogScale;
      top[half] = next;
      total[half] *= kept[half];
    }
#pragma unroll
    for (int j = 0; j < key_tiles; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        s[j][x] = power_of_two(s[j][x] - least[x / 2]);
        total[x / 2] += s[j][x];
      }
    // Multiplied by one, they would be the same.
    if (!__any_sync(kAllLanes, kept[0] != 1.0f || kept[1] != 1.0f)) return;
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) sum[j][x] *= kept[x / 2];
  }

  static constexpr float kLogScale = Number::scale == 1.0f ? 0.0f : 15.0f;

  // Infinities and NaNs of a pair of values become zero; whether there were any.
  static __device__ bool take_out(unsigned& pair) {
    const bool low = Number::finite(static_cast<uint16_t>(pair));
    const bool high = Number::finite(static_cast<uint16_t>(pair >> 16));
    pair &= (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
    return !low || !high;
  }

  // Adds weighted values of the block that lies at `values`.
  __device__ void add(const unsigned char* values, bool masked, const float (&s)[key_tiles][4]) {
    const int lane = threadIdx.x % kWarp;
    const unsigned char* at = values + lane % 16 * pitch + lane / 16 * 16;
    bool out = false;
#pragma unroll
    for (int i = 0; i < kPromptKeys / 16; ++i) {
      unsigned high[4], low[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float* pair = s[2 * i + x / 2] + x % 2 * 2;
        const Sum2<Number> both(pair[0], pair[1]);
        high[x] = both.high, low[x] = both.low;
      }
#pragma unroll
      for (int j = 0; j < tiles; j += 4) {
        unsigned b[4][2];
#pragma unroll
        for (int t = 0; t < 4; t += 2) {
          unsigned four[4];
          load_matrix4_transposed(four, at + 16 * i * pitch + 16 * (j + t));
          if (masked) {
#pragma unroll
            for (int x = 0; x < 4; ++x) out = take_out(four[x]) || out;
          }
          b[t][0] = four[0], b[t][1] = four[1];
          b[t + 1][0] = four[2], b[t + 1][1] = four[3];
        }
#pragma unroll
        for (int t = 0; t < 4; ++t) Number::mma(sum[j + t], high, b[t]);
#pragma unroll
        for (int t = 0; t < 4; ++t) Number::mma(sum[j + t], low, b[t]);
      }
    }
    if (masked && __any_sync(kAllLanes, out)) put_back(values, s);
  }

  // Adds what was taken out to the vectors that see it. A vector's weights are in the lanes of its
  // group of four.
  __device__ void put_back(const unsigned char* values, const float (&s)[key_tiles][4]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll 1
    for (int key = 0; key < kPromptKeys; ++key) {
      float w[2] = {};
#pragma unroll
      for (int j = 0; j < key_tiles; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          if (j == key / 8 && x % 2 == key % 2) w[x / 2] = s[j][x];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        w[half] = __shfl_sync(kAllLanes, w[half], lane / 4 * 4 + key % 8 / 2);
#pragma unroll
      for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const uint16_t v = *reinterpret_cast<const uint16_t*>(values + key * pitch +
                                                                2 * (8 * j + lane % 4 * 2 + x % 2));
          if (!Number::finite(v) && w[x / 2] != 0.0f) sum[j][x] += w[x / 2] * Number::value(v, 0);
        }
    }
  }

  // A vector's means; sink: one more score of each head, whose value is zero.
  __device__ void write(const Task& task, const TileAt& tile) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(kAllLanes, total[half], 1);
      total[half] += __shfl_xor_sync(kAllLanes, total[half], 2);
      const int r = 16 * warp + lane / 4 + 8 * half;
      if (r >= tile.count) continue;
      const int token = task.offsets[tile.b] + (tile.first + r) / task.group;
      const int head = head_of(task, tile.kv_head, (tile.first + r) % task.group);
      float* o = reinterpret_cast<float*>(at_head(task.o, token, head));
      float share = total[half] == 0.0f ? 0.0f : 1.0f / total[half];
      if (task.sinks && total[half] != 0.0f) {
        const float sink = task.sinks[head] * kLog2E, highest = fmaxf(top[half], sink);
        const float keep = power_of_two(top[half] - highest);
        share = keep / fmaf(total[half], keep, power_of_two(sink - highest + kLogScale));
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        const int d = 8 * j + lane % 4 * 2;
        if (d < task.v.size)
          o[d] = sum[j][2 * half] * share, o[d + 1] = sum[j][2 * half + 1] * share;
      }
    }
  }
};

// Rows of the pool, by key, to shared memory, by all threads; zeros for keys that nobody sees.
template <int W>
__device__ void fetch_rows(const Pool& pool, int kv_head, const int* rows, unsigned char* to) {
  constexpr int pieces = W / 8, step = kStepThreads / pieces;
  const int piece = threadIdx.x % pieces, first = threadIdx.x / pieces;
  const char* head = pool.base + kv_head * pool.head_bytes + 16 * piece;
#pragma unroll
  for (int i = 0; i < kPromptKeys; i += step) {
    const int key = first + i, row = rows[key];
    unsigned char* at = to + key * PromptLayout<W>::pitch + 16 * piece;
    if (row >= 0 && 8 * piece < pool.size)
      async_copy16(at, head + row * pool.row_bytes);
    else
      *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
  }
  async_copy_commit();
}

// Elements of padding rows become zero. Called, for few blocks have any.
__noinline__ __device__ void clear_rows(const Task& task, int kv_head, int start, int step) {
  clear_padding(task, kv_head, start, step, 0, task.v.size);
}

// Grid: tiles, key heads. Values come while keys are multiplied, the next keys while values are.
template <int W, typename Number>
__global__ void __launch_bounds__(kStepThreads, 1)
    prompt_kernel(const __grid_constant__ Task task) {
  enter_grid();
  using L = PromptLayout<W>;
  __shared__ Row rows[kTileRows];
  __shared__ int at[2][kPromptKeys];
  unsigned char* shared = dynamic_shared();
  TileAt tile = {0, 0, 0, static_cast<int>(blockIdx.y)};
  Place place;
  // The last tiles of a sequence see most: they begin first.
  if (!find_tile(task, kTileRows, gridDim.x - 1 - blockIdx.x, place)) return;
  clear_rows(task, tile.kv_head, blockIdx.x, gridDim.x);
  if (place.count == 0) return;
  tile.b = place.b, tile.first = place.first, tile.count = place.count;
  const int token = task.offsets[tile.b] + tile.first / task.group;
  const int last = task.offsets[tile.b] + (tile.first + tile.count - 1) / task.group;
  const Seen seen = seen_by_warp(task, token, last + 1, task.offsets[tile.b + 1]);
  load_queries<W, kTileRows, Number>(task, tile, shared, rows);
  const int end = (seen.any.last + kPromptKeys - 1) / kPromptKeys;
  int block = seen.any.first / kPromptKeys;
  const auto locate = [&](int which) {
    const int key = which * kPromptKeys + static_cast<int>(threadIdx.x);
    if (threadIdx.x < kPromptKeys)
      at[which % 2][threadIdx.x] =
          key >= seen.any.first && key < seen.any.last ? row_of(task, tile, key, 1) : -1;
  };
  locate(block);
  __syncthreads();
  PromptRows<W, Number> own;
  own.begin(task, rows);
  fetch_rows<W>(task.k, tile.kv_head, at[block % 2], shared + L::keys);
#pragma unroll 1
  for (; block < end; ++block) {
    const int base = block * kPromptKeys;
    const bool masked = seen.all.first > base || seen.all.last < base + kPromptKeys;
    float s[PromptRows<W, Number>::key_tiles][4];
    async_copy_wait<0>();
    __syncthreads();
    fetch_rows<W>(task.v, tile.kv_head, at[block % 2], shared + L::values);
    locate(block + 1);
    own.multiply(shared, shared + L::keys, s);
    own.soften(task.scores.cap, base, masked, s);
    async_copy_wait<0>();
    __syncthreads();
    if (block + 1 < end) fetch_rows<W>(task.k, tile.kv_head, at[(block + 1) % 2], shared + L::keys);
    own.add(shared + L::values, masked, s);
  }
  own.write(task, tile);
}

}  // namespace
