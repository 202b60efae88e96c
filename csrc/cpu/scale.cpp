// scale: y = x * factor + bias, in f64 and rounded once.

#include "elementwise.hpp"

namespace {

void run(const rr_node* node, const rr_exec* exec) {
  typedef float v8 __attribute__((vector_size(32)));
  typedef double d8 __attribute__((vector_size(64)));
  const double factor = attr_float(node, "factor", 1.0), bias = attr_float(node, "bias", 0.0);
  map_unary(node, exec, [=](v16 x) {
    v16 y;
    for (int i = 0; i < 2; ++i) {
      v8 part;
      memcpy(&part, reinterpret_cast<const float*>(&x) + 8 * i, sizeof part);
      const d8 wide = __builtin_convertvector(part, d8) * factor + bias;
      part = __builtin_convertvector(wide, v8);
      memcpy(reinterpret_cast<float*>(&y) + 8 * i, &part, sizeof part);
    }
    return y;
  });
}

}  // namespace

RR_KERNEL(kernel, RR_ROW_EXACT, "scale", all_f32, nullptr, elementwise_tasks, run)
