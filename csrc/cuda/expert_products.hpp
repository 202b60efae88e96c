// What fused products of experts ask of the kernels of a type of weights, which are compiled apart.
#pragma once

#include "kernels_of_types.hpp"
#include "riverrun.h"

namespace riverrun {

// y[n, u] = x[n] or x[n, u] times w[ids[n, u]], as mul_mat_id has it.
struct ChosenProduct {
  rr_tensor x, w, ids, y;
  const rr_tensor* gate;  // as w: y has silu of its products times those of w; or null
  void* routes;           // step_route_bytes or prompt_route_bytes, of all products with these ids
  bool routed;            // they are there
  void* rows;             // Kernels::row_bytes
};

// For one token: sum[m] = the sum over u of weights[u] y[0, u, m].
struct SummedProduct {
  ChosenProduct of;  // without y
  const float* weights;
  float* sum;
};

constexpr int kMostSummed = 16;  // pairs of that token

// Kernels of steps, row-exact.
struct StepExperts {
  uint32_t dtype;
  int64_t (*row_bytes)(int64_t rows, int64_t k);
  bool (*takes)(const rr_tensor& w);
  void (*multiply)(const rr_exec* exec, const ChosenProduct& product);
  void (*add_up)(const rr_exec* exec, const SummedProduct& product);
  const StepExperts* next;
};

// Kernels of prompts, on warpgroups. Rows of x and y of a product with a gate lie apart, sorted by
// expert: y is `sorted`, as is the x of the product after it, [rows, K].
struct PromptExperts {
  uint32_t dtype;
  bool (*served)();  // by the current device and this build
  int64_t (*row_bytes)(int64_t pairs, int64_t experts, int64_t k);
  void (*multiply)(const rr_exec* exec, const ChosenProduct& product);
  const PromptExperts* next;
};

}  // namespace riverrun
