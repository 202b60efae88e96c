// What the kernels of fused products share: the products at the end of a node's inputs, as one
// launch, with what they multiply in the workspace.
#pragma once

#include "kernel.cuh"
#include "step_products.hpp"
#include "step_x.cuh"

namespace {

// With more rows other products are faster, where rows need not be exact.
constexpr int64_t kFewFusedRows = 64;

// Weights from input `first` on.
[[maybe_unused]] inline int supports_products(const rr_node* node, uint32_t first, char* why,
                                              size_t size) {
  const rr_tensor& y = node->outputs[0];
  const uint32_t count = node->n_inputs - first;
  if (count > riverrun::kMostStepWeights) return refuse(why, size, "more than 8 weights");
  for (uint32_t i = first; i < node->n_inputs; ++i)
    if (!riverrun::step_takes(node->inputs[i], why, size)) return 0;
  if (y.dtype != RR_F32 || y.rank != 2 || !dense_tail(y, 1))
    return refuse(why, size, "y needs dense f32 rows");
  if (step_x_bytes(y.shape[0], node->inputs[first].shape[1]) > kMostStepX)
    return refuse(why, size, "too large");
  return 1;
}

[[maybe_unused]] inline int few_rows(const rr_node* node, char* why, size_t size) {
  if (node->outputs[0].shape[0] <= kFewFusedRows) return 1;
  return refuse(why, size, "too many rows for products of a step");
}

[[maybe_unused]] inline int64_t fused_width(const rr_node* node) {
  return node->inputs[node->n_inputs - 1].shape[1];
}

constexpr int64_t kHalvesDivide = 256;  // bytes, by which a half of the workspace divides

// Rows of x with what lies behind them, and for a single row as much again: a launch that ends with
// the next node's row reads its own from the workspace's other half.
[[maybe_unused]] inline size_t fused_workspace(const rr_node* node, int32_t) {
  const int64_t n = node->outputs[0].shape[0], k = fused_width(node);
  const int64_t bytes = blocks_for(step_x_bytes(n, k) + step_squares_bytes(n, k), kHalvesDivide);
  return static_cast<size_t>((n == 1 ? 2 : 1) * bytes * kHalvesDivide);
}

// Where the rows of a node go that no launch before it has made.
[[maybe_unused]] inline StepRows own_step_rows(const rr_node* node, const rr_exec* exec) {
  return {static_cast<unsigned char*>(exec->workspace), node->outputs[0].shape[0],
          fused_width(node) / kStepBlock};
}

// The products of x with the weights from input `first` on, beside each other. normed: whether x
// has sums of squares behind it.
[[maybe_unused]] inline void launch_products(const rr_node* node, const rr_exec* exec,
                                             uint32_t first, const unsigned char* x, bool normed) {
  const rr_tensor& y = node->outputs[0];
  const int64_t row = y.shape[0] > 1 ? y.strides[0] / 4 : y.shape[1];
  riverrun::StepProduct products[riverrun::kMostStepWeights];
  int count = 0;
  float* to = data<float>(y);
  for (uint32_t i = first; i < node->n_inputs; ++i) {
    products[count++] = {&node->inputs[i], to, row};
    to += node->inputs[i].shape[0];
  }
  const double eps = normed ? attr_float(node, "eps", 0.0) : 0.0;
  riverrun::launch_step_products(exec, products, count,
                                 {x, y.shape[0], fused_width(node), normed, eps});
}

[[maybe_unused]] inline bool dense_rows(const rr_tensor& t) {
  return t.dtype == RR_F32 && dense_tail(t, 1);
}

}  // namespace

// As RR_CUDA_KERNEL, twice: what always can, and what is chosen before products of prompts where
// there are few rows.
#define RR_FUSED_KERNEL(id, op, supports, run)                                        \
  namespace {                                                                         \
  int id##_few(const rr_node* node, char* why, size_t size) {                         \
    return few_rows(node, why, size) && supports(node, why, size);                    \
  }                                                                                   \
  }                                                                                   \
  RR_CUDA_KERNEL(id, RR_ROW_EXACT, op, "step", "", 5, supports, fused_workspace, run) \
  RR_CUDA_KERNEL(id##_of_few, RR_ROW_EXACT, op, "step", "", 15, id##_few, fused_workspace, run)
