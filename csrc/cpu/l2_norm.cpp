// l2_norm: one thread a row.

#include "ops/l2_norm.hpp"

#include "kernel.hpp"
#include "norm.hpp"

namespace {

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const int64_t width = x.shape[x.rank - 1];
  const double eps = attr_float(node, "eps", 0.0);
  const bool add = attr_is(node, "form", "add");
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* in = reinterpret_cast<const float*>(row_ptr(x, r));
    float* out = reinterpret_cast<float*>(row_ptr(y, r));
    const double factor = l2_factor(in, width, eps, add);
    for (int64_t i = 0; i < width; ++i) out[i] = static_cast<float>(in[i] * factor);
  }
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& x = node->inputs[0];
  const int64_t rows = n_rows(x);
  return numel(x) < 16384 ? 1 : static_cast<int32_t>(rows < INT32_MAX ? rows : INT32_MAX);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "l2_norm", supports, nullptr, tasks, run)
