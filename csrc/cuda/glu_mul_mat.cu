// glu_mul_mat and gated_norm_mul_mat: a launch writes what is multiplied, another has the product.
#include "fused_inputs.cuh"
#include "fused_products.cuh"

namespace {

struct GluInput {
  Act act;
  HeadRows gate, up;
  StepRows out;
};

__global__ void __launch_bounds__(kRowOfThreads) glu_step_x(const __grid_constant__ GluInput in) {
  __shared__ RowScratch scratch;
  release_short_grid();
  const int at = static_cast<int>(blockIdx.y * kStepBlock + threadIdx.x);
  const float* gate = in.gate.row(blockIdx.x).at(at);
  const float* up = in.up.row(blockIdx.x).at(at);
  await_grid();
  write_step_x(in.out, blockIdx.x, blockIdx.y, gate_of(in.act, *gate) * *up, scratch);
}

struct GatedNormInput {
  HeadRows x, gate;
  const float* weight;
  double eps;
  StepRows out;
};

__global__ void __launch_bounds__(kRowOfThreads)
    gated_norm_step_x(const __grid_constant__ GatedNormInput in) {
  __shared__ RowScratch scratch;
  release_short_grid();
  const HeadRow x = in.x.row(blockIdx.x), gate = in.gate.row(blockIdx.x);
  const int at = static_cast<int>(blockIdx.y * kStepBlock + threadIdx.x);
  await_grid();
  write_step_x(in.out, blockIdx.x, blockIdx.y, gated_norm(x, gate, in.weight, in.eps, at, scratch),
               scratch);
}

int supports_glu(const rr_node* node, char* why, size_t size) {
  if (!in_heads(node->inputs[0]) || !in_heads(node->inputs[1]))
    return refuse(why, size, "gate and up need dense f32 rows or heads");
  if (!attr_is(node, "act", "silu") && !attr_is(node, "act", "gelu") &&
      !attr_is(node, "act", "sigmoid"))
    return refuse(why, size, "act needs to be silu, gelu or sigmoid");
  return supports_products(node, 2, why, size);
}

void run_glu(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  const GluInput in = {act_of(node), head_rows(node->inputs[0]), head_rows(node->inputs[1]),
                       own_step_rows(node, exec)};
  RR_LAUNCH(exec, glu_step_x, block_grid(in.out), kRowOfThreads, 0, in);
  launch_products(node, exec, 2, in.out.x, false);
}

int supports_gated_norm(const rr_node* node, char* why, size_t size) {
  const int64_t width = node->inputs[0].shape[2];
  if (!in_heads(node->inputs[0]) || !in_heads(node->inputs[2]))
    return refuse(why, size, "x and gate need dense f32 heads");
  if (width > kStepBlock || (width & (width - 1)) != 0)
    return refuse(why, size, "heads need a power of two of values, at most 256");
  if (!dense(node->inputs[1])) return refuse(why, size, "weight needs to be dense");
  return supports_products(node, 3, why, size);
}

void run_gated_norm(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  const GatedNormInput in = {head_rows(node->inputs[0]), head_rows(node->inputs[2]),
                             data<const float>(node->inputs[1]), attr_float(node, "eps", 0.0),
                             own_step_rows(node, exec)};
  RR_LAUNCH(exec, gated_norm_step_x, block_grid(in.out), kRowOfThreads, 0, in);
  launch_products(node, exec, 3, in.out.x, false);
}

}  // namespace

RR_FUSED_KERNEL(glu_mul_mat, "glu_mul_mat", supports_glu, run_glu)
RR_FUSED_KERNEL(gated_norm_mul_mat, "gated_norm_mul_mat", supports_gated_norm, run_gated_norm)
