// softmax: a warp or a block a row. Wide rows, such as logits, go in parts: one launch finds each
// part's largest score and sum, a second one puts them together and writes.

#include "ops/softmax.hpp"
#include "rows.cuh"

namespace {

constexpr int64_t kWide = 8192, kPart = 4096;
constexpr int kThreads = 256;

// Scores are x * scale + mask.
struct Scores {
  Rows x, mask;
  int64_t rows, width;
  float scale;
  bool masked;
  bool one_mask;  // the mask is one element for a whole row
};

// A row, or a part of one.
struct ScoreRow {
  const float* x;
  const float* mask;  // or null
  int64_t width;
  float scale;
  bool one_mask, quads, mask_quads;
};

__device__ inline ScoreRow score_row(const Scores& s, int64_t r, int64_t begin, int64_t width) {
  const float* x = row_at(s.x, r) + begin;
  const float* mask = s.masked ? row_at(s.mask, r) + (s.one_mask ? 0 : begin) : nullptr;
  return {x,
          mask,
          width,
          s.scale,
          s.one_mask,
          in_quads(x, width),
          s.masked && !s.one_mask && in_quads(mask, width)};
}

__device__ inline float4 load_mask(const ScoreRow& row, int64_t at) {
  if (!row.mask) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (row.one_mask) return make_float4(*row.mask, *row.mask, *row.mask, *row.mask);
  return load_quad(row.mask, at, row.width, row.mask_quads, 0.0f);
}

// How far a score lies below `top`, itself a rounded score. What rounding took from the product
// and from the sum is added again: it would be lost where score and top are large and close.
__device__ inline float below(const ScoreRow& row, float x, float mask, float top) {
  if (!row.mask) return fmaf(x, row.scale, -top);
  const float product = x * row.scale, sum = product + mask;
  const float part = sum - product;
  const float rest = ((product - (sum - part)) + (mask - part)) + fmaf(x, row.scale, -product);
  const float distance = sum - top;
  return fabsf(rest) < INFINITY ? distance + rest : distance;
}

// fmaxf passes NaN over; the sum of exponentials does not.
template <int group>
__device__ inline float largest_score(const ScoreRow& row) {
  float top = -INFINITY;
#pragma unroll 2
  for (int64_t i = 4 * (threadIdx.x % group); i < row.width; i += 4 * group) {
    const float4 x = load_quad(row.x, i, row.width, row.quads, 0.0f), m = load_mask(row, i);
    top = fmaxf(top, x.x * row.scale + m.x);
    if (i + 1 < row.width) top = fmaxf(top, x.y * row.scale + m.y);
    if (i + 2 < row.width) top = fmaxf(top, x.z * row.scale + m.z);
    if (i + 3 < row.width) top = fmaxf(top, x.w * row.scale + m.w);
  }
  return group_max<group>(top);
}

__device__ inline float4 exponentials(const ScoreRow& row, int64_t i, float top) {
  const float4 x = load_quad(row.x, i, row.width, row.quads, 0.0f), m = load_mask(row, i);
  return make_float4(expf(below(row, x.x, m.x, top)),
                     i + 1 < row.width ? expf(below(row, x.y, m.y, top)) : 0.0f,
                     i + 2 < row.width ? expf(below(row, x.z, m.z, top)) : 0.0f,
                     i + 3 < row.width ? expf(below(row, x.w, m.w, top)) : 0.0f);
}

// A row without anything to see has zeros, not 0/0.
__device__ inline float share_of(float total) {
  return 1.0f / (total == 0.0f ? 1.0f : total);
}

__device__ inline float above_hidden(float top) {
  return top == -INFINITY ? 0.0f : top;
}

__device__ inline float4 times(float4 v, float factor) {
  return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

template <int group>
__global__ void softmax_rows(Scores s, Rows y) {
  enter_grid();
  const int64_t r = own_row<group>();
  if (r >= s.rows) return;
  const ScoreRow row = score_row(s, r, 0, s.width);
  float* out = row_at(y, r);
  const bool stores = in_quads(out, row.width);
  const float top = above_hidden(largest_score<group>(row));
  const int first = 4 * (threadIdx.x % group);
  float sum = 0.0f;
  for (int64_t i = first; i < row.width; i += 4 * group) {
    const float4 e = exponentials(row, i, top);
    sum += (e.x + e.y) + (e.z + e.w);
    store_quad(out, i, row.width, stores, e);
  }
  const float share = share_of(group_sum<group>(sum));
  for (int64_t i = first; i < row.width; i += 4 * group) {
    const float4 e = load_quad(out, i, row.width, stores, 0.0f);
    store_quad(out, i, row.width, stores, times(e, share));
  }
}

// found [rows, parts]: the largest score of a part, and the sum of exponentials against it.
__global__ void __launch_bounds__(kThreads) measure_parts(Scores s, int64_t parts, float2* found) {
  enter_grid();
  const int64_t r = blockIdx.x / parts, begin = blockIdx.x % parts * kPart;
  const ScoreRow row = score_row(s, r, begin, min(kPart, s.width - begin));
  const float top = largest_score<kThreads>(row);
  float sum = 0.0f;
  for (int64_t i = 4 * threadIdx.x; i < row.width; i += 4 * kThreads) {
    const float4 e = exponentials(row, i, above_hidden(top));
    sum += (e.x + e.y) + (e.z + e.w);
  }
  sum = group_sum<kThreads>(sum);
  if (threadIdx.x == 0) found[blockIdx.x] = make_float2(top, sum);
}

__global__ void __launch_bounds__(kThreads)
    write_parts(Scores s, int64_t parts, const float2* found, Rows y) {
  enter_grid();
  const int64_t r = blockIdx.x / parts, begin = blockIdx.x % parts * kPart;
  const ScoreRow row = score_row(s, r, begin, min(kPart, s.width - begin));
  const float2* of_row = found + r * parts;
  float top = -INFINITY, sum = 0.0f;
  for (int64_t p = threadIdx.x; p < parts; p += kThreads) top = fmaxf(top, of_row[p].x);
  top = above_hidden(group_max<kThreads>(top));
  for (int64_t p = threadIdx.x; p < parts; p += kThreads)
    sum += of_row[p].y * expf(of_row[p].x - top);
  const float share = share_of(group_sum<kThreads>(sum));
  float* out = row_at(y, r) + begin;
  const bool stores = in_quads(out, row.width);
  for (int64_t i = 4 * threadIdx.x; i < row.width; i += 4 * kThreads)
    store_quad(out, i, row.width, stores, times(exponentials(row, i, top), share));
}

// The mask with x's shape: stride 0 where it has one element for all.
rr_tensor spread(const rr_tensor& mask, const rr_tensor& x) {
  rr_tensor out = x;
  out.data = mask.data;
  for (int axis = 0; axis < x.rank; ++axis) {
    const int own = axis - (x.rank - mask.rank);
    out.strides[axis] = own < 0 || mask.shape[own] == 1 ? 0 : mask.strides[own];
  }
  return out;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  if (numel(x) == 0) return;
  const bool masked = present(node->inputs[1]);
  const rr_tensor mask = spread(masked ? node->inputs[1] : x, x);
  const int64_t rows = n_rows(x), width = x.shape[x.rank - 1];
  const float scale = static_cast<float>(attr_float(node, "scale", 1.0));
  const Rows y = rows_of(node->outputs[0]);
  const Scores s = {rows_of(x),
                    rows_of(mask),
                    rows,
                    width,
                    scale,
                    masked,
                    masked && mask.strides[mask.rank - 1] == 0};
  if (width <= kWide) {
    RR_LAUNCH_ROWS(exec, softmax_rows, rows, width, s, y);
    return;
  }
  const int64_t parts = blocks_for(width, kPart);
  float2* found = static_cast<float2*>(exec->workspace);
  const dim3 grid(static_cast<unsigned>(rows * parts));
  RR_LAUNCH(exec, measure_parts, grid, kThreads, 0, s, parts, found);
  RR_LAUNCH(exec, write_parts, grid, kThreads, 0, s, parts, found, y);
}

size_t workspace(const rr_node* node, int32_t) {
  const rr_tensor& x = node->inputs[0];
  const int64_t width = x.shape[x.rank - 1];
  if (width <= kWide) return 0;
  return static_cast<size_t>(n_rows(x) * blocks_for(width, kPart)) * sizeof(float2);
}

}  // namespace

RR_CUDA_KERNEL(softmax, RR_ROW_EXACT, "softmax", "cuda", "", 0, supports, workspace, run)
