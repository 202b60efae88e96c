// swiglu, geglu: an activation of the gate times the other half.

#include "activation.hpp"
#include "elementwise.hpp"

namespace {

void run_swiglu(const rr_node* node, const rr_exec* exec) {
  map_binary(node, exec, [](vec gate, vec up) { return silu_vec(gate) * up; });
}

void run_geglu(const rr_node* node, const rr_exec* exec) {
  map_binary(node, exec, [](vec gate, vec up) { return gelu_vec(gate) * up; });
}

}  // namespace

RR_KERNEL(swiglu, RR_ROW_EXACT, "swiglu", all_f32, nullptr, activation_tasks, run_swiglu)
RR_KERNEL(geglu, RR_ROW_EXACT, "geglu", all_f32, nullptr, activation_tasks, run_geglu)
