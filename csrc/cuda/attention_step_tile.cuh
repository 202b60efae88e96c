// The arithmetic of attention of few query vectors on tensor cores: tiles of 16 T vectors that
// share a key head, against blocks of kBlockKeys keys that lie at absolute multiples of it.
//
// A query is scaled by a power of two and is the sum of two halves (of two bf16 where keys are
// bf16) to 2^-22 (2^-17) of it; so is a weight exp(score - highest). Keys and values are halves or
// bf16 as they lie, or the whole numbers of their codes, whose scales come to the products' sums,
// or to the weights. A product is the sum of kParts parts, in order, of which a warp has one. All
// sums of a vector go through the same blocks in the same order however many vectors there are
// beside it.
#pragma once

#include "attention_queries.cuh"

namespace {

constexpr int kBlockKeys = 64;
constexpr int kParts = 4;
constexpr int kRowKeys = kBlockKeys / kRowThreads;  // keys of each of them

// Dynamic shared memory, in bytes. W: room of a key and of a value, in elements.
template <int W, uint32_t dtype, int T>
struct StepLayout {
  using C = Cache<dtype>;
  static constexpr int rows = 16 * T;
  static constexpr int pitch = 2 * W + 16;  // of a row of halves: eight rows meet no bank twice
  // Codes lie at the same distance from a multiple of 16 as in the pool.
  static constexpr int fetched = C::codes ? (W / 32 * C::block_bytes + 29) / 16 * 16 : pitch;
  static constexpr int stages = T == 2 || C::codes ? 2 : 1;
  static constexpr int stage = kBlockKeys * fetched;  // of keys or of values
  static constexpr int part_pitch = kBlockKeys + 8;   // floats
  static constexpr int weight_pitch = 2 * kBlockKeys + 16;
  // Queries of one tile of 16 are held in registers, and lie where products come later.
  static constexpr int held = T == 1 ? kParts : 1;  // parts of products that are kept apart
  static constexpr int products = held * rows * part_pitch * 4;

  static constexpr int q_low = rows * pitch;
  static constexpr int parts = T == 1 ? 0 : 2 * q_low;
  static constexpr int weights = parts + (T == 1 && products < 2 * q_low ? 2 * q_low : products);
  static constexpr int keys = weights + (C::codes ? 0 : 2 * rows * weight_pitch);
  static constexpr int values = keys + stages * stage;
  static constexpr int bytes = values + stages * stage + 16;  // codes are read as whole words
  static constexpr int blocks = T == 1 ? 2 : 1;               // of a multiprocessor
};

// Where a block's keys or values lie in shared memory. Of codes, `off` is where the first of them
// begins behind a multiple of 16, and `step` how much further each begins than the one before;
// blocks: of codes in a row.
struct Laid {
  const unsigned char* at;
  int off, step, blocks;

  template <int pitch>
  __device__ const unsigned char* row(int key) const {
    return at + key * pitch + ((off + key * step) & 15);
  }
};

// Four bytes from an address that divides by 2.
__device__ inline unsigned four_bytes(const unsigned char* p) {
  const unsigned off = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p)) & 2u;
  const unsigned* at = reinterpret_cast<const unsigned*>(p - off);
  return __funnelshift_r(at[0], at[1], 8 * off);
}

__device__ inline float code_scale(const unsigned char* block) {
  return half_to_float(*reinterpret_cast<const uint16_t*>(block));
}

// Four bytes of codes as unsigned numbers; nibble: of two codes in a byte, which.
template <uint32_t dtype>
__device__ inline unsigned unsigned_codes(unsigned four, int nibble) {
  return dtype == RR_Q8_0 ? four ^ 0x80808080u : four >> (4 * nibble) & 0x0f0f0f0fu;
}
template <uint32_t dtype>
constexpr int kCodeBias = dtype == RR_Q8_0 ? 128 : 8;

// Number `i` of four unsigned codes less their bias, as the bits of a float.
template <uint32_t dtype>
__device__ inline unsigned whole_number(unsigned four, int i) {
  const float least = 8388608.0f + static_cast<float>(kCodeBias<dtype>);
  const unsigned x = __byte_perm(four, 0x4b000000u, 0x7440u + i);
  return __float_as_uint(__uint_as_float(x) - least);
}

