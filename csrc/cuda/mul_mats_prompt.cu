// mul_mats for prompts: weights of one type and layout in one launch, whose tiles fill the card
// together.
#include "kernel.cuh"
#include "prompt_exact.hpp"
#include "prompt_products.hpp"
#include "prompt_sources.cuh"

namespace {

using riverrun::PromptKernels;
using riverrun::PromptProducts;

constexpr int kMostWeights = 64;  // of a node

// The part of y that is weight i's products, which begins at column `column`.
inline rr_tensor part_of_y(const rr_node* node, uint32_t i, int64_t column) {
  rr_tensor part = node->outputs[0];
  part.shape[1] = node->inputs[i].shape[0];
  if (part.data) part.data = data<float>(part) + column;
  return part;
}

int supports_mul_mats(const rr_node* node, char* why, size_t size) {
  const rr_tensor& y = node->outputs[0];
  if (node->n_inputs > kMostWeights) return refuse(why, size, "more than 63 weights");
  if (y.dtype != RR_F32 || !dense_tail(y, 1)) return refuse(why, size, "y needs dense f32 rows");
  for (uint32_t i = 1; i < node->n_inputs; ++i) {
    const PromptKernels* kernels = riverrun::kernels_of<PromptKernels>(node->inputs[i].dtype);
    if (!kernels) return refuse(why, size, "a type of weights without products on warpgroups");
    const rr_tensor inputs[] = {node->inputs[0], node->inputs[i]}, part = part_of_y(node, i, 0);
    rr_node one = *node;
    one.n_inputs = 2;
    one.inputs = inputs;
    one.outputs = &part;
    if (!kernels->supports(&one, why, size)) return 0;
  }
  return 1;
}

// Calls what for each launch of the node, with the inputs from the first one on that it takes: up
// to the most of a launch, alike in type and layout.
template <class What>
void each_launch(const rr_node* node, const What& what) {
  bool taken[kMostWeights] = {};
  for (uint32_t first = 1; first < node->n_inputs; ++first) {
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
    if (count > 0) what(*riverrun::kernels_of<PromptKernels>(alike.dtype), inputs, count);
  }
}

size_t workspace_mul_mats(const rr_node* node, int32_t) {
  const int64_t n = node->outputs[0].shape[0], k = node->inputs[0].shape[1];
  int64_t most = 0;
  each_launch(node, [&](const PromptKernels& kernels, const uint32_t* inputs, int count) {
    int64_t down = 0;
    for (int i = 0; i < count; ++i)
      down += blocks_for(node->inputs[inputs[i]].shape[0], kPromptRows);
    const int64_t bytes = kernels.workspace(n, k, down);
    most = bytes > most ? bytes : most;
  });
  return static_cast<size_t>(most);
}

void run_mul_mats(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& y = node->outputs[0];
  if (numel(y) == 0) return;
  int64_t columns[kMostWeights] = {};
  for (uint32_t i = 2; i < node->n_inputs; ++i)
    columns[i] = columns[i - 1] + node->inputs[i - 1].shape[0];
  const int64_t y_row = y.shape[0] > 1 ? y.strides[0] / 4 : y.shape[1];
  each_launch(node, [&](const PromptKernels& kernels, const uint32_t* inputs, int count) {
    PromptProducts of = {node->inputs[0], {}, count, y_row};
    for (int i = 0; i < count; ++i)
      of.products[i] = {&node->inputs[inputs[i]], data<float>(y) + columns[inputs[i]]};
    kernels.launch(exec, of);
  });
}

}  // namespace

RR_CUDA_KERNEL(mul_mats_prompt, riverrun::kPromptExact, "mul_mats", "wgmma",
               "products of a prompt: 4e-3 of a row's norm", 20, supports_mul_mats,
               workspace_mul_mats, run_mul_mats)
