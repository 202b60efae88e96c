// mul_mats, norm_mul_mats and add_norm_mul_mats: a launch writes what is multiplied, another has
// all products.
#include "fused_inputs.cuh"
#include "fused_products.cuh"

namespace {

struct NormInput {
  Rows x, delta;  // delta.data: null for none
  float* sum;     // rows of K, with delta
  const float* weight;
  bool constant;  // no kernel writes weight: it can be loaded before await_grid()
  StepRows out;
  RmsFactor factor;
};

// A block for each row.
template <int warps, int most>
__global__ void __launch_bounds__(warps* kWarp) add_norm_step_x(NormInput in) {
  __shared__ NormSums sums;
  const int64_t row = blockIdx.x;
  float weight[most][8];
  release_short_grid();
  if (in.constant) load_blocks<warps, most>(in.weight, in.out.blocks, weight);
  await_grid();
  if (!in.constant) load_blocks<warps, most>(in.weight, in.out.blocks, weight);
  NormRow own = {row_at<const float>(in.x, row), nullptr, nullptr, in.factor};
  if (in.delta.data) {
    own.delta = row_at<const float>(in.delta, row);
    own.sum = in.sum + row * in.out.blocks * kStepBlock;
  }
  write_norm_row<warps, most>(own, weight, in.out, row, sums);
}

constexpr int kMostNormed = kMostNormBlocks * kStepBlock;

void launch_add_norm(const rr_exec* exec, const NormInput& in) {
  const dim3 grid(static_cast<unsigned>(in.out.rows));
  if (in.out.blocks <= 4)
    RR_LAUNCH(exec, (add_norm_step_x<4, 1>), grid, 4 * kWarp, 0, in);
  else if (in.out.blocks <= 16)
    RR_LAUNCH(exec, (add_norm_step_x<16, 1>), grid, 16 * kWarp, 0, in);
  else if (in.out.blocks <= 32)
    RR_LAUNCH(exec, (add_norm_step_x<32, 1>), grid, 32 * kWarp, 0, in);
  else
    RR_LAUNCH(exec, (add_norm_step_x<32, 2>), grid, 32 * kWarp, 0, in);
}

int supports_mul_mats(const rr_node* node, char* why, size_t size) {
  if (!dense_rows(node->inputs[0])) return refuse(why, size, "x needs dense f32 rows");
  return supports_products(node, 1, why, size);
}

void run_mul_mats(const rr_node* node, const rr_exec* exec) {
  if (numel(node->outputs[0]) == 0) return;
  const int64_t rows = node->outputs[0].shape[0], blocks = fused_width(node) / kStepBlock;
  RR_LAUNCH(exec, prepare_step_x,
            dim3(static_cast<unsigned>(blocks_for(rows * blocks, kStepXThreads / kWarp))),
            kStepXThreads, 0, rows_of(node->inputs[0]),
            StepRows{static_cast<unsigned char*>(exec->workspace), rows, blocks});
  launch_products(node, exec, 1);
}

// added: whether there is a delta.
template <bool added>
int supports_norm(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &weight = node->inputs[added ? 2 : 1];
  if (!dense_rows(x)) return refuse(why, size, "x needs dense f32 rows");
  if (added && !dense_rows(node->inputs[1])) return refuse(why, size, "delta needs dense f32 rows");
  if (!dense(weight)) return refuse(why, size, "weight needs to be dense");
  if (added && !dense(node->outputs[1])) return refuse(why, size, "sum needs to be dense");
  if (x.shape[1] > kMostNormed) return refuse(why, size, "rows have more than 16384 values");
  return supports_products(node, added ? 3 : 2, why, size);
}

template <bool added>
void run_norm(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (x.shape[0] == 0) return;
  NormInput in = {};
  in.x = rows_of(x);
  if (added) {
    in.delta = rows_of(node->inputs[1]);
    in.sum = data<float>(node->outputs[1]);
  }
  in.weight = data<const float>(node->inputs[added ? 2 : 1]);
  in.constant = node->inputs[added ? 2 : 1].constant != 0;
  in.out = {static_cast<unsigned char*>(exec->workspace), x.shape[0], x.shape[1] / kStepBlock};
  in.factor = {x.shape[1], attr_float(node, "eps", 0.0)};
  launch_add_norm(exec, in);
  if (numel(y) > 0) launch_products(node, exec, added ? 3 : 2);
}

}  // namespace

RR_FUSED_KERNEL(mul_mats, "mul_mats", supports_mul_mats, run_mul_mats)
RR_FUSED_KERNEL(norm_mul_mats, "norm_mul_mats", supports_norm<false>, run_norm<false>)
RR_FUSED_KERNEL(add_norm_mul_mats, "add_norm_mul_mats", supports_norm<true>, run_norm<true>)