// Products of a tile's vectors with a block's keys, into parts [held, 16 T, keys]. Of one tile of
// 16 a warp has one part, and its queries in registers; of more, all parts of one tile, whose sums
// are added in order.
template <int W, uint32_t dtype, int T>
struct Products {
  using L = StepLayout<W, dtype, T>;
  using C = Cache<dtype>;
  using Key = typename C::Key;
  static constexpr int steps = W / kParts / 16;                  // of 16 elements, in a part
  static constexpr int run = C::codes && steps > 2 ? 2 : steps;  // steps that share a scale
  static constexpr int apart = T == 1 ? kParts : T;              // warps that have the same keys
  static constexpr int own_keys = kBlockKeys / (kStepWarps / apart), tiles = own_keys / 8;
  static constexpr int kept = T == 1 ? steps : 1;
  unsigned high[kept][4], low[kept][4];

  static __device__ int part() { return threadIdx.x / kWarp % apart; }
  static __device__ int first_key() {
    return static_cast<int>(threadIdx.x) / kWarp / apart * own_keys;
  }

  static __device__ void load(const unsigned char* q, int tile, int step, unsigned (&high)[4],
                              unsigned (&low)[4]) {
    const int lane = threadIdx.x % kWarp;
    const unsigned char* at = q + (16 * tile + lane % 16) * L::pitch + lane / 16 * 16 + step * 32;
    load_matrix4(high, at);
    load_matrix4(low, at + L::q_low);
  }

  // Once for each tile of vectors, whose queries are at q.
  __device__ void hold(const unsigned char* q) {
    if constexpr (T == 1) {
#pragma unroll
      for (int i = 0; i < steps; ++i) load(q, 0, part() * steps + i, high[i], low[i]);
    }
  }

  // Of one part, from step `first` on.
  __device__ void add_part(const unsigned char* q, const Laid& keys, int first,
                           float (&sum)[tiles][4]) {
#pragma unroll
    for (int begin = 0; begin < steps; begin += run) {
      float c[tiles][4] = {}, rest[tiles][4] = {};
#pragma unroll
      for (int i = begin; i < begin + run; ++i) {
        unsigned b[tiles][2], own_high[4], own_low[4];
        if constexpr (T > 1) load(q, part(), first + i, own_high, own_low);
        load_keys(keys, first + i, b);
#pragma unroll
        for (int j = 0; j < tiles; ++j) Key::mma(c[j], T > 1 ? own_high : high[i % kept], b[j]);
#pragma unroll
        for (int j = 0; j < tiles; ++j) Key::mma(rest[j], T > 1 ? own_low : low[i % kept], b[j]);
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) c[j][x] += rest[j][x];
      if constexpr (C::codes) {
        take_scaled(keys, first + begin, begin == 0, c, sum);
      } else {
#pragma unroll
        for (int j = 0; j < tiles; ++j)
#pragma unroll
          for (int x = 0; x < 4; ++x) sum[j][x] = c[j][x];
      }
    }
  }

