// sum, mean and cumsum along an axis, in f64 and rounded once.

#include "ops/reduce.hpp"

#include "kernel.hpp"
#include "norm.hpp"

namespace {

constexpr int64_t kColumns = 128;  // running sums at a time

// x without the axis that is summed over.
struct Slices {
  rr_tensor starts;     // where the sums start, in x
  int64_t n, step;      // elements of a sum, bytes from one to the next
  bool along_last;      // sums run along the last axis
  int64_t width, rows;  // sums that lie side by side, and how many times that

  explicit Slices(const rr_node* node) : starts(node->inputs[0]) {
    const int64_t given = attr_int(node, "axis", 0);
    const int axis = static_cast<int>(given < 0 ? given + starts.rank : given);
    n = starts.shape[axis];
    step = starts.strides[axis];
    along_last = axis == starts.rank - 1;
    starts.shape[axis] = 1;
    width = starts.shape[starts.rank - 1];
    rows = n_rows(starts);
  }
};

// Sums of `count` columns, 4 bytes apart; after each element, keep(sums, index) is called.
template <typename Keep>
void run_down(const char* x, int64_t n, int64_t step, int64_t count, double* sums,
              const Keep& keep) {
  for (int64_t c = 0; c < count; ++c) sums[c] = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const float* row = reinterpret_cast<const float*>(x + i * step);
    for (int64_t c = 0; c < count; ++c) sums[c] += static_cast<double>(row[c]);
    keep(sums, i);
  }
}

// Calls body(row, column, count) for this thread's columns.
template <typename Body>
void each_part(const Slices& s, const rr_exec* exec, const Body& body) {
  const int64_t across = (s.width + kColumns - 1) / kColumns;
  const Range parts = split(exec, s.rows * across);
  for (int64_t p = parts.begin; p < parts.end; ++p) {
    const int64_t column = p % across * kColumns, left = s.width - column;
    body(p / across, column, left < kColumns ? left : kColumns);
  }
}

void reduce(const rr_node* node, const rr_exec* exec, bool mean) {
  const Slices s(node);
  float* y = static_cast<float*>(node->outputs[0].data);
  const double divisor = mean ? static_cast<double>(s.n) : 1.0;
  each_part(s, exec, [&](int64_t row, int64_t column, int64_t count) {
    const char* x = row_ptr(s.starts, row) + column * 4;
    float* out = y + row * s.width + column;
    if (s.along_last) {
      const double sum = sum_of_elements(reinterpret_cast<const float*>(x), s.n);
      *out = static_cast<float>(sum / divisor);
      return;
    }
    double sums[kColumns];
    run_down(x, s.n, s.step, count, sums, [](const double*, int64_t) {});
    for (int64_t c = 0; c < count; ++c) out[c] = static_cast<float>(sums[c] / divisor);
  });
}

void run_sum(const rr_node* node, const rr_exec* exec) {
  reduce(node, exec, false);
}

void run_mean(const rr_node* node, const rr_exec* exec) {
  reduce(node, exec, true);
}

// One running sum along a row.
void run_along(const float* x, int64_t n, float* y) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(x[i]);
    y[i] = static_cast<float>(sum);
  }
}

void run_cumsum(const rr_node* node, const rr_exec* exec) {
  const Slices s(node);
  rr_tensor ends = node->outputs[0];
  const int64_t given = attr_int(node, "axis", 0), axis = given < 0 ? given + ends.rank : given;
  const int64_t step = ends.strides[axis];
  ends.shape[axis] = 1;
  each_part(s, exec, [&](int64_t row, int64_t column, int64_t count) {
    char *x = row_ptr(s.starts, row) + column * 4, *y = row_ptr(ends, row) + column * 4;
    if (s.along_last)
      return run_along(reinterpret_cast<float*>(x), s.n, reinterpret_cast<float*>(y));
    double sums[kColumns];
    run_down(x, s.n, s.step, count, sums, [=](const double* now, int64_t i) {
      float* out = reinterpret_cast<float*>(y + i * step);
      for (int64_t c = 0; c < count; ++c) out[c] = static_cast<float>(now[c]);
    });
  });
}

int32_t tasks(const rr_node* node) {
  if (numel(node->inputs[0]) < 16384) return 1;
  const Slices s(node);
  const int64_t parts = s.rows * ((s.width + kColumns - 1) / kColumns);
  return static_cast<int32_t>(parts < INT32_MAX ? parts : INT32_MAX);
}

}  // namespace

RR_KERNEL(sum, RR_ROW_EXACT, "sum", supports, nullptr, tasks, run_sum)
RR_KERNEL(mean, RR_ROW_EXACT, "mean", supports, nullptr, tasks, run_mean)
RR_KERNEL(cumsum, RR_ROW_EXACT, "cumsum", supports, nullptr, tasks, run_cumsum)
