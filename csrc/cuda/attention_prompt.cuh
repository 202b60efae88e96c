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

  // Products become weights times Number::scale; kept: what sums so far are scaled down by to the
  // new top. masked: some vector does not see some key.
  __device__ void soften(float cap, int base, bool masked, float (&s)[key_tiles][4],
                         float (&kept)[2]) {
    if (cap > 0.0f) {
      const float scale[2] = {factor[0] / cap, factor[1] / cap};
#pragma unroll
      for (int j = 0; j < key_tiles; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[j][x] = short_tanh(s[j][x] * scale[x / 2]) * (cap * kLog2E);
    } else {
      const float scale[2] = {factor[0] * kLog2E, factor[1] * kLog2E};
#pragma unroll
      for (int j = 0; j < key_tiles; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[j][x] *= scale[x / 2];
    }
    if (masked) {
      const int first = base + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
      for (int j = 0; j < key_tiles; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const int at = first + 8 * j + x % 2;
          if (at < seen[x / 2].first || at >= seen[x / 2].last) s[j][x] = -INFINITY;
        }
    }
    float most[2] = {top[0], top[1]};
#pragma unroll
    for (int j = 0; j < key_tiles; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) most[x / 2] = fmaxf(most[x / 2], s[j][x]);
    float least[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(kAllLanes, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(kAllLanes, most[half], 2));
      const bool none = most[half] == -INFINITY;
      kept[half] = none ? 1.0f : power_of_two(top[half] - most[half]);
      least[half] = none ? 0.0f : most[half] - kLogScale;
      top[half] = most[half];
      total[half] *= kept[half];
    }
#pragma unroll
    for (int j = 0; j < key_tiles; ++j)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        s[j][x] = power_of_two(s[j][x] - least[x / 2]);
        total[x / 2] += s[j][x];
      }
  }

  static constexpr float kLogScale = Number::scale == 1.0f ? 0.0f : 15.0f;

  // Infinities and NaNs of a pair of values become zero; whether there were any.
  static __device__ bool take_out(unsigned& pair) {
    const bool low = Number::finite(static_cast<uint16_t>(pair));
    const bool high = Number::finite(static_cast<uint16_t>(pair >> 16));
    pair &= (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
    return !low || !high;
  }

  // Takes weighted values of the block that lies at `values` into the sums. A block's own sums
  // begin at zero: tensor cores cut off what a long sum has no place for.
  template <bool masked>
  __device__ void add(const unsigned char* values, const float (&s)[key_tiles][4],
                      const float (&kept)[2]) {
    constexpr int key_steps = kPromptKeys / 16;
    const int lane = threadIdx.x % kWarp;
    const unsigned char* at = values + lane % 16 * pitch + lane / 16 * 16;
    unsigned high[key_steps][4], low[key_steps][4];
#pragma unroll
    for (int i = 0; i < key_steps; ++i)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float* pair = s[2 * i + x / 2] + x % 2 * 2;
        const Sum2<Number> both(pair[0], pair[1]);
        high[i][x] = both.high, low[i][x] = both.low;
      }
    bool out = false;
#pragma unroll
    for (int j = 0; j < tiles; j += 4) {
      float c[4][4] = {};
#pragma unroll
      for (int i = 0; i < key_steps; ++i) {
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
        for (int t = 0; t < 4; ++t) Number::mma(c[t], high[i], b[t]);
#pragma unroll
        for (int t = 0; t < 4; ++t) Number::mma(c[t], low[i], b[t]);
      }
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int x = 0; x < 4; ++x) sum[j + t][x] = fmaf(sum[j + t][x], kept[x / 2], c[t][x]);
    }
    if (masked && __any_sync(kAllLanes, out)) put_back(values, high);
  }

  // Adds what was taken out to the vectors that see it, which have a weight above zero in `high`:
  // in the lanes of their group of four.
  __device__ void put_back(const unsigned char* values,
                           const unsigned (&high)[kPromptKeys / 16][4]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll 1
    for (int key = 0; key < kPromptKeys; ++key) {
      unsigned pair[2] = {};
#pragma unroll
      for (int i = 0; i < kPromptKeys / 16; ++i)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          if (i == key / 16 && x / 2 == key / 8 % 2) pair[x % 2] = high[i][x];
      bool sees[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned from = __shfl_sync(kAllLanes, pair[half], lane / 4 * 4 + key % 8 / 2);
        sees[half] = (from >> (16 * (key % 2)) & 0x7fffu) != 0;
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const uint16_t v = *reinterpret_cast<const uint16_t*>(values + key * pitch +
                                                                2 * (8 * j + lane % 4 * 2 + x));
          if (Number::finite(v)) continue;
#pragma unroll
          for (int half = 0; half < 2; ++half)
            if (sees[half]) sum[j][2 * half + x] += Number::value(v, 0);
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
    const int row = rows[first + i];
    const bool here = row >= 0 && 8 * piece < pool.size;
    async_copy16_or_zeros(to + (first + i) * PromptLayout<W>::pitch + 16 * piece,
                          here ? head + row * pool.row_bytes : pool.base, here);
  }
  async_copy_commit();
}

// Elements of padding rows become zero. Called, for few blocks have any.
__noinline__ __device__ void clear_rows(const Task& task, int kv_head, int start, int step) {
  clear_padding(task, kv_head, start, step, 0, task.v.size);
}

// Grid: key heads, tiles. Values come while keys are multiplied, the next keys while values are.
template <int W, typename Number>
__global__ void __launch_bounds__(kStepThreads, 1)
    prompt_kernel(const __grid_constant__ Task task) {
  enter_grid();
  using L = PromptLayout<W>;
  __shared__ Row rows[kTileRows];
  __shared__ int at[2][kPromptKeys];
  unsigned char* shared = dynamic_shared();
  TileAt tile = {0, 0, 0, static_cast<int>(blockIdx.x)};
  Place place;
  // The last tiles of a sequence see most: they begin first.
  if (!find_tile(task, kTileRows, gridDim.y - 1 - blockIdx.y, place)) return;
  clear_rows(task, tile.kv_head, blockIdx.y, gridDim.y);
  if (place.count == 0) return;
  tile.b = place.b, tile.first = place.first, tile.count = place.count;
  const int token = task.offsets[tile.b] + tile.first / task.group;
  const int last = task.offsets[tile.b] + (tile.first + tile.count - 1) / task.group;
  const Seen seen = seen_by_warp(task, token, last + 1, task.offsets[tile.b + 1]);
  load_queries<W, kTileRows, Number::dtype>(task, tile, seen, shared, rows);
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
    float kept[2];
    own.soften(task.scores.cap, base, masked, s, kept);
    async_copy_wait<0>();
    __syncthreads();
    if (block + 1 < end) fetch_rows<W>(task.k, tile.kv_head, at[(block + 1) % 2], shared + L::keys);
    if (masked)
      own.template add<true>(shared + L::values, s, kept);
    else
      own.template add<false>(shared + L::values, s, kept);
  }
  own.write(task, tile);
}

}  // namespace
