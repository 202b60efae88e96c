// argsort: rows up to 1024 elements in one block each, longer ones by merging.

#include "ops/argsort.hpp"
#include "sort.cuh"

namespace {

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (numel(x) == 0) return;
  Sorting s = {};
  s.x = rows_of(x);
  s.step = x.strides[x.rank - 1];
  s.rows = n_rows(x);
  s.width = s.k = x.shape[x.rank - 1];
  s.nan = kNanLast;
  s.flip = attr_is(node, "order", "desc") ? 0 : 0xffffffffu;
  s.indices = rows_of(y);
  sort_rows(exec, s);
}

size_t workspace(const rr_node* node, int32_t) {
  const rr_tensor& x = node->inputs[0];
  const int64_t width = x.shape[x.rank - 1];
  return sort_bytes(n_rows(x), width, width);
}

}  // namespace

RR_CUDA_KERNEL(argsort, RR_ROW_EXACT, "argsort", "cuda", "", 0, supports, workspace, run)
