// What fused products multiply, made from their inputs: 256 values of a row by a block of threads,
// which have one each (step_x.cuh). What is computed of a row, and in which order, depends on its
// width alone.
#pragma once

#include "activation.cuh"
#include "rows.cuh"
#include "step_x.cuh"

#ifdef RR_EMULATE
#define __noinline__ __attribute__((noinline))
#endif

namespace {

// A row of K values that are heads of `width` each, `pitch` bytes apart.
struct HeadRow {
  const char* data;
  int64_t pitch;
  int width, shift;  // shift: of a width that is a power of two, which saves a division; else -1

  __device__ const float* at(int value) const {
    const int head = shift >= 0 ? value >> shift : value / width;
    return reinterpret_cast<const float*>(data + head * pitch) + (value - head * width);
  }
};

[[maybe_unused]] inline int shift_of(int width) {
  for (int shift = 0; shift < 31; ++shift)
    if (width == 1 << shift) return shift;
  return -1;
}

// [N, K], a head a row, or [N, heads, width].
struct HeadRows {
  HeadRow first;
  int64_t pitch;  // bytes from row to row

  __device__ HeadRow row(int64_t r) const {
    return {first.data + r * pitch, first.pitch, first.width, first.shift};
  }
};

[[maybe_unused]] inline HeadRows head_rows(const rr_tensor& t) {
  const int64_t pitch = t.rank > 2 ? t.strides[1] : 0;
  const int width = static_cast<int>(t.shape[t.rank - 1]);
  return {{static_cast<const char*>(t.data), pitch, width, shift_of(width)}, t.strides[0]};
}

// Whether head_rows can read t.
[[maybe_unused]] inline bool in_heads(const rr_tensor& t) {
  return t.dtype == RR_F32 && (t.rank == 2 || t.rank == 3) && dense_tail(t, 1) &&
         t.shape[t.rank - 1] <= INT32_MAX;
}

// 1 / sqrt(mean of squares + eps) of `width` values with this sum of squares; false where floats
// are too small for them.
struct RmsFactor {
  int width;
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

// Of `count` values that value(i) gives, as double: where floats are too small for it. Apart, as
// code comes from memory, too.
template <class Value>
__noinline__ __device__ double wide_squares(const Value& value, int count) {
  double sum = 0.0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const double v = value(i);
    sum += v * v;
  }
  return sum;
}

// Puts the sum of squares of the warp's values where the block finds it behind a barrier.
__device__ inline void put_squares(float v, RowScratch& scratch) {
  const float sum = warp_sum(v * v);
  if (threadIdx.x % kWarp == 0) scratch.squares[threadIdx.x / kWarp] = sum;
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

// 256 values of row `row` of `out` times weight, and the sum of their squares: products are divided
// by the row's root mean square, which is known when all of it is.
__device__ inline void write_norm_block(const NormRow& in, const StepRows& out, int64_t row,
                                        int64_t block, RowScratch& scratch) {
  const int64_t begin = block * kStepBlock, at = begin + threadIdx.x;
  float v = in.x[at];
  const float w = in.weight[at];
  if (in.delta) in.sum[at] = v += in.delta[at];
  put_squares(v, scratch);
  write_step_x(out, row, block, v * w, scratch);
  if (threadIdx.x > 0) return;
  float sum = 0.0f;
#pragma unroll
  for (float own : scratch.squares) sum += own;
  double squares = sum;
  if (!(sum >= 1e-30f && sum <= 1e37f)) {
    const float* values = (in.delta ? in.sum : in.x) + begin;
    squares = wide_squares([values](int i) { return values[i]; }, kStepBlock);
  }
  out.squares(row)[block] = squares;
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

// What `up` is multiplied by. Rows of steps are rounded to 14 bits, so that approximate
// instructions do.
__device__ inline float gate_of(Act act, float x) {
  if (act == Act::kGelu) return gelu(x);
  const float e = __expf(-fabsf(x)), r = __fdividef(1.0f, 1.0f + e);
  const float share = x < 0.0f ? e * r : r;
  return act == Act::kSilu ? x * share : share;
}

// The sum of squares of the head that a value v belongs to: of up to 256 values, a power of two.
// squares: of all sub-blocks.
__device__ inline float head_squares(float v, int width, const float (&squares)[kSubBlocks]) {
  if (width < kWarp) {
    float sum = v * v;
    for (int step = width / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
  }
  const unsigned of_head = static_cast<unsigned>(width) / kWarp;
  const unsigned first = threadIdx.x / kWarp & ~(of_head - 1);
  float sum = squares[first];
#pragma unroll 1
  for (unsigned i = 1; i < of_head; ++i) sum += squares[first + i];
  return sum;
}

// v of a head whose squares floats are too small, or too large for, normalised. first: the head's
// first value.
__noinline__ __device__ float normed_in_double(const HeadRow& x, int first, double eps, float v) {
  double factor;
  const RmsFactor of = {x.width, eps};
  of(wide_squares([&](int i) { return *x.at(first + i); }, x.width), factor);
  return static_cast<float>(v * factor);
}

// The value of silu(gate) * rms_norm(x) * weight at place `at` of a row.
__device__ inline float gated_norm(const HeadRow& x, const HeadRow& gate, const float* weight,
                                   double eps, int at, RowScratch& scratch) {
  const int within = at & (x.width - 1);
  float v = *x.at(at);
  const float g = *gate.at(at), w = weight[within];
  put_squares(v, scratch);
  const float factor = gate_of(Act::kSilu, g) * w;
  __syncthreads();
  const float sum = head_squares(v, x.width, scratch.squares);
  const float mean = fmaf(sum, 1.0f / static_cast<float>(x.width), static_cast<float>(eps));
  if (sum <= 1e37f && mean >= 1e-30f)
    v *= rsqrtf(mean);
  else
    v = normed_in_double(x, at - within, eps, v);
  return v * factor;
}

// Lets the next kernel start at once: a grid of short blocks that all run together leaves room for
// it. It may fetch weights while this one works.
__device__ inline void release_short_grid() {
#if !defined(RR_EMULATE) && __CUDA_ARCH__ >= 900
  if (gridDim.x * gridDim.y <= 1024) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace
