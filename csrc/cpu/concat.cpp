// concat: each input is copied to its place along the axis.

#include "ops/concat.hpp"

#include "copy.hpp"

namespace {

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor& y = node->outputs[0];
  const int64_t given = attr_int(node, "axis", 0);
  const int64_t axis = given < 0 ? given + y.rank : given;
  int64_t at = 0;
  for (uint32_t i = 0; i < node->n_inputs; ++i) {
    const rr_tensor& x = node->inputs[i];
    rr_tensor place = y;
    place.shape[axis] = x.shape[axis];
    place.data = static_cast<char*>(y.data) + at * y.strides[axis];
    copy_elements(place, x, INT64_MAX, exec);
    at += x.shape[axis];
  }
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "concat", supports, nullptr, elementwise_tasks, run)
