// Fused products of prompts: a launch that makes what is multiplied, where that is not a tensor,
// and one for the weights of each type and layout, whose tiles fill the card together.
#include "fused_inputs.cuh"
#include "prompt_exact.hpp"
#include "prompt_products.hpp"
#include "prompt_sources.cuh"

namespace {

using riverrun::PromptHalves;
using riverrun::PromptKernels;
using riverrun::PromptProducts;

constexpr uint32_t kMostInputs = 64;  // of a node

inline const PromptKernels* kernels_of(const rr_tensor& w) {
  return riverrun::kernels_of<PromptKernels>(w.dtype);
}

// Weights from input `first` on, each as mul_mat takes it, with an x of dense rows.
int supports_weights(const rr_node* node, uint32_t first, char* why, size_t size) {
  const rr_tensor& y = node->outputs[0];
  if (node->n_inputs > kMostInputs) return refuse(why, size, "more than 64 inputs");
  if (y.dtype != RR_F32 || y.rank != 2 || !dense_tail(y, 1))
    return refuse(why, size, "y needs dense f32 rows");
  for (uint32_t i = first; i < node->n_inputs; ++i) {
    const rr_tensor& w = node->inputs[i];
    const PromptKernels* kernels = kernels_of(w);
    if (!kernels) return refuse(why, size, "a type of weights without products on warpgroups");
    rr_tensor x = y, part = y;
    x.shape[1] = w.shape[1];
    x.strides[0] = 4 * w.shape[1];
    part.shape[1] = w.shape[0];
    const rr_tensor inputs[] = {x, w};
    rr_node one = *node;
    one.n_inputs = 2;
    one.inputs = inputs;
    one.outputs = &part;
    if (!kernels->supports(&one, why, size)) return 0;
  }
  return 1;
}

// Calls what(kernels, inputs, count) for each launch of the node, with those of the inputs from
// number `first` on that it takes: alike in type and layout, up to the most of a launch.
template <class What>
void each_launch(const rr_node* node, uint32_t first, const What& what) {
  bool taken[kMostInputs] = {};
  for (; first < node->n_inputs; ++first) {
    if (taken[first]) continue;
    const rr_tensor& alike = node->inputs[first];
    uint32_t inputs[riverrun::kMostPromptWeights];
    int count = 0;
    for (uint32_t i = first; i < node->n_inputs && count < riverrun::kMostPromptWeights; ++i) {
      const rr_tensor& w = node->inputs[i];
      if (taken[i] || w.dtype != alike.dtype || w.layout != alike.layout) continue;
      taken[i] = true;
      if (w.shape[0] > 0) inputs[count++] = i;
    }
    if (count > 0) what(*kernels_of(alike), inputs, count);
  }
}

template <uint32_t first>
size_t workspace_of(const rr_node* node, int32_t) {
  const int64_t n = node->outputs[0].shape[0], k = node->inputs[first].shape[1];
  int64_t most = 0;
  each_launch(node, first, [&](const PromptKernels& kernels, const uint32_t* inputs, int count) {
    int64_t down = 0;
    for (int i = 0; i < count; ++i)
      down += blocks_for(node->inputs[inputs[i]].shape[0], kPromptRows);
    const int64_t bytes = kernels.workspace(n, k, down);
    most = bytes > most ? bytes : most;
  });
  return static_cast<size_t>(most);
}

// y of x, or of the rows that are in the workspace if x has no data.
void launch_weights(const rr_node* node, const rr_exec* exec, uint32_t first, const rr_tensor& x) {
  const rr_tensor& y = node->outputs[0];
  int64_t columns[kMostInputs] = {};
  for (uint32_t i = first + 1; i < node->n_inputs; ++i)
    columns[i] = columns[i - 1] + node->inputs[i - 1].shape[0];
  each_launch(node, first, [&](const PromptKernels& kernels, const uint32_t* inputs, int count) {
    PromptProducts of = {x, {}, count, row_step(y)};
    for (int i = 0; i < count; ++i)
      of.products[i] = {&node->inputs[inputs[i]], data<float>(y) + columns[inputs[i]]};
    kernels.launch(exec, of);
  });
}

int supports_mul_mats(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  if (x.dtype != RR_F32 || x.rank != 2 || !dense_tail(x, 1))
    return refuse(why, size, "x needs dense f32 rows");
  return supports_weights(node, 1, why, size);
}

void run_mul_mats(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) > 0) launch_weights(node, exec, 1, node->inputs[0]);
}

