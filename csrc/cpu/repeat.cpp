// repeat: each row of y is one row of x, some times over.

#include "ops/repeat.hpp"

#include "copy.hpp"

namespace {

// Where row r of y comes from.
char* source_row(const rr_tensor& x, const rr_tensor& y, int64_t r) {
  char* from = static_cast<char*>(x.data);
  for (int axis = y.rank - 2; axis >= 0; --axis) {
    from += r % y.shape[axis] % x.shape[axis] * x.strides[axis];
    r /= y.shape[axis];
  }
  return from;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const int64_t bytes = element_bytes(x.dtype);
  const int64_t n = x.rank > 0 ? x.shape[x.rank - 1] : 1;
  const int64_t width = y.rank > 0 ? y.shape[y.rank - 1] : 1;
  if (width == 0) return;
  const int64_t step = x.rank > 0 && n > 1 ? x.strides[x.rank - 1] : 0;
  const int64_t piece = n > 1 ? n : width;
  const Range rows = split(exec, n_rows(y));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    char *to = row_ptr(y, r), *from = source_row(x, y, r);
    for (int64_t at = 0; at < width; at += piece) {
      char* const ends[] = {to + at * bytes, from};
      const int64_t steps[] = {bytes, step};
      copy_run(ends, steps, piece, bytes);
    }
  }
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "repeat", supports, nullptr, elementwise_tasks, run)
