// add, sub, mul, div: b broadcasts to a's shape.

#include "elementwise.hpp"

namespace {

void run_add(const rr_node* node, const rr_exec* exec) {
  map_binary(node, exec, [](vec a, vec b) { return a + b; });
}

void run_sub(const rr_node* node, const rr_exec* exec) {
  map_binary(node, exec, [](vec a, vec b) { return a - b; });
}

void run_mul(const rr_node* node, const rr_exec* exec) {
  map_binary(node, exec, [](vec a, vec b) { return a * b; });
}

void run_div(const rr_node* node, const rr_exec* exec) {
  map_binary(node, exec, [](vec a, vec b) { return a / b; });
}

}  // namespace

RR_KERNEL(add, RR_ROW_EXACT, "add", all_f32, nullptr, elementwise_tasks, run_add)
RR_KERNEL(sub, RR_ROW_EXACT, "sub", all_f32, nullptr, elementwise_tasks, run_sub)
RR_KERNEL(mul, RR_ROW_EXACT, "mul", all_f32, nullptr, elementwise_tasks, run_mul)
RR_KERNEL(kernel_div, RR_ROW_EXACT, "div", all_f32, nullptr, elementwise_tasks, run_div)
