// Barriers in shared memory, bulk copies and the products of warpgroups (PTX ISA: mbarrier,
// cp.async.bulk, wgmma). Copies and products are done when they are asked for.
#pragma once

#include "fibers.hpp"
#include "numbers.hpp"
#include "polling.hpp"

namespace emulate {

// The bits of a barrier: arrivals of a phase, those still to come, the parity of the running phase,
// bytes still to come.
struct Barrier {
  uint64_t count : 12, left : 12, parity : 1;
  int64_t bytes : 39;
};
static_assert(sizeof(Barrier) == 8, "a barrier is one word");

inline Barrier& barrier_at(uint64_t* word) {
  if (reinterpret_cast<uintptr_t>(word) % 8)
    fail_block(cudaErrorMisalignedAddress, "misaligned: a barrier not at 8 bytes");
  return *reinterpret_cast<Barrier*>(word);
}

inline void barrier_init(uint64_t* word, unsigned count) {
  barrier_at(word) = Barrier{count, count, 0, 0};
}

inline void barrier_moved(Barrier& barrier) {
  made_progress();
  if (barrier.left || barrier.bytes) return;
  barrier.left = barrier.count;
  barrier.parity ^= 1;
}

inline void barrier_arrive(uint64_t* word) {
  Barrier& barrier = barrier_at(word);
  if (!barrier.left)
    fail_block(cudaErrorLaunchFailure, "more arrivals at a barrier than a phase of it has");
  --barrier.left;
  barrier_moved(barrier);
}

inline void barrier_expect(uint64_t* word, unsigned bytes) {
  barrier_at(word).bytes += bytes;
  barrier_arrive(word);
}

inline void barrier_wait(uint64_t* word, int parity) {
  if (barrier_at(word).parity != static_cast<unsigned>(parity)) return;
  while (barrier_at(word).parity == static_cast<unsigned>(parity)) poll();
  made_progress();
}

inline void bulk_copy(void* to, const void* from, unsigned bytes, uint64_t* word) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16)
    fail_block(cudaErrorMisalignedAddress, "misaligned: bulk_copy at less than 16 bytes");
  memcpy(to, from, bytes);
  Barrier& barrier = barrier_at(word);
  barrier.bytes -= bytes;
  barrier_moved(barrier);
}

inline uint64_t operand_at(const void* b) {
  return reinterpret_cast<uint64_t>(b);
}

inline uint64_t operand_behind(uint64_t operand, unsigned bytes) {
  return operand + bytes;
}

template <class T>
struct WarpgroupProduct {
  T* d;
  const unsigned* a;
  const char* b;
};

// Where byte k of row n of B lies.
inline const char* byte_of_operand(const char* b, int n, int k) {
  const uintptr_t plain =
      reinterpret_cast<uintptr_t>(b) + 128u * static_cast<unsigned>(n) + static_cast<unsigned>(k);
  return reinterpret_cast<const char*>(plain ^ (plain >> 7 & 7u) << 4);
}

// A warp's 16 rows. Row n of B, the column of D, is the n-th of 128 bytes, and pieces of 16 bytes
// lie where the low bits of the row's number, in the address, exchange them. value: of an operand.
template <int columns, float (*value)(uint16_t)>
void finish_warpgroup_product(void* const* lanes, unsigned) {
  const auto at = [&](int l) { return *static_cast<const WarpgroupProduct<float>*>(lanes[l]); };
  float a[16][16];
  for (int l = 0; l < 32; ++l)
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 2; ++i)
        a[l / 4 + 8 * (r % 2)][l % 4 * 2 + r / 2 * 8 + i] =
            value(static_cast<uint16_t>(at(l).a[r] >> (16 * i)));
  for (int n = 0; n < columns; ++n) {
    float b[16];
    for (int k = 0; k < 16; ++k)
      b[k] = value(*reinterpret_cast<const uint16_t*>(byte_of_operand(at(0).b, n, 2 * k)));
    for (int m = 0; m < 16; ++m) {
      float& d = at(m % 8 * 4 + n % 8 / 2).d[n / 8 * 4 + m / 8 * 2 + n % 2];
      for (int k = 0; k < 16; ++k) d += a[m][k] * b[k];
    }
  }
}

// The same of bytes, 32 deep.
template <int columns, bool is_signed>
void finish_warpgroup_bytes(void* const* lanes, unsigned) {
  const auto at = [&](int l) { return *static_cast<const WarpgroupProduct<int>*>(lanes[l]); };
  int a[16][32];
  for (int l = 0; l < 32; ++l)
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < 4; ++i) {
        const auto byte = static_cast<uint8_t>(at(l).a[r] >> (8 * i));
        a[l / 4 + 8 * (r % 2)][l % 4 * 4 + r / 2 * 16 + i] =
            is_signed ? static_cast<int8_t>(byte) : byte;
      }
  for (int n = 0; n < columns; ++n)
    for (int m = 0; m < 16; ++m) {
      int& d = at(m % 8 * 4 + n % 8 / 2).d[n / 8 * 4 + m / 8 * 2 + n % 2];
      for (int k = 0; k < 32; ++k)
        d += a[m][k] * static_cast<int8_t>(*byte_of_operand(at(0).b, n, k));
    }
}

template <class T>
void warpgroup_product(T* d, const unsigned (&a)[4], uint64_t b,
                       void (*finish)(void* const*, unsigned)) {
  if (b % 32 || b % 1024 >= 128)
    fail_block(cudaErrorMisalignedAddress, "misaligned: the rows of B not at 1024 bytes");
  WarpgroupProduct<T> mine{d, a, reinterpret_cast<const char*>(b)};
  collective(0xffffffffu, &mine, finish);
}

template <int columns>
void wgmma_bf16(float (&d)[columns / 2], const unsigned (&a)[4], uint64_t b) {
  warpgroup_product(d, a, b, &finish_warpgroup_product<columns, bf16_to_float>);
}

template <int columns>
void wgmma_f16(float (&d)[columns / 2], const unsigned (&a)[4], uint64_t b) {
  warpgroup_product(d, a, b, &finish_warpgroup_product<columns, half_to_float>);
}

template <int columns, bool is_signed>
void wgmma_bytes(int (&d)[columns / 2], const unsigned (&a)[4], uint64_t b) {
  warpgroup_product(d, a, b, &finish_warpgroup_bytes<columns, is_signed>);
}

}  // namespace emulate
