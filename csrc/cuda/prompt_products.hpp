// What products of a prompt with several weights ask of the kernels of a type, which are compiled
// apart.
#pragma once

#include "kernels_of_types.hpp"
#include "prompt_split.hpp"
#include "riverrun.h"

namespace riverrun {

// y[n, m] = x[n, k] w[m, k]^T for each weight, all of one type and layout; rows of every y lie
// `y_row` values apart.
struct PromptProducts {
  rr_tensor x;
  struct {
    const rr_tensor* w;
    float* y;
  } products[kMostPromptWeights];
  int count;
  int64_t y_row;
};

struct PromptKernels {
  uint32_t dtype;
  // Of mul_mat, for a node of one of the products.
  int (*supports)(const rr_node* node, char* why, size_t size);
  int64_t (*workspace)(int64_t n, int64_t k, int64_t down);  // down: tiles of rows of weights
  void (*launch)(const rr_exec* exec, const PromptProducts& products);
  const PromptKernels* next;
};

}  // namespace riverrun
