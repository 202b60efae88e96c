// Experts of prompts on warpgroups: gate and up in one product, whose results are sorted by expert
// as the product after it wants them.
#pragma once

#include "expert_products.hpp"
#include "mul_mat_id_wgmma.cuh"

namespace {

template <uint32_t dtype, bool gated>
void multiply_prompt_experts(const rr_exec* exec, const riverrun::ChosenProduct& product) {
  const rr_tensor &x = product.x, &w = product.w, &y = product.y;
  const ChosenCut cut = chosen_cut(product.ids, w);
  const ChosenTable table = cut.table(product.routes);
  if (!product.routed) launch_routing(exec, data<const int>(product.ids), cut, table);
  auto job = prompt_job<dtype, ChosenTiles<gated>>(w, product.rows, cut.slab_rows(), data<float>(y),
                                                   row_step(y));
  if (gated) {
    job.gate = data<const uint8_t>(*product.gate);
    job.gate_end = job.gate + (job.weights[0].end - job.weights[0].w);
    job.weights[0].m *= 2;
  }
  job.tiles = chosen_tiles<dtype>(table, job, gated);
  const int64_t n = n_rows(x);
  const SlabPlaces places = {gated ? table.places : nullptr,
                             gated ? static_cast<int>(cut.pairs / n) : 1};
  write_slabs<dtype>(exec, data<const float>(x), row_step(x), n, job, places);
  launch_prompt<dtype>(exec, job, cuda(exec).multiprocessors);
}

template <uint32_t dtype>
void multiply_prompt_experts(const rr_exec* exec, const riverrun::ChosenProduct& product) {
  product.gate ? multiply_prompt_experts<dtype, true>(exec, product)
               : multiply_prompt_experts<dtype, false>(exec, product);
}

template <uint32_t dtype>
int64_t prompt_row_bytes(int64_t pairs, int64_t experts, int64_t k) {
  return prompt_workspace<dtype>(ChosenCut{pairs, experts}.slab_rows(), k);
}

}  // namespace

// Beside RR_PROMPT_PRODUCTS.
#define RR_PROMPT_EXPERTS(id, type)                                                        \
  namespace {                                                                              \
  riverrun::PromptExperts id##_experts = {type, serves_warpgroups, prompt_row_bytes<type>, \
                                          multiply_prompt_experts<type>, nullptr};         \
  [[maybe_unused]] const int id##_experts_added = riverrun::add_kernels(id##_experts);     \
  }
