// Device code's vocabulary: what kernels use of CUDA beyond the language, under names that also
// exist where kernels are compiled for the host (RR_EMULATE, csrc/emulate) to be checked there.
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef RR_EMULATE
#include "emulate.hpp"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

#ifdef RR_EMULATE

using emulate::async_copy16;
using emulate::async_copy_commit;
using emulate::async_copy_wait;
using emulate::bf16_to_float;
using emulate::dot4;
using emulate::dynamic_shared;
using emulate::float_to_bf16;
using emulate::float_to_half;
using emulate::half_to_float;
using emulate::load_matrix4;
using emulate::mma_bf16;
using emulate::mma_s8;

// Two floats in a register, rounded as by float_to_bf16; `low` in the lower half.
inline unsigned pack_bf16(float low, float high) {
  return float_to_bf16(low) | static_cast<unsigned>(float_to_bf16(high)) << 16;
}

#define RR_LAUNCH_CALL(kernel, grid, block, shared, stream, overlap, ...) \
  emulate::launch_kernel(#kernel, grid, block, shared, stream, kernel, __VA_ARGS__)

__device__ inline void release_grid() {}
__device__ inline void await_grid() {}

#else

#define RR_LAUNCH_CALL(kernel, grid, block, shared, stream, overlap, ...) \
  launch_kernel(kernel, grid, block, shared, stream, overlap, __VA_ARGS__)

// overlap: the kernel may begin while those before it on the stream still run (cards from compute
// capability 9.0 on).
template <typename... Parameters, typename... Arguments>
inline void launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                          cudaStream_t stream, bool overlap, Arguments... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// Blocks of a grid that leaves most of a large card idle.
constexpr unsigned kFewBlocks = 128;

// Lets the next kernel on the stream start as soon as all blocks of this one have started, if they
// are few. With many blocks the next kernel's would occupy SMs as these drain, unevenly; it starts
// when this kernel ends.
__device__ inline void release_grid() {
#if __CUDA_ARCH__ >= 900
  if (gridDim.x * gridDim.y * gridDim.z <= kFewBlocks)
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernels before this one have ended and their writes are visible. Before this call
// a kernel must not read or write anything that a kernel of the plan writes; after it, it must not
// read that with __ldg, because the compiler may move such a load above the wait.
__device__ inline void await_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

extern __shared__ __align__(16) unsigned char rr_dynamic_shared[];

// The block's dynamic shared memory, 16-byte aligned.
__device__ inline unsigned char* dynamic_shared() {
  return rr_dynamic_shared;
}

__device__ inline float half_to_float(uint16_t x) {
  return __half2float(__ushort_as_half(x));
}

__device__ inline uint16_t float_to_half(float x) {
  return __half_as_ushort(__float2half_rn(x));
}

__device__ inline float bf16_to_float(uint16_t x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}

// To nearest, ties to even; NaN stays NaN.
__device__ inline uint16_t float_to_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// Two floats in a register, rounded as by float_to_bf16; `low` in the lower half.
__device__ inline unsigned pack_bf16(float low, float high) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return float_to_bf16(low) | static_cast<unsigned>(float_to_bf16(high)) << 16;
#endif
}

// c + the dot product of four signed bytes each.
__device__ inline int dot4(int a, int b, int c) {
  return __dp4a(a, b, c);
}

// Cards before compute capability 8.0 do `otherwise`: they have neither these products nor copies.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define RR_SINCE_80(otherwise, ...) asm volatile(__VA_ARGS__)
#else
#define RR_SINCE_80(otherwise, ...) otherwise
#endif

// D += A B on tensor cores: A [16, 16] and B [16, 8] of bf16, D f32, in the register layout of
// mma.sync.m16n8k16.row.col. All lanes of the warp take part.
__device__ inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  RR_SINCE_80(__trap(),
              "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
              "{%8,%9}, {%0,%1,%2,%3};"
              : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same for signed bytes: A [16, 32], B [32, 8], D s32, mma.sync.m16n8k32.row.col.
__device__ inline void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  RR_SINCE_80(
      __trap(),
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ldmatrix.x4: lane l gives the address of a row of 16 bytes in shared memory: row l % 8 of 8x8
// matrix l / 8; register i receives this lane's part of matrix i.
__device__ inline void load_matrix4(unsigned (&r)[4], const void* row) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// 16 bytes from global to shared memory in the background; both addresses 16-byte aligned.
__device__ inline void async_copy16(void* shared, const void* global) {
  RR_SINCE_80(*static_cast<uint4*>(shared) = *static_cast<const uint4*>(global),
              "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                  static_cast<unsigned>(__cvta_generic_to_shared(shared))),
              "l"(global)
              : "memory");
}

__device__ inline void async_copy_commit() {
  RR_SINCE_80((void)0, "cp.async.commit_group;" ::: "memory");
}

// Waits until at most `left` of this thread's groups are unfinished.
template <int left>
__device__ inline void async_copy_wait() {
  RR_SINCE_80((void)0, "cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#endif

// What every kernel begins with. In all threads: a block that did not wait could end, and let the
// kernel after it go on, before the ones before it have ended.
__device__ inline void enter_grid() {
  release_grid();
  await_grid();
}

__device__ inline float warp_sum(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// The sum over all threads of a block of `threads`, the same bits in each of them; `scratch` has
// threads / 32 floats in shared memory and may be used again at once.
template <int threads>
__device__ inline float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  float total = 0.0f;
  for (int i = 0; i < threads / kWarp; ++i) total += scratch[i];
  __syncthreads();
  return total;
}

template <int threads>
__device__ inline float block_max(float x, float* scratch) {
  x = warp_max(x);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  float most = scratch[0];
  for (int i = 1; i < threads / kWarp; ++i) most = fmaxf(most, scratch[i]);
  __syncthreads();
  return most;
}

}  // namespace
