// Products of warpgroups (wgmma). They are of compute capability 9.0 alone and need code built for
// sm_90a; elsewhere they trap, and kernels with them refuse where `serves_warpgroups` says no.
#pragma once

#include "bulk_copy.cuh"

namespace {

constexpr int kWarpgroup = 128;
constexpr int kSlabBytes = 128;  // of one row of B that lie together: 64 values of k

#ifdef RR_EMULATE

using emulate::operand_at;
using emulate::operand_behind;
using emulate::wgmma_bf16;
using emulate::wgmma_f16;

template <int registers>
__device__ inline void keep_registers() {}
template <int registers>
__device__ inline void take_registers() {}
__device__ inline void hold(unsigned (&)[4][4]) {}
__device__ inline void wgmma_begin() {}
__device__ inline void wgmma_commit() {}
template <int left>
__device__ inline void wgmma_wait() {}

#else

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RR_SM_90A(...) asm volatile(__VA_ARGS__)
#else
#define RR_SM_90A(...) __trap()
#endif

// A warpgroup gives registers back, or takes more: so many a thread, a multiple of 8. Waits until
// there are as many.
template <int registers>
__device__ inline void keep_registers() {
  RR_SM_90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers>
__device__ inline void take_registers() {
  RR_SM_90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Lets registers be what they are here: products that run read them, which the compiler cannot see.
__device__ inline void hold(unsigned (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

// Before the first of a group of products, after registers they read or add to were written.
__device__ inline void wgmma_begin() {
  RR_SM_90A("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void wgmma_commit() {
  RR_SM_90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `left` groups are unfinished. Until then registers of a product's A and D
// must not be touched.
template <int left>
__device__ inline void wgmma_wait() {
  RR_SM_90A("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

// Where B lies: rows of 128 bytes, whose eight pieces of 16 are exchanged by `swizzled`, the first
// at an address that divides by 1024. Behind it by multiples of 32 bytes lie those of the row's
// other products, by multiples of 1024 those of other rows.
__device__ inline uint64_t operand_at(const void* b) {
  constexpr uint64_t kSwizzle128 = 1ull << 62, kEightRows = 1024 / 16;
  return kSwizzle128 | kEightRows << 32 | 1ull << 16 | (shared_address(b) & 0x3ffff) >> 4;
}

__device__ inline uint64_t operand_behind(uint64_t operand, unsigned bytes) {
  return operand + bytes / 16;
}

#define RR_SUMS4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RR_SUMS16(d, i) RR_SUMS4(d, i), RR_SUMS4(d, i + 4), RR_SUMS4(d, i + 8), RR_SUMS4(d, i + 12)

#define RR_WGMMA_256(type, d, a, at)                                                               \
  asm volatile(                                                                                    \
      "{.reg .pred p; setp.eq.u32 p, 0, 0; "                                                       \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, "                                                                                     \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
      "%127"                                                                                       \
      "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0;}"                                            \
      : RR_SUMS16(d, 0), RR_SUMS16(d, 16), RR_SUMS16(d, 32), RR_SUMS16(d, 48), RR_SUMS16(d, 64),   \
        RR_SUMS16(d, 80), RR_SUMS16(d, 96), RR_SUMS16(d, 112)                                      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(at))

#define RR_WGMMA_128(type, d, a, at)                                                     \
  asm volatile(                                                                          \
      "{.reg .pred p; setp.eq.u32 p, 0, 0; "                                             \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;}"                                       \
      : RR_SUMS16(d, 0), RR_SUMS16(d, 16), RR_SUMS16(d, 32), RR_SUMS16(d, 48)            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(at))

#define RR_WGMMA_64(type, d, a, at)                                                    \
  asm volatile(                                                                        \
      "{.reg .pred p; setp.eq.u32 p, 0, 0; "                                           \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                      \
      " {"                                                                             \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "         \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;}"                                     \
      : RR_SUMS16(d, 0), RR_SUMS16(d, 16)                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(at))

// D += A B for the warpgroup: A [64, 16] of bf16 in registers, of which each warp holds 16 rows as
// for mma_bf16; B [16, columns] in shared memory; D f32, of which each warp holds its 16 rows:
// register 4j + i lies in row l / 4 + 8 (i / 2), column 8j + 2 (l % 4) + i % 2.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RR_WGMMA(type, columns, d, a, b) \
  if constexpr (columns == 256)          \
    RR_WGMMA_256(type, d, a, b);         \
  else if constexpr (columns == 128)     \
    RR_WGMMA_128(type, d, a, b);         \
  else                                   \
    RR_WGMMA_64(type, d, a, b)
#else
#define RR_WGMMA(type, columns, d, a, b) __trap()
#endif

template <int columns>
__device__ inline void wgmma_bf16(float (&d)[columns / 2], const unsigned (&a)[4], uint64_t b) {
  static_assert(columns == 256 || columns == 128 || columns == 64, "a width that is written out");
  RR_WGMMA("bf16", columns, d, a, b);
}

// The same of f16.
template <int columns>
__device__ inline void wgmma_f16(float (&d)[columns / 2], const unsigned (&a)[4], uint64_t b) {
  static_assert(columns == 256 || columns == 128 || columns == 64, "a width that is written out");
  RR_WGMMA("f16", columns, d, a, b);
}

#endif

constexpr const char* kWarpgroupRefusal = "needs compute capability 9.0 and a build for 90a";

// Whether the current device has what this header is about, and the file was built for it.
[[maybe_unused]] inline bool serves_warpgroups() {
#if defined(RR_EMULATE) || defined(RR_BUILT_90A)
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major == 9 && minor == 0;
#else
  return false;
#endif
}

}  // namespace
