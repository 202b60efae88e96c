// What fused products multiply, made from their inputs and written as step products take it.
//
// A warp makes 256 values of a row at a time, each lane eight neighbours of them. What is computed
// of a row, and in which order, depends on its width alone.
#pragma once

#include "rows.cuh"
#include "step_x.cuh"

namespace {

// Eight floats from any address of one on.
__device__ inline void load_eight(const float* from, float (&v)[8]) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(float4) != 0) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = from[i];
    return;
  }
  const float4 a = *reinterpret_cast<const float4*>(from);
  const float4 b = *reinterpret_cast<const float4*>(from + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// To an address that 16 divides.
__device__ inline void store_eight(float* to, const float (&v)[8]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Rows of K values that are heads of `width` each: [N, K] as one head, or [N, heads, width].
struct HeadRows {
  const char* data;
  int64_t row, head;  // bytes from one to the next
  int width;

  __device__ const float* at(int64_t r, int64_t value) const {
    const int64_t h = value / width;
    return reinterpret_cast<const float*>(data + r * row + h * head) + (value - h * width);
  }
};

[[maybe_unused]] inline HeadRows head_rows(const rr_tensor& t) {
  const int64_t head = t.rank > 2 ? t.strides[1] : 0;
  return {static_cast<const char*>(t.data), t.strides[0], head,
          static_cast<int>(t.shape[t.rank - 1])};
}

// Whether head_rows can read t in eights: [N, K], or [N, heads, a multiple of 8].
[[maybe_unused]] inline bool in_heads(const rr_tensor& t) {
  if (t.dtype != RR_F32 || t.rank < 2 || t.rank > 3 || !dense_tail(t, 1)) return false;
  return t.shape[t.rank - 1] % 8 == 0 && t.shape[t.rank - 1] <= INT32_MAX;
}

// 1 / sqrt(mean of squares + eps) of `width` values with this sum of squares; false where floats
// are too small for them.
struct RmsFactor {
  int64_t width;
  double eps;

  template <typename T>
  __device__ bool operator()(T sum, T& factor) const {
    const T root = sqrt_of(sum / static_cast<T>(width) + static_cast<T>(eps));
    factor = T(1) / root;
    return sizeof(T) > sizeof(float) || (sum <= T(1e37) && root >= T(1e-15));
  }

 private:
  static __device__ float sqrt_of(float x) { return sqrtf(x); }
  static __device__ double sqrt_of(double x) { return sqrt(x); }
};

template <typename T>
__device__ inline T squares_of(const float (&v)[8]) {
  T sum = 0;
#pragma unroll
  for (float value : v) sum += static_cast<T>(value) * static_cast<T>(value);
  return sum;
}

// v times factor, then times w.
template <typename T>
__device__ inline void scale_eight(float (&v)[8], T factor, const float (&w)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = static_cast<float>(static_cast<T>(v[i]) * factor) * w[i];
}

// A vector that kernels read as a whole. What never changes can be loaded before await_grid().
struct NormWeight {
  const float* data;
  bool constant;
};

[[maybe_unused]] inline NormWeight norm_weight(const rr_tensor& t) {
  return {::data<const float>(t), t.constant != 0};
}

// Lets the next kernel start at once: a grid of short blocks that all run together leaves room for
// it. It may fetch weights while this one works.
__device__ inline void release_short_grid() {
#if !defined(RR_EMULATE) && __CUDA_ARCH__ >= 900
  if (gridDim.x <= 1024) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace
