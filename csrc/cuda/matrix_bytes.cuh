// Tensor cores' products of bytes beside mma_s8: A signed or not, and 16 values deep.
#pragma once

#include "device.cuh"

namespace {

// D += A B: A [16, 16 or 32] of bytes, unsigned where the name says so, B [.., 8] of signed bytes,
// D s32, as mma.sync.m16n8k16 or m16n8k32.row.col. All lanes of the warp take part.
#ifdef RR_EMULATE

inline void mma_u8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  unsigned lower[4], upper[4];
  int sums[4] = {};
  for (int i = 0; i < 4; ++i) lower[i] = a[i] & 0x7f7f7f7fu, upper[i] = a[i] >> 7 & 0x01010101u;
  mma_s8(d, lower, b);
  mma_s8(sums, upper, b);
  for (int i = 0; i < 4; ++i) d[i] += 128 * sums[i];
}

inline void mma_s8(int (&d)[4], const unsigned (&a)[2], unsigned b) {
  const unsigned all[4] = {a[0], a[1], 0, 0}, both[2] = {b, 0};
  mma_s8(d, all, both);
}

#else

__device__ inline void mma_u8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  RR_SINCE_80(
      __trap(),
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void mma_s8(int (&d)[4], const unsigned (&a)[2], unsigned b) {
  RR_SINCE_80(__trap(),
              "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
              "{%0,%1,%2,%3};"
              : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
              : "r"(a[0]), "r"(a[1]), "r"(b));
}

#endif

}  // namespace
