// What products of a prompt with several weights, and of what is made of several tensors, ask of
// the kernels of a type, which are compiled apart.
#pragma once

#include "kernels_of_types.hpp"
#include "prompt_split.hpp"
#include "riverrun.h"

namespace riverrun {

// y[n, m] = x[n, k] w[m, k]^T for each weight, all of one type and layout; rows of every y lie
// `y_row` values apart.
struct PromptProducts {
  rr_tensor x;  // [n, k]; without data where its slabs are in the workspace
  struct {
    const rr_tensor* w;
    float* y;
  } products[kMostPromptWeights];
  int count;
  int64_t y_row;
};

struct PromptKernels {
  uint32_t dtype;
  bool halves;  // slabs of x are of halves: PromptHalves
  // Of mul_mat, for a node of one of the products.
  int (*supports)(const rr_node* node, char* why, size_t size);
  int64_t (*workspace)(int64_t n, int64_t k, int64_t down);  // down: tiles of rows of weights
  void (*launch)(const rr_exec* exec, const PromptProducts& products);
  const PromptKernels* next;
};

// What n rows of k values are that are multiplied, as rows of halves at the start of the workspace:
//   kGlu: act(first) * second
//   kGatedNorm: silu(second) * rms_norm(first) * weight, by heads
//   kNorm: rms_norm(first) * weight; with second, rms_norm(sum) * weight, where sum is first +
//   second
struct PromptHalves {
  enum Kind { kGlu, kGatedNorm, kNorm } kind;
  const rr_tensor *first, *second, *weight;
  float* sum;
  int act;  // Act
  double eps;
  int64_t n, k;
};

int supports_halves(const PromptHalves& x, char* why, size_t size);
void write_halves(const rr_exec* exec, const PromptHalves& x);

}  // namespace riverrun
