// gated_delta_net, token by token, for every size and kind of decay.
#include "gated_delta_net.cuh"

namespace {

void run(const rr_node* node, const rr_exec* exec) {
  const Task task = read_task(node, exec);
  if (node->inputs[3].rank == 3)
    launch<true, false>(exec, task);
  else
    launch<false, false>(exec, task);
}

}  // namespace

RR_CUDA_KERNEL(gated_delta_net, RR_ROW_EXACT, "gated_delta_net", "cuda", "", 0, supports_pass,
               nullptr, run)
