// Products of warpgroups of bytes that are 64 columns wide and may begin at zero.
#pragma once

#include "wgmma.cuh"

namespace {

#ifdef RR_EMULATE

// Where B lies, as operand_at has it.
using StepOperand = uint64_t;

__device__ inline StepOperand step_operand(const void* b) {
  return operand_at(b);
}
__device__ inline StepOperand step_operand_behind(StepOperand b, int bytes) {
  return operand_behind(b, static_cast<unsigned>(bytes));
}

template <bool add, bool is_signed>
__device__ inline void wgmma_step(int (&d)[32], const unsigned (&a)[4], StepOperand b) {
  if (!add)
    for (int& sum : d) sum = 0;
  emulate::wgmma_bytes<64, is_signed>(d, a, b);
}

__device__ inline void hold(unsigned (&)[2][4]) {}
__device__ inline void hold_sums(int (&)[32]) {}

#else

// The lower word of operand_at: the upper one is the same everywhere.
using StepOperand = unsigned;

__device__ inline StepOperand step_operand(const void* b) {
  return static_cast<unsigned>(operand_at(b));
}
__device__ inline StepOperand step_operand_behind(StepOperand b, int bytes) {
  return b + static_cast<unsigned>(bytes / 16);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define RR_INTS4(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define RR_INTS16(d, i) RR_INTS4(d, i), RR_INTS4(d, i + 4), RR_INTS4(d, i + 8), RR_INTS4(d, i + 12)
#define RR_WGMMA_BYTES(type, d, a, at, add)                                                        \
  asm volatile(                                                                                    \
      "{.reg .pred p; .reg .b64 b; mov.b64 b, {%36, 0x40000040}; setp.ne.b32 p, %37, 0;"           \
      "wgmma.mma_async.sync.aligned.m64n64k32.s32." type                                           \
      ".s8 {"                                                                                      \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                                 \
      "}, {%32, %33, %34, %35}, b, p;}"                                                            \
      : RR_INTS16(d, 0), RR_INTS16(d, 16)                                                          \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(at), "n"(add))

// D = A B, or D += A B, as wgmma_f16 (wgmma.cuh) but 32 deep: A [64, 32] of bytes, signed or not,
// in registers as for mma_s8, B of signed bytes, D s32.
template <bool add, bool is_signed>
__device__ inline void wgmma_step(int (&d)[32], const unsigned (&a)[4], StepOperand b) {
  if constexpr (is_signed)
    RR_WGMMA_BYTES("s8", d, a, b, add);
  else
    RR_WGMMA_BYTES("u8", d, a, b, add);
}

#else

template <bool add, bool is_signed>
__device__ inline void wgmma_step(int (&)[32], const unsigned (&)[4], StepOperand) {
  __trap();
}

#endif

// Lets registers be what they are here, as hold (wgmma.cuh).
__device__ inline void hold(unsigned (&a)[2][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
    asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}
__device__ inline void hold_sums(int (&sums)[32]) {
#pragma unroll
  for (int& sum : sums) asm volatile("" : "+r"(sum)::"memory");
}

#endif

}  // namespace
