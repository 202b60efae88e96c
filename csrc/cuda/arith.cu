// add, sub, mul, div (b broadcasts to a's shape), and swiglu, geglu: an activation of the gate
// times the other half.
#include "activation.cuh"
#include "elementwise.cuh"

#define RR_BINARY(name, expression)                           \
  namespace {                                                 \
  struct Binary_##name {                                      \
    __device__ float operator()(float a, float b) const {     \
      return expression;                                      \
    }                                                         \
  };                                                          \
  void run_##name(const rr_node* node, const rr_exec* exec) { \
    map_pair(node, exec, Binary_##name{});                    \
  }                                                           \
  }                                                           \
  RR_CUDA_KERNEL(kernel_##name, RR_ROW_EXACT, #name, "cuda", "", 0, all_f32, nullptr, run_##name)

RR_BINARY(add, a + b)
RR_BINARY(sub, a - b)
RR_BINARY(mul, a* b)
RR_BINARY(div, a / b)
RR_BINARY(swiglu, silu(a) * b)
RR_BINARY(geglu, gelu(a) * b)