  // 16 elements of the warp's keys.
  static __device__ void load_keys(const Laid& keys, int step, unsigned (&b)[tiles][2]) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (C::codes) {
      // In the order of query_place.
      const int at = step / 2 * C::block_bytes + 2 +
                     (dtype == RR_Q8_0 ? lane % 4 * 8 + step % 2 * 4 : lane % 4 * 4);
      constexpr unsigned least = 0x64006400u + kCodeBias<dtype> * 0x10001u;  // 1024 and the bias
#pragma unroll
      for (int j = 0; j < tiles; ++j) {
        const unsigned char* row = keys.row<L::fetched>(first_key() + 8 * j + lane / 4);
        const unsigned four = unsigned_codes<dtype>(four_bytes(row + at), step % 2);
        b[j][0] = subtract_halves(__byte_perm(four, 0x64646464u, 0x4140), least);
        b[j][1] = subtract_halves(__byte_perm(four, 0x64646464u, 0x4342), least);
      }
    } else {
      const unsigned char* at = keys.at + (first_key() + lane / 16 * 8 + lane % 8) * L::pitch +
                                step * 32 + lane / 8 % 2 * 16;
#pragma unroll
      for (int j = 0; j < tiles; j += 2) {
        unsigned four[4];
        load_matrix4(four, at + 8 * j * L::pitch);
        b[j][0] = four[0], b[j][1] = four[1];
        b[j + 1][0] = four[2], b[j + 1][1] = four[3];
      }
    }
  }

  // Adds products with a block of codes times their scales.
  static __device__ void take_scaled(const Laid& keys, int step, bool begins,
                                     const float (&c)[tiles][4], float (&sum)[tiles][4]) {
    const int block = step / 2;
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const int key = first_key() + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2 + x;
        const float scale = block < keys.blocks
                                ? code_scale(keys.row<L::fetched>(key) + block * C::block_bytes)
                                : 0.0f;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          sum[j][2 * half + x] = begins ? c[j][2 * half + x] * scale
                                        : fmaf(c[j][2 * half + x], scale, sum[j][2 * half + x]);
      }
  }

  __device__ void multiply(const unsigned char* q, const Laid& keys, float* parts) {
    const int lane = threadIdx.x % kWarp;
    float sum[tiles][4];
    if constexpr (T == 1) {
      add_part(q, keys, part() * steps, sum);
    } else {
      add_part(q, keys, 0, sum);
#pragma unroll 1
      for (int i = 1; i < kParts; ++i) {
        float next[tiles][4];
        add_part(q, keys, i * steps, next);
#pragma unroll
        for (int j = 0; j < tiles; ++j)
#pragma unroll
          for (int x = 0; x < 4; ++x) sum[j][x] += next[j][x];
      }
    }
    float* to = parts + (16 * part() + lane / 4) * L::part_pitch + first_key() + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(to + 8 * half * L::part_pitch + 8 * j) =
            make_float2(sum[j][2 * half], sum[j][2 * half + 1]);
  }
};

// What a vector's threads have found, kRowThreads of each 16.
template <int T>
struct Softening {
  float top[T], total[T];  // highest score so far; of this thread's keys, sum of exp(score - top)
};

// Parts become weights, and keep[16 T] what sums so far are multiplied by. base: the position of
// the block's first key.
template <int W, uint32_t dtype, int T>
__device__ void soften_block(const Scores& scores, int base, const Row* rows, float* parts,
                             unsigned char* weights, float* keep, Softening<T>& s) {
  using L = StepLayout<W, dtype, T>;
  using Value = typename Cache<dtype>::Value;
  const int key = threadIdx.x % kRowThreads * kRowKeys;
#pragma unroll
  for (int tile = 0; tile < T; ++tile) {
    const int row = 16 * tile + threadIdx.x / kRowThreads;
    float* at = parts + row * L::part_pitch + key;
    const Row own = rows[row];
    float x[kRowKeys], top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kRowKeys; ++i) {
      float sum = at[i];
#pragma unroll
      for (int part = 1; part < L::held; ++part) sum += at[part * L::rows * L::part_pitch + i];
      x[i] = sum * (own.factor * scores.scale);
    }
    if (scores.cap > 0.0f) {
#pragma unroll
      for (int i = 0; i < kRowKeys; ++i) x[i] = short_tanh(x[i] / scores.cap) * scores.cap;
    }
    bool seen[kRowKeys];
#pragma unroll
    for (int i = 0; i < kRowKeys; ++i) {
      const int position = base + key + i;
      seen[i] = position >= own.seen.first && position < own.seen.last;
      if (seen[i]) top = fmaxf(top, x[i]);
    }
#pragma unroll
    for (int step = kRowThreads / 2; step > 0; step /= 2)
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
    top = fmaxf(top, s.top[tile]);
    const float kept = top == -INFINITY ? 1.0f : power_of_two((s.top[tile] - top) * kLog2E);
    s.top[tile] = top;
    s.total[tile] *= kept;
#pragma unroll
    for (int i = 0; i < kRowKeys; ++i) {
      x[i] = seen[i] ? power_of_two((x[i] - top) * kLog2E) : 0.0f;
      s.total[tile] += x[i];
    }
    if (threadIdx.x % kRowThreads == 0) keep[row] = kept;
#pragma unroll
    for (int i = 0; i < kRowKeys; i += 2) {
      if constexpr (Cache<dtype>::codes) {
        at[i] = x[i], at[i + 1] = x[i + 1];
      } else {
        const Sum2<Value> both(x[i] * Value::scale, x[i + 1] * Value::scale);
        unsigned char* to = weights + row * L::weight_pitch + 2 * (key + i);
        *reinterpret_cast<unsigned*>(to) = both.high;
        *reinterpret_cast<unsigned*>(to + L::rows * L::weight_pitch) = both.low;
      }
    }
  }
}