// What a node multiplies, with weights from input `first` on.
template <uint32_t first>
PromptHalves halves_of(const rr_node* node, PromptHalves::Kind kind) {
  PromptHalves x = {};
  x.kind = kind;
  x.first = &node->inputs[0];
  x.n = node->outputs[0].shape[0];
  x.k = node->inputs[first].shape[1];
  return x;
}

PromptHalves glu_of(const rr_node* node) {
  PromptHalves x = halves_of<2>(node, PromptHalves::kGlu);
  x.second = &node->inputs[1];
  x.act = static_cast<int>(act_of(node));
  return x;
}

PromptHalves gated_norm_of(const rr_node* node) {
  PromptHalves x = halves_of<3>(node, PromptHalves::kGatedNorm);
  x.weight = &node->inputs[1];
  x.second = &node->inputs[2];
  x.eps = attr_float(node, "eps", 0.0);
  return x;
}

PromptHalves norm_of(const rr_node* node) {
  PromptHalves x = halves_of<2>(node, PromptHalves::kNorm);
  x.weight = &node->inputs[1];
  x.eps = attr_float(node, "eps", 0.0);
  return x;
}

PromptHalves added_norm_of(const rr_node* node) {
  PromptHalves x = halves_of<3>(node, PromptHalves::kNorm);
  x.second = &node->inputs[1];
  x.weight = &node->inputs[2];
  x.sum = data<float>(node->outputs[1]);
  x.eps = attr_float(node, "eps", 0.0);
  return x;
}

template <PromptHalves (*of)(const rr_node*), uint32_t first>
int supports_of(const rr_node* node, char* why, size_t size) {
  for (uint32_t i = first; i < node->n_inputs; ++i) {
    const PromptKernels* kernels = kernels_of(node->inputs[i]);
    if (!kernels || !kernels->halves) return refuse(why, size, "weights need to be q4_k to q6_k");
  }
  const PromptHalves x = of(node);
  if (x.weight && !dense(*x.weight)) return refuse(why, size, "weight needs to be dense");
  if (node->n_outputs > 1 && !dense(node->outputs[1]))
    return refuse(why, size, "sum needs to be dense");
  return riverrun::supports_halves(x, why, size) && supports_weights(node, first, why, size);
}

template <PromptHalves (*of)(const rr_node*), uint32_t first>
void run_of(const rr_node* node, const rr_exec* exec) {
  const PromptHalves x = of(node);
  if (x.n == 0) return;
  riverrun::write_halves(exec, x);
  rr_tensor made = node->outputs[0];
  made.data = nullptr;
  if (numel(node->outputs[0]) > 0) launch_weights(node, exec, first, made);
}

constexpr const char* kBound = "products of a prompt: 4e-3 of a row's norm";

}  // namespace

RR_CUDA_KERNEL(mul_mats_prompt, riverrun::kPromptExact, "mul_mats", "wgmma", kBound, 20,
               supports_mul_mats, workspace_of<1>, run_mul_mats)
RR_CUDA_KERNEL(glu_mul_mat_prompt, riverrun::kPromptExact, "glu_mul_mat", "wgmma", kBound, 20,
               (supports_of<glu_of, 2>), workspace_of<2>, (run_of<glu_of, 2>))
RR_CUDA_KERNEL(gated_norm_mul_mat_prompt, riverrun::kPromptExact, "gated_norm_mul_mat", "wgmma",
               kBound, 20, (supports_of<gated_norm_of, 3>), workspace_of<3>,
               (run_of<gated_norm_of, 3>))
RR_CUDA_KERNEL(norm_mul_mats_prompt, riverrun::kPromptExact, "norm_mul_mats", "wgmma", kBound, 20,
               (supports_of<norm_of, 2>), workspace_of<2>, (run_of<norm_of, 2>))
RR_CUDA_KERNEL(add_norm_mul_mats_prompt, riverrun::kPromptExact, "add_norm_mul_mats", "wgmma",
               kBound, 20, (supports_of<added_norm_of, 3>), workspace_of<3>,
               (run_of<added_norm_of, 3>))
