// pad: each element of y is of the border, or one of x; one thread an element.
#include "elementwise.cuh"
#include "ops/pad.hpp"

namespace {

struct Border {
  int64_t before[RR_MAX_RANK];
  float value;
};

__global__ void place(View x, View y, int64_t size, Border border) {
  enter_grid();
  int64_t rest = static_cast<int64_t>(blockIdx.x) * kWalkThreads + threadIdx.x;
  if (rest >= size) return;
  const char* from = x.data;
  char* to = y.data;
  bool inside = true;
#pragma unroll  // constant indices keep the arguments out of local memory
  for (int axis = RR_MAX_RANK - 1; axis >= 0; --axis) {
    if (axis >= y.rank) continue;
    const int64_t next = quotient(rest, y.shape[axis]), at = rest - next * y.shape[axis];
    const int64_t i = at - border.before[axis];
    to += at * y.strides[axis];
    from += i * x.strides[axis];
    inside &= i >= 0 && i < x.shape[axis];
    rest = next;
  }
  *reinterpret_cast<float*>(to) = inside ? *reinterpret_cast<const float*>(from) : border.value;
}

void run(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  const int64_t size = numel(y);
  if (size == 0) return;
  Border border = {{}, static_cast<float>(attr_float(node, "value", 0.0))};
  for (int axis = 0; axis < x.rank; ++axis)
    border.before[axis] = find_attr(node, "before")->ints[axis];
  const dim3 grid(static_cast<unsigned>(blocks_for(size, kWalkThreads)));
  RR_LAUNCH(exec, place, grid, kWalkThreads, 0, view(x), view(y), size, border);
}

}  // namespace

RR_CUDA_KERNEL(kernel, RR_ROW_EXACT, "pad", "cuda", "", 0, supports, nullptr, run)