// Sums of weighted values: a warp has W / 8 elements of all vectors.
template <int W, uint32_t dtype, int T>
struct Weighted {
  using L = StepLayout<W, dtype, T>;
  using C = Cache<dtype>;
  using Value = typename C::Value;
  static constexpr int columns = W / kStepWarps, tiles = columns / 8, steps = kBlockKeys / 16;
  float sum[T][tiles][4];

  static __device__ int first() { return static_cast<int>(threadIdx.x) / kWarp * columns; }

  __device__ void clear() {
#pragma unroll
    for (int tile = 0; tile < T; ++tile)
#pragma unroll
      for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) sum[tile][j][x] = 0.0f;
  }

  // Values of 16 keys. Of codes, a lane's columns are `tiles` neighbours, one for each product.
  static __device__ void load(const Laid& values, int step, unsigned (&b)[tiles][2]) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (C::codes) {
      const int at = first() % 32 + lane / 4 * tiles;
      const int byte = first() / 32 * C::block_bytes + 2 + (dtype == RR_Q8_0 ? at : at % 16);
      unsigned four[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int key = 16 * step + x / 2 * 8 + lane % 4 * 2 + x % 2;
        const unsigned char* from = values.row<L::fetched>(key) + byte;
        if constexpr (tiles == 4) four[x] = four_bytes(from);
        if constexpr (tiles == 2) four[x] = *reinterpret_cast<const uint16_t*>(from);
        if constexpr (tiles == 1) four[x] = *from;
        four[x] = unsigned_codes<dtype>(four[x], at / 16);
      }
#pragma unroll
      for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int x = 0; x < 2; ++x)
          b[j][x] = __byte_perm(whole_number<dtype>(four[2 * x], j),
                                whole_number<dtype>(four[2 * x + 1], j), 0x7632);
    } else {
      const unsigned char* at = values.at + (16 * step + lane % 16) * L::pitch + 2 * first();
      unsigned four[4];
      if constexpr (tiles == 1) {
        load_matrix4_transposed(four, at);
        b[0][0] = four[0], b[0][1] = four[1];
      } else {
#pragma unroll
        for (int j = 0; j + 1 < tiles; j += 2) {
          load_matrix4_transposed(four, at + lane / 16 * 16 + 16 * j);
          b[j][0] = four[0], b[j][1] = four[1];
          b[j + 1][0] = four[2], b[j + 1][1] = four[3];
        }
      }
    }
  }

  // Scales of the warp's codes of the keys that a lane weighs in a step.
  static __device__ void load_scales(const Laid& values, int step, float (&scale)[4]) {
    const int block = first() / 32;
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int key = 16 * step + x / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + x % 2;
      scale[x] = block < values.blocks
                     ? code_scale(values.row<L::fetched>(key) + block * C::block_bytes)
                     : 0.0f;
    }
  }

  // Weights of 16 vectors and 16 keys: as they were written, or with the scales of the values'
  // codes.
  static __device__ void load_weights(const float* parts, const unsigned char* weights,
                                      const float (&scale)[4], int tile, int step,
                                      unsigned (&high)[4], unsigned (&low)[4]) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (C::codes) {
      const float* at = parts + (16 * tile + lane / 4) * L::part_pitch + 16 * step + lane % 4 * 2;
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float2 w =
            *reinterpret_cast<const float2*>(at + x % 2 * 8 * L::part_pitch + x / 2 * 8);
        const float2 d = make_float2(scale[x / 2 * 2], scale[x / 2 * 2 + 1]);
        // What is not seen must not take anything from a scale that is infinite.
        const Sum2<Value> both(w.x == 0.0f ? 0.0f : w.x * d.x, w.y == 0.0f ? 0.0f : w.y * d.y);
        high[x] = both.high, low[x] = both.low;
      }
    } else {
      const unsigned char* at =
          weights + (16 * tile + lane % 16) * L::weight_pitch + lane / 16 * 16 + 32 * step;
      load_matrix4(high, at);
      load_matrix4(low, at + L::rows * L::weight_pitch);
    }
  }

  // Takes infinities and NaNs out of values; whether there were any.
  static __device__ bool take_out(unsigned (&b)[tiles][2]) {
    bool found = false;
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const bool low = Value::finite(static_cast<uint16_t>(b[j][x]));
        const bool high = Value::finite(static_cast<uint16_t>(b[j][x] >> 16));
        found = found || !low || !high;
        b[j][x] &= (low ? 0xffffu : 0u) | (high ? 0xffff0000u : 0u);
      }
    return found;
  }

  // Adds what was taken out to the vectors that see it.
  __device__ void put_back(const unsigned char* weights, const unsigned char* values) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll 1
    for (int key = 0; key < kBlockKeys; ++key)
