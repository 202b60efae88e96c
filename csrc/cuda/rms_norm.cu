// rms_norm: y = x * w / sqrt(mean(x*x, last axis) + eps), a warp or a block a row.

#include "ops/rms_norm.hpp"
#include "row_length.cuh"

namespace {

template <int group>
__global__ void rms_norm_rows(Rows x, const float* w, Rows y, int64_t rows, RootMeanSquare length) {
  enter_grid();
  divide_rows<group>(x, w, y, rows, length.width, length);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  if (numel(x) == 0) return;
  const int64_t rows = n_rows(x), width = x.shape[x.rank - 1];
  const float* weight = present(w) ? data<const float>(w) : nullptr;
  const RootMeanSquare length = {width, attr_float(node, "eps", 0.0)};
  RR_LAUNCH_ROWS(exec, rms_norm_rows, rows, width, rows_of(x), weight, rows_of(y), rows, length);
}

}  // namespace

RR_CUDA_KERNEL(rms_norm, RR_ROW_EXACT, "rms_norm", "cuda", "", 0, supports, nullptr, run)
