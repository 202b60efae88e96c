// set: what lies before and after src comes from dst, and is there already where y is dst's memory.

#include "ops/set.hpp"

#include "copy.hpp"

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
  copy_elements(part(y, axis, start, src.shape[axis]), src, INT64_MAX, exec);
  if (y.data == dst.data) return;
  copy_elements(part(y, axis, 0, start), part(dst, axis, 0, start), INT64_MAX, exec);
  copy_elements(part(y, axis, end, after), part(dst, axis, end, after), INT64_MAX, exec);
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "set", supports, nullptr, elementwise_tasks, run)
