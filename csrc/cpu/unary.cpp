// Functions of single elements.

#include "activation.hpp"
#include "elementwise.hpp"

#define RR_UNARY(name, expression)                            \
  namespace {                                                 \
  void run_##name(const rr_node* node, const rr_exec* exec) { \
    map_unary(node, exec, [](vec x) { return expression; });  \
  }                                                           \
  }                                                           \
  RR_KERNEL(kernel_##name, RR_ROW_EXACT, #name, all_f32, nullptr, elementwise_tasks, run_##name)

RR_UNARY(silu, silu_vec(x))
RR_UNARY(gelu, gelu_vec(x))
RR_UNARY(sigmoid, sigmoid_vec(x))
RR_UNARY(softplus, softplus_vec(x))
RR_UNARY(tanh, tanh_vec(x))
RR_UNARY(exp, exp_vec(x))
RR_UNARY(neg, -x)
RR_UNARY(sqr, x* x)
RR_UNARY(sqrt, sqrt_vec(x))
RR_UNARY(relu, x < 0.0f ? vec{} : x)
