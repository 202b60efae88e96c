// Functions of single elements.
#include "activation.cuh"
#include "elementwise.cuh"

#define RR_UNARY(name, expression)                            \
  namespace {                                                 \
  struct Unary_##name {                                       \
    __device__ float operator()(float x) const {              \
      return expression;                                      \
    }                                                         \
  };                                                          \
  void run_##name(const rr_node* node, const rr_exec* exec) { \
    map_node(node, exec, Unary_##name{});                     \
  }                                                           \
  }                                                           \
  RR_CUDA_KERNEL(kernel_##name, RR_ROW_EXACT, #name, "cuda", "", 0, all_f32, nullptr, run_##name)

RR_UNARY(silu, silu(x))
RR_UNARY(gelu, gelu(x))
RR_UNARY(gelu_erf, gelu_erf(x))
RR_UNARY(sigmoid, sigmoid(x))
RR_UNARY(softplus, softplus(x))
RR_UNARY(tanh, tanhf(x))
RR_UNARY(exp, expf(x))
RR_UNARY(log, logf(x))
RR_UNARY(sin, sinf(x))
RR_UNARY(cos, cosf(x))
RR_UNARY(abs, fabsf(x))
RR_UNARY(neg, -x)
RR_UNARY(sqr, x* x)
RR_UNARY(sqrt, sqrtf(x))
RR_UNARY(relu, x < 0.0f ? 0.0f : x)
