// glu_mul_mat and gated_norm_mul_mat: a launch writes what is multiplied, another has the product.
#include "fused_inputs.cuh"
#include "fused_products.cuh"

namespace {

struct GluInput {
  Act act;
  HeadRows gate, up;
  StepRows out;
};

__global__ void __launch_bounds__(kFusedThreads) glu_step_x(GluInput in) {
  release_short_grid();
  await_grid();
  OwnBlock own;
  if (!own.find(in.out)) return;
  float v[8];
  glu_block(in.act, in.gate.row(own.row), in.up.row(own.row), own.block, v);
  write_step_x(in.out, own.row, own.block, v);
}

struct GatedNormInput {
  HeadRows x, gate;
  const float* weight;
  double eps;
  StepRows out;
};

__global__ void __launch_bounds__(kFusedThreads) gated_norm_step_x(GatedNormInput in) {
  release_short_grid();
  await_grid();
  OwnBlock own;
  if (!own.find(in.out)) return;
  float v[8];
  gated_norm_block(in.x.row(own.row), in.gate.row(own.row), in.weight, in.eps, own.block, v);
  write_step_x(in.out, own.row, own.block, v);
}

int supports_glu(const rr_node* node, char* why, size_t size) {
  if (!in_heads(node->inputs[0]) || !in_heads(node->inputs[1]))
    return refuse(why, size, "gate and up need to be f32 rows of a multiple of 8 values");
  if (!attr_is(node, "act", "silu") && !attr_is(node, "act", "gelu") &&
      !attr_is(node, "act", "sigmoid"))
    return refuse(why, size, "act needs to be silu, gelu or sigmoid");
  return supports_products(node, 2, why, size);
}

void run_glu(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  if (const unsigned char* x = riverrun::ended_for(exec, node))
    return launch_products(node, exec, 2, x, false);
  const GluInput in = {act_of(node), head_rows(node->inputs[0]), head_rows(node->inputs[1]),
                       own_step_rows(node, exec)};
  RR_LAUNCH(exec, glu_step_x, block_grid(in.out), kFusedThreads, 0, in);
  launch_products(node, exec, 2, in.out.x, false);
}

int supports_gated_norm(const rr_node* node, char* why, size_t size) {
  const int64_t width = node->inputs[0].shape[2];
  if (!in_heads(node->inputs[0]) || !in_heads(node->inputs[2]))
    return refuse(why, size, "x and gate need to be f32 heads of a multiple of 8 values");
  if (width > kStepBlock || (width & (width - 1)) != 0)
    return refuse(why, size, "heads need to have 8, 16, .. or 256 values");
  if (!dense(node->inputs[1])) return refuse(why, size, "weight needs to be dense");
  return supports_products(node, 3, why, size);
}

void run_gated_norm(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  const GatedNormInput in = {head_rows(node->inputs[0]), head_rows(node->inputs[2]),
                             data<const float>(node->inputs[1]), attr_float(node, "eps", 0.0),
                             own_step_rows(node, exec)};
  RR_LAUNCH(exec, gated_norm_step_x, block_grid(in.out), kFusedThreads, 0, in);
  launch_products(node, exec, 3, in.out.x, false);
}

}  // namespace

RR_FUSED_KERNEL(glu_mul_mat, "glu_mul_mat", supports_glu, run_glu)
RR_FUSED_KERNEL(gated_norm_mul_mat, "gated_norm_mul_mat", supports_gated_norm, run_gated_norm)
