// swiglu, geglu: an activation of the gate times the other half.

#include "activation.hpp"
#include "elementwise.hpp"

namespace {

void run_swiglu(const rr_node* node, const rr_exec* exec) {
  map_binary(node, exec, [](v16 gate, v16 up) { return silu16(gate) * up; });
}

void run_geglu(const rr_node* node, const rr_exec* exec) {
  map_binary(node, exec, [](v16 gate, v16 up) { return gelu16(gate) * up; });
}

}  // namespace

RR_KERNEL(swiglu, RR_ROW_EXACT, "swiglu", all_f32, nullptr, elementwise_tasks, run_swiglu)
RR_KERNEL(geglu, RR_ROW_EXACT, "geglu", all_f32, nullptr, elementwise_tasks, run_geglu)
