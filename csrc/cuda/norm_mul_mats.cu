// mul_mats, norm_mul_mats and add_norm_mul_mats: a launch writes what is multiplied, another has
// all products.
#include "fused_inputs.cuh"
#include "fused_products.cuh"

namespace {

struct NormInput {
  const float *x, *delta;    // delta: null for none
  int64_t x_row, delta_row;  // floats from row to row
  float* sum;                // rows of K, with delta
  const float* weight;
  StepRows out;
};

__global__ void __launch_bounds__(kRowOfThreads) norm_step_x(const __grid_constant__ NormInput in) {
  __shared__ RowScratch scratch;
  const int64_t row = blockIdx.x;
  NormRow from = {in.x + row * in.x_row, nullptr, nullptr, in.weight};
  if (in.delta) {
    from.delta = in.delta + row * in.delta_row;
    from.sum = in.sum + row * in.out.blocks * kStepBlock;
  }
  release_short_grid();
  await_grid();
  write_norm_block(from, in.out, row, blockIdx.y, scratch);
}

int supports_mul_mats(const rr_node* node, char* why, size_t size) {
  if (!dense_rows(node->inputs[0])) return refuse(why, size, "x needs dense f32 rows");
  return supports_products(node, 1, why, size);
}

void run_mul_mats(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  const StepRows to = own_step_rows(node, exec);
  RR_LAUNCH(exec, prepare_step_x, block_grid(to), kRowOfThreads, 0, rows_of(node->inputs[0]), to);
  launch_products(node, exec, 1, to.x, false);
}

// added: whether there is a delta.
template <bool added>
int supports_norm(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &weight = node->inputs[added ? 2 : 1];
  if (!dense_rows(x)) return refuse(why, size, "x needs dense f32 rows");
  if (added && !dense_rows(node->inputs[1])) return refuse(why, size, "delta needs dense f32 rows");
  if (!dense(weight)) return refuse(why, size, "weight needs to be dense");
  if (added && !dense(node->outputs[1])) return refuse(why, size, "sum needs to be dense");
  return supports_products(node, added ? 3 : 2, why, size);
}

template <bool added>
void run_norm(const rr_node* node, const rr_exec* exec) {
  constexpr uint32_t first = added ? 3 : 2;
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (x.shape[0] == 0) return;
  if (const unsigned char* made = riverrun::ended_for(exec, node))
    return launch_products(node, exec, first, made, true);
  NormInput in = {};
  in.x = data<const float>(x);
  in.x_row = x.strides[0] / static_cast<int64_t>(sizeof(float));
  if (added) {
    const rr_tensor& delta = node->inputs[1];
    in.delta = data<const float>(delta);
    in.delta_row = delta.strides[0] / static_cast<int64_t>(sizeof(float));
    in.sum = data<float>(node->outputs[1]);
  }
  in.weight = data<const float>(node->inputs[added ? 2 : 1]);
  in.out = own_step_rows(node, exec);
  RR_LAUNCH(exec, norm_step_x, block_grid(in.out), kRowOfThreads, 0, in);
  if (numel(y) > 0) launch_products(node, exec, first, in.out.x, true);
}

}  // namespace

RR_FUSED_KERNEL(mul_mats, "mul_mats", supports_mul_mats, run_mul_mats)
RR_FUSED_KERNEL(norm_mul_mats, "norm_mul_mats", supports_norm<false>, run_norm<false>)
RR_FUSED_KERNEL(add_norm_mul_mats, "add_norm_mul_mats", supports_norm<true>, run_norm<true>)
