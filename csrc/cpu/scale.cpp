// scale: y = x * factor + bias, in f64 and rounded once. clamp: x held to a range, NaN stays NaN.

#include "elementwise.hpp"

namespace {

void run_scale(const rr_node* node, const rr_exec* exec) {
  typedef double wide __attribute__((vector_size(8 * kLanes)));
  const double factor = attr_float(node, "factor", 1.0), bias = attr_float(node, "bias", 0.0);
  map_unary(node, exec, [=](vec x) {
    return __builtin_convertvector(__builtin_convertvector(x, wide) * factor + bias, vec);
  });
}

void run_clamp(const rr_node* node, const rr_exec* exec) {
  const vec low = vec_of(static_cast<float>(attr_float(node, "min", -INFINITY)));
  const vec high = vec_of(static_cast<float>(attr_float(node, "max", INFINITY)));
  map_unary(node, exec, [=](vec x) {
    const vec y = x < low ? low : x;
    return y > high ? high : y;
  });
}

}  // namespace

RR_KERNEL(scale, RR_ROW_EXACT, "scale", all_f32, nullptr, elementwise_tasks, run_scale)
RR_KERNEL(clamp, RR_ROW_EXACT, "clamp", all_f32, nullptr, elementwise_tasks, run_clamp)
