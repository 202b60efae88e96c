// Functions of single elements.

#include "activation.hpp"
#include "elementwise.hpp"

#define RR_UNARY(name, expression)                            \
  namespace {                                                 \
  void run_##name(const rr_node* node, const rr_exec* exec) { \
    map_unary(node, exec, [](v16 x) { return expression; });  \
  }                                                           \
  }                                                           \
  RR_KERNEL(kernel_##name, RR_ROW_EXACT, #name, all_f32, nullptr, elementwise_tasks, run_##name)

RR_UNARY(silu, silu16(x))
RR_UNARY(gelu, gelu16(x))
RR_UNARY(sigmoid, sigmoid16(x))
RR_UNARY(softplus, softplus16(x))
RR_UNARY(tanh, tanh16(x))
RR_UNARY(exp, exp16(x))
RR_UNARY(neg, -x)
RR_UNARY(sqr, x* x)
RR_UNARY(sqrt, sqrt16(x))
RR_UNARY(relu, x < splat(0.0f) ? splat(0.0f) : x)
