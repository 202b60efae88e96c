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

__device__ inline StepOperand step_operand_same(StepOperand b) {
  return b;
}

template <bool add, bool is_signed>
__device__ inline void wgmma_step(int (&low)[32], int (&high)[32], const unsigned (&a)[2][4],
                                  StepOperand b) {
  if (!add)
    for (int i = 0; i < 32; ++i) low[i] = high[i] = 0;
  emulate::wgmma_bytes<64, false>(low, a[0], b);
  emulate::wgmma_bytes<64, is_signed>(high, a[1], b);
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

// An operand that all lanes have the same of, in a register that they share: products read it
// there, and from others it is moved before each of them.
__device__ inline StepOperand step_operand_same(StepOperand b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  return __reduce_or_sync(kAllLanes, b);
#else
  return b;
#endif
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define RR_INTS4(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define RR_INTS16(d, i) RR_INTS4(d, i), RR_INTS4(d, i + 4), RR_INTS4(d, i + 8), RR_INTS4(d, i + 12)
#define RR_WGMMA_STEP(type, low, high, a, at, add)                                            \
  asm volatile(                                                                               \
      "{.reg .pred p; .reg .b64 b; mov.b64 b, {%72, 0x40000040}; setp.ne.b32 p, %73, 0;"      \
      "wgmma.fence.sync.aligned;"                                                             \
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"                                    \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                       \
      "}, {%64, %65, %66, %67}, b, p;"                                                        \
      "wgmma.mma_async.sync.aligned.m64n64k32.s32." type                                      \
      ".s8 {"                                                                                 \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
      "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"             \
      "}, {%68, %69, %70, %71}, b, p;"                                                        \
      "wgmma.commit_group.sync.aligned;}"                                                     \
      : RR_INTS16(low, 0), RR_INTS16(low, 16), RR_INTS16(high, 0), RR_INTS16(high, 16)        \
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]),   \
        "r"(a[1][2]), "r"(a[1][3]), "r"(at), "n"(add)                                         \
      : "memory")

// A group of two products of operands that were written before: D = A B, or D += A B, as wgmma_f16
// (wgmma.cuh) but 32 deep: A [64, 32] of bytes without sign (low) and signed or not (high), in
// registers as for mma_s8, B of signed bytes, D s32.
template <bool add, bool is_signed>
__device__ inline void wgmma_step(int (&low)[32], int (&high)[32], const unsigned (&a)[2][4],
                                  StepOperand b) {
  if constexpr (is_signed)
    RR_WGMMA_STEP("s8", low, high, a, b, add);
  else
    RR_WGMMA_STEP("u8", low, high, a, b, add);
}

#else

template <bool add, bool is_signed>
__device__ inline void wgmma_step(int (&)[32], int (&)[32], const unsigned (&)[2][4], StepOperand) {
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
