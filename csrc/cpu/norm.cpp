// norm: one thread a row; mean and variance in two passes, in f64.

#include "norm.hpp"

#include "kernel.hpp"
#include "ops/norm.hpp"

namespace {

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &b = node->inputs[2];
  const rr_tensor& y = node->outputs[0];
  const int64_t width = x.shape[x.rank - 1];
  const double eps = attr_float(node, "eps", 0.0), n = static_cast<double>(width);
  const float* weight = present(w) ? static_cast<const float*>(w.data) : nullptr;
  const float* bias = present(b) ? static_cast<const float*>(b.data) : nullptr;
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* in = reinterpret_cast<const float*>(row_ptr(x, r));
    float* out = reinterpret_cast<float*>(row_ptr(y, r));
    const double mean = sum_of_elements(in, width) / n;
    const auto square = [=](auto v) { return (v - mean) * (v - mean); };
    const double scale = 1.0 / sqrt(sum_of(in, width, square) / n + eps);
    for (int64_t i = 0; i < width; ++i)
      out[i] = static_cast<float>((static_cast<double>(in[i]) - mean) * scale);
    if (weight)
      for (int64_t i = 0; i < width; ++i) out[i] *= weight[i];
    if (bias)
      for (int64_t i = 0; i < width; ++i) out[i] += bias[i];
  }
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "norm", supports, nullptr, row_tasks, run)
