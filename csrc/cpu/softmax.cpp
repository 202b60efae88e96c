// softmax: one thread a row. Scores and their distance from the largest in f64, exponentials in
// f32, their sum in f64.

#include "ops/softmax.hpp"

#include "activation.hpp"
#include "kernel.hpp"
#include "norm.hpp"

namespace {

constexpr int64_t kChunk = 256;

// The mask with x's shape: stride 0 where it has one element for all.
rr_tensor spread(const rr_tensor& mask, const rr_tensor& x) {
  rr_tensor out = x;
  out.data = mask.data;
  for (int axis = 0; axis < x.rank; ++axis) {
    const int own = axis - (x.rank - mask.rank);
    out.strides[axis] = own < 0 || mask.shape[own] == 1 ? 0 : mask.strides[own];
  }
  return out;
}

struct Row {
  const float* x;
  const float* mask;  // null without one
  bool one_mask;      // the mask is one element for the whole row
  double scale;
  int64_t n;

  // Scores from `begin` on, up to kChunk; returns how many.
  int64_t scores(int64_t begin, double* s) const {
    const int64_t count = n - begin < kChunk ? n - begin : kChunk;
    const float* at = x + begin;
    for (int64_t i = 0; i < count; ++i) s[i] = scale * static_cast<double>(at[i]);
    if (mask && one_mask)
      for (int64_t i = 0; i < count; ++i) s[i] += static_cast<double>(*mask);
    else if (mask)
      for (int64_t i = 0; i < count; ++i) s[i] += static_cast<double>(mask[begin + i]);
    return count;
  }

  double largest() const {
    double s[kChunk], tops[8];
    for (double& top : tops) top = -INFINITY;
    for (int64_t begin = 0; begin < n; begin += kChunk) {
      const int64_t count = scores(begin, s);
      for (int64_t i = count; i < (count + 7) / 8 * 8; ++i) s[i] = -INFINITY;
      for (int64_t i = 0; i < count; i += 8)
        for (int lane = 0; lane < 8; ++lane)
          tops[lane] = s[i + lane] > tops[lane] ? s[i + lane] : tops[lane];
    }
    for (int lane = 1; lane < 8; ++lane) tops[0] = tops[lane] > tops[0] ? tops[lane] : tops[0];
    return tops[0];
  }
};

// A NaN makes the sum NaN, and so every element; plus infinity less itself is one.
void softmax(const Row& row, float* y) {
  double top = row.largest(), total = 0.0, s[kChunk];
  if (top == -INFINITY) top = 0.0;
  for (int64_t begin = 0; begin < row.n; begin += kChunk) {
    const int64_t count = row.scores(begin, s);
    float e[kChunk] = {};
    for (int64_t i = 0; i < count; ++i) e[i] = static_cast<float>(s[i] - top);
    for (int64_t i = 0; i < count; i += kLanes) store_vec(e + i, exp_vec(load_vec(e + i)));
    total += sum_of_elements(e, count);
    memcpy(y + begin, e, static_cast<size_t>(count) * sizeof(float));
  }
  const float share = static_cast<float>(1.0 / (total == 0.0 ? 1.0 : total));
  for (int64_t i = 0; i < row.n; ++i) y[i] *= share;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  Row row = {nullptr, nullptr, false, attr_float(node, "scale", 1.0), x.shape[x.rank - 1]};
  const bool masked = present(node->inputs[1]);
  const rr_tensor mask = spread(masked ? node->inputs[1] : x, x);
  row.one_mask = mask.strides[mask.rank - 1] == 0;
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    row.x = reinterpret_cast<const float*>(row_ptr(x, r));
    if (masked) row.mask = reinterpret_cast<const float*>(row_ptr(mask, r));
    softmax(row, reinterpret_cast<float*>(row_ptr(y, r)));
  }
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "softmax", supports, nullptr, row_tasks, run)
