// Blocks of keys and values on their way from the pools to shared memory.
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

}  // namespace
