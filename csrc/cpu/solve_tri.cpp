// solve_tri: substitution in f64. Threads split the matrices and, of each, the columns of b.

#include "ops/solve_tri.hpp"

#include "kernel.hpp"

namespace {

constexpr int64_t kColumns = 16;

struct System {
  const float* a;  // [n][n]
  int64_t n, m;
  bool lower, unit;

  // `count` columns of x, m floats apart, from those of b; known: n times kColumns.
  void solve(const float* b, float* x, int64_t count, double* known) const {
    for (int64_t step = 0; step < n; ++step) {
      const int64_t i = lower ? step : n - 1 - step;
      const int64_t first = lower ? 0 : i + 1, last = lower ? i : n;
      double sums[kColumns] = {};
      for (int64_t j = first; j < last; ++j) {
        const double factor = static_cast<double>(a[i * n + j]);
        for (int64_t c = 0; c < kColumns; ++c) sums[c] += factor * known[j * kColumns + c];
      }
      double* row = known + i * kColumns;
      const double divisor = unit ? 1.0 : static_cast<double>(a[i * n + i]);
      for (int64_t c = 0; c < kColumns; ++c) row[c] = 0.0;
      for (int64_t c = 0; c < count; ++c)
        row[c] = (static_cast<double>(b[i * m + c]) - sums[c]) / divisor;
      for (int64_t c = 0; c < count; ++c) x[i * m + c] = static_cast<float>(row[c]);
    }
  }
};

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &a = node->inputs[0], &b = node->inputs[1];
  const int64_t n = b.shape[b.rank - 2], m = b.shape[b.rank - 1];
  if (numel(b) == 0) return;
  const int64_t across = (m + kColumns - 1) / kColumns;
  double* known = static_cast<double*>(exec->workspace) + exec->thread * n * kColumns;
  System system = {nullptr, n, m, attr_int(node, "lower", 1) != 0, attr_int(node, "unit", 0) != 0};
  const Range parts = split(exec, numel(b) / (n * m) * across);
  for (int64_t p = parts.begin; p < parts.end; ++p) {
    const int64_t matrix = p / across, column = p % across * kColumns, left = m - column;
    const int64_t at = matrix * n * m + column;
    system.a = static_cast<const float*>(a.data) + matrix * n * n;
    system.solve(static_cast<const float*>(b.data) + at,
                 static_cast<float*>(node->outputs[0].data) + at, left < kColumns ? left : kColumns,
                 known);
  }
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  const rr_tensor& b = node->inputs[1];
  return static_cast<size_t>(b.shape[b.rank - 2] * kColumns * n_threads) * sizeof(double);
}

int32_t tasks(const rr_node* node) {
  const rr_tensor& b = node->inputs[1];
  return numel(b) * b.shape[b.rank - 2] < 65536 ? 1 : INT32_MAX;
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "solve_tri", supports, workspace, tasks, run)
