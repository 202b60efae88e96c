// argsort: one thread a row. Order-preserving integer keys with the index below; a radix sort from
// the lowest digit up keeps equal elements in order.

#include "ops/argsort.hpp"

#include "kernel.hpp"
#include "norm.hpp"

namespace {

// Floats in the order of these integers; both zeros are equal.
uint32_t key_of(float value) {
  if (!(value == value)) value = -INFINITY;
  if (value == 0.0f) value = 0.0f;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// One stable pass by the 8 bits from `shift` up. False, and nothing moved, if all are the same.
bool pass(const uint64_t* from, uint64_t* to, int64_t n, int shift) {
  int32_t starts[256] = {};
  for (int64_t i = 0; i < n; ++i) ++starts[from[i] >> shift & 255];
  if (starts[from[0] >> shift & 255] == n) return false;
  int32_t at = 0;
  for (int32_t& start : starts) {
    const int32_t count = start;
    start = at;
    at += count;
  }
  for (int64_t i = 0; i < n; ++i) to[starts[from[i] >> shift & 255]++] = from[i];
  return true;
}

void sort_row(const char* x, int64_t step, int64_t n, bool descending, uint64_t* work, int32_t* y) {
  uint64_t *from = work, *to = work + n;
  const uint32_t flip = descending ? 0xffffffffu : 0;
  for (int64_t i = 0; i < n; ++i) {
    float value;
    memcpy(&value, x + i * step, sizeof value);
    from[i] = static_cast<uint64_t>(key_of(value) ^ flip) << 32 | static_cast<uint64_t>(i);
  }
  for (int shift = 32; n > 0 && shift < 64; shift += 8) {
    if (!pass(from, to, n, shift)) continue;
    uint64_t* sorted = to;
    to = from;
    from = sorted;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<int32_t>(from[i] & 0xffffffffu);
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const int64_t n = x.shape[x.rank - 1], step = x.strides[x.rank - 1];
  const bool descending = attr_is(node, "order", "desc");
  uint64_t* work = static_cast<uint64_t*>(exec->workspace) + exec->thread * 2 * n;
  const Range rows = split(exec, real_rows(node, x));
  for (int64_t r = rows.begin; r < rows.end; ++r)
    sort_row(row_ptr(x, r), step, n, descending, work, reinterpret_cast<int32_t*>(row_ptr(y, r)));
}

size_t workspace(const rr_node* node, int32_t n_threads) {
  const rr_tensor& x = node->inputs[0];
  return static_cast<size_t>(x.shape[x.rank - 1] * 2 * n_threads) * sizeof(uint64_t);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "argsort", supports, workspace, row_tasks, run)
