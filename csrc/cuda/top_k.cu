// top_k: the best of each chunk, sorted, until one chunk holds them all.

#include "sort.cuh"

namespace {

int supports(const rr_node* node, char* why, size_t size) {
  const rr_tensor& x = node->inputs[0];
  const int64_t k = attr_int(node, "k", 0);
  if (k < 1 || k > x.shape[x.rank - 1]) return refuse(why, size, "k is not within a row");
  if (x.dtype != RR_F32 || !dense_tail(x, 1)) return refuse(why, size, "x needs dense f32 rows");
  if (x.shape[x.rank - 1] > INT32_MAX) return refuse(why, size, "a row exceeds i32 indices");
  return 1;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& x = node->inputs[0];
  if (numel(x) == 0) return;
  Sorting s = {};
  s.x = rows_of(x);
  s.step = sizeof(float);
  s.rows = n_rows(x);
  s.width = x.shape[x.rank - 1];
  s.nan = kNanFirst;
  s.k = attr_int(node, "k", 1);
  s.indices = rows_of(node->outputs[1]);
  s.values = rows_of(node->outputs[0]);
  s.wants_values = true;
  sort_rows(exec, s);
}

size_t workspace(const rr_node* node, int32_t) {
  const rr_tensor& x = node->inputs[0];
  return sort_bytes(n_rows(x), x.shape[x.rank - 1], attr_int(node, "k", 1));
}

}  // namespace

RR_CUDA_KERNEL(top_k, RR_ROW_EXACT, "top_k", "cuda", "", 0, supports, workspace, run)
