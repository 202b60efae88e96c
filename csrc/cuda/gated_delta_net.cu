// gated_delta_net, token by token, for every size and kind of decay.
#include "gated_delta_net.cuh"

namespace {

template <bool kByKey>
void launch(const rr_exec* exec, const Task& task) {
  if (task.size <= 32)
    launch_pass<Shape<8, 1, 1>, kByKey>(exec, task);
  else if (task.size <= 64)
    launch_pass<Shape<8, 2, 1>, kByKey>(exec, task);
  else if (task.size <= 128)
    launch_pass_128<kByKey>(exec, task);
  else if (task.size <= 256)
    launch_pass<Shape<16, 4, 1>, kByKey>(exec, task);
  else
    launch_pass<Shape<32, 8, 1>, kByKey>(exec, task);
}

void run(const rr_node* node, const rr_exec* exec) {
  const Task task = read_task(node, exec);
  if (node->inputs[3].rank == 3)
    launch<true>(exec, task);
  else
    launch<false>(exec, task);
}

}  // namespace

RR_CUDA_KERNEL(gated_delta_net, RR_ROW_EXACT, "gated_delta_net", "cuda", "", 0, supports_pass,
               nullptr, run)