#pragma unroll
      for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          const uint16_t v = *reinterpret_cast<const uint16_t*>(
              values + key * L::pitch + 2 * (first() + 8 * j + lane % 4 * 2 + x));
          if (Value::finite(v)) continue;
#pragma unroll
          for (int tile = 0; tile < T; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const unsigned char* at =
                  weights + (16 * tile + lane / 4 + 8 * half) * L::weight_pitch + 2 * key;
              const float w = Value::value(*reinterpret_cast<const uint16_t*>(at), 0);
              if (w != 0.0f) sum[tile][j][2 * half + x] += w * Value::value(v, 0);
            }
        }
  }

  // mixed: some vector does not see some key, from whose value it must take nothing.
  __device__ void add(const float* parts, const unsigned char* weights, const Laid& values,
                      const float* keep, bool mixed) {
    const int lane = threadIdx.x % kWarp;
    float c[T][tiles][4] = {};
    bool out = false;
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      unsigned b[tiles][2];
      load(values, i, b);
      float scale[4] = {};
      if constexpr (C::codes) load_scales(values, i, scale);
      if (!C::codes && mixed) out = take_out(b) || out;
#pragma unroll
      for (int tile = 0; tile < T; ++tile) {
        unsigned high[4], low[4];
        load_weights(parts, weights, scale, tile, i, high, low);
#pragma unroll
        for (int j = 0; j < tiles; ++j) Value::mma(c[tile][j], high, b[j]);
#pragma unroll
        for (int j = 0; j < tiles; ++j) Value::mma(c[tile][j], low, b[j]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < T; ++tile) {
      const float upper = keep[16 * tile + lane / 4], lower = keep[16 * tile + lane / 4 + 8];
#pragma unroll
      for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          sum[tile][j][x] = fmaf(sum[tile][j][x], x < 2 ? upper : lower, c[tile][j][x]);
    }
    if (!C::codes && mixed && __any_sync(kAllLanes, out)) put_back(weights, values.at);
  }

  // to: results of vectors, `row` floats apart, of which `count` are there and have `size`
  // elements.
  __device__ void write(float* to, int64_t row, int count, int size) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int tile = 0; tile < T; ++tile)
#pragma unroll
      for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = 16 * tile + lane / 4 + 8 * half;
          const int d = first() + (C::codes ? lane % 4 * 2 * tiles + j : 8 * j + lane % 4 * 2);
          if (r >= count || d >= size) continue;
          const float2 pair = make_float2(sum[tile][j][2 * half] * (1.0f / Value::scale),
                                          sum[tile][j][2 * half + 1] * (1.0f / Value::scale));
          float* at = to + r * row + d;
          if constexpr (C::codes)
            at[0] = pair.x, at[tiles] = pair.y;
          else
            *reinterpret_cast<float2*>(at) = pair;
        }
  }
};

}  // namespace
