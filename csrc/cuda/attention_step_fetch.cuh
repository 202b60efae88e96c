// Blocks of keys and values on their way from the pools to shared memory, and codes that become
// whole numbers there.
#pragma once

#include "attention_step_tile.cuh"

namespace {

// A block's keys or values at one head, which lie in one page: 16 bytes a thread; what is beyond
// the pool's elements is zero.
template <int W, uint32_t dtype, int T>
struct Fetch {
  using L = StepLayout<W, dtype, T>;
  using C = Cache<dtype>;
  static constexpr int pieces = C::codes ? L::fetched / 16 : W / 8;
  static constexpr int step = kStepThreads / pieces;  // rows at a time

  // row: of the block's first key in the pool; keys: those that are seen, the others are zeros.
  static __device__ void run(const Pool& pool, int kv_head, int row, Span keys, unsigned char* to) {
    const char* from = pool.base + kv_head * pool.head_bytes + row * pool.row_bytes;
    if constexpr (C::codes) {
      copy_codes(pool, from, keys, to);
    } else {
      const int lane = threadIdx.x % pieces, first = threadIdx.x / pieces;
      from += first * pool.row_bytes + 16 * lane;
      to += first * L::fetched + 16 * lane;
#pragma unroll
      for (int i = 0; i < kBlockKeys; i += step) {
        const int key = first + i;
        const bool here = key >= keys.first && key < keys.last && 8 * lane < pool.size;
        async_copy16_or_zeros(to, here ? from : pool.base, here);
        from += step * pool.row_bytes;
        to += step * L::fetched;
      }
    }
  }

  // In whole 16 bytes, which may begin before the row and end behind it, yet in the pool.
  static __device__ void copy_codes(const Pool& pool, const char* from, Span keys,
                                    unsigned char* to) {
    const int bytes = pool.size / 32 * C::block_bytes;
#pragma unroll 1
    for (int i = threadIdx.x; i < kBlockKeys * pieces; i += kStepThreads) {
      const int key = i / pieces, piece = i % pieces;
      const char* row = from + key * pool.row_bytes;
      const int off = static_cast<int>(reinterpret_cast<uintptr_t>(row) & 15);
      const char* at = row - off + 16 * piece;
      const bool here = key >= keys.first && key < keys.last && 16 * piece < off + bytes;
      if (!here || at + 16 <= pool.end)
        async_copy16_or_zeros(to + 16 * i, here ? at : pool.base, here);
      else
        copy_end(at, pool.end, to + 16 * i);
    }
  }

  static __noinline__ __device__ void copy_end(const char* at, const char* end, unsigned char* to) {
    for (int x = 0; x < 16; ++x) to[x] = at + x < end ? at[x] : 0;
  }
};

// Four unsigned bytes less `bias`, as two pairs of halves or of bf16.
template <typename Number>
__device__ inline void whole_numbers(unsigned four, int bias, unsigned (&pair)[2]) {
  if constexpr (Number::scale == Halves::scale) {
    const unsigned least = 0x64006400u + static_cast<unsigned>(bias) * 0x10001u;  // 1024 + bias
    pair[0] = subtract_halves(__byte_perm(four, 0x64646464u, 0x4140), least);
    pair[1] = subtract_halves(__byte_perm(four, 0x64646464u, 0x4342), least);
  } else {
    const float least = 8388608.0f + static_cast<float>(bias);
    unsigned x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[i] = __float_as_uint(__uint_as_float(__byte_perm(four, 0x4b000000u, 0x7440u + i)) - least);
    pair[0] = __byte_perm(x[0], x[1], 0x7632);
    pair[1] = __byte_perm(x[2], x[3], 0x7632);
  }
}

// Four bytes from an address that divides by 2.
__device__ inline unsigned four_bytes(const unsigned char* p) {
  const unsigned off = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p)) & 2u;
  const unsigned* at = reinterpret_cast<const unsigned*>(p - off);
  return off ? __funnelshift_r(at[0], at[1], 16) : at[0];
}

// A block of codes as it was fetched becomes whole numbers and scales [W / 32, keys].
template <int W, uint32_t dtype, int T, typename Number>
__device__ void decode_block(const Pool& pool, int kv_head, int base, const unsigned char* raw,
                             unsigned char* tile, float* scales) {
  using L = StepLayout<W, dtype, T>;
  constexpr int eights = W / 8, step = kStepThreads / eights, bytes = Cache<dtype>::block_bytes;
  const int d = threadIdx.x % eights * 8, first = threadIdx.x / eights;
  const uintptr_t head = reinterpret_cast<uintptr_t>(pool.base) + kv_head * pool.head_bytes;
#pragma unroll
  for (int i = 0; i < kBlockKeys; i += step) {
    const int key = first + i;
    // Pages are whole multiples of eight rows, and so of 16 bytes.
    const int off = static_cast<int>((head + (base + key) % 8 * pool.row_bytes) & 15);
    const unsigned char* block = raw + key * L::fetched + off + d / 32 * bytes;
    unsigned out[4] = {};
    float scale = 0.0f;
    if (d < pool.size) {
      scale = half_to_float(*reinterpret_cast<const uint16_t*>(block));
      unsigned pair[2];
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        if (dtype == RR_Q8_0) {
          whole_numbers<Number>(four_bytes(block + 2 + d % 32 + 4 * x) ^ 0x80808080u, 128, pair);
        } else {
          const unsigned four = four_bytes(block + 2 + d % 16 + 4 * x) >> (d / 16 % 2 * 4);
          whole_numbers<Number>(four & 0x0f0f0f0fu, 8, pair);
        }
        out[2 * x] = pair[0], out[2 * x + 1] = pair[1];
      }
    }
    *reinterpret_cast<uint4*>(tile + key * L::pitch + 2 * d) =
        make_uint4(out[0], out[1], out[2], out[3]);
    if (d % 32 == 0) scales[d / 32 * kBlockKeys + key] = scale;
  }
}

}  // namespace
