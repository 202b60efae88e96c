// cont and cast: copies to row-major order and to other element types.
#include "convert.cuh"
#include "ops/cont.hpp"

namespace {

void run_cont(const rr_node* node, const rr_exec* exec) {
  copy_elements(exec, node->outputs[0], node->inputs[0]);
}

template <uint32_t to, uint32_t of>
struct Cast {
  __device__ typename Element<to>::type operator()(typename Element<of>::type x) const {
    return Element<to>::rounded(Element<of>::wide(x));
  }
};

template <uint32_t to, uint32_t of>
void cast(const rr_exec* exec, const Walk<2>& walk) {
  map<typename Element<to>::type, typename Element<of>::type>(exec, walk, Cast<to, of>{});
}

template <uint32_t to>
void cast_from(const rr_exec* exec, const Walk<2>& walk, uint32_t of) {
  switch (of) {
    case RR_F32:
      return cast<to, RR_F32>(exec, walk);
    case RR_F16:
      return cast<to, RR_F16>(exec, walk);
    case RR_BF16:
      return cast<to, RR_BF16>(exec, walk);
    default:
      return cast<to, RR_I32>(exec, walk);
  }
}

void run_cast(const rr_node* node, const rr_exec* exec) {
  const rr_tensor &x = node->inputs[0], &y = node->outputs[0];
  if (x.dtype == y.dtype) return copy_elements(exec, y, x);
  const Walk<2> walk = make_walk<2>({&y, &x});
  switch (y.dtype) {
    case RR_F32:
      return cast_from<RR_F32>(exec, walk, x.dtype);
    case RR_F16:
      return cast_from<RR_F16>(exec, walk, x.dtype);
    case RR_BF16:
      return cast_from<RR_BF16>(exec, walk, x.dtype);
    default:
      return cast_from<RR_I32>(exec, walk, x.dtype);
  }
}

}  // namespace

RR_CUDA_KERNEL(cont, RR_ROW_EXACT, "cont", "cuda", "", 0, supports_cont, nullptr, run_cont)
RR_CUDA_KERNEL(kernel_cast, RR_ROW_EXACT, "cast", "cuda", "", 0, supports_cast, nullptr, run_cast)
