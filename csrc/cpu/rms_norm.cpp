// rms_norm: one thread a row, sum of squares in f64 over sixteen running sums.

#include "ops/rms_norm.hpp"

#include "kernel.hpp"
#include "norm.hpp"

namespace {

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  const int64_t width = x.shape[x.rank - 1];
  const double eps = attr_float(node, "eps", 0.0);
  const float* weight = present(w) ? static_cast<const float*>(w.data) : nullptr;
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* in = reinterpret_cast<const float*>(row_ptr(x, r));
    float* out = reinterpret_cast<float*>(row_ptr(y, r));
    const float scale = rms_scale(in, width, eps);
    if (weight)
      for (int64_t i = 0; i < width; ++i) out[i] = in[i] * scale * weight[i];
    else
      for (int64_t i = 0; i < width; ++i) out[i] = in[i] * scale;
  }
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& x = node->inputs[0];
  return static_cast<int32_t>(numel(x) < 16384 ? 1 : n_rows(x));
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "rms_norm", supports, nullptr, tasks, run)
