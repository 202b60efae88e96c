// topk_moe: one thread a row. Shares in f32, their sum in f64; the k best are kept sorted.

#include "ops/topk_moe.hpp"

#include "activation.hpp"
#include "kernel.hpp"
#include "norm.hpp"

namespace {

constexpr double kLeastSum = 6.103515625e-5;  // the smallest normal f16

// The softmax or the sigmoid of n logits; p is padded to whole vectors.
void shares(const float* logits, bool softmax, int64_t n, float* p) {
  float top = 0.0f;
  if (softmax) {
    top = -INFINITY;
    for (int64_t i = 0; i < n; ++i) top = logits[i] > top ? logits[i] : top;
  }
  for (int64_t i = 0; i < n; ++i) p[i] = logits[i] - top;
  for (int64_t i = n; i < padded(n); ++i) p[i] = 0.0f;
  for (int64_t i = 0; i < n; i += kLanes) {
    const vec v = load_vec(p + i);
    store_vec(p + i, softmax ? exp_vec(v) : sigmoid_vec(v));
  }
  if (!softmax) return;
  const double total = sum_of_elements(p, n);
  for (int64_t i = 0; i < n; ++i) p[i] = static_cast<float>(static_cast<double>(p[i]) / total);
}

// Indices of the k largest of n, largest first; of equals the first comes first. NaN counts as
// minus infinity.
template <typename Key>
void choose(const Key& key_of, int64_t n, int64_t k, double* keys, int32_t* ids) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    double key = key_of(i);
    if (!(key == key)) key = -INFINITY;
    if (count == k && !(key > keys[k - 1])) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && key > keys[at - 1]; --at) {
      keys[at] = keys[at - 1];
      ids[at] = ids[at - 1];
    }
    keys[at] = key;
    ids[at] = static_cast<int32_t>(i);
  }
}

void weigh(const float* p, const int32_t* ids, int64_t k, bool normalize, double scale, float* w) {
  double sum = 1.0;
  if (normalize) {
    sum = 0.0;
    for (int64_t i = 0; i < k; ++i) sum += static_cast<double>(p[ids[i]]);
    if (sum < kLeastSum) sum = kLeastSum;
  }
  for (int64_t i = 0; i < k; ++i)
    w[i] = static_cast<float>(static_cast<double>(p[ids[i]]) / sum * scale);
}

// Of one thread: shares as floats, then keys.
size_t workspace_each(const rr_node* node) {
  return static_cast<size_t>(node->inputs[0].shape[1] + 16) / 16 * 64 +
         static_cast<size_t>(attr_int(node, "k", 1)) * sizeof(double);
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  return workspace_each(node) * static_cast<size_t>(n_threads);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &b = node->inputs[1];
  const int64_t n = x.shape[1], k = attr_int(node, "k", 1);
  const bool softmax = attr_is(node, "gating", "softmax");
  const bool normalize = attr_int(node, "normalize", 0) != 0;
  const double scale = attr_float(node, "scale", 1.0);
  char* memory = static_cast<char*>(exec->workspace) +
                 workspace_each(node) * static_cast<size_t>(exec->thread);
  float* p = reinterpret_cast<float*>(memory);
  double* keys = reinterpret_cast<double*>(memory + (n + 16) / 16 * 64);
  const float* bias = present(b) ? static_cast<const float*>(b.data) : nullptr;
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* logits = reinterpret_cast<const float*>(row_ptr(x, r));
    int32_t* ids = reinterpret_cast<int32_t*>(row_ptr(node->outputs[1], r));
    shares(logits, softmax, n, p);
    if (bias)
      choose([=](int64_t i) { return static_cast<double>(p[i]) + static_cast<double>(bias[i]); }, n,
             k, keys, ids);
    else
      choose([=](int64_t i) { return static_cast<double>(logits[i]); }, n, k, keys, ids);
    weigh(p, ids, k, normalize, scale, reinterpret_cast<float*>(row_ptr(node->outputs[0], r)));
  }
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "topk_moe", supports, workspace, row_tasks, run)
