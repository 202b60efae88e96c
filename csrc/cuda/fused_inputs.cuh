// What fused products multiply, made from their inputs and written as step products take it.
//
// A warp makes 256 values of a row at a time, each lane eight neighbours of them. What is computed
// of a row, and in which order, depends on its width alone.
#pragma once

#include "activation.cuh"
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

// A row of K values that are heads of `width` each, `pitch` bytes apart.
struct HeadRow {
  const char* data;
  int64_t pitch;
  int width;

  // value: below 2^31, as division takes many times as long beyond.
  __device__ const float* at(int64_t value) const {
    const int own = static_cast<int>(value), h = own / width;
    return reinterpret_cast<const float*>(data + h * pitch) + (own - h * width);
  }
};

// [N, K], a head a row, or [N, heads, width].
struct HeadRows {
  HeadRow first;
  int64_t pitch;  // bytes from row to row

  __device__ HeadRow row(int64_t r) const {
    return {first.data + r * pitch, first.pitch, first.width};
  }
};

[[maybe_unused]] inline HeadRows head_rows(const rr_tensor& t) {
  const int64_t pitch = t.rank > 2 ? t.strides[1] : 0;
  const int width = static_cast<int>(t.shape[t.rank - 1]);
  return {{static_cast<const char*>(t.data), pitch, width}, t.strides[0]};
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

// Of a row's 256 values, in all lanes. Where floats are too small for it, as double.
__device__ inline double block_squares(const float (&v)[8]) {
  float narrow = squares_of<float>(v);
  for (int step = kWarp / 2; step > 0; step /= 2)
    narrow += __shfl_xor_sync(kAllLanes, narrow, step);
  if (narrow >= 1e-30f && narrow <= 1e37f) return narrow;
  double wide = squares_of<double>(v);
  for (int step = kWarp / 2; step > 0; step /= 2) wide += __shfl_xor_sync(kAllLanes, wide, step);
  return wide;
}

// The sum of a row's so many sums of squares, in an order that is its width's, in each of eight
// neighbouring lanes.
template <typename T>
__device__ inline T row_squares(const double* squares, int blocks) {
  T total = 0;
  for (int block = threadIdx.x % 8; block < blocks; block += 8)
    total += static_cast<T>(squares[block]);
  for (int step = 4; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  return total;
}

// What up to four rows are multiplied by: lane t of each four has that of row t.
__device__ inline float tile_factor(const double* squares, int rows, int blocks,
                                    const RmsFactor& of) {
  const int lane = threadIdx.x % kWarp;
  squares += min(lane / 8, rows - 1) * blocks;
  float factor;
  const bool small = of(row_squares<float>(squares, blocks), factor);
  if (!__all_sync(kAllLanes, small)) {
    double wide;
    of(row_squares<double>(squares, blocks), wide);
    if (!small) factor = static_cast<float>(wide);
  }
  return __shfl_sync(kAllLanes, factor, lane % 4 * 8);
}

// Rows of x, or of x + delta, that are normalised and multiplied by weight.
struct NormRow {
  const float *x, *delta;  // delta: null for none
  float* sum;              // where x + delta goes, with delta
  const float* weight;
};

// 256 values of row `row` of `out` times weight, and the sum of their squares, by a warp: products
// are divided by the row's root mean square, which is known when all of it is.
__device__ inline void write_norm_block(const NormRow& in, const StepRows& out, int64_t row,
                                        int64_t block) {
  const int64_t at = block * kStepBlock + threadIdx.x % kWarp * 8;
  float v[8], w[8];
  load_eight(in.x + at, v);
  load_eight(in.weight + at, w);
  if (in.delta) {
    float delta[8];
    load_eight(in.delta + at, delta);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] += delta[i];
    store_eight(in.sum + at, v);
  }
  const double squares = block_squares(v);
  if (threadIdx.x % kWarp == 0) out.squares(row)[block] = squares;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] *= w[i];
  write_step_x(out, row, block, v);
}

enum class Act { kSilu, kGelu, kSigmoid };

[[maybe_unused]] inline Act act_of(const rr_node* node) {
  if (attr_is(node, "act", "silu")) return Act::kSilu;
  return attr_is(node, "act", "gelu") ? Act::kGelu : Act::kSigmoid;
}

__device__ inline float gated(Act act, float gate, float up) {
  if (act == Act::kSilu) return silu(gate) * up;
  if (act == Act::kGelu) return gelu(gate) * up;
  return up * sigmoid(gate);
}

// This lane's eight of a block of 256 values.
__device__ inline void glu_block(Act act, const HeadRow& gate, const HeadRow& up, int64_t block,
                                 float (&v)[8]) {
  const int64_t at = block * kStepBlock + threadIdx.x % kWarp * 8;
  float other[8];
  load_eight(gate.at(at), v);
  load_eight(up.at(at), other);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = gated(act, v[i], other[i]);
}

// The factor of a head of which `lanes` neighbouring lanes have eight values each.
template <typename T>
__device__ inline bool head_factor(const float (&v)[8], int lanes, const RmsFactor& of, T& factor) {
  T sum = squares_of<T>(v);
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return of(sum, factor);
}

// The same of silu(gate) * rms_norm(x) * weight; heads of 8 to 256 values, a power of two.
__device__ inline void gated_norm_block(const HeadRow& x, const HeadRow& gate, const float* weight,
                                        double eps, int64_t block, float (&v)[8]) {
  const int64_t at = block * kStepBlock + threadIdx.x % kWarp * 8;
  float other[8], w[8];
  load_eight(x.at(at), v);
  load_eight(gate.at(at), other);
  load_eight(weight + at % x.width, w);
  const RmsFactor of = {x.width, eps};
  float factor;
  double wide = 0.0;
  const bool small = head_factor(v, x.width / 8, of, factor);
  if (!__all_sync(kAllLanes, small)) head_factor(v, x.width / 8, of, wide);
  if (small)
    scale_eight(v, factor, w);
  else
    scale_eight(v, wide, w);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = silu(other[i]) * v[i];
}

// Lets the next kernel start at once: a grid of short blocks that all run together leaves room for
// it. It may fetch weights while this one works.
__device__ inline void release_short_grid() {
#if !defined(RR_EMULATE) && __CUDA_ARCH__ >= 900
  if (gridDim.x <= 1024) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

constexpr int kFusedThreads = 128;

// The row and the block of 256 values of this warp; false beyond the last.
struct OwnBlock {
  int64_t row, block;

  __device__ bool find(const StepRows& of) {
    const int64_t at = int64_t{blockIdx.x} * (kFusedThreads / kWarp) + threadIdx.x / kWarp;
    row = at / of.blocks;
    block = at - row * of.blocks;
    return row < of.rows;
  }
};

[[maybe_unused]] inline dim3 block_grid(const StepRows& of) {
  return dim3(static_cast<unsigned>(blocks_for(of.rows * of.blocks, kFusedThreads / kWarp)));
}

}  // namespace
