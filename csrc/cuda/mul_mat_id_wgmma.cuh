// mul_mat_id for prompts on warpgroups: rows of x go into slabs sorted by expert, and each expert's
// meet its weights as rows of a dense product do.
#pragma once

#include "chosen_tiles.cuh"
#include "mul_mat_wgmma.cuh"

namespace {

inline ChosenCut chosen_cut(const rr_tensor& ids, const rr_tensor& w) {
  return {numel(ids), w.shape[0]};
}

// What all tiles of a job have in common. rows_alike: rows of y lie as those of x.
template <uint32_t dtype, bool gated>
ChosenTiles<gated> chosen_tiles(const ChosenTable& table, const PromptJob<ChosenTiles<gated>>& job,
                                bool rows_alike) {
  return {table.number, table.groups, rows_alike ? nullptr : table.order,
          static_cast<int>(blocks_for(job.weights[0].m, kPromptRows)), prompt_chunks<dtype>(job.k)};
}

template <uint32_t dtype>
void run_chosen_prompt(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &ids = node->inputs[2];
  const rr_tensor& y = node->outputs[0];
  const ChosenCut cut = chosen_cut(ids, w);
  const int64_t m = w.shape[1];
  if (m == 0 || cut.pairs == 0) return;
  auto* memory = static_cast<uint8_t*>(exec->workspace);
  const ChosenTable table = cut.table(memory);
  launch_routing(exec, data<const int>(ids), cut, table);

  auto job = prompt_job<dtype, ChosenTiles<false>>(w, memory + cut.table_bytes(), cut.slab_rows(),
                                                   data<float>(y), row_step(y));
  job.tiles = chosen_tiles<dtype>(table, job, false);
  const int64_t n = n_rows(x);
  write_slabs<dtype>(exec, data<const float>(x), row_step(x), n, job,
                     {table.places, static_cast<int>(cut.pairs / n)});
  launch_prompt<dtype>(exec, job, cuda(exec).multiprocessors);
  RR_LAUNCH(exec, clear_unrouted, static_cast<unsigned>(cut.pairs), kClearThreads, 0,
            data<const int>(ids), static_cast<int>(cut.experts), data<float>(y), job.y_row,
            static_cast<int>(m));
}

template <uint32_t dtype>
size_t workspace_chosen_prompt(const rr_node* node, int32_t) {
  const ChosenCut cut = chosen_cut(node->inputs[2], node->inputs[1]);
  const int64_t k = node->inputs[1].shape[2];
  return static_cast<size_t>(cut.table_bytes() + prompt_workspace<dtype>(cut.slab_rows(), k));
}

template <uint32_t dtype>
int supports_chosen_prompt(const rr_node* node, char* why, size_t size) {
  const rr_tensor& w = node->inputs[1];
  if (!supports_tiles<dtype>(node, why, size)) return 0;
  if (!serves_warpgroups()) return refuse(why, size, kWarpgroupRefusal);
  if (w.rank != 3 || node->inputs[2].rank != 2) return refuse(why, size, "w needs rank 3");
  if (!takes_prompt(node->inputs[2], w.shape[0], why, size)) return 0;
  if (kPlain<dtype> && w.shape[2] % 16 != 0)
    return refuse(why, size, "w needs rows of a multiple of 16 values");
  return 1;
}

}  // namespace

// A type's products of prompts, with one weight and with chosen ones.
#define RR_PROMPT_PRODUCTS(id, dtype)                                                             \
  RR_PROMPT_PRODUCT(id, dtype)                                                                    \
  RR_CUDA_KERNEL(id##_chosen, riverrun::kPromptExact, "mul_mat_id", "wgmma", kPromptBound<dtype>, \
                 20, supports_chosen_prompt<dtype>, workspace_chosen_prompt<dtype>,               \
                 run_chosen_prompt<dtype>)
