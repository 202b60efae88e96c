// set: what lies before and after src comes from dst, and is there already where y is dst's memory.
#include "copy.cuh"
#include "ops/set.hpp"

namespace {

// n elements of t along an axis, from `start` on.
rr_tensor part(const rr_tensor& t, int64_t axis, int64_t start, int64_t n) {
  rr_tensor out = t;
  out.shape[axis] = n;
  out.data = static_cast<char*>(t.data) + start * t.strides[axis];
  return out;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &dst = node->inputs[0], &src = node->inputs[1], &y = node->outputs[0];
  const int64_t given = attr_int(node, "axis", 0), axis = given < 0 ? given + y.rank : given;
  const int64_t start = attr_int(node, "start", 0), end = start + src.shape[axis];
  const int64_t after = y.shape[axis] - end;
  copy_elements(exec, part(y, axis, start, src.shape[axis]), src);
  if (y.data == dst.data) return;
  copy_elements(exec, part(y, axis, 0, start), part(dst, axis, 0, start));
  copy_elements(exec, part(y, axis, end, after), part(dst, axis, end, after));
}

}  // namespace

RR_CUDA_KERNEL(kernel, RR_ROW_EXACT, "set", "cuda", "", 0, supports, nullptr, run)
