// Arithmetic on two halves in a register: each operation rounds once, subnormals included.
#pragma once

#include "matrix_f16.cuh"
#ifdef RR_EMULATE
#include "half_pairs.hpp"
#endif

namespace {

#ifdef RR_EMULATE

using emulate::add_pairs;
using emulate::fma_pairs;
using emulate::multiply_pairs;

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800

__device__ inline unsigned fma_pairs(unsigned, unsigned, unsigned) {
  __trap();
}

__device__ inline unsigned multiply_pairs(unsigned, unsigned) {
  __trap();
}

__device__ inline unsigned add_pairs(unsigned, unsigned) {
  __trap();
}

#else

__device__ inline unsigned fma_pairs(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ inline unsigned multiply_pairs(unsigned a, unsigned b) {
  unsigned d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ inline unsigned add_pairs(unsigned a, unsigned b) {
  unsigned d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

#endif

// (word & mask) | bits, in one instruction.
template <unsigned mask, unsigned bits>
__device__ inline unsigned mask_into(unsigned word) {
#ifdef RR_EMULATE
  return (word & mask) | bits;
#else
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "n"(mask), "n"(bits));
  return result;
#endif
}

// Halves that pairs are made of: powers of two, and such plus an integer.
__host__ __device__ constexpr unsigned pair_of(unsigned half) {
  return half | half << 16;
}

constexpr unsigned kPlus1024 = 0x6400, kMinus1024 = 0xe400, kMinus1056 = 0xe420,
                   kMinus1152 = 0xe480, kSixteenth = 0x2c00, kMinus64 = 0xd400;

__device__ inline unsigned low_twice(unsigned pair) {
  return __byte_perm(pair, 0, 0x1010);
}

__device__ inline unsigned high_twice(unsigned pair) {
  return __byte_perm(pair, 0, 0x3232);
}

// Bytes 0 and 2 (or 1 and 3) of a word plus 1024 as a pair.
__device__ inline unsigned even_bytes(unsigned word) {
  return __byte_perm(word, 0x64646464u, 0x4240);
}

__device__ inline unsigned odd_bytes(unsigned word) {
  return __byte_perm(word, 0x64646464u, 0x4341);
}

}  // namespace
