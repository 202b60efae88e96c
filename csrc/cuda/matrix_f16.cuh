// Tensor cores' products of halves, and matrices that are transposed while they are loaded, beside
// what device.cuh has.
#pragma once

#include "device.cuh"
#ifdef RR_EMULATE
#include "matrix_f16.hpp"
#endif

namespace {

#ifdef RR_EMULATE

using emulate::load_matrix4_transposed;
using emulate::mma_f16;

inline unsigned pack_f16(float low, float high) {
  return float_to_half(low) | static_cast<unsigned>(float_to_half(high)) << 16;
}

#else

// As mma_bf16, of halves.
__device__ inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  RR_SINCE_80(__trap(),
              "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
              "{%8,%9}, {%0,%1,%2,%3};"
              : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ldmatrix.x4.trans: as load_matrix4, each of the four matrices transposed.
__device__ inline void load_matrix4_transposed(unsigned (&r)[4], const void* row) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// Two floats in a register, rounded as by float_to_half; `low` in the lower half.
__device__ inline unsigned pack_f16(float low, float high) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return float_to_half(low) | static_cast<unsigned>(float_to_half(high)) << 16;
#endif
}

#endif

}  // namespace
