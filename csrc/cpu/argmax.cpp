// argmax: NaN counts as minus infinity; of equal elements the first one comes first.

#include "ops/argmax.hpp"

#include "kernel.hpp"
#include "native_vec.hpp"

namespace {

// Each lane keeps its largest element so far and that one's index, 0 while there is none above
// minus infinity.
int32_t first_largest(const float* x, int64_t n) {
  vec best = vec_of(-INFINITY);
  ivec where = {}, index;
  for (int lane = 0; lane < kLanes; ++lane) index[lane] = lane;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const vec v = load_vec(x + i);
    const ivec better = v > best;
    best = better ? v : best;
    where = better ? index : where;
    index += kLanes;
  }
  float top = best[0];
  int32_t at = where[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    if (best[lane] > top || (best[lane] == top && where[lane] < at)) {
      top = best[lane];
      at = where[lane];
    }
  }
  for (; i < n; ++i) {
    if (x[i] > top) {
      top = x[i];
      at = static_cast<int32_t>(i);
    }
  }
  return at;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  auto* y = static_cast<int32_t*>(node->outputs[0].data);
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r)
    y[r] = first_largest(reinterpret_cast<const float*>(row_ptr(x, r)), x.shape[x.rank - 1]);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& x = node->inputs[0];
  const int64_t rows = n_rows(x);
  return numel(x) < 16384 ? 1 : static_cast<int32_t>(rows < INT32_MAX ? rows : INT32_MAX);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "argmax", supports, nullptr, tasks, run)
