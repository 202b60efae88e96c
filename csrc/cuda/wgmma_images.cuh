// Products of a warpgroup with operands of bf16: A in registers, B in shared memory, as images of
// 64 columns. Where wgmma is missing the warps multiply one by one, with the same values.
#pragma once

#include "device.cuh"

namespace {

constexpr int kWarpgroup = 128;
constexpr int kImage = 64;  // rows and columns of an image of a matrix
constexpr int kImageAlignment = 1024;

// Rows of 128 bytes, whose eight pieces of 16 are exchanged within eight rows as wgmma and
// load_matrix4 read them without bank conflicts; in shared memory an image is aligned to 1024
// bytes.
struct __align__(16) Image {
  uint16_t at[kImage][kImage];
};

// Where piece `column` / 8 of a row lies.
__device__ inline int image_column(int row, int column) {
  return ((column / 8) ^ (row % 8)) * 8 + column % 8;
}

// What is at the first address from `memory` on that suits images.
template <typename T>
__device__ inline T* align_images(unsigned char* memory) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
  return reinterpret_cast<T*>(memory + (kImageAlignment - at % kImageAlignment) % kImageAlignment);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(RR_EMULATE)

__device__ inline void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `left` groups of products are unfinished.
template <int left>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

// Makes what this thread wrote to shared memory seen by products of those it then meets.
__device__ inline void share_with_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define RR_SUMS4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RR_SUMS16(d, i) RR_SUMS4(d, i), RR_SUMS4(d, i + 4), RR_SUMS4(d, i + 8), RR_SUMS4(d, i + 12)

template <bool across>
__device__ inline void multiply_64(float (&d)[32], const unsigned (&a)[4], uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;}"
      : RR_SUMS16(d, 0), RR_SUMS16(d, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(across ? 1 : 0));
}

template <bool across>
__device__ inline void multiply_128(float (&d)[64], const unsigned (&a)[4], uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %69, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;}"
      : RR_SUMS16(d, 0), RR_SUMS16(d, 16), RR_SUMS16(d, 32), RR_SUMS16(d, 48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(across ? 1 : 0));
}

// D <- A B, or D + A B. A: 16 columns of 64 rows, of which each warp holds 16 as for mma_bf16. B
// has `columns` columns; its 16 rows are columns k .. of images, or with `across` rows of theirs.
// D: register 4j + i is of row l / 4 + 8 (i / 2) of the warp's, column 8j + 2 (l % 4) + i % 2.
template <int columns, bool across>
__device__ inline void multiply(float (&d)[columns / 2], const unsigned (&a)[4], const Image* b,
                                int k, bool add) {
  constexpr uint64_t kSwizzle128 = 1ull << 62, kEightRows = 1024 / 16;
  constexpr uint64_t kApart = across ? sizeof(Image) / 16 : 1;
  const uint16_t* first = across ? b->at[k] : &b[k / kImage].at[0][k % kImage];
  const uint64_t at = static_cast<uint64_t>(__cvta_generic_to_shared(first)) & 0x3ffff;
  const uint64_t operand = kSwizzle128 | kEightRows << 32 | kApart << 16 | at >> 4;
  if constexpr (columns == 64)
    multiply_64<across>(d, a, operand, add);
  else
    multiply_128<across>(d, a, operand, add);
}

#else

__device__ inline void products_begin() {}
__device__ inline void products_commit() {}
template <int left>
__device__ inline void products_wait() {}
__device__ inline void share_with_products() {}

template <int columns, bool across>
__device__ inline void multiply(float (&d)[columns / 2], const unsigned (&a)[4], const Image* b,
                                int k, bool add) {
  const int lane = threadIdx.x % kWarp;
  for (int j = 0; j < columns / 8; ++j) {
    const int column = 8 * j + lane / 4;
    unsigned pair[2];
    for (int i = 0; i < 4; ++i) {
      const int row = k + i / 2 * 8 + lane % 4 * 2 + i % 2;
      const int of = across ? row : column, at = across ? column : row;
      const unsigned x = b[at / kImage].at[of][image_column(of, at % kImage)];
      pair[i / 2] = i % 2 ? pair[i / 2] | x << 16 : x;
    }
    float sums[4] = {};
    for (int i = 0; i < 4 && add; ++i) sums[i] = d[4 * j + i];
    mma_bf16(sums, a, pair);
    for (int i = 0; i < 4; ++i) d[4 * j + i] = sums[i];
  }
}

#endif

}  // namespace
