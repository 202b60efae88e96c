// pad: each row of y is a border, or a row of x between borders.

#include "ops/pad.hpp"

#include "copy.hpp"

namespace {

// The row of x that lies in row r of y, null if that is all border.
const char* inner_row(const rr_tensor& x, const rr_tensor& y, const int64_t* before, int64_t r) {
  const char* from = static_cast<const char*>(x.data);
  for (int axis = y.rank - 2; axis >= 0; --axis) {
    const int64_t i = r % y.shape[axis] - before[axis];
    if (i < 0 || i >= x.shape[axis]) return nullptr;
    from += i * x.strides[axis];
    r /= y.shape[axis];
  }
  return from;
}

void fill(float* to, float value, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = value;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const int64_t* before = find_attr(node, "before")->ints;
  const float value = static_cast<float>(attr_float(node, "value", 0.0));
  const int last = y.rank - 1;
  const int64_t width = last < 0 ? 1 : y.shape[last], n = last < 0 ? 1 : x.shape[last];
  const int64_t step = last < 0 ? 4 : x.strides[last], left = last < 0 ? 0 : before[last];
  const Range rows = split(exec, n_rows(y));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* to = reinterpret_cast<float*>(row_ptr(y, r));
    const char* from = inner_row(x, y, before, r);
    if (from == nullptr) {
      fill(to, value, width);
      continue;
    }
    fill(to, value, left);
    char* const ends[] = {reinterpret_cast<char*>(to + left), const_cast<char*>(from)};
    const int64_t steps[] = {4, step};
    copy_run(ends, steps, n, 4);
    fill(to + left + n, value, width - left - n);
  }
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "pad", supports, nullptr, elementwise_tasks, run)
