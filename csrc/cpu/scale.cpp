// scale: y = x * factor + bias, in f64 and rounded once.

#include "elementwise.hpp"

namespace {

void run(const rr_node* node, const rr_exec* exec) {
  typedef double wide __attribute__((vector_size(8 * kLanes)));
  const double factor = attr_float(node, "factor", 1.0), bias = attr_float(node, "bias", 0.0);
  map_unary(node, exec, [=](vec x) {
    return __builtin_convertvector(__builtin_convertvector(x, wide) * factor + bias, vec);
  });
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "scale", all_f32, nullptr, elementwise_tasks, run)
