// l2_norm: a warp or a block a row.

#include "ops/l2_norm.hpp"
#include "row_length.cuh"

namespace {

template <int group>
__global__ void l2_norm_rows(Rows x, Rows y, int64_t rows, int64_t width, EuclideanLength length) {
  enter_grid();
  divide_rows<group>(x, nullptr, y, rows, width, length);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (numel(x) == 0) return;
  const int64_t rows = n_rows(x), width = x.shape[x.rank - 1];
  const EuclideanLength length = {attr_is(node, "form", "add"), attr_float(node, "eps", 0.0)};
  RR_LAUNCH_ROWS(exec, l2_norm_rows, rows, width, rows_of(x), rows_of(y), rows, width, length);
}

}  // namespace

RR_CUDA_KERNEL(l2_norm, RR_ROW_EXACT, "l2_norm", "cuda", "", 0, supports, nullptr, run)
