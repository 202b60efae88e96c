// mul_mat with weights in the file's own order: for products whose w is computed in the graph, and
// for what has no packed layout. Each row of w is decoded to f32 once for all rows of x.

#include "decode.hpp"
#include "kernel.hpp"

namespace {

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (!decodable(node->inputs[1], why, size)) return 0;
  if (x.dtype != RR_F32 || !dense_tail(x, 1) || !dense_tail(y, 1))
    return refuse(why, size, "x and y need dense f32 rows");
  return 1;
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  const rr_tensor& w = node->inputs[1];
  return static_cast<size_t>(n_threads) * static_cast<size_t>(w.shape[1]) * sizeof(float);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &w = node->inputs[1], &y = node->outputs[0];
  const int64_t k = w.shape[1], n = real_rows(node, x);
  float* scratch = static_cast<float*>(exec->workspace) + exec->thread * k;
  const Range rows = split(exec, w.shape[0], 16);
  for (int64_t m = rows.begin; m < rows.end; ++m) {
    const uint8_t* row = static_cast<const uint8_t*>(w.data) + m * w.strides[0];
    const float* weights = scratch;
    if (w.dtype == RR_F32)
      weights = reinterpret_cast<const float*>(row);
    else
      decode_row(w.dtype, row, scratch, k);
    for (int64_t i = 0; i < n; ++i)
      reinterpret_cast<float*>(row_ptr(y, i))[m] =
          dot(reinterpret_cast<const float*>(row_ptr(x, i)), weights, k);
  }
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& w = node->inputs[1];
  const int64_t work = numel(w) * n_rows(node->inputs[0]);
  return static_cast<int32_t>(work < 32768 ? 1 : (w.shape[0] + 15) / 16);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "mul_mat", supports, workspace, tasks, run)
